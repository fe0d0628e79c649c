# SPDX-License-Identifier: Apache-2.0
# isobit::cuda: the device kernels, a library of their own, so that isobit itself never needs CUDA.

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 90a-real)
endif()
enable_language(CUDA)
# CMake 3.25 takes C++20 for the default of nvcc 13, which it is not, and would leave the option out.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -std=c++20")
find_package(CUDAToolkit REQUIRED)

add_library(isobit_cuda)
add_library(isobit::cuda ALIAS isobit_cuda)
set_target_properties(isobit_cuda PROPERTIES EXPORT_NAME cuda POSITION_INDEPENDENT_CODE ON)
target_compile_features(isobit_cuda PUBLIC cxx_std_20)
target_include_directories(isobit_cuda PRIVATE src)
target_link_libraries(isobit_cuda PUBLIC isobit CUDA::cudart_static)
# As for the host: no contraction of a*b+c. The header of device functions in CUDA 13 is not clean under -Wpedantic.
target_compile_options(isobit_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr
  -Xcompiler=-Wall,-Wextra,-ffp-contract=off $<$<BOOL:${ISOBIT_WERROR}>:-Werror=all-warnings>>)
target_compile_options(isobit_cuda PRIVATE
  "$<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:isobit_flags,INTERFACE_COMPILE_OPTIONS>>")

# isobit_cuda_sources(FILE...): adds files of the current folder to isobit::cuda, where that is built.
function(isobit_cuda_sources)
  foreach(file ${ARGN})
    target_sources(isobit_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()

# isobit_cuda_program(NAME): in the folder cuda of the build, and with few shared libraries, so that what was built on a
# machine without a device runs on one that has little else.
function(isobit_cuda_program name)
  target_link_libraries(${name} PRIVATE isobit_cuda)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc -Wl,--as-needed)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  add_dependencies(isobit_cuda_programs ${name})
endfunction()
add_custom_target(isobit_cuda_programs)

# isobit_cuda_tool(NAME): a program that needs no device but can use one: it stays where it is, with a copy in the
# folder cuda.
function(isobit_cuda_tool name)
  target_link_libraries(${name} PRIVATE isobit_cuda)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc -Wl,--as-needed)
  add_custom_command(TARGET ${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cuda
    COMMAND ${CMAKE_COMMAND} -E copy_if_different $<TARGET_FILE:${name}> ${PROJECT_BINARY_DIR}/cuda)
  add_dependencies(isobit_cuda_programs ${name})
endfunction()

# isobit_cuda_test(NAME FILE...): a GoogleTest program labelled cuda. Without a device its tests are skipped, or fail where
# ISOBIT_REQUIRE names cuda.
function(isobit_cuda_test name)
  isobit_test(${name} ${ARGN} LABELS cuda)
  if(TARGET ${name})
    isobit_cuda_program(${name})
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "no CUDA device")
  endif()
endfunction()

# isobit_cuda_benchmark(NAME FILE...): a program that needs a device; not a test.
function(isobit_cuda_benchmark name)
  if(ISOBIT_BUILD_BENCHMARKS)
    find_package(CLI11 REQUIRED)
    add_executable(${name} ${ARGN})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PRIVATE CLI11::CLI11 nlohmann_json::nlohmann_json)
    isobit_cuda_program(${name})
  endif()
endfunction()
