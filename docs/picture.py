"""Draws the README's picture: four attention matrices, and how fast they are computed.

pip install '.[plot]' && python docs/picture.py     # reads benchmarks/attention.json, writes docs/attention.png
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import limelight as ll

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


def queries_and_keys(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth random vectors, so that near positions are alike and the matrices have a texture."""
    g = torch.Generator().manual_seed(4)
    noise = torch.randn(2, 1, 16, n + 12, generator=g)
    smooth = torch.nn.functional.avg_pool1d(noise.flatten(0, 2)[None], 13, 1)[0].reshape(2, 1, 16, n) * 6
    q, k = smooth.transpose(2, 3)
    return q[None].contiguous(), k[None].contiguous()


def main() -> None:
    n = 64
    q, k = queries_and_keys(n)
    masks = {
        "all keys": None,
        "Causal()": ll.Causal(),
        "Causal() & (Window(12) | First(3))": ll.Causal() & (ll.Window(12) | ll.First(3)),
        "Documents(ids)": ll.Documents(torch.tensor([0] * 22 + [1] * 13 + [2] * 29)),
    }
    results = json.loads((HERE.parent / "benchmarks" / "attention.json").read_text())["results"]
    ratios = {r["case"]: r["ratio"] for r in results if r["threads"] == 1}

    figure = plt.figure(figsize=(11.5, 4.6), dpi=130, layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.25, 1))
    for axis, (name, mask) in zip(left.subplots(2, 2).flat, masks.items(), strict=True):
        A = ll.weights(q, k, mask=mask)
        axis.imshow(A.dense()[0, 0] ** 0.5, cmap="magma", interpolation="nearest")
        axis.set_title(name, fontsize=9, family="monospace")
        axis.set_xticks([])
        axis.set_yticks([])
    left.supxlabel("keys", fontsize=9)
    left.supylabel("queries", fontsize=9)
    left.suptitle("attention matrices that are never stored", fontsize=11)

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
    right.suptitle("and what they cost", fontsize=11)
    figure.savefig(HERE / "attention.png")


if __name__ == "__main__":
    main()
