# SPDX-License-Identifier: Apache-2.0
# Included before the first install(): what is installed has been built, or nothing is written.
set(isobit_installed isobit isobit_c)
if(ISOBIT_BUILD_TOOLS)
  list(APPEND isobit_installed isobit_cli)
endif()
if(ISOBIT_CUDA)
  list(APPEND isobit_installed isobit_cuda isobit_cuda_shared)
endif()
list(TRANSFORM isobit_installed REPLACE "(.+)" "\"$<TARGET_FILE:\\1>\"" OUTPUT_VARIABLE isobit_installed_files)
list(JOIN isobit_installed_files " " isobit_installed_files)
list(JOIN isobit_installed " " isobit_installed)
install(CODE "
foreach(file IN ITEMS ${isobit_installed_files})
  if(NOT EXISTS \"\${file}\")
    message(FATAL_ERROR
      \"\${file} is not built, so nothing is installed. First:\\n  cmake --build ${CMAKE_BINARY_DIR} --target ${isobit_installed}\")
  endif()
endforeach()")
