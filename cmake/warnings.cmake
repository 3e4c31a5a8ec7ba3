# One place for the warnings that every room is built with. While one works on dsec a warning is an error; who installs
# it may have a compiler that warns of more.
# Designated initialisers leave members to their defaults on purpose, which -Wextra takes for an omission.
add_library(dsec_warnings INTERFACE)
target_compile_options(dsec_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Wimplicit-fallthrough
  -Wno-missing-field-initializers $<$<CONFIG:Debug>:-Werror>)
# GCC 12 sees overlapping copies in std::string's operator+ when it optimises (its bug 105651).
target_compile_options(dsec_warnings INTERFACE $<$<AND:$<CXX_COMPILER_ID:GNU>,$<NOT:$<CONFIG:Debug>>>:-Wno-restrict>)
