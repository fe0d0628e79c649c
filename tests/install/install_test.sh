#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_test.sh CMAKE CC CXX SOURCE BUILD VERSION: installs BUILD, moves the installation elsewhere, and builds and
# runs tests/install/consumer against it, in C++ and in C, with find_package and with pkg-config. Everything lies in
# BUILD/install_test, which is made anew. scripts/test.sh --matrix builds the consumer with add_subdirectory, too.
set -euo pipefail
cmake=$1 cc=$2 cxx=$3 source=$4 build=$5 version=$6
work=$build/install_test
consumer=$source/tests/install/consumer

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

# logged FILE COMMAND...: its output is only of interest when it fails.
logged() {
  local log=$work/$1
  shift
  "$@" >"$log" 2>&1 || { cat "$log"; fail "$*"; }
}

# run_consumer PROGRAM EXPECTED HOW
run_consumer() {
  local printed
  printed=$(LD_LIBRARY_PATH=$libdir "$1" "$work") || fail "$3: ${1##*/} exits with $?"
  [[ $printed == "$2" ]] || fail "$3: ${1##*/} prints '$printed', not $2"
  echo "$3: ok"
}

rm -rf "$work"
mkdir -p "$work"
# A build without what is installed is refused before anything is written.
logged unbuilt.log "$cmake" -G Ninja -S "$source" -B "$work/unbuilt" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" -DISOBIT_BUILD_TESTS=OFF -DISOBIT_BUILD_BENCHMARKS=OFF
! "$cmake" --install "$work/unbuilt" --prefix "$work/half" >"$work/half.log" 2>&1 ||
  fail "a build without its libraries is installed"
grep -q "cmake --build $work/unbuilt --target isobit isobit_c isobit_cli" "$work/half.log" ||
  { cat "$work/half.log"; fail "the refusal does not say what to build"; }
[[ ! -e $work/half ]] || fail "half an installation is left: $(find "$work/half")"
echo "nothing built, nothing installed: ok"

logged install.log "$cmake" --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved"  # nothing may remember where it was
prefix=$work/moved
config=$(find "$prefix" -name isobit-config.cmake)
[[ -n $config ]] || fail "no isobit-config.cmake is installed"
libdir=${config%/cmake/isobit/isobit-config.cmake}

! grep -rIlF -e "$work/first" -e "$source" "$prefix" || fail "the files above hold paths of this machine"
! grep -nE 'isobit_(flags|isa|testing)|Boost|nlohmann' "${config%/*}"/*.cmake || fail "the CMake package leaks internals"
# Names of the shared library: a link for the linker to the one that programs load.
soname=$(readlink "$libdir/libisobit.so")
[[ $soname == "libisobit.so.${version%.*}" && -e $libdir/$soname ]] || fail "libisobit.so leads to '$soname'"
[[ $("$prefix/bin/isobit" --version) == "isobit $version" ]] || fail "bin/isobit --version is not $version"

# Every public header on its own, and none that is not installed.
headers=("$source"/include/isobit/*.h) cuda_include=
if [[ -f ${config%/*}/isobit-cuda-targets.cmake ]]; then
  headers+=("$source"/include/isobit/cuda/*.h)
  cuda_include=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")/include
fi
for header in "${headers[@]#"$source"/include/}"; do
  printf '#include "%s"\n#include "%s"\n' "$header" "$header" >"$work/${header//\//_}.cc"
done
printf '%s\0' "$work"/isobit_*.cc | xargs -0 -n 1 -P 2 "$cxx" -std=c++20 -Wall -Wextra -Werror -fsyntax-only \
  -I"$prefix/include" ${cuda_include:+-isystem "$cuda_include"} || fail "a header alone"
[[ ${#headers[@]} == "$(find "$prefix/include" -type f | wc -l)" ]] ||
  fail "other files than the public headers are installed"
echo "${#headers[@]} headers: ok"

logged package.log "$cmake" -G Ninja -S "$consumer" -B "$work/package" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$prefix" -DISOBIT_VERSION="$version"
grep -q "^isobit_DIR:PATH=$prefix" "$work/package/CMakeCache.txt" || fail "find_package found another isobit"
logged package_build.log "$cmake" --build "$work/package"
run_consumer "$work/package/consumer" 128 find_package
run_consumer "$work/package/c_consumer" 3 "find_package, C"
if [[ -n $cuda_include ]]; then
  "$work/package/cuda_consumer" >/dev/null || fail "isobit::cuda: the consumer exits with $?"
  echo "isobit::cuda: ok"
fi

if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$libdir/pkgconfig
  [[ $(pkg-config --modversion isobit) == "$version" ]] || fail "pkg-config: version"
  read -ra flags < <(pkg-config --cflags --libs isobit)
  "$cxx" -std=c++20 "$consumer/consumer.cc" -o "$work/by_pkg_config" "${flags[@]}" || fail "pkg-config: ${flags[*]}"
  run_consumer "$work/by_pkg_config" 128 pkg-config
  [[ $(pkg-config --modversion isobit-c) == "$version" ]] || fail "pkg-config: version of isobit-c"
  read -ra flags < <(pkg-config --cflags --libs isobit-c)
  "$cc" -std=c99 -Wall -Werror -pedantic "$consumer/c_consumer.c" -o "$work/c_by_pkg_config" "${flags[@]}" ||
    fail "pkg-config, C: ${flags[*]}"
  run_consumer "$work/c_by_pkg_config" 3 "pkg-config, C"
else
  echo "pkg-config: SKIPPED, it is not on PATH"
fi
