# SPDX-License-Identifier: Apache-2.0
# Installs both libraries with their headers, a CMake package and pkg-config files: isobit::isobit and isobit.pc are the
# C++ library, isobit::c and isobit-c.pc the C interface. The command-line tool is installed where it is built, in
# tools/isobit.
include(CMakePackageConfigHelpers)

install(TARGETS isobit isobit_c EXPORT isobit
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/isobit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN cuda EXCLUDE)
if(ISOBIT_CUDA)  # an export of its own: find_package(isobit COMPONENTS cuda), so that others need no CUDA toolkit
  install(TARGETS isobit_cuda EXPORT isobit-cuda ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS isobit_cuda_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})  # loaded, never linked
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/isobit/cuda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/isobit
    FILES_MATCHING PATTERN "*.h")
endif()

# find_package(isobit CONFIG)
set(isobit_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/isobit)
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

# pkg-config. All folders are relative to that of the file, so an installation may be moved.
file(RELATIVE_PATH ISOBIT_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" ISOBIT_PC_PREFIX "${ISOBIT_PC_PREFIX}")
file(RELATIVE_PATH ISOBIT_PC_LIBDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH ISOBIT_PC_INCLUDEDIR ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
foreach(name isobit isobit-c)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
