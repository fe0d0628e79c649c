#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2317  # functions that `check` calls look unreachable
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/test.sh [--quick | --matrix | --cuda | --cuda-built] [--help]

Installs the Debian packages that are missing (root only where some are), builds and tests. Runs from any folder.

  (no option)  what CI runs: the oracle and testdata/; g++ release and clang++ asan, built and tested, asan without
               programs that others cover (the command's tests, benchmarks, CUDA), release without the tests of
               readers, writers and texts; the same fingerprint from both, from
               every instruction set and on an emulated processor without AVX; every kernel verified; two built-in FP16
               tables fitted again; GGUF files against the gguf package, which pip puts into build/test/venv; the Rust
               crates; the Python package, built once and tested; clang-tidy on the C++ files that changed
  --matrix     the same with every compiler (g++, clang++) and preset (dev, release, asan); isobit::cuda for every
               architecture; the thread pool under the thread sanitizer; a project that takes isobit with
               add_subdirectory, without the kernels for x86-64; an emulated aarch64; the Python package on every
               Python that is installed, with PyTorch (several gigabytes, into build/test/torch), and with ONNX Runtime;
               scripts/denoiser.sh; scripts/tiny_networks.sh; exported C of 2,000 random models, of 200 on each emulated
               Cortex-M and on aarch64; scripts/microcontrollers.sh
  --quick      the dev preset with g++, tests labelled fast
  --cuda       builds the programs of isobit::cuda (where nvcc is on PATH; for the architecture of the device, without
               one for all, or for those that CUDAARCHS names), then does what --cuda-built does. Without a device it
               says so and what to copy where; this is no failure unless ISOBIT_REQUIRE names cuda
  --cuda-built builds nothing: runs the tests in build/cuda/cuda, none of them may be skipped, and each once more under
               compute-sanitizer (memcheck, racecheck, synccheck, initcheck); then isobit and g2p, whose bytes must be
               the CPU's. Needs a CUDA device, compute-sanitizer and python3 only

Where nvcc is on PATH, the release build of g++ includes isobit::cuda, for compute capability 9.0a only but in --matrix.
Without a device it stops at PTX and its tests are skipped.

ISOBIT_REQUIRE  comma-separated: what must not be skipped (avx2, avxvnni, avx512vnni, amx, nvcc). Default: every
                instruction set of this processor, and nvcc when it is on PATH.

The last line is 'N passed, N failed'. Exit code 0: all passed. 1: something failed. 2: bad usage, or a package is
missing and only root can install it.
TEXT
}

job=ci
for argument in "$@"; do
  case $argument in
    --quick) job=quick ;;
    --matrix) job=matrix ;;
    --cuda) job=cuda ;;
    --cuda-built) job=cuda_built ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown argument '$argument'" ;;
  esac
done

passed=0 failed=0 skipped=0
failures=()

count_failure() {
  failed=$((failed + 1))
  failures+=("$1")
  printf 'FAILED: %s\n' "$1"
}

# check NAME COMMAND...: one check, whatever the command prints.
check() {
  local name=$1 start=$SECONDS
  shift
  heading "$name"
  if "$@"; then
    passed=$((passed + 1))
  else
    count_failure "$name"
  fi
  printf '   %s: %d s\n' "$name" $((SECONDS - start))
}

finish() {
  heading "result after $SECONDS s"
  ((${#failures[@]} == 0)) || printf 'failed: %s\n' "${failures[@]}"
  local line="$passed passed, $failed failed"
  ((skipped == 0)) || line+=", $skipped skipped"
  printf '%s\n' "$line"
  exit $((failed > 0))
}

folder_of() {  # COMPILER PRESET: the presets' own folder for the usual pairs
  case $1-$2 in
    g++-dev | g++-release | clang++-asan) echo "build/$2" ;;
    g++-*) echo "build/gcc-$2" ;;
    *) echo "build/clang-$2" ;;
  esac
}

