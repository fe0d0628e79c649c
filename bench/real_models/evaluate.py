# SPDX-License-Identifier: Apache-2.0
"""What `isobit quantize`, `tune`, `compare` and examples/g2p make of the models that the other files here wrote.

usage: evaluate.py ISOBIT G2P MODELS FOLDER --g2p-checkpoint FILE --g2p-dictionary FILE [--tutorial FILE]
                   [--only NAME]...

Quality is the SQNR in dB of each layer's output h against the float model, on test.npz, which neither calibration nor
tune sees. Writes FOLDER/results.json and what render.py makes of it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import render  # noqa: E402
import report  # noqa: E402

BITS = ("small", "8,linear=16,gate_in=12", "8,linear=16,gate_in=12,h=16", "8,linear=16,gate_in=12,h=12,gate_out=12",
        "8,linear=16,gate_in=12,x=12,h=12,gate_out=12", "balanced", "precise", "16")
MIXED = BITS[1]  # 8-bit states, wider sums
TARGETS = (35, 60)
ABLATED = "8"  # what `isobit compare --ablate` is shown with
DEFAULTS = (("method", "minmax"), ("scale", "pow2"), ("table", "default"))  # of what tune chooses, not worth a word


def call(*words):
    """Runs a command; returns its standard output, or None where it says that a check failed (1)."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit("error: %s\n%s" % (" ".join(map(str, words)), done.stderr.strip()))
    return done.stdout if done.returncode == 0 else None


class Evaluation:
    def __init__(self, isobit, models):
        self.isobit = isobit
        self.models = models
        self.rows = []
        self.ablations = {}
        self.folder = tempfile.TemporaryDirectory(prefix="isobit-real-")
        self.out = pathlib.Path(self.folder.name, "model.safetensors")

    def data(self, name, option, part, states_option):
        """Words that name a part of a model's data, and its first states where it has some."""
        folder = self.models / name
        states = folder / (part + "_h0.npz")
        return [option, folder / (part + ".npz")] + ([states_option, states] if states.exists() else [])

    def words(self, name, order):
        return [self.models / name / "weights.npz", "--gate-order", order,
                *self.data(name, "--calibrate", "calibration", "--state")]

    def quantize(self, name, order, how="quantize", settings=None, size=None):
        """A row: what `isobit quantize` makes with these settings, measured on the test data."""
        for chosen in [settings] if settings else [{"bits": bits} for bits in BITS]:
            options = [word for key, value in chosen.items() for word in ("--" + key, value)]
            report_text = call(self.isobit, "quantize", *self.words(name, order), *options, "-o", self.out, "--json",
                               *self.data(name, "--validate", "test", "--validate-state"))
            sqnr = json.loads(report_text)["validation"]["layer_sqnr_db"]
            self.add(name, how, " ".join([chosen["bits"]] + ["--%s %s" % (key, chosen[key]) for key, default in DEFAULTS
                                                             if chosen.get(key, default) != default]),
                     size or self.out.stat().st_size, [round(db, 2) for db in sqnr])

    def add(self, name, how, setting, size=None, sqnr=None):
        row = {"model": name, "how": how, "bits": setting}
        if size is not None:
            row.update(bytes=size, sqnr_db=sqnr)
        self.rows.append(row)
        print(name, how, setting, size, sqnr, file=sys.stderr, flush=True)

    def tune(self, name, order, *goal):
        how = "tune " + " ".join(map(str, goal))
        made = call(self.isobit, "tune", *self.words(name, order), *goal, "-o", self.out, "--json",
                    *self.data(name, "--validate", "validation", "--validate-state"))
        if made is None:
            return self.add(name, how, "")
        chosen = json.loads(made)["chosen"]
        settings = {key: chosen[key] for key in ("bits", *(key for key, _ in DEFAULTS))}
        return self.quantize(name, order, how, settings, chosen["bytes"])

    def ablate(self, name, order):
        """What `isobit compare --ablate` says of a model of 8 bits; and a row: what its SPEC gives."""
        call(self.isobit, "quantize", *self.words(name, order), "--bits", ABLATED, "-o", self.out)
        report_text = call(self.isobit, "compare", self.models / name / "weights.npz", self.out, "--gate-order", order,
                           *self.data(name, "--data", "test", "--state"), "--ablate", "--json")
        found = json.loads(report_text)["ablation"]
        for row in (found, *found["rows"]):
            row["layer_sqnr_db"] = [round(db, 2) for db in row.get("layer_sqnr_db", ())]
        self.ablations[name] = {
            "bits": found["bits"], "sqnr_db": found["layer_sqnr_db"], "goal_db": round(found["goal_db"], 2),
            "rows": [{"set": row["set"], "sqnr_db": row["layer_sqnr_db"], "weight_bytes": row["weight_bytes"]}
                     for row in found["rows"]],
            "advice": found["advice"] and {key: found["advice"][key] for key in ("set", "bits")},
            "sentence": found["sentence"]}
        if found["advice"]:
            self.quantize(name, order, "compare --ablate", {"bits": found["advice"]["bits"]})


