"""Temperature: claim 12.

softmax(scores / (√d τ)) for τ from 0.1 to 10: how large the largest weight is, and how much of the largest possible
entropy there is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import DIRECTION, REPRODUCED, Finding, Result, mean_and_spread, ordered, plus_minus
from limelight.functional import weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Temperature"
GRID = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
KEYS, WIDTH = 20, 64


def run(quick: bool = False, seed: int = 0) -> Result:
    """The largest weight and the entropy at every temperature."""
    seeds = range(seed, seed + (3 if quick else 8))
    rows = [_at(t, seeds) for t in GRID]
    by = {row["temperature"]: row for row in rows}
    monotone = ordered([row["entropy"] for row in rows], rising=True)

    def verdict(holds: bool) -> str:
        return REPRODUCED if holds else DIRECTION if monotone else "corrected"

    def some(measure: str, *temperatures: float) -> list[float]:
        return [round(by[t][measure], 2) for t in temperatures]

    cold, hot = some("largest", 0.1, 0.3, 0.5), some("share", 3.0, 5.0, 10.0)
    spread = plus_minus(some("largest spread", 0.1, 0.3, 0.5))
    findings = [
        Finding(
            *(12, "0.1 to 0.5: almost one-hot", "near 1", cold, verdict(min(cold) > 0.9)),
            f"the largest weight at 0.1, 0.3, 0.5, {spread} between seeds",
        ),
        Finding(
            *(12, "0.5 to 1: sharp; 1 to 2: softer", "falls", some("largest", 0.5, 0.7, 1.0, 1.5, 2.0)),
            *(verdict(monotone), "the largest weight at 0.5, 0.7, 1, 1.5, 2"),
        ),
        Finding(
            *(12, "above 2: nearly uniform", "near 1", hot, verdict(min(hot) > 0.95)),
            "the entropy as a share of that of equal weights, at 3, 5, 10",
        ),
    ]
    return Result("temperature", TITLE, findings, {"temperature": rows}, __doc__ or "")


def _at(t: float, seeds: Any) -> dict[str, Any]:
    largest, entropy = [], []
    for s in seeds:
        g = torch.Generator().manual_seed(s)
        A = weights(torch.randn(1, 200, WIDTH, generator=g), torch.randn(1, KEYS, WIDTH, generator=g), temperature=t)
        seen = A.observe(entropy=True, top=1)
        assert seen.top is not None
        assert seen.entropy is not None
        largest.append(float(seen.top.values.mean()))
        entropy.append(float(seen.entropy.mean()))
    (a, da), (b, db) = mean_and_spread(largest), mean_and_spread(entropy)
    return {
        "temperature": t,
        "largest": a,
        "largest spread": da,
        "entropy": b,
        "entropy spread": db,
        "share": b / math.log(KEYS),
    }


def draw(result: Result) -> Figure:
    """Both against the temperature, with the bands that the texts name."""
    from limelight.experiments.figures import COLOURS, GREY, new_figure

    figure, axis = new_figure(width=7.0, height=3.8)
    rows = result.data["temperature"]
    t = [row["temperature"] for row in rows]
    axis.plot(t, [row["largest"] for row in rows], "-o", color=COLOURS[0], label="largest weight")
    axis.plot(t, [row["share"] for row in rows], "--s", color=COLOURS[1], label="entropy")
    for edge in (0.5, 1.0, 2.0):
        axis.axvline(edge, color=GREY, alpha=0.6, linewidth=0.8)
    for middle, name in ((0.22, "almost one-hot"), (0.71, "sharp"), (1.41, "softer"), (4.5, "nearly uniform")):
        axis.text(middle, 1.1, name, ha="center", fontsize=9, style="italic")
    axis.set(xscale="log", xlabel="temperature τ", ylabel="share of the largest possible", ylim=(0, 1.2))
    axis.set_title(f"What texts call it, and what it is ({KEYS} keys, width {WIDTH})")
    axis.set_xticks([0.1, 0.5, 1, 2, 5, 10], ["0.1", "0.5", "1", "2", "5", "10"])
    axis.legend(loc="center right")
    return figure
