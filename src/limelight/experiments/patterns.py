"""Patterns: claim 15, and claim 21.

Full, causal and local attention: which weights there are, how many, how long it takes, and how much memory, against the
number of tokens, with the power of n by which each grows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import CORRECTED, DIRECTION, REPRODUCED, Finding, Result, exponent, holds
from limelight.experiments.measuring import peak_bytes, seconds
from limelight.functional import attention
from limelight.masks import Causal, Mask, Window

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Patterns"
PATTERNS: dict[str, tuple[Mask | None, float]] = {
    "full": (None, 2.0),
    "causal": (Causal(), 2.0),
    "local, window 3": (Window(1), 1.0),  # itself and a neighbour on either side
}
HEADS, WIDTH = 4, 64


def run(quick: bool = False, seed: int = 0) -> Result:
    """Counts, times and memory for growing n."""
    lengths = (1024, 2048, 4096) if quick else (1024, 2048, 4096, 8192)
    rows: list[dict[str, Any]] = []
    for name, (mask, _) in PATTERNS.items():
        peaks = peak_bytes(attention, lengths, HEADS, WIDTH, mask=mask)
        for n, peak in zip(lengths, peaks, strict=True):
            q, k, v = torch.randn(3, 1, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(seed))
            row = {"pattern": name, "tokens": n, "weights": _count(mask, n), "bytes": peak}
            rows.append({**row, "seconds": seconds(partial(attention, q, k, v, mask=mask))})
    findings = [finding for name in PATTERNS for finding in _growth(name, [r for r in rows if r["pattern"] == name])]
    return Result("patterns", TITLE, [*findings, *_memory(rows)], {"growth": rows}, __doc__ or "")


def _growth(name: str, rows: list[dict[str, Any]]) -> list[Finding]:
    """The powers of n by which the number of weights and the time grow."""
    sizes, power = [row["tokens"] for row in rows], PATTERNS[name][1]
    findings = []
    for measure, what, within in (("weights", "number of weights", 0.05), ("seconds", "time of attention", 0.25)):
        found = exponent(sizes, [row[measure] for row in rows])
        same_way = (found > 1.5) == (power > 1.5)
        verdict = REPRODUCED if abs(found - power) <= within else DIRECTION if same_way else CORRECTED
        findings.append(Finding(15, f"{name}: {what} grows as n to the power", power, round(found, 2), verdict))
    return findings


def _count(mask: Mask | None, n: int) -> int:
    spans = None if mask is None else mask.lower(n, n).spans
    return n * n if spans is None else int((spans[..., 1] - spans[..., 0]).sum())


def _memory(rows: list[dict[str, Any]]) -> list[Finding]:
    """What full attention needs beyond its inputs, which chunks keep in proportion to n."""
    full = [row for row in rows if row["pattern"] == "full"]
    n, found = full[-1]["tokens"], full[-1]["bytes"] / 2**20
    matrix = HEADS * n * n * 4 / 2**20
    power = exponent([row["tokens"] for row in full], [row["bytes"] for row in full])
    return [
        Finding(
            *(21, f"chunks never hold the n × n matrix: MiB beyond the inputs, n = {n}", f"below {matrix:.0f}"),
            *(round(found, 1), holds(found < matrix / 10), f"the matrix of {HEADS} heads would be {matrix:.0f} MiB"),
        ),
        Finding(21, "so memory grows as n to the power", "below 2", round(power, 2), holds(power < 1.5)),
    ]


def draw(result: Result) -> Figure:
    """The three patterns, and how time and memory grow with each."""
    from limelight.experiments.figures import COLOURS, GREY, heatmap, lengths_axis, new_figure

    figure, axes = new_figure(1, 5, width=3.0, height=3.2)
    n = 12
    names = [str(i) for i in range(n)]
    for axis, (name, (mask, _)) in zip(axes, PATTERNS.items(), strict=False):
        allowed = torch.ones(n, n) if mask is None else mask.dense(n).float()
        heatmap(axis, allowed.tolist(), names, names)
        axis.set(title=name.capitalize(), xlabel="key", ylabel="query")
    panels = ((axes[3], "seconds", 1e3, "milliseconds", "Time"), (axes[4], "bytes", 2**-20, "MiB", "Memory"))
    for axis, measure, factor, unit, title in panels:
        for name, style, colour in zip(PATTERNS, ("-o", "--s", ":^"), COLOURS, strict=False):
            mine = [row for row in result.data["growth"] if row["pattern"] == name]
            lengths = [row["tokens"] for row in mine]
            axis.plot(lengths, [factor * row[measure] for row in mine], style, color=colour, label=name)
        if measure == "bytes":
            axis.plot(lengths, [HEADS * n * n * 4 * factor for n in lengths], "-.", color=GREY, label="a stored matrix")
        axis.set(yscale="log", ylabel=unit, title=title)
        lengths_axis(axis, lengths, "tokens")
    axes[4].legend()
    return figure
