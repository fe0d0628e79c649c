# SPDX-License-Identifier: Apache-2.0
# Flags that every isobit target shares, and the functions that add sources, instruction sets, tests, benchmarks
# and fuzz targets.

add_library(isobit_flags INTERFACE)
# No option may change a bit: no contraction of a*b+c, never fast-math.
target_compile_options(isobit_flags INTERFACE -ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion
  -Wno-sign-conversion -fvisibility-inlines-hidden $<$<BOOL:${ISOBIT_WERROR}>:-Werror>)
# False alarms of g++ 12 at -O3: "literal" + std::string overlaps nothing.
target_compile_options(isobit_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(NOT ISOBIT_X86_KERNELS)
  target_compile_definitions(isobit_flags INTERFACE ISOBIT_NO_X86_KERNELS)
endif()
if(ISOBIT_SANITIZE)
  target_compile_options(isobit_flags INTERFACE -fsanitize=${ISOBIT_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(isobit_flags INTERFACE -fsanitize=${ISOBIT_SANITIZE})
  # Instrumented tests and tools take longer to compile than to run, most of which is in the library.
  target_compile_options(isobit_flags INTERFACE
    $<$<AND:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>,$<NOT:$<BOOL:$<TARGET_PROPERTY:ISOBIT_COMPUTES>>>>:-O0>)
endif()

if(ISOBIT_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang OR NOT ISOBIT_SANITIZE MATCHES address)
    message(FATAL_ERROR "ISOBIT_BUILD_FUZZERS needs clang++ (libFuzzer) and ISOBIT_SANITIZE=address,undefined; they "
      "are ${CMAKE_CXX_COMPILER_ID} and '${ISOBIT_SANITIZE}'")
  endif()
  # Coverage of the library is what leads libFuzzer; without it the fuzz targets would only see themselves. Programs
  # that are no fuzz targets take its hooks from the address sanitizer's library.
  set(ISOBIT_COVERAGE -fsanitize=fuzzer-no-link)
endif()

# isobit_sources([COMPUTES] FILE...): adds files of the current folder to the library. COMPUTES: they take their time
# themselves. Others take longer to compile with sanitizers than to run, so they are not optimised there.
function(isobit_sources)
  cmake_parse_arguments(arg "COMPUTES" "" "" ${ARGN})
  foreach(file ${arg_UNPARSED_ARGUMENTS})
    target_sources(isobit PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    if(ISOBIT_SANITIZE AND NOT arg_COMPUTES)
      set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/${file} TARGET_DIRECTORY isobit APPEND PROPERTY COMPILE_OPTIONS -O0)
    endif()
  endforeach()
endfunction()

# isobit_arithmetic_sources(FILE...): the same, without coverage for libFuzzer, which would cost most of the time of a
# build with sanitizers: for loops over numbers that a caller has checked.
function(isobit_arithmetic_sources)
  isobit_sources(COMPUTES ${ARGN})
  if(ISOBIT_BUILD_FUZZERS)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY isobit APPEND PROPERTY COMPILE_OPTIONS
      -fno-sanitize=fuzzer-no-link)
  endif()
endfunction()

# isobit_page_test(PAGE FILE NAME SOURCE): a test whose SOURCE includes FILE, the C++ of a page of documentation.
function(isobit_page_test page file name source)
  if(NOT ISOBIT_BUILD_TESTS)
    return()
  endif()
  set(page ${PROJECT_SOURCE_DIR}/${page})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page})
  file(READ ${page} text)
  string(REGEX MATCHALL "```cpp\n[^`]*```" blocks "${text}")
  if(NOT blocks)
    message(FATAL_ERROR "${page} has no C++")
  endif()
  string(REPLACE "```;```cpp\n" "\n" code "${blocks}")
  string(REGEX REPLACE "```(cpp\n)?" "" code "${code}")
  file(CONFIGURE OUTPUT ${file} CONTENT "${code}" @ONLY)
  isobit_test(${name} ${source})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

# isobit_isa_source(FILE FLAG...): adds a file that is compiled for an instruction set, on x86-64 only, and a test that
# its object defines no symbol that the linker could choose for baseline code.
function(isobit_isa_source file)
  if(ISOBIT_X86_KERNELS AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_SOURCE_DIR})
    string(REPLACE "/" "_" folder ${folder})
    set(target isobit_isa_${folder}_${file})
    add_library(${target} OBJECT ${file})
    target_compile_features(${target} PRIVATE cxx_std_20)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
    target_link_libraries(${target} PRIVATE isobit_flags)
    target_compile_options(${target} PRIVATE ${ARGN})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_sources(isobit PRIVATE $<TARGET_OBJECTS:${target}>)
    if(ISOBIT_BUILD_TESTS AND CMAKE_NM)
      add_test(NAME weak_symbols_${folder}_${file}
        COMMAND sh ${PROJECT_SOURCE_DIR}/tests/no_weak_symbols.sh ${CMAKE_NM} $<TARGET_OBJECTS:${target}>)
      isobit_test_labels(weak_symbols_${folder}_${file} fast)
    endif()
  endif()
