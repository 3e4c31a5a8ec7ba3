# DSEC_FUZZ instruments everything for libFuzzer, which only clang has, and builds tests/fuzz.
option(DSEC_FUZZ "Build the fuzz targets" OFF)
if(DSEC_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "DSEC_FUZZ needs clang: cmake --preset fuzz")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
