# SPDX-License-Identifier: Apache-2.0
# Toolchain file: aarch64 with Debian's cross compiler. ISOBIT_AARCH64_ROOT: a folder with the arm64 packages of the
# libraries that are linked (scripts/test.sh makes it).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ISOBIT_AARCH64_ROOT)
set(libzip_DIR ${ISOBIT_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu/cmake/libzip)
# Libraries that libzip needs are found in its folder by the linker, and in the root by the emulator.
add_link_options(-Wl,-rpath-link,${ISOBIT_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu:${ISOBIT_AARCH64_ROOT}/lib/aarch64-linux-gnu)