# build COMPILER PRESET: without a build there is nothing more to test, so a failure ends the run.
build() {
  local compiler=$1 preset=$2 folder start=$SECONDS options=()
  folder=$(folder_of "$compiler" "$preset")
  heading "$compiler $preset: build in $folder"
  [[ $compiler != g++ ]] || options+=(-DISOBIT_BUILD_FUZZERS=OFF)
  [[ $preset != asan ]] || options+=(-DISOBIT_BUILD_BENCHMARKS=OFF)
  if [[ $compiler-$preset == g++-release ]] && command -v nvcc >/dev/null; then
    options+=(-DISOBIT_CUDA=ON)
    if [[ $job != matrix ]] && has_cuda_device; then
      options+=(-DCMAKE_CUDA_ARCHITECTURES=90a-real)
    elif [[ $job != matrix ]]; then  # kernels that nothing here can run need no machine code
      options+=(-DCMAKE_CUDA_ARCHITECTURES=90a-virtual)
      ! grep -q -e --Ofast-compile <<<"$(nvcc --help)" || options+=(-DCMAKE_CUDA_FLAGS=--Ofast-compile=max)
    fi
  fi
  # The sanitizers' build has them.
  [[ $job != ci || $preset != release ]] || options+=(-DISOBIT_BUILD_FILE_TESTS=OFF)
  # Precompiled headers save time with clang++ only. The builds without them find what they may hide: a test's missing
  # #include. GNU ld takes several times as long as lld for programs with sanitizers.
  [[ $compiler-$preset != clang++-asan ]] ||
    options+=(-DISOBIT_PRECOMPILED_HEADERS=ON -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld)
  ! command -v ccache >/dev/null || options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_SLOPPINESS=pch_defines,time_macros  # without these ccache keeps nothing that has precompiled headers
  if ! { cmake --preset "$preset" -B "$folder" -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "${options[@]}" && cmake --build "$folder" --parallel "$(nproc)"; }; then
    count_failure "$compiler $preset: build"
    finish
  fi
  passed=$((passed + 1))
  printf '   %s %s: built in %d s\n' "$compiler" "$preset" $((SECONDS - start))
}

# run_tests COMPILER PRESET [CTEST-OPTION...]: adds CTest's own counts.
run_tests() {
  local compiler=$1 preset=$2 folder start=$SECONDS report code=0 tests failures_here skipped_here
  folder=$(folder_of "$compiler" "$preset")
  shift 2
  heading "$compiler $preset: tests"
  report=$PWD/$folder/ctest.xml
  rm -f "$report"
  ctest --test-dir "$folder" --output-on-failure --no-tests=error --parallel "$(nproc)" \
    --output-junit "$report" "$@" || code=$?
  if [[ ! -f $report ]]; then
    count_failure "$compiler $preset: ctest (exit code $code)"
    return
  fi
  read -r tests failures_here skipped_here < <(python3 - "$report" <<'PYTHON'
import sys
import xml.etree.ElementTree as tree
cases = tree.parse(sys.argv[1]).findall("testcase")
skips = [c.find("skipped").get("message", "") for c in cases if c.get("status") == "notrun"]
skipped = sum(message.startswith("SKIP_") for message in skips) + sum(c.get("status") == "disabled" for c in cases)
passed = sum(c.get("status") == "run" for c in cases)
print(len(cases), len(cases) - passed - skipped, skipped)
PYTHON
  )
  passed=$((passed + tests - failures_here - skipped_here))
  failed=$((failed + failures_here))
  skipped=$((skipped + skipped_here))
  if ((failures_here > 0)); then
    failures+=("$compiler $preset: $failures_here of $tests tests")
  elif ((code != 0)); then
    count_failure "$compiler $preset: ctest (exit code $code)"
  fi
  printf '   %s %s: %d tests in %d s\n' "$compiler" "$preset" "$tests" $((SECONDS - start))
}

# Debian's own Python, for which python3-mpmath is, even where another one comes first on PATH.
oracle_python() { if [[ -x /usr/bin/python3 ]]; then echo /usr/bin/python3; else echo python3; fi; }

# rust FOLDER: the crates on the library that was built there; with Debian's own Rust, even where another comes first: that
# of Debian 12 is the oldest that the crates promise to compile with.
rust() {
  local cargo=/usr/bin/cargo version
  [[ -x $cargo ]] || cargo=$(command -v cargo) || return 1
  version=$("${cargo%/*}/rustc" --version) || return 1
  echo "$version"
  if [[ $cargo == /usr/bin/cargo && $(cat /etc/debian_version 2>/dev/null) == 12.* && $version != "rustc 1.63."* ]]; then
    echo "Debian 12 has $version, must be 1.63, the oldest that rust-version in rust/*/Cargo.toml promises"
    return 1
  fi
  python3 tests/rust_test.py "$cargo" "$1/isobit" "$1/src/c" "$1/examples/c/g2p_c" build/rust
}