endfunction()

# isobit_test_labels(NAME LABEL...): `fast` is under two seconds, ten times that on a busy machine; a test that takes
# longer fails. Sanitizers take longer. `slow` tests start first, so that none runs alone at the end.
function(isobit_test_labels name)
  set(timeout 600)
  set(cost 0)
  if("fast" IN_LIST ARGN AND NOT ISOBIT_SANITIZE)
    set(timeout 20)
  elseif("slow" IN_LIST ARGN)
    set(cost 10)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARGN}" TIMEOUT ${timeout} COST ${cost})
endfunction()

# isobit_precompile(NAME): the first test precompiles headers. Others, which have the same options, take them from it.
function(isobit_precompile name)
  if(NOT ISOBIT_PRECOMPILED_HEADERS)
    return()
  endif()
  get_property(first GLOBAL PROPERTY ISOBIT_PRECOMPILED)
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map>
      <memory> <optional> <random> <set> <span> <string> <string_view> <utility> <vector> <gtest/gtest.h>
      <nlohmann/json.hpp>)
    # The same bytes every time, for ccache.
    target_compile_options(${name} PRIVATE "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
    set_property(GLOBAL PROPERTY ISOBIT_PRECOMPILED ${name})
  endif()
endfunction()

# isobit_test(NAME FILE... [COMPUTES] [FILES] [LABELS LABEL...]): a GoogleTest program that may include internal headers.
# COMPUTES: it takes its time itself, not the library. FILES: it tests readers, writers and texts; not built where
# ISOBIT_BUILD_FILE_TESTS is off. Labels: default fast; `threads`: also under the thread sanitizer.
function(isobit_test name)
  cmake_parse_arguments(arg "COMPUTES;FILES" "" "LABELS" ${ARGN})
  if(NOT ISOBIT_BUILD_TESTS OR (arg_FILES AND NOT ISOBIT_BUILD_FILE_TESTS))
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(${name} PROPERTIES ISOBIT_COMPUTES ${arg_COMPUTES})
  if(NOT arg_COMPUTES)  # takes longer to compile than to run
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    isobit_precompile(${name})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE ISOBIT_TESTDATA="${PROJECT_SOURCE_DIR}/testdata"
    ISOBIT_BUILT_VECTORS="${PROJECT_SOURCE_DIR}/build/oracle")
  target_link_libraries(${name} PRIVATE isobit isobit_testing isobit_flags GTest::gtest GTest::gtest_main
    nlohmann_json::nlohmann_json)
  if(NOT arg_LABELS)
    set(arg_LABELS fast)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  isobit_test_labels(${name} ${arg_LABELS})
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(isobit_threads_tests ${name})
  endif()
endfunction()
add_custom_target(isobit_threads_tests)

# isobit_benchmark(NAME FILE... [FILTER REGEX]): a Google Benchmark program. So that it cannot rot, CTest runs the cases
# that match (default: all) for a moment.
function(isobit_benchmark name)
  cmake_parse_arguments(arg "" "FILTER" "" ${ARGN})
  if(NOT ISOBIT_BUILD_BENCHMARKS)
    return()
  endif()
  if(NOT arg_FILTER)
    set(arg_FILTER .)
  endif()
  find_package(benchmark REQUIRED)
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE isobit isobit_testing isobit_ceilings isobit_flags benchmark::benchmark
    nlohmann_json::nlohmann_json)
  add_test(NAME ${name} COMMAND ${name} --benchmark_min_time=0.001 --benchmark_filter=${arg_FILTER})
  # Google Benchmark exits with 0 when a case reports an error, or when the filter matches none.
  set_tests_properties(${name} PROPERTIES LABELS slow TIMEOUT 300
    FAIL_REGULAR_EXPRESSION "ERROR OCCURRED;Failed to match any benchmarks")
endfunction()

# isobit_fuzzer(NAME FILE [OPTIONS OPTION...]): a libFuzzer target, and a short run of it as a test. Targets make
# their own seeds, so there is no corpus.
function(isobit_fuzzer name file)
  cmake_parse_arguments(arg "" "" "OPTIONS" ${ARGN})
  if(NOT ISOBIT_BUILD_FUZZERS)
    return()
  endif()
  add_executable(${name} ${file})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE isobit isobit_flags nlohmann_json::nlohmann_json)
  add_test(NAME ${name} COMMAND ${name} -runs=20000 -max_total_time=5 -rss_limit_mb=2048 -seed=1 ${arg_OPTIONS})
  set_tests_properties(${name} PROPERTIES LABELS slow TIMEOUT 120)
endfunction()
