# SPDX-License-Identifier: Apache-2.0
# Installs the library with its headers, a CMake package and a pkg-config file. The command-line tool is installed
# where it is built, in tools/isobit.
include(CMakePackageConfigHelpers)

# Before 1.0 a minor version may change the interface, so the minor version is part of the ABI name.
set_target_properties(isobit PROPERTIES VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

install(TARGETS isobit EXPORT isobit
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/isobit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN cuda EXCLUDE)
if(ISOBIT_CUDA)  # an export of its own: find_package(isobit COMPONENTS cuda), so that others need no CUDA toolkit
  install(TARGETS isobit_cuda EXPORT isobit-cuda ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/isobit/cuda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/isobit
    FILES_MATCHING PATTERN "*.h")
endif()

# find_package(isobit CONFIG)
set(isobit_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/isobit)
get_target_property(isobit_library_type isobit TYPE)
if(isobit_library_type STREQUAL "STATIC_LIBRARY")
  set(ISOBIT_FIND_DEPENDENCIES "find_dependency(Threads)\nfind_dependency(libzip)")
else()
  set(ISOBIT_FIND_DEPENDENCIES "")  # a shared library knows its own
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/isobit-config.cmake.in
  ${PROJECT_BINARY_DIR}/isobit-config.cmake INSTALL_DESTINATION ${isobit_cmake_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/isobit-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(EXPORT isobit NAMESPACE isobit:: FILE isobit-targets.cmake DESTINATION ${isobit_cmake_dir})
if(ISOBIT_CUDA)
  install(EXPORT isobit-cuda NAMESPACE isobit:: FILE isobit-cuda-targets.cmake DESTINATION ${isobit_cmake_dir})
endif()
install(FILES ${PROJECT_BINARY_DIR}/isobit-config.cmake ${PROJECT_BINARY_DIR}/isobit-config-version.cmake
  DESTINATION ${isobit_cmake_dir})

# pkg-config isobit. All folders are relative to that of the file, so an installation may be moved.
# A static libisobit needs libzip at every link, while libzip itself is usually shared. So libzip is public then:
# `pkg-config --static` would ask for the libraries that libzip was built with, too.
if(isobit_library_type STREQUAL "STATIC_LIBRARY")
  set(ISOBIT_PC_LIBS "Libs: -L\${libdir} -lisobit -pthread\nRequires: libzip")
else()
  set(ISOBIT_PC_LIBS "Libs: -L\${libdir} -lisobit\nLibs.private: -pthread\nRequires.private: libzip")
endif()
file(RELATIVE_PATH ISOBIT_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" ISOBIT_PC_PREFIX "${ISOBIT_PC_PREFIX}")
file(RELATIVE_PATH ISOBIT_PC_LIBDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH ISOBIT_PC_INCLUDEDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/isobit.pc.in ${PROJECT_BINARY_DIR}/isobit.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/isobit.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
