#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/spoken_digits.sh [--data DIR] [--wheel FILE] [--out FOLDER] [--help] [-- OPTION...]

Runs examples/spoken_digits: a small GRU that tells spoken digits apart, in floats, calibrated to integers and trained
for integers. Installs the Debian packages that are missing, fetches the recordings from GitHub into build/digits/
(16 MB, checked against a pinned SHA-256 sum, once), builds the Python package and installs it with PyTorch into
build/digits/venv (several gigabytes). The integer models are then in build/digits/out.

  --data DIR    the folder `recordings` of the Free Spoken Digit Dataset, in place of what would be fetched
  --wheel FILE  the Python package, built already
  --out FOLDER  spoken_digits.json and spoken_digits.svg go there. Default: bench/results/spoken_digits, from which
                scripts/bench.sh --report takes the table of examples/spoken_digits/README.md
  OPTION...     those of examples/spoken_digits/spoken_digits.py

Exit status: 0, or 1 where an integer model that was saved and loaded gives other bytes than its training did.
TEXT
}

data='' wheel='' out=bench/results/spoken_digits
while (($# > 0)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --data | --wheel | --out)
      (($# > 1)) || fail "$1: a value must follow"
      case $1 in
        --data) data=$2 ;;
        --wheel) wheel=$2 ;;
        --out) out=$2 ;;
      esac
      shift 2
      ;;
    --) shift; break ;;
    *) usage >&2; fail "unknown argument '$1'; options of the example come after --" ;;
  esac
done

digits=build/digits
version=1.0.10
recordings=$digits/free-spoken-digit-dataset-$version/recordings
# Of the recordings that the example takes.
sum=604f40435595d8caa22f40a692814b157df933637c9ba750f5edc97b113f26ec

is_whole() {
  (cd "$recordings" 2>/dev/null && cat {0..9}_{george,jackson,lucas,nicolas}_{0..49}.wav 2>/dev/null) |
    sha256sum | grep -q "^$sum "
}

# take_recordings: all of a tag, once.
take_recordings() {
  ! is_whole || return 0
  echo "fetching the Free Spoken Digit Dataset $version"
  mkdir -p $digits
  python3 - https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v$version.zip $digits <<'PYTHON' ||
import io
import sys
import urllib.request
import zipfile
with urllib.request.urlopen(sys.argv[1]) as answer:
    zipfile.ZipFile(io.BytesIO(answer.read())).extractall(sys.argv[2])
PYTHON
    fail "the recordings cannot be fetched; try again, or give --data"
  is_whole || fail "$recordings does not hold the expected files; remove it and try again, or give --data"
}

heading "set-up"
need_packages python3-venv
if [[ -z $data ]]; then
  take_recordings
  data=$recordings
fi
need_venv $digits/venv examples/spoken_digits/requirements.txt

if [[ -z $wheel ]]; then
  scripts/wheel.sh
  wheel=$(echo build/wheel/dist/isobit-*.whl)
fi
$digits/venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall "$wheel"

heading "spoken digits"
commit=$(PYTHONPATH=bench python3 -c 'import report; print(report.commit())')
$digits/venv/bin/python examples/spoken_digits/spoken_digits.py "$data" $digits/out "$@"
mkdir -p "$out"
cp $digits/out/spoken_digits.svg "$out/"
ISOBIT_COMMIT=$commit PYTHONPATH=bench python3 - $digits/out/result.json "$out/spoken_digits.json" <<'PYTHON'
import json
import sys

import report
with open(sys.argv[1], encoding="utf-8") as file:
    report.write_json(sys.argv[2], {"machine": report.machine(), "commit": report.commit(), **json.load(file)})
PYTHON
