# Where the libraries come from that dsec stands on. Every start of a program pays for the shared ones that it is linked
# with, and for all that those need in turn: they are found, mapped and relocated before main (`dsec version`: 8 of 9 ms,
# most of it for libraries that only an import uses). `dsec run` is started thousands of times. So small libraries that
# many commands use are taken from their static archives, and large ones are loaded when they are first called.

# dsec_archives(NAME SHARED LIBRARY...): NAME links the static archives of these libraries where the distribution has all
# of them, else the target SHARED.
function(dsec_archives name shared)
  add_library(${name} INTERFACE)
  get_target_property(includes ${shared} INTERFACE_INCLUDE_DIRECTORIES)
  if(includes)
    target_include_directories(${name} SYSTEM INTERFACE ${includes})
  endif()
  set(archives "")
  foreach(library ${ARGN})
    find_library(DSEC_ARCHIVE_${library} lib${library}.a)
    mark_as_advanced(DSEC_ARCHIVE_${library})
    if(NOT DSEC_ARCHIVE_${library})
      message(STATUS "There is no lib${library}.a: programs that link the shared library start more slowly")
      target_link_libraries(${name} INTERFACE ${shared})
      return()
    endif()
    list(APPEND archives ${DSEC_ARCHIVE_${library}})
  endforeach()
  target_link_libraries(${name} INTERFACE ${archives} Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()

# dsec_delayed(NAME SHARED FILE): who links NAME calls the library FILE, of the target SHARED, as if it were linked, and
# pays for it with the first call. core/base/delayed_library.inc has the machine code; other machines link SHARED.
function(dsec_delayed name shared file)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${shared})
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/generated/delayed/${name}.S)
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/generated/delayed
    COMMAND ${CMAKE_SOURCE_DIR}/scripts/delayed-library ${file} > ${source}
    DEPENDS ${CMAKE_SOURCE_DIR}/scripts/delayed-library ${file}
    VERBATIM COMMENT "Entry points of ${shared}")
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${CMAKE_SOURCE_DIR}/core/base/delayed_library.inc)
  add_library(${name} STATIC ${source})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  get_target_property(includes ${shared} INTERFACE_INCLUDE_DIRECTORIES)
  if(includes)
    target_include_directories(${name} SYSTEM INTERFACE ${includes})
  endif()
  target_link_libraries(${name} INTERFACE dsec_base)
  target_link_options(${name} INTERFACE LINKER:--gc-sections)
endfunction()

enable_language(ASM)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(BZip2 REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(YAMLCPP REQUIRED IMPORTED_TARGET yaml-cpp)
pkg_check_modules(UNPACKERS REQUIRED IMPORTED_TARGET zlib libzstd liblzma liblz4)
pkg_check_modules(LIBARCHIVE REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(LIBGIT2 REQUIRED IMPORTED_TARGET libgit2)
pkg_check_modules(LIBCURL REQUIRED IMPORTED_TARGET libcurl)

dsec_archives(dsec_crypto OpenSSL::Crypto crypto)
# Not OpenSSL::SSL: the shared one brings a second copy of what core/base already has of libcrypto.
dsec_archives(dsec_tls OpenSSL::SSL ssl crypto)
dsec_archives(dsec_sqlite PkgConfig::SQLITE sqlite3)
dsec_archives(dsec_yaml PkgConfig::YAMLCPP yaml-cpp)
dsec_archives(dsec_bzip2 BZip2::BZip2 bz2)
dsec_archives(dsec_unpackers PkgConfig::UNPACKERS z zstd lzma lz4)
find_library(DSEC_LIBARCHIVE libarchive.so REQUIRED)
find_library(DSEC_ARCHIVE_archive libarchive.a REQUIRED)
find_library(DSEC_LIBGIT2 libgit2.so REQUIRED)
find_library(DSEC_LIBCURL libcurl.so REQUIRED)
mark_as_advanced(DSEC_LIBARCHIVE DSEC_ARCHIVE_archive DSEC_LIBGIT2 DSEC_LIBCURL)
dsec_delayed(dsec_libarchive PkgConfig::LIBARCHIVE ${DSEC_LIBARCHIVE})
dsec_delayed(dsec_libgit2 PkgConfig::LIBGIT2 ${DSEC_LIBGIT2})
dsec_delayed(dsec_libcurl PkgConfig::LIBCURL ${DSEC_LIBCURL})

# Headers alone; core/remote/edge/asio.cc compiles what is not a template of both once.
find_package(Boost 1.81 REQUIRED)
add_library(dsec_asio INTERFACE)
target_include_directories(dsec_asio SYSTEM INTERFACE ${Boost_INCLUDE_DIRS})
target_compile_definitions(dsec_asio INTERFACE BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(dsec_asio INTERFACE Threads::Threads)
