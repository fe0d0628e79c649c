#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exports_test.sh NM LIBRARY: libisobit_cuda.so exports isobit_cuda_table and nothing else, of any kind.
set -euo pipefail
exported=$("$1" -D --defined-only "$2" | awk '{ print $2, $3 }')
[[ $exported == "T isobit_cuda_table" ]] || {
  printf '%s exports, instead of T isobit_cuda_table:\n%s\n' "$2" "$exported" >&2
  exit 1
}
