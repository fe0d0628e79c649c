#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""real_weights_cuda.py ISOBIT FILE...: every matrix of files of isobit pack, multiplied on a CUDA device and on the CPU.

Activations are quantised to 8 bits on the fly, symmetric and asymmetric; the bytes must be equal. scripts/real_weights.sh
--cuda calls it. A few matrices can be chosen: isobit pack --include.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROWS = (1, 70)  # both kernels


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    isobit, files = sys.argv[1], sys.argv[2:]
    compared = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        x, host, device = (str(Path(folder) / name) for name in ("x.npy", "host.npy", "device.npy"))

        def multiply(matrix, activations, where, out):
            subprocess.run([isobit, "matmul", matrix, x, "-o", out, "--activations", activations, "--device", where,
                            "--quiet"], check=True)
            return Path(out).read_bytes()

        for file in files:
            listing = subprocess.run([isobit, "inspect", file, "--json"], check=True, stdout=subprocess.PIPE).stdout
            for matrix in json.loads(listing)["matrices"]:
                outputs, columns = matrix["shape"]
                for rows in ROWS:
                    values = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
                    np.save(x, values)
                    for activations in ("int8", "int8_asymmetric"):
                        name = "%s:%s" % (file, matrix["name"])
                        compared += rows * outputs
                        if multiply(name, activations, "cpu", host) != multiply(name, activations, "cuda", device):
                            wrong += 1
                            print("%s, %d rows, %s: other bytes than the CPU's" % (name, rows, activations))
    print("%d outputs compared, %d products differ" % (compared, wrong))
    sys.exit(wrong > 0 or compared == 0)


if __name__ == "__main__":
    main()
