# SPDX-License-Identifier: Apache-2.0
"""What tests on a CUDA device share. They are skipped without one; ISOBIT_REQUIRE=cuda makes that a failure. pytest
runs them, or main() where there is none."""
import os
import sys
import time
import traceback

try:
    import torch
except ImportError:
    torch = None

REQUIRED = "cuda" in os.environ.get("ISOBIT_REQUIRE", "").split(",")
MISSING = "" if torch is not None and torch.cuda.is_available() else "torch finds no CUDA device"
LONG = 400_000_000  # clocks of a kernel that is still running when the host looks: 0.2 s


def mark():
    """Of a module, for pytest."""
    if "pytest" not in sys.modules:
        return None
    import pytest

    return pytest.mark.skipif(bool(MISSING) and not REQUIRED, reason=MISSING)


def refused(call, error, *parts):
    try:
        call()
    except error as raised:
        for part in parts:
            assert part in str(raised), (part, str(raised))
    else:
        raise AssertionError(f"not refused: {parts}")


def still_running():
    event = torch.cuda.Event()
    event.record()
    return not event.query()


def main(tests):
    """Runs the functions of a module that are tests; the exit status."""
    if MISSING:
        print(f"SKIPPED: {MISSING}")
        return 1 if REQUIRED else 0
    failed = 0
    for name, test in [(name, test) for name, test in tests.items() if name.startswith("test_")]:
        begin = time.time()
        try:
            test()
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
            failed += 1
            print("FAILED", name, flush=True)
        else:
            print(f"ok {name} {time.time() - begin:.1f} s", flush=True)
    return 1 if failed else 0
