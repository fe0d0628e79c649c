# SPDX-License-Identifier: Apache-2.0
"""Ten spoken words told apart by a small GRU: in floats, calibrated to integers, and trained for integers.

DATA is the folder `recordings` of the Free Spoken Digit Dataset. OUT gets the integer GRUs, result.json and
spoken_digits.svg. README.md says more; scripts/spoken_digits.sh does everything.
"""
import argparse
import contextlib
import copy
import json
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

import words

HIDDEN = 48
BATCH = 32
FLOAT_EPOCHS, FLOAT_RATE = 25, 5e-3
EPOCHS, RATE, STEP_RATE = 8, 2e-3, 1e-2  # for integers; STEP_RATE of log2 of the steps of grids
FROZEN = 0.25  # the last share of the epochs, in which grids stay
MOST_NORM = 1.0  # of the gradient

# Bits of weights, bits of all else, and what isobit calls that.
SETTINGS = ((8, 8, "8"), (4, 8, "8,weights=4"), (2, 8, "8,weights=2"), (4, 4, "4,biases=4"))
METHODS = ("minmax", "percentile:99.9", "percentile:99.99", "sqnr")  # of calibration, by which ranges are chosen
SCALES = {"pow2": "powers of two", "real": "real scales"}
COLUMNS = {"float": "float", "minmax": "min/max", "calibrated": "best calibration",
           **{scale: "trained, " + name for scale, name in SCALES.items()}}


class Network(torch.nn.Module):
    """A word is known by the last state of the GRU. The layer behind it stays in floats."""

    def __init__(self):
        super().__init__()
        self.gru = isobit.torch.QuantGRU(words.BANDS, HIDDEN, batch_first=True)
        self.head = torch.nn.Linear(HIDDEN, words.DIGITS)

    def forward(self, features, lengths):
        return self.head(self.gru(features, lengths=lengths)[1][-1])


def train(network, heard, epochs, rate, seed, bar):
    """The mean loss of each epoch. Grids are learned where the network has such, at a rate of their own."""
    grids = network.gru.grid_parameters()
    weights = [parameter for parameter in network.parameters() if all(parameter is not grid for grid in grids)]
    optimizer = torch.optim.Adam([{"params": weights}, {"params": grids, "lr": STEP_RATE}], lr=rate)
    batches = -(-len(heard) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    order, losses = torch.Generator().manual_seed(seed), []
    for epoch in range(epochs):
        if epoch >= epochs - round(FROZEN * epochs):
            for grid in grids:
                grid.requires_grad_(False)
        total = 0.0
        for which in torch.randperm(len(heard), generator=order).split(BATCH):
            features, lengths, digits = heard.batch(which)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(features, lengths), digits)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), MOST_NORM)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(which)
        losses.append(round(total / len(heard), 6))
        bar.set_postfix_str("loss %.3f" % losses[-1])
        bar.update()
    return losses


def share(logits, asked):
    """Of the words that are known, in percent."""
    return 100 * (logits.argmax(1) == asked.digits).sum().item() / len(asked)


def accuracy(network, asked):
    with torch.no_grad():
        return share(network(asked.features, asked.lengths), asked)


def integer_results(gru, asked):
    """All outputs of an isobit.Gru and its last states."""
    state = gru.initial_state(len(asked), like=asked.features)
    y = gru(asked.features, state, lengths=asked.lengths.numpy(), batch_first=True, whole_sequence=True)
    return y, state.values(asked.features)


def integer_accuracy(gru, head, asked):
    """With an isobit.Gru in place of the network's."""
    with torch.no_grad():
        return share(head(integer_results(gru, asked)[1][-1]), asked)


def float_network(seed, heard, epochs, bar):
    torch.manual_seed(seed)
    network = Network()
    return network, train(network, heard, epochs, FLOAT_RATE, seed, bar)


def observed(network, heard):
    """What calibration sees of the float network, by the method that chooses ranges."""
    found = {method: isobit.Calibrator(isobit.torch.gru_weights(network.gru), method=method) for method in METHODS}
    for calibrator in found.values():
        calibrator.observe(heard.features, heard.lengths.tolist(), batch_first=True)
    return found