def g2p_rows(program, checkpoint, dictionary, settings):
    """Shares of each setting, for each sample of words."""
    rows = {}
    for words in render.G2P_WORDS:
        with tempfile.TemporaryDirectory(prefix="isobit-real-") as folder:
            path = os.path.join(folder, "g2p.json")
            call(program, "--checkpoint", checkpoint, "--dictionary", dictionary, "--words", words, "--json", path,
                 *(word for bits in settings for word in ("--bits", bits)))
            with open(path, encoding="utf-8") as file:
                for row in json.load(file)["configurations"]:
                    entry = rows.setdefault(row["bits"], {"bits": row["bits"], "bytes": row["model_bytes"]})
                    for key in ("words_right", "phoneme_error", "same_as_float"):
                        entry.setdefault(key, []).append(row[key])
    return list(rows.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("isobit")
    parser.add_argument("g2p")
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--g2p-checkpoint", required=True)
    parser.add_argument("--g2p-dictionary", required=True)
    parser.add_argument("--tutorial", type=pathlib.Path, help="its listing of `compare --ablate` is written anew")
    parser.add_argument("--only", action="append", help="this model only (may be repeated); g2p is the whole of g2p_en")
    options = parser.parse_args()
    names = [name for name, _, _ in render.MODELS] + ["g2p"]
    for name in options.only or ():
        if name not in names:
            parser.error("--only %s: the models are %s" % (name, ", ".join(names)))
    evaluation = Evaluation(options.isobit, options.models)
    espeak = subprocess.run(["espeak-ng", "--version"], capture_output=True, text=True, check=True).stdout
    document = {"machine": report.machine(), "commit": report.commit(),
                "versions": {"espeak-ng": espeak.split(":")[1].split()[0]}, "models": evaluation.rows,
                "ablations": evaluation.ablations, "g2p": []}

    def write():  # after each model, so that an interrupted run leaves what it has
        report.write_json(str(options.folder / "results.json"), document)
        render.write(document, options.folder, options.tutorial)

    for name, order, _ in render.MODELS:
        if not options.only or name in options.only:
            evaluation.quantize(name, order)
            for target in TARGETS:
                evaluation.tune(name, order, "--target", target)
            if name.startswith("nsnet2"):
                evaluation.ablate(name, order)
            if name.startswith("g2p"):  # one list of widths for both of its GRUs, as examples/g2p takes it
                evaluation.tune(name, order, "--like", MIXED, "--method", "minmax", "--scale", "pow2", "--table", "default")
            write()
    if not options.only or "g2p" in options.only:
        like = [row["bits"] for row in evaluation.rows if row["how"].startswith("tune --like")]
        document["g2p"] = g2p_rows(options.g2p, options.g2p_checkpoint, options.g2p_dictionary,
                                   list(dict.fromkeys([*BITS, *like])))
        write()
    print(render.markdown(document))


if __name__ == "__main__":
    main()