# python_tests VENV PROGRAM: the wheel in that environment, beside the command-line tool.
python_tests() {
  "$1/bin/pip" install --quiet --disable-pip-version-check --force-reinstall build/wheel/dist/isobit-*.whl &&
    ISOBIT_COMMAND=$PWD/$2 "$1/bin/python" -m pytest -q -p no:cacheprovider python/tests
}

# python_sanitized FOLDER PROGRAM: the package on a library that clang++ built there with sanitizers, whose runtime comes
# first; beside a command-line tool without them.
python_sanitized() {
  local prefix=$PWD/build/test/sanitized_prefix venv=build/test/sanitized config
  rm -rf "$prefix" build/test/sanitized_wheel
  [[ -x $venv/bin/pip ]] || python3 -m venv "$venv"
  cmake --install "$1" --prefix "$prefix" >/dev/null && config=$(find "$prefix" -name isobit-config.cmake) &&
    CXX=clang++ "$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps ./python \
      --wheel-dir build/test/sanitized_wheel --config-settings "build-dir=$PWD/build/test/sanitized_build" \
      --config-settings "cmake.define.isobit_DIR=${config%/*}" \
      --config-settings cmake.define.ISOBIT_SANITIZE=address,undefined &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall numpy pytest \
      build/test/sanitized_wheel/isobit-*.whl &&
    LD_PRELOAD=$(clang++ -print-file-name=libclang_rt.asan-x86_64.so) ASAN_OPTIONS=detect_leaks=0 \
      ISOBIT_COMMAND=$PWD/$2 "$venv/bin/python" -m pytest -q -p no:cacheprovider python/tests
}

# Its types as a user's mypy sees them, and its own.
python_types() { (cd build/test && venv/bin/mypy --config-file ../../python/pyproject.toml --package isobit); }

# Names and arguments of its stubs are those of the module. stubtest does not know functions and classes of nanobind for
# what they are, and torch is not there.
python_stubs() {
  local said known='is not a function|metaclass differs|is a disjoint base at runtime.*'
  known+='|stub does not have \*args parameter "args"|stub is a staticmethod but runtime is not'
  said=$(build/test/venv/bin/python -m mypy.stubtest isobit --concise --mypy-config-file python/pyproject.toml 2>&1) || true
  [[ $said == *"isobit._isobit.load_gru is not a function"* ]] &&
    ! grep -vE "($known)\$|^isobit\.(torch|_training) failed to import" <<<"$said"
}

# The package as its README says, the library built along: neither numpy nor torch is there.
python_checkout() {
  rm -rf build/test/checkout
  python3 -m venv build/test/checkout &&
    build/test/checkout/bin/pip install --quiet --disable-pip-version-check ./python &&
    build/test/checkout/bin/python -c 'import isobit; assert isobit.verify(outputs=100000).ok; print(isobit.fingerprint())'
}

# pytorch PROGRAM: what needs PyTorch, which is too large to be installed in every run.
pytorch() {
  need_venv build/test/torch bench/requirements-torch.txt &&
    build/test/torch/bin/pip install --quiet --disable-pip-version-check pytest safetensors \
      -r examples/spoken_digits/requirements.txt &&
    ISOBIT_REQUIRE=torch python_tests build/test/torch "$1"
}

# onnx_runtime PROGRAM: GRU nodes of ONNX models, of public packages too, against ONNX Runtime.
onnx_runtime() {
  need_venv build/test/onnx python/tests/requirements-onnx.txt && take_onnx_models &&
    ISOBIT_REQUIRE=onnx ISOBIT_ONNX_MODELS=$ONNX_MODELS python_tests build/test/onnx "$1"
}

# denoiser: a whole network, from its ONNX file to speech.
denoiser() { scripts/denoiser.sh --wheel "$(echo build/wheel/dist/isobit-*.whl)" --out build/denoiser; }

# tiny_networks: int8 networks of TFLite, beside LiteRT.
tiny_networks() { scripts/tiny_networks.sh --wheel "$(echo build/wheel/dist/isobit-*.whl)" --out build/tiny; }

# other_pythons PROGRAM: the one wheel on every Python from 3.10 on that is installed, those of pyenv included.
other_pythons() {
  local python venv
  build/test/venv/bin/pip install --quiet --disable-pip-version-check abi3audit==0.0.26 auditwheel==6.8.2 &&
    build/test/venv/bin/abi3audit --strict build/wheel/dist/isobit-*.whl &&
    build/test/venv/bin/auditwheel show build/wheel/dist/isobit-*.whl | grep '"manylinux_2_35_x86_64"' || return 1
  for python in /usr/bin/python3.1[0-9] "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[0-9].*/bin/python; do
    [[ -x $python ]] || continue
    "$python" --version
    venv=build/test/python
    rm -rf "$venv"
    "$python" -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check numpy pytest tqdm &&
      python_tests "$venv" "$1" || return 1
  done
}

# None of them may be skipped: without mpmath one would be.
oracle_tests() {
  local log code=0
  log=$("$(oracle_python)" -m unittest discover -s oracle -t . 2>&1) || code=$?
  printf '%s\n' "$log"
  [[ $code == 0 && $log != *"Ran 0 tests"* && $log != *"skipped="* ]]
}

# finished PROCESS LOG: waits for what was started beside other checks.
finished() {
  local code=0
  wait "$1" || code=$?
  cat "$2"
  return "$code"
}

# fingerprint PROGRAM: the text that all others must equal.
fingerprint() {
  first_fingerprint=$("$1" fingerprint) && [[ -n $first_fingerprint ]] && printf '%s\n' "$first_fingerprint"
}

# same_fingerprint COMMAND...: a program, maybe behind another one that runs it.
same_fingerprint() {
  local text
  text=$("$@" fingerprint) || return 1
  diff <(printf '%s\n' "$first_fingerprint") <(printf '%s\n' "$text") && [[ -n $text ]]
}

# thread_sanitizer: the tests that share a pool between threads.
thread_sanitizer() {
  cmake --preset dev -B build/tsan -DCMAKE_CXX_COMPILER=clang++ -DISOBIT_SANITIZE=thread -DISOBIT_BUILD_BENCHMARKS=OFF \
    -DISOBIT_BUILD_TOOLS=OFF && cmake --build build/tsan --parallel "$(nproc)" --target isobit_threads_tests &&
    ctest --test-dir build/tsan --label-regex threads --no-tests=error --output-on-failure
}

# subdirectory: a project that takes the whole library, as processors other than x86-64 build it.
subdirectory() {
  local folder=build/subdirectory
  cmake -G Ninja -S tests/install/consumer -B "$folder" -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ \
    -DISOBIT_SOURCE_DIR="$PWD" -DISOBIT_X86_KERNELS=OFF -DCMAKE_BUILD_TYPE=Debug &&
    cmake --build "$folder" --parallel "$(nproc)" || return 1
  [[ $("$folder/consumer" "$folder") == 128 && $("$folder/c_consumer" "$folder") == 3 ]]
}

# aarch64: the command for that processor and the libraries it needs, in build/aarch64; the host has none of them.
aarch64() {
  local root=$PWD/build/aarch64/root debs=$PWD/build/aarch64/debs lists=$PWD/build/aarch64/lists name
  local apt=(apt-get -qq -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o Dir::State::Lists="$lists")
  mkdir -p "$root/usr/bin" "$debs" "$lists/partial"
  if [[ ! -e $root/usr/lib/aarch64-linux-gnu/libzip.so.4 ]]; then
    { "${apt[@]}" update && (cd "$debs" && "${apt[@]}" download {libzip4,libzip-dev,zlib1g,libbz2-1.0,libssl3}:arm64); } ||
      return 1
    find "$debs" -name '*.deb' -exec dpkg-deb -x {} "$root" \;
  fi
  # libzip's CMake files want its programs, which are not run.
  for name in zipcmp zipmerge ziptool; do ln -sf "/usr/bin/$name" "$root/usr/bin/$name"; done
  cmake --preset release -B build/aarch64/build -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" \
    -DISOBIT_AARCH64_ROOT="$root" -DISOBIT_BUILD_TESTS=OFF -DISOBIT_BUILD_BENCHMARKS=OFF &&
    cmake --build build/aarch64/build --parallel "$(nproc)" --target isobit_cli
}

# on_aarch64 ARGUMENT...: that command, emulated.
on_aarch64() {
  local root=$PWD/build/aarch64/root
  qemu-aarch64 -L /usr/aarch64-linux-gnu \
    -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu:/usr/aarch64-linux-gnu/lib" \
    build/aarch64/build/isobit "$@"
}

# The instruction sets that must be compared are this processor's.
aarch64_verify() { ISOBIT_REQUIRE='' on_aarch64 verify --outputs 1000000; }

# The files that changed since this branch left the main one; on the main branch, in the last commit. Together with
# what is not committed.
changed_files() {
  local base
  base=$(git merge-base HEAD origin/HEAD 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then
    base=$(git rev-parse --quiet --verify 'HEAD^' || git hash-object -t tree /dev/null)
  fi
  git diff --name-only --diff-filter=d "$base" && git ls-files --others --exclude-standard
}

# tidy FOLDER: changed source files; for a changed header, x.cc and x_test.cc.
tidy() {
  local changed built name stem files
  changed=$(changed_files) || return 1
  built=$(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$1/compile_commands.json")
  mapfile -t files < <(while read -r name; do
    stem=$(basename "${name%.*}")
    case $name in
      *.cc) grep -Fx "$PWD/$name" <<<"$built" ;;
      *.h) grep -E "/${stem}(_test)?\.cc$" <<<"$built" ;;
    esac || true
  done <<<"$changed" | sort -u)
  echo "${#files[@]} files"
  ((${#files[@]} == 0)) || printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$1"
}

# Those names of instruction sets that ISOBIT_CPU takes and this processor has.
cpu_paths() {
  local flags flag names=(scalar) avx512=avx512vnni amx=amx
  flags=" $(grep -m 1 '^flags' /proc/cpuinfo || true) "
  [[ $flags != *" avx2 "* ]] || names+=(avx2)
  [[ $flags != *" avx2 "*" avx_vnni "* ]] || names+=(avxvnni)
  for flag in avx512f avx512bw avx512dq avx512vl avx512_vnni; do
    [[ $flags == *" $flag "* ]] || avx512=
  done
  [[ -z $avx512 ]] || names+=("$avx512")
  for flag in amx_tile amx_int8; do
    [[ -n $avx512 && $flags == *" $flag "* ]] || amx=
  done
  [[ -z $amx ]] || names+=("$amx")
  echo "${names[@]}"
}

# Every test program of isobit::cuda that was built, and each under the sanitizers on its smaller cases; then the tool.
run_cuda_programs() {
  local programs program tool options
  mapfile -t programs < <(find build/cuda/cuda -maxdepth 1 -type f -name '*_test' | sort)
  ((${#programs[@]} > 0)) || fail "no test programs in build/cuda/cuda; scripts/test.sh --cuda builds them"
  export ISOBIT_REQUIRE=cuda
  use_cuda_libraries
  for program in "${programs[@]}"; do
    check "${program##*/}" "$program" --gtest_brief=1
    for tool in memcheck racecheck synccheck initcheck; do
      options=()
      [[ $tool != synccheck ]] || options=(--num-cuda-barriers 4096)  # of all blocks; the default has too few
      check "${program##*/} under compute-sanitizer $tool" env ISOBIT_SANITIZED="$tool" compute-sanitizer --tool "$tool" \
        "${options[@]}" --error-exitcode 1 "$program" --gtest_brief=1
    done
  done
  check "isobit and g2p on the device" python3 build/cuda/cuda/tests/cuda_cli_test.py build/cuda/cuda
  finish
}

if [[ $job == cuda_built ]]; then
  has_cuda_device || fail "--cuda-built needs a CUDA device; nvidia-smi lists none"
  run_cuda_programs
fi

heading "set-up"
if [[ $job == quick || $job == cuda ]]; then
  need_packages "${BUILD_PACKAGES[@]}"
else
  need_packages "${BUILD_PACKAGES[@]}" "${CHECK_PACKAGES[@]}"
  [[ $job != matrix ]] || need_packages "${MATRIX_PACKAGES[@]}"
fi
read -ra paths < <(cpu_paths)
if [[ -z ${ISOBIT_REQUIRE+set} ]]; then
  ISOBIT_REQUIRE=$(IFS=, && echo "${paths[*]:1}")
  ! command -v nvcc >/dev/null || ISOBIT_REQUIRE+=${ISOBIT_REQUIRE:+,}nvcc
fi
export ISOBIT_REQUIRE
echo "ISOBIT_REQUIRE=$ISOBIT_REQUIRE (a skip of one of these is a failure)"
unset ISOBIT_CPU

# What is too large for testdata/: tests read it from here, whatever folder they are built in.
check "oracle: vectors that are not committed" "$(oracle_python)" -m oracle generate --built --out build/oracle

if [[ $job == quick ]]; then
  build g++ dev
  run_tests g++ dev --label-regex fast
  finish
fi

if [[ $job == cuda ]]; then
  build_cuda
  if has_cuda_device; then
    run_cuda_programs
  fi
  heading "SKIPPED: no CUDA device here, nothing was run"
  echo "Copy scripts/ and build/cuda/cuda/ to a machine with one, and run scripts/test.sh --cuda-built there."
  [[ ,$ISOBIT_REQUIRE, != *,cuda,* ]] || count_failure "ISOBIT_REQUIRE names cuda: no device"
  skipped=$((skipped + 1))
  finish
fi

need_venv build/test/venv tests/requirements.txt
oracle_tests >build/test/oracle.log 2>&1 &  # either takes one processor
check "oracle: testdata" "$(oracle_python)" -m oracle check --dir testdata
check "oracle: its own tests" finished $! build/test/oracle.log

check "costs of kernels on a device: fitted to the times" build/test/venv/bin/python tests/fit_cost_test.py .

if [[ $job == matrix ]]; then
  pairs=("g++ release" "clang++ asan" "g++ dev" "g++ asan" "clang++ dev" "clang++ release")
else
  pairs=("g++ release" "clang++ asan")
fi
first_fingerprint=
for pair in "${pairs[@]}"; do
  read -r compiler preset <<<"$pair"
  build "$compiler" "$preset"
  run_tests "$compiler" "$preset"
  program=$(folder_of "$compiler" "$preset")/isobit
  check "$pair: GGUF as the gguf package reads it" build/test/venv/bin/python tests/gguf_test.py "$program"
  if [[ $pair == "${pairs[0]}" ]]; then
    # The wheel and its tests take one processor, as do the checks that run beside them.
    scripts/wheel.sh "$(folder_of "$compiler" "$preset")" >build/test/wheel.log 2>&1 &
    check "$pair: every kernel equals the reference" "$program" verify --json
    check "$pair: python: the wheel" finished $! build/test/wheel.log
    python_tests build/test/venv "$program" >build/test/python.log 2>&1 &
    check "fitted tables: two regenerated" scripts/fit_tables.sh --check hardsigmoid reciprocal
    check "$pair: every FP16 table, every code, every pair of types" "$program" verify --operation fp16_table \
      --outputs 100000000
    check "$pair: rust" rust "$(folder_of "$compiler" "$preset")"
    check "$pair: python: tests" finished $! build/test/python.log
    check "$pair: python: types" python_types
    check "$pair: python: stubs" python_stubs
    if [[ $job == matrix ]]; then
      check "$pair: python: pip install ./python" python_checkout
      check "$pair: python: with PyTorch" pytorch "$program"
      check "$pair: python: with ONNX Runtime" onnx_runtime "$program"
      check "$pair: python: a denoiser in integers beside float" denoiser
      check "$pair: python: networks of TFLite beside LiteRT" tiny_networks
      check "$pair: python: the same wheel for other Pythons" other_pythons "$program"
    fi
    check "$pair: fingerprint" fingerprint "$program"
    # Where code for later processors must not run at all.
    [[ $(uname -m) != x86_64 ]] ||
      check "$pair: the same fingerprint on an emulated processor without AVX" same_fingerprint \
        qemu-x86_64 -cpu Nehalem "$program"
    for path in "${paths[@]}"; do
      check "$pair: the same fingerprint with ISOBIT_CPU=$path" same_fingerprint env ISOBIT_CPU="$path" \
        "$program"
    done
  else
    check "$pair: the same fingerprint as ${pairs[0]}" same_fingerprint "$program"
    [[ $job-$pair != "matrix-clang++ asan" ]] ||
      check "$pair: python: tests" python_sanitized "$(folder_of "$compiler" "$preset")" "$(folder_of g++ release)/isobit"
  fi
done
if [[ $job == matrix ]]; then
  for where in all cores aarch64 misra; do
    check "exported C: $where" python3 tests/export_test.py build/release/src/export/random_exports "$where"
  done
  check "exported C: instructions as recorded" python3 bench/cortex_m.py build/release/isobit \
    --check bench/results/cortex_m/cortex_m.json
  check "exported C: a speller on a Cortex-M4" scripts/microcontrollers.sh g2p --wheel build/wheel/dist/isobit-*.whl
  check "exported C: a denoiser on a Cortex-M55" scripts/microcontrollers.sh denoiser \
    --wheel build/wheel/dist/isobit-*.whl
  check "thread sanitizer: what shares a pool" thread_sanitizer
  check "a project that takes isobit with add_subdirectory" subdirectory
  check "aarch64: build" aarch64
  check "aarch64: the same fingerprint" same_fingerprint on_aarch64
  check "aarch64: every kernel equals the reference" aarch64_verify
fi
check "clang-tidy on changed files" tidy build/asan
finish
