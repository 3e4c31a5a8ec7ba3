# DSEC_SANITIZE: empty, "address,undefined" or "thread"; set by the presets.
set(DSEC_SANITIZE "" CACHE STRING "Sanitizers to build with")
if(DSEC_SANITIZE)
  add_compile_options(-fsanitize=${DSEC_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DSEC_SANITIZE})
endif()
