# One place for the warnings that every room is built with; a warning is an error.
# Designated initialisers leave members to their defaults on purpose, which -Wextra takes for an omission.
add_library(dsec_warnings INTERFACE)
target_compile_options(dsec_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Wimplicit-fallthrough
  -Wno-missing-field-initializers -Werror)
