# SPDX-License-Identifier: Apache-2.0
# isobit::cuda: the device kernels, a library of their own, so that isobit itself never needs CUDA.

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 90a-real)
endif()
# 9.0 and 9.0a are the same devices: files with code for 9.0a are compiled for that, the others for 9.0, none for both.
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90(-|$)" "90a\\1" OUTPUT_VARIABLE isobit_architectures_90a)
list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "^90a" "90")
list(REMOVE_DUPLICATES CMAKE_CUDA_ARCHITECTURES)
list(REMOVE_DUPLICATES isobit_architectures_90a)
set(isobit_only_90a ${isobit_architectures_90a})
list(FILTER isobit_only_90a INCLUDE REGEX "^90a")
if(NOT isobit_only_90a)
  set(isobit_only_90a ${isobit_architectures_90a})
endif()
enable_language(CUDA)
# CMake 3.25 takes C++20 for the default of nvcc 13, which it is not, and would leave the option out.
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} -std=c++20")
find_package(CUDAToolkit REQUIRED)

function(isobit_cuda_library name)
  add_library(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PRIVATE src)
  target_link_libraries(${name} PUBLIC isobit CUDA::cudart_static)
  # As for the host: no contraction of a*b+c. The header of device functions in CUDA 13 is not clean under -Wpedantic.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-ffp-contract=off $<$<BOOL:${ISOBIT_WERROR}>:-Werror=all-warnings>>)
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:isobit_flags,INTERFACE_COMPILE_OPTIONS>>")
endfunction()
isobit_cuda_library(isobit_cuda)
add_library(isobit::cuda ALIAS isobit_cuda)
set_target_properties(isobit_cuda PROPERTIES EXPORT_NAME cuda)
isobit_cuda_library(isobit_cuda_also_90a OBJECT)
set_target_properties(isobit_cuda_also_90a PROPERTIES CUDA_ARCHITECTURES "${isobit_architectures_90a}")
isobit_cuda_library(isobit_cuda_only_90a OBJECT)
set_target_properties(isobit_cuda_only_90a PROPERTIES CUDA_ARCHITECTURES "${isobit_only_90a}")
target_sources(isobit_cuda PRIVATE $<TARGET_OBJECTS:isobit_cuda_also_90a> $<TARGET_OBJECTS:isobit_cuda_only_90a>)

# isobit_cuda_sources([ALSO_90A | ONLY_90A] FILE...): adds files of the current folder to isobit::cuda, where that is
# built. ALSO_90A: which have code for 9.0a, and other code for other devices. ONLY_90A: nothing for other devices.
function(isobit_cuda_sources)
  cmake_parse_arguments(PARSE_ARGV 0 arg "ALSO_90A;ONLY_90A" "" "")
  set(library isobit_cuda)
  if(arg_ALSO_90A)
    set(library isobit_cuda_also_90a)
  elseif(arg_ONLY_90A)
    set(library isobit_cuda_only_90a)
  endif()
  foreach(file ${arg_UNPARSED_ARGUMENTS})
    target_sources(${library} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
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

# isobit_cuda_test(NAME FILE... [HOST SUITE...]): a GoogleTest program labelled cuda. Without a device its tests are
# skipped, or fail where ISOBIT_REQUIRE names cuda. SUITE: its tests that need no device, once more by themselves, as
# CTest takes a program that skips one test for skipped, whatever the others say.
function(isobit_cuda_test name)
  cmake_parse_arguments(arg "" "" "HOST" ${ARGN})
  isobit_test(${name} ${arg_UNPARSED_ARGUMENTS} LABELS cuda)
  if(TARGET ${name})
    isobit_cuda_program(${name})
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "no CUDA device")
    if(arg_HOST)
      list(TRANSFORM arg_HOST APPEND ".*")
      list(JOIN arg_HOST ":" filter)
      add_test(NAME ${name}_host COMMAND ${name} --gtest_filter=${filter})
    endif()
  endif()
endfunction()

# isobit_cuda_benchmark(NAME FILE...): a program that needs a device; not a test.
function(isobit_cuda_benchmark name)
  if(ISOBIT_BUILD_BENCHMARKS)
    find_package(CLI11 REQUIRED)
    add_executable(${name} ${ARGN})
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    # What they time is on the device: the rest takes longer to compile than to run.
    target_compile_options(${name} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
    target_link_libraries(${name} PRIVATE CLI11::CLI11 nlohmann_json::nlohmann_json)
    isobit_cuda_program(${name})
  endif()
endfunction()
