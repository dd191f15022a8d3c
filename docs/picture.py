"""Draws the README's picture: what the translator looks at while it writes, and how fast attention is computed.

pip install '.[plot]' && python docs/picture.py     # reads benchmarks/attention.json, writes docs/attention.png
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from limelight import translate
from limelight.translate.display import alignment_of

HERE = Path(__file__).parent
SHOWN = {
    "window 128, n=8192": "window of 128, n = 8192",
    "training: causal window 256, n=8192": "training, window of 256",
    "decode 32/8, 4096 keys": "decoding, 32 heads over 8",
    "half padded, n=2048": "half of the keys padded",
    "float16, n=1024": "float16",
    "training: causal, n=2048": "training, causal",
    "causal, n=2048": "causal, n = 2048",
    "bfloat16, n=1024": "bfloat16",
    "full, n=1024": "full, n = 1024",
}


SENTENCE = "The cat sat on the mat."


def draw_alignment(axis: Axes) -> str:
    """What the translator looks at while it writes each word; returns the translation."""
    (sentence,) = translate.load()(SENTENCE).sentences
    one = alignment_of(sentence)
    axis.imshow(one.weights, cmap="magma", vmin=0, vmax=1)
    axis.set_xticks(range(len(one.read)), one.read, rotation=45)
    axis.set_yticks(range(len(one.written)), one.written)
    axis.xaxis.tick_top()
    axis.set_xlabel(f"cross-attention of layer {one.call.layer}, head {one.head}", fontsize=9)
    return sentence.text


def main() -> None:
    results = json.loads((HERE.parent / "benchmarks" / "attention.json").read_text())["results"]
    ratios = {r["case"]: r["ratio"] for r in results if r["threads"] == 1}

    figure = plt.figure(figsize=(11.5, 4.6), dpi=130, layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.1))
    text = draw_alignment(left.subplots())
    left.suptitle(f"“{SENTENCE}” → “{text}”", fontsize=11)

    axis = right.subplots()
    names = [c for c in SHOWN if c in ratios]
    values = [ratios[c] for c in names]
    bars = axis.barh([SHOWN[c] for c in names], values, color="#c2447c")
    axis.bar_label(bars, [f"{v:.3g} ×" for v in values], padding=4, fontsize=9)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log")
    axis.set_xlim(0.8, max(values) * 2.2)
    axis.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axis.minorticks_off()
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("times as fast as SDPA, one CPU thread (log scale)", fontsize=9)
    axis.tick_params(labelsize=9)
    right.suptitle("what attention costs", fontsize=11)
    figure.savefig(HERE / "attention.png")


if __name__ == "__main__":
    main()