def calibrations(calibrators, head, heard, asked, bits):
    """Every way to calibrate, min/max with powers of two first; without those whose numbers do not fit."""
    rows = []
    for scale in SCALES:
        for method, calibrator in calibrators.items():
            with contextlib.suppress(OverflowError):
                gru = calibrator.finish(bits=bits, scale=scale)
                rows.append({"method": method, "scale": scale, "heard": integer_accuracy(gru, head, heard),
                             "asked": integer_accuracy(gru, head, asked)})
    return rows


def train_integers(network, heard, bits, scale, epochs, seed, bar):
    """From the float network: grids of the least squared error, whose steps are then learned along with the weights."""
    made = copy.deepcopy(network)
    with isobit.torch.calibrating(made):
        made(heard.features, heard.lengths)
    made.gru.quantize(bits=bits, scale=scale, learn="steps")
    return made, train(made, heard, epochs, RATE, seed, bar)


def export(network, asked, path):
    """Saves the integer GRU and loads it again: in how many bytes it differs from the forward that was trained."""
    trained = network.gru(asked.features, lengths=asked.lengths)
    network.gru.freeze().save(path)
    loaded = integer_results(isobit.load(path), asked)
    return sum(int((one.detach().contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)).sum())
               for one, other in zip(trained, loaded))


def run_seed(seed, heard, asked, args, bar):
    network, losses = float_network(seed, heard, args.float_epochs, bar)
    row = {"seed": seed, "float_losses": losses, "settings": []}
    in_floats = accuracy(network, asked)
    calibrators = observed(network, heard)
    for weight_bits, other_bits, bits in SETTINGS:
        tried = calibrations(calibrators, network.head, heard, asked, bits)
        best = max(tried, key=lambda one: one["heard"])
        setting = {"weight_bits": weight_bits, "other_bits": other_bits, "calibrations": tried,
                   "float": in_floats, "minmax": tried[0]["asked"], "calibrated": best["asked"],
                   "calibration": {"method": best["method"], "scale": best["scale"]},
                   "losses": {}, "different_bytes": {}, "file_bytes": {}}
        for scale in SCALES:
            made, setting["losses"][scale] = train_integers(network, heard, bits, scale, args.epochs, seed, bar)
            path = args.out / ("seed%d_weights%d_rest%d_%s.safetensors" % (seed, weight_bits, other_bits, scale))
            setting["different_bytes"][scale] = export(made, asked, path)
            setting["file_bytes"][scale] = path.stat().st_size
            setting[scale] = accuracy(made, asked)
        row["settings"].append(setting)
    return row


def summary(figures):
    return {"mean": statistics.mean(figures), "deviation": statistics.stdev(figures) if len(figures) > 1 else 0.0}


def rows_of(seeds):
    """Of the table: mean and standard deviation over the seeds, in percent of the words that are asked."""
    return [{"weights": setting["weight_bits"], "others": setting["other_bits"], "bytes": setting["file_bytes"]["pow2"],
             **{key: summary([seed["settings"][i][key] for seed in seeds]) for key in COLUMNS}}
            for i, setting in enumerate(seeds[0]["settings"])]


