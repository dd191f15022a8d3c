"""The width at which unscaled attention saturates: claim 41."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight import weights
from limelight.experiments.findings import EXTRA, Finding, Result, holds
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Saturation",
    equation="H(softmax(q kᵀ)) / ln n, with q and k of unit variance",
    method=(
        "The entropy of unscaled weights, as a share of the largest possible, is measured for widths from 1 to 512 "
        "and several numbers of keys. Saturation begins where it falls below 0.9 of the scaled weights' entropy, and "
        "is there where it is below a quarter of the largest."
    ),
    code="""\
import math, torch, limelight as ll
for d in (1, 2, 4, 8, 16, 64, 512):
    q, k = torch.randn(2, 50, 18, d)
    for A in (ll.weights(q, k, scale=1.0), ll.weights(q, k)):
        print(d, A.entropy().mean() / math.log(18))
""",
)
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
KEYS = (10, 18, 50, 200)  # 18 keys have the 2.9 nats that texts mention
BEGINS, SATURATED = 0.9, 0.25


def run(quick: bool = False, seed: int = 0) -> Result:
    """Find where the entropy begins to fall, and where it has fallen."""
    draws = 20 if quick else 100
    rows: list[dict[str, Any]] = []
    for n in KEYS:
        for d in WIDTHS:
            q, k = torch.randn(2, draws, n, d, generator=torch.Generator().manual_seed(seed + d))
            scaled, unscaled = (float(weights(q, k, scale=x).entropy().mean()) for x in (d**-0.5, 1.0))
            rows.append({"keys": n, "width": d, "scaled": scaled / math.log(n), "unscaled": unscaled / math.log(n)})
    begins = {n: _first(rows, n, lambda row: row["unscaled"] < BEGINS * row["scaled"]) for n in KEYS}
    saturated = {n: _first(rows, n, lambda row: row["unscaled"] < SATURATED) for n in KEYS}
    at_64 = {n: next(r["unscaled"] for r in rows if r["keys"] == n and r["width"] == 64) for n in KEYS}
    findings = [
        Finding(
            claim=41,
            what="width from which on unscaled attention begins to saturate, by the number of keys",
            theirs=64,
            measured=begins,
            verdict=holds(
                all(32 < x <= 128 for x in begins.values()), in_part=any(32 < x <= 128 for x in begins.values())
            ),
            note=f"entropy below {BEGINS} of the scaled one's",
        ),
        Finding(
            claim=41,
            what="entropy at d = 64, as a share of the largest: it only starts to fall there",
            theirs=f"near {BEGINS}",
            measured={n: round(x, 2) for n, x in at_64.items()},
            verdict=holds(all(x > 0.6 for x in at_64.values()), in_part=any(x > 0.6 for x in at_64.values())),
            note=f"0.42 of 2.9 nats in the texts' own table is {0.42 / 2.9:.2f}: at 64 it has collapsed",
        ),
        Finding(
            claim=41,
            what="width from which on it is saturated, by the number of keys",
            theirs=None,
            measured=saturated,
            verdict=EXTRA,
            note=f"entropy below {SATURATED} of the largest",
        ),
    ]
    takeaway = (
        f"Unscaled attention begins to saturate at widths of {min(begins.values())} to {max(begins.values())}, and at "
        f"64 it has {min(at_64.values()):.0%} to {max(at_64.values()):.0%} of the largest entropy left: it collapsed "
        "long before."
    )
    return Result("saturation", takeaway, findings, {"entropy": rows})


def _first(rows: list[dict[str, Any]], keys: int, condition: Any) -> int:
    """Return the first width at which a condition holds; 1024 where it does at none."""
    return next((row["width"] for row in rows if row["keys"] == keys and condition(row)), 1024)


def draw(result: Result) -> Figure:
    """Draw the entropy against the width, for each number of keys."""
    from limelight.experiments.figures import COLOURS, GREY, legend_below, lengths_axis, new_figure

    figure, axis = new_figure(height=3.3)
    for n, keys in enumerate(KEYS):
        mine = [row for row in result.data["entropy"] if row["keys"] == keys]
        x = [row["width"] for row in mine]
        axis.plot(x, [row["unscaled"] for row in mine], color=COLOURS[n], label=f"{keys} keys")
        axis.plot(x, [row["scaled"] for row in mine], color=COLOURS[n], linestyle=":", linewidth=1.2)
    axis.axvline(64, color=GREY, linewidth=1.0)
    axis.text(68, 0.93, "texts: starts here", fontsize=9.5)
    axis.set(ylabel="entropy / ln n", ylim=(0, 1.02), title="Unscaled (lines) and scaled (dots)")
    lengths_axis(axis, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), "width d")
    legend_below(figure, axis, 4)
    return figure
