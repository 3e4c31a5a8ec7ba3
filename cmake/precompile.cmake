# Parsing the headers of the standard library is most of what many source files cost, so they are parsed once for all rooms
# and once, with Catch's, for all test programs. Files include what they use all the same: other presets build without this.
# nlohmann-json is not among them: each file would instantiate again what the header left open.
option(DSEC_PRECOMPILE "Precompile the headers that most files include" OFF)

# Rooms are compiled as position independent code, programs as a position independent executable: one target for each.
function(dsec_precompile_for owner)
  target_link_libraries(${owner} PRIVATE dsec_warnings)
  target_precompile_headers(${owner} PRIVATE
    <algorithm> <chrono> <cstdint> <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span> <string>
    <string_view> <thread> <utility> <vector> ${ARGN})
endfunction()

if(DSEC_PRECOMPILE)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/generated/precompile.cc CONTENT "int main() { return 0; }\n")
  add_library(dsec_precompiled OBJECT ${CMAKE_BINARY_DIR}/generated/precompile.cc)
  dsec_precompile_for(dsec_precompiled)
endif()

function(dsec_precompile target owner)
  if(DSEC_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()