def table(rows):
    """Markdown."""
    heads = ["weights", "all else", *COLUMNS.values(), "bytes"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = ["%(mean).2f ± %(deviation).2f" % row[key] for key in COLUMNS]
        lines.append("| %s | %s | %s | %d |" % (row["weights"], row["others"], " | ".join(cells), row["bytes"]))
    return "\n".join(lines) + "\n"


def draw(seeds, path):
    """Every seed as a dot, means as lines, as numbers where they are far below; beside it the loss by epoch."""
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "isobit", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 2), layout="constrained")
    settings = seeds[0]["settings"]
    lowest = statistics.mean(seed["settings"][0]["float"] for seed in seeds) - 12
    for number, (key, head) in enumerate(COLUMNS.items()):
        figures = [[seed["settings"][i][key] for seed in seeds] for i in range(len(settings))]
        at = [i + 0.17 * (number - (len(COLUMNS) - 1) / 2) for i in range(len(settings))]
        left.scatter([x for x, column in zip(at, figures) for _ in column], sum(figures, []), s=12, label=head)
        left.hlines([statistics.mean(column) for column in figures], [x - 0.08 for x in at], [x + 0.08 for x in at],
                    colors="C%d" % number)
        for x, column in zip(at, figures):
            if statistics.mean(column) < lowest:
                left.annotate("%.0f" % statistics.mean(column), (x, lowest), color="C%d" % number, ha="center",
                              xytext=(0, 3), textcoords="offset points")
    names = ["weights %d bits,\nall else %d" % (one["weight_bits"], one["other_bits"]) for one in settings]
    left.set_xticks(range(len(settings)), names)
    left.set(ylabel="words known, %", ylim=(lowest, 100))
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    for i, name in enumerate(names):
        for scale, line in zip(SCALES, ("-", "--")):
            losses = np.mean([seed["settings"][i]["losses"][scale] for seed in seeds], axis=0)
            right.plot(range(1, len(losses) + 1), losses, line, marker=".", color="C%d" % i,
                       label=name.replace("\n", " ") if scale == "pow2" else None)
    right.plot([], [], "--", color="black", label=SCALES["real"])
    right.set(xlabel="epoch of training for integers", ylabel="loss, mean of the seeds", yscale="log")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    figure.savefig(path, metadata={"Date": None})


def takes(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", type=pathlib.Path)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1 (default: %(default)s)")
    parser.add_argument("--train", type=takes, default="10-49", metavar="A-B", help="takes to hear (%(default)s)")
    parser.add_argument("--test", type=takes, default="0-9", metavar="A-B", help="takes to ask (%(default)s)")
    parser.add_argument("--float-epochs", type=int, default=FLOAT_EPOCHS, metavar="N", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=EPOCHS, metavar="N", help="for integers (default: %(default)s)")
    # Where other programs run, too, threads that wait for each other cost more than they bring to so small a GRU.
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: %(default)s")
    args = parser.parse_args()
    if set(args.train) & set(args.test):
        parser.error("--train and --test have takes in common")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    # Weights of 2 bits clip on purpose; what they cost is in the table.
    warnings.simplefilter("ignore", isobit.torch.QuantizationWarning)

    begin = time.monotonic()
    try:
        heard, heard_sum = words.load(args.data, args.train)
        asked, asked_sum = words.load(args.data, args.test)
    except ValueError as problem:
        sys.exit("error: %s" % problem)
    mean, deviation = heard.frames().mean(0), heard.frames().std(0)
    heard, asked = heard.normalized(mean, deviation), asked.normalized(mean, deviation)
    print("%d words to hear, %d to ask" % (len(heard), len(asked)))

    seeds = []
    epochs = args.seeds * (args.float_epochs + len(SETTINGS) * len(SCALES) * args.epochs)
    with tqdm.tqdm(total=epochs, unit="epoch") as bar:
        for seed in range(args.seeds):
            bar.set_description("seed %d" % seed)
            seeds.append(run_seed(seed, heard, asked, args, bar))
    rows = rows_of(seeds)
    print("\n%s" % table(rows))

    result = {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "train": {"takes": [args.train[0], args.train[-1]], "words": len(heard), "sha256": heard_sum},
        "test": {"takes": [args.test[0], args.test[-1]], "words": len(asked), "sha256": asked_sum},
        "float_epochs": args.float_epochs, "epochs": args.epochs, "threads": args.threads,
        "float_bytes": sum(4 * weight.numel() for weight in Network().gru.parameters()),
        "seconds": round(time.monotonic() - begin), "table": rows, "seeds": seeds}
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(seeds, args.out / "spoken_digits.svg")
    different = [count for seed in seeds for setting in seed["settings"]
                 for count in setting["different_bytes"].values()]
    print("%d integer models were saved, and loaded with isobit.load. On the words that are asked their results differ "
          "in %d bytes from those of the training forward." % (len(different), sum(different)))
    sys.exit(1 if any(different) else 0)


if __name__ == "__main__":
    main()
