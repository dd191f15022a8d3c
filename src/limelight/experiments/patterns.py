"""Patterns: claim 15, and claim 21.

Full, causal and local attention: which weights there are, how many, how long it takes, and how much memory, against the
number of tokens, with the power of n by which each grows.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import DIRECTION, REPRODUCED, Finding, Result, exponent
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
    for n in lengths:
        for name, (mask, _) in PATTERNS.items():
            q, k, v = torch.randn(3, 1, HEADS, n, WIDTH, generator=torch.Generator().manual_seed(seed))
            rows.append({"pattern": name, "tokens": n, "weights": _count(mask, n), "seconds": _time(q, k, v, mask)})
    findings = []
    for name, (_, power) in PATTERNS.items():
        mine = [row for row in rows if row["pattern"] == name]
        sizes = [row["tokens"] for row in mine]
        for measure, within in (("weights", 0.05), ("seconds", 0.25)):
            found = exponent(sizes, [row[measure] for row in mine])
            verdict = (
                REPRODUCED
                if abs(found - power) <= within
                else DIRECTION
                if (found > 1.5) == (power > 1.5)
                else "corrected"
            )
            what = "number of weights" if measure == "weights" else "time of attention"
            findings.append(Finding(15, f"{name}: {what} grows as n to the power", power, round(found, 2), verdict))
    findings.append(_memory(max(lengths)))
    return Result("patterns", TITLE, findings, {"growth": rows}, __doc__ or "")


def _count(mask: Mask | None, n: int) -> int:
    spans = None if mask is None else mask.lower(n, n).spans
    return n * n if spans is None else int((spans[..., 1] - spans[..., 0]).sum())


def _time(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask | None) -> float:
    """The best of five."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        attention(q, k, v, mask=mask)
        times.append(time.perf_counter() - begin)
    return min(times)


def _memory(n: int) -> Finding:
    """In a process of its own: what attention to n tokens needs beyond its inputs and outputs."""
    from limelight.experiments.measuring import peak_bytes

    code = (
        f"q, k, v = torch.randn(3, 1, {HEADS}, {n}, {WIDTH}); y = torch.empty_like(q)\n"
        "before = peak(); y = limelight.attention(q, k, v); after = peak()"
    )
    found, matrix = peak_bytes(code) / 2**20, HEADS * n * n * 4 / 2**20
    return Finding(
        *(
            21,
            f"chunks never hold the n × n matrix: MiB beyond the inputs, n = {n}",
            f"below {matrix:.0f}",
            round(found, 1),
        ),
        *(REPRODUCED if found < matrix / 10 else "corrected", f"the matrix of {HEADS} heads would be {matrix:.0f} MiB"),
    )


def draw(result: Result) -> Figure:
    """The three patterns, and how time grows with each."""
    from limelight.experiments.figures import COLOURS, heatmap, new_figure

    figure, axes = new_figure(1, 4, width=3.0, height=3.0)
    n = 12
    names = [str(i) for i in range(n)]
    for axis, (name, (mask, _)) in zip(axes, PATTERNS.items(), strict=False):
        allowed = torch.ones(n, n) if mask is None else mask.dense(n).float()
        heatmap(axis, allowed.tolist(), names, names)
        axis.set(title=name, xlabel="key", ylabel="query")
    last = axes[-1]
    for name, style, colour in zip(PATTERNS, ("-o", "--s", ":^"), COLOURS, strict=False):
        mine = [row for row in result.data["growth"] if row["pattern"] == name]
        last.plot(
            [row["tokens"] for row in mine], [1e3 * row["seconds"] for row in mine], style, color=colour, label=name
        )
    last.set(xscale="log", yscale="log", xlabel="tokens", ylabel="milliseconds", title="time")
    last.legend()
    return figure
