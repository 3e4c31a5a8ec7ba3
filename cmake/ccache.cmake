# Repeated builds come from ccache where it is installed.
find_program(DSEC_CCACHE ccache)
if(DSEC_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${DSEC_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DSEC_CCACHE})
endif()
