#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=lib.sh
source scripts/lib.sh

usage() {
  cat <<'TEXT'
usage: scripts/fit_tables.sh [--check] [FUNCTION...]

Fits the built-in FP16 tables again and writes src/table/fp16/fitted/FUNCTION.inc, for all functions or for those that are
named: three models with float32 and with float16 values each. Builds the release preset first. All functions take half
an hour of one processor.

  --check  writes nothing into the tree; compares the bytes with the committed ones

Exit code 0: done, and with --check all are the same. 1: a file differs; its name is printed. 2: bad usage, or a fit
failed.
TEXT
}

check=false functions=()
for argument in "$@"; do
  case $argument in
    --check) check=true ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; fail "unknown argument '$argument'" ;;
    *) functions+=("$argument") ;;
  esac
done

heading "build"
build_release fp16_fit_tool
tool=$(find build/release -type f -name fp16_fit_tool)
mapfile -t known < <("$tool")
((${#functions[@]} > 0)) || functions=("${known[@]}")
for function in "${functions[@]}"; do
  [[ " ${known[*]} " == *" $function "* ]] || fail "unknown function '$function'; known: ${known[*]}"
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
different=()
for function in "${functions[@]}"; do
  heading "$function"
  "$tool" "$function" >"$folder/$function.inc" || fail "$function was not fitted"
  if ! $check; then
    cp "$folder/$function.inc" "src/table/fp16/fitted/$function.inc"
  elif ! cmp "$folder/$function.inc" "src/table/fp16/fitted/$function.inc"; then
    different+=("src/table/fp16/fitted/$function.inc")
  fi
done
if ((${#different[@]} > 0)); then
  printf 'differs from what the fitter makes: %s\n' "${different[@]}"
  exit 1
fi
