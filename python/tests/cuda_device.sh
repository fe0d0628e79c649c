#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cuda_device.sh FOLDER: the tests of CUDA on a machine with a device and a python3 that has torch, of what another
# machine built. FOLDER holds the wheels of isobit and nanobind-backend, libisobit_cuda.so, and in lib/ what both load and
# this machine lacks; programs *_test are run, too.
set -euo pipefail
folder=$(cd "$1" && pwd)
tests=$(cd "$(dirname "$0")" && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
for wheel in "$folder"/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done  # without pip, which may not be there
export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONPATH=$site ISOBIT_REQUIRE=cuda
export ISOBIT_CUDA_LIBRARY=$folder/libisobit_cuda.so
failed=0
for program in "$folder"/*_test; do
  [[ ! -f $program ]] || "$program" --gtest_brief=1 || failed=1
done
python3 "$tests/test_cuda.py" || failed=1
python3 "$tests/test_torch_training_cuda.py" || failed=1
exit "$failed"
