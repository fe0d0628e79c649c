#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/report_picture.sh [--help]

docs/report.png: the head of what `isobit compare --ablate --html` writes for the denoiser NSNet2 at `balanced`, as
Chromium shows it. Installs the Debian packages that are missing; `scripts/real_models.sh --data-only` fetches the
network and makes its data, once.
TEXT
}

case ${1-} in
  '') ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; fail "unknown argument '$1'" ;;
esac

need_packages "${BUILD_PACKAGES[@]}" chromium
models=build/real/models/nsnet2_16k work=build/report_picture
[[ -f $models/weights.npz ]] || scripts/real_models.sh --data-only
build_release isobit_cli
mkdir -p "$work"
cp "$models/weights.npz" "$work/nsnet2.npz"
cp "$models/test.npz" "$work/speech.npz"
isobit=$PWD/build/release/isobit calibration=$PWD/$models/calibration.npz out=$PWD/docs/report.png
cd "$work"  # so that the page names files without their folders
"$isobit" quantize nsnet2.npz --calibrate "$calibration" --bits balanced -o nsnet2.safetensors
"$isobit" compare nsnet2.npz nsnet2.safetensors --data speech.npz --ablate --html report.html
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1180,1240 --screenshot="$out" \
  "file://$PWD/report.html"
