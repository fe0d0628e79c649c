#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the headers that host and device share with nvcc for every architecture of the project. Exit code 77 (a
# skip) when there is no nvcc, unless ISOBIT_REQUIRE names it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! command -v nvcc >/dev/null; then
  [[ ,${ISOBIT_REQUIRE-}, != *,nvcc,* ]] || { echo "nvcc is required by ISOBIT_REQUIRE and not on PATH" >&2; exit 1; }
  echo "SKIPPED: nvcc is not on PATH"
  exit 77
fi
# shellcheck disable=SC2054  # nvcc takes commas
options=(-std=c++20 --fmad=false -Xcompiler -Wall,-Wextra -Werror all-warnings -Iinclude -Isrc)
for architecture in 80 86 89 90 90a; do
  options+=(-gencode "arch=compute_$architecture,code=sm_$architecture")
done
nvcc "${options[@]}" -c tests/nvcc_compile.cu -o /dev/null
