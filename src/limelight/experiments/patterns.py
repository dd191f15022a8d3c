"""Patterns: claim 15, and claim 21.

Texts say that full attention (BERT, ViT) costs n², that causal attention (GPT) is its lower triangle, and that local
attention (Longformer, BigBird, which add global tokens to it) costs n · w for a window of w. Counted and timed against
the number of tokens and the window, with the powers by which they grow. And attention in chunks never holds the n × n
matrix: measured by its memory, and by the longest text that it reaches where memory is limited.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from limelight.core.masks import Causal, Mask, Window
from limelight.experiments.findings import Finding, Result, exponent, holds
from limelight.experiments.measuring import longest, peak_bytes, seconds
from limelight.experiments.naive import stored_attention
from limelight.functional import attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Patterns"
LOCAL = "local, window 3"
PATTERNS: dict[str, tuple[Mask | None, float]] = {
    "full": (None, 2.0),
    "causal": (Causal(), 2.0),
    LOCAL: (Window(1), 1.0),  # itself and a neighbour on either side
}
HEADS, WIDTH = 4, 64
WINDOWS = (257, 513, 1025)
LIMIT = 256 * 2**20


def run(quick: bool = False, seed: int = 0) -> Result:
    """Counts, times and memory for growing n, and for growing windows."""
    lengths = (1024, 2048, 4096) if quick else (1024, 2048, 4096, 8192)
    far = tuple(2 * n for n in lengths)  # a local pattern is done with short texts before it has begun
    rows: list[dict[str, Any]] = []
    for name, (mask, _) in PATTERNS.items():
        sizes = far if name == LOCAL else lengths
        peaks = peak_bytes(attention, sizes, HEADS, WIDTH, mask=mask)
        for n, peak in zip(sizes, peaks, strict=True):
            row = {"pattern": name, "tokens": n, "weights": _count(mask, n), "bytes": peak}
            rows.append({**row, "seconds": _time(mask, n, seed)})
    windows = [_window(w, 4096 if quick else 8192, seed) for w in WINDOWS]
    findings = [finding for name in PATTERNS for finding in _growth(name, [r for r in rows if r["pattern"] == name])]
    data = {"growth": rows, "windows": windows}
    return Result("patterns", TITLE, [*findings, *_of_windows(windows), *_memory(rows, quick)], data, __doc__ or "")


def _count(mask: Mask | None, n: int) -> int:
    spans = None if mask is None else mask.lower(n, n).spans
    return n * n if spans is None else int((spans[..., 1] - spans[..., 0]).sum())


def _time(mask: Mask | None, n: int, seed: int) -> float:
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(seed))
    return seconds(partial(attention, q, k, v, mask=mask))


def _window(w: int, n: int, seed: int) -> dict[str, Any]:
    mask = Window(w // 2)
    return {"window": w, "tokens": n, "weights": _count(mask, n), "seconds": _time(mask, n, seed)}


def _near(found: float, power: float, within: float) -> str:
    """Reproduced where the power is near, in direction where it is on the same side of 1.5."""
    return holds(abs(found - power) <= within, in_part=(found > 1.5) == (power > 1.5))


def _growth(name: str, rows: list[dict[str, Any]]) -> list[Finding]:
    """The powers of n by which the number of weights and the time grow."""
    sizes, power = [row["tokens"] for row in rows], PATTERNS[name][1]
    note = f"from {sizes[0]} to {sizes[-1]} tokens"
    findings = []
    for measure, what, within in (("weights", "number of weights", 0.05), ("seconds", "time of attention", 0.25)):
        found = exponent(sizes, [row[measure] for row in rows])
        verdict = _near(found, power, within)
        findings.append(Finding(15, f"{name}: {what} grows as n to the power", power, round(found, 2), verdict, note))
    if name == "causal":
        share = rows[-1]["weights"] / sizes[-1] ** 2
        findings.append(
            Finding(15, "causal: share of the n² weights", 0.5, round(share, 3), holds(abs(share - 0.5) < 0.01))
        )
    return findings


def _of_windows(rows: list[dict[str, Any]]) -> list[Finding]:
    sizes = [row["window"] for row in rows]
    weights, times = (exponent(sizes, [row[name] for row in rows]) for name in ("weights", "seconds"))
    note = f"windows of {sizes[0]} to {sizes[-1]}, {rows[0]['tokens']} tokens; time has a part that every query costs"
    return [
        Finding(
            15, "local: number of weights grows as w to the power", 1.0, round(weights, 2), _near(weights, 1.0, 0.05)
        ),
        Finding(
            *(15, "local: time grows as w to the power", 1.0, round(times, 2)),
            *(holds(abs(times - 1) <= 0.35, in_part=0.2 < times < 1.5), note),
        ),
    ]


def _memory(rows: list[dict[str, Any]], quick: bool) -> list[Finding]:
    """What full attention needs beyond its inputs, which is its output and little more."""
    full = [row for row in rows if row["pattern"] == "full"]
    n, found = full[-1]["tokens"], full[-1]["bytes"] / 2**20
    matrix, output = HEADS * n * n * 4 / 2**20, HEADS * n * WIDTH * 4 / 2**20
    powers = {}
    for name in PATTERNS:
        mine = [row for row in rows if row["pattern"] == name]
        powers[name] = round(exponent([row["tokens"] for row in mine], [row["bytes"] for row in mine]), 2)
    sizes = tuple(2**p for p in range(10, 15 if quick else 16))
    reached = [longest(f, sizes, 1, 16, LIMIT) for f in (stored_attention, attention)]
    return [
        Finding(
            *(21, f"chunks never hold the n × n matrix: MiB beyond the inputs, n = {n}", f"below {matrix:.0f}"),
            *(round(found, 1), holds(found < matrix / 10), f"of which the output takes {output:.0f}"),
        ),
        Finding(
            *(21, "memory grows as n to the power", "below 2", powers, holds(max(powers.values()) < 1.5)),
            "whatever the pattern is",
        ),
        Finding(
            *(21, "so it reaches longer texts: stored and in chunks, tokens within 256 MiB", "longer", reached),
            *(holds(reached[1] > reached[0] > 0), f"of {', '.join(map(str, sizes))}; one head of width 16"),
        ),
    ]


def draw(result: Result) -> Figure:
    """The three patterns, and how time and memory grow with each."""
    from limelight.experiments.figures import COLOURS, GREY, heatmap, lengths_axis, new_figure

    figure, axes = new_figure(2, 3, width=4.0, height=3.4)
    n = 12
    names = [str(i) for i in range(n)]
    for axis, (name, (mask, power)) in zip(axes[0], PATTERNS.items(), strict=True):
        allowed = torch.ones(n, n) if mask is None else mask.dense(n).float()
        heatmap(axis, allowed.tolist(), names, names)
        axis.set(title=f"{name.capitalize()}: n{'²' if power == 2 else ''} weights", xlabel="key", ylabel="query")
    rows = result.data["growth"]
    every = sorted({row["tokens"] for row in rows})
    panels = (
        (axes[1, 0], "seconds", 1e3, "milliseconds", "Time"),
        (axes[1, 1], "bytes", 2**-20, "MiB beyond the inputs", "Memory"),
        (axes[1, 2], "weights", 1.0, "weights", "Number of weights"),
    )
    for axis, measure, factor, unit, title in panels:
        for name, style, colour in zip(PATTERNS, ("-o", "--s", ":^"), COLOURS, strict=False):
            mine = [row for row in rows if row["pattern"] == name]
            lengths, values = [row["tokens"] for row in mine], [row[measure] for row in mine]
            label = f"{name}: n^{exponent(lengths, values):.2f}"
            axis.plot(lengths, [factor * x for x in values], style, color=colour, label=label)
        if measure == "bytes":
            axis.plot(every, [HEADS * n * n * 4 * factor for n in every], "-.", color=GREY, label="a stored matrix")
        axis.set(yscale="log", ylabel=unit, title=title)
        lengths_axis(axis, every, "tokens")
        axis.tick_params(axis="x", labelsize=7)
        axis.legend()
    return figure
