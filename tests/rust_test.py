# SPDX-License-Identifier: Apache-2.0
"""The Rust crates against a libisobit.so that was built: their tests, their documentation without warnings, and the
example, which must say what g2p_c says.

usage: rust_test.py CARGO ISOBIT LIBRARY-FOLDER G2P_C TARGET-FOLDER
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "examples", "c"))
import g2p_c_test as g2p_c  # noqa: E402


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    cargo, g2p_c.ISOBIT, library, program, target = [os.path.abspath(path) for path in sys.argv[1:]]
    # The compiler that lies beside cargo, even where another one comes first on PATH.
    environment = dict(os.environ, ISOBIT_LIB_DIR=library, LD_LIBRARY_PATH=library, CARGO_TARGET_DIR=target,
                       RUSTFLAGS="-D warnings", RUSTDOCFLAGS="-D warnings",
                       PATH=os.path.dirname(cargo) + os.pathsep + os.environ["PATH"])
    g2p_c.G2pCTest.setUpClass()
    try:
        environment["ISOBIT_TEST_GRU"] = g2p_c.G2pCTest.mixed[1]
        for command in [["test"], ["doc", "--no-deps"], ["build", "--example", "g2p"]]:
            subprocess.run([cargo, *command, "--offline", "--locked"], cwd=os.path.join(HERE, "..", "rust"),
                           env=environment, check=True)
    finally:
        g2p_c.G2pCTest.tearDownClass()
    test = os.path.join(HERE, "..", "examples", "c", "g2p_c_test.py")
    example = os.path.join(target, "debug", "examples", "g2p")
    subprocess.run([sys.executable, test, example, g2p_c.ISOBIT, program], env=environment, check=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit("failed: %s" % error)
