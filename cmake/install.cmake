# `cmake --install`: programs, what they start (libexec/dsec), man pages where pandoc is installed, completions.
include(GNUInstallDirs)
install(TARGETS dsec RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET dsec-init)
  install(TARGETS dsec-init dsec-guest dsec-egress dsec-loader dsec-disk RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/dsec)
endif()

# In the build tree these are links to tools that ./dev has found or built; an installation keeps its own copies.
install(CODE [[
  file(GLOB tools "${CMAKE_CURRENT_LIST_DIR}/libexec/dsec/*.erofs")
  foreach(tool ${tools})
    file(REAL_PATH "${tool}" program)
    file(INSTALL "${program}" DESTINATION "${CMAKE_INSTALL_PREFIX}/libexec/dsec" USE_SOURCE_PERMISSIONS)
  endforeach()
]])

find_program(DSEC_PANDOC pandoc)
if(DSEC_PANDOC)
  file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/man/*.md)
  foreach(page ${pages})
    get_filename_component(name ${page} NAME_WLE)
    string(REGEX REPLACE ".*\\." "" section ${name})
    set(output ${CMAKE_BINARY_DIR}/man/man${section}/${name})
    add_custom_command(OUTPUT ${output} DEPENDS ${page} VERBATIM
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/man/man${section}
      COMMAND ${DSEC_PANDOC} --standalone --from markdown-tex_math_dollars --to man -o ${output} ${page})
    list(APPEND outputs ${output})
  endforeach()
  add_custom_target(man DEPENDS ${outputs})
  install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" --build \"${CMAKE_BINARY_DIR}\" --target man COMMAND_ERROR_IS_FATAL ANY)")
  install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
else()
  install(CODE "message(STATUS \"pandoc is not installed, so no man pages are\")")
endif()

foreach(completion
    "bash;share/bash-completion/completions/dsec" "zsh;share/zsh/site-functions/_dsec" "fish;share/fish/vendor_completions.d/dsec.fish")
  list(GET completion 0 shell)
  list(GET completion 1 path)
  install(CODE "
    get_filename_component(folder \"\${CMAKE_INSTALL_PREFIX}/${path}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:dsec>\" completion ${shell} OUTPUT_FILE \"\${CMAKE_INSTALL_PREFIX}/${path}\" COMMAND_ERROR_IS_FATAL ANY)")
endforeach()
