# SPDX-License-Identifier: Apache-2.0
"""The Rust crates against a libisobit.so that was built: their tests, among them that the Rust of docs/rust.md compiles,
their documentation without warnings, and the example, which must say what g2p_c says; then against what is installed
from the folder of ISOBIT, which pkg-config finds.

usage: rust_test.py CARGO ISOBIT LIBRARY-FOLDER G2P_C TARGET-FOLDER
"""
import glob
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "examples", "c"))
import g2p_c_test as g2p_c  # noqa: E402


def build_with_pkg_config(cargo, build, environment):
    """Links the example by isobit-c.pc alone, and runs it; without that file the message says what to set."""
    def cargo_build(*options, **variables):
        return subprocess.run([cargo, "build", "--offline", "--locked", *options], text=True, stderr=subprocess.PIPE,
                              cwd=os.path.join(HERE, "..", "rust"), env={**environment, **variables})

    unset = ("ISOBIT_LIB_DIR", "LD_LIBRARY_PATH")
    environment = {name: value for name, value in environment.items() if name not in unset}
    environment["CARGO_TARGET_DIR"] = os.path.join(environment["CARGO_TARGET_DIR"], "pkg_config")
    with tempfile.TemporaryDirectory(prefix="isobit-rust-test-") as prefix:
        subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        (package,) = glob.glob(os.path.join(prefix, "**", "isobit-c.pc"), recursive=True)
        folder = os.path.dirname(package)
        result = cargo_build("--example", "g2p", PKG_CONFIG_PATH=folder)
        if result.returncode != 0:
            sys.exit("failed: cargo build with PKG_CONFIG_PATH=%s\n%s" % (folder, result.stderr))
        example = os.path.join(environment["CARGO_TARGET_DIR"], "debug", "examples", "g2p")
        linked = subprocess.run(["ldd", example], check=True, text=True, stdout=subprocess.PIPE,
                                env={**environment, "LD_LIBRARY_PATH": os.path.dirname(folder)}).stdout
        if prefix not in linked:
            sys.exit("failed: the example is not linked with the library in %s\n%s" % (prefix, linked))
    result = cargo_build("--package", "isobit-sys", PKG_CONFIG_PATH="", PKG_CONFIG_LIBDIR=HERE)
    if result.returncode == 0 or "set ISOBIT_LIB_DIR, or PKG_CONFIG_PATH" not in result.stderr:
        sys.exit("failed: without isobit-c.pc cargo build says\n%s" % result.stderr)


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
    build_with_pkg_config(cargo, os.path.dirname(g2p_c.ISOBIT), environment)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit("failed: %s" % error)
