"""The worked example "dog ate dinner": claim 1.

Three words, three numbers each, and projections to two: every step of attention by hand, against limelight's trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limelight.core.examples import TOKENS, worked_example
from limelight.experiments.findings import BESIDE, Finding, Result, judge
from limelight.matrix.steps import trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "The worked example"
# What is printed, and half a unit of its last digit.
PRINTED: dict[str, tuple[list[float], float]] = {
    "query of dog": ([-0.10, 2.00], 5e-3),
    "key of dog": ([0.90, 1.40], 5e-3),
    "value of dog": ([1.0, 3.5], 5e-2),
    "scores of dog": ([2.71, 1.36, 2.48], 5e-3 + 1e-9),
    "weights of dog": ([0.448, 0.172, 0.380], 5e-4),
    "output of dog": ([1.275, 2.363], 1e-3),  # made from the rounded weights
}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Every step, for the first word."""
    steps = trace(*worked_example(), tokens=TOKENS)
    measured = {
        "query of dog": steps.q,
        "key of dog": steps.k,
        "value of dog": steps.v,
        "scores of dog": steps.scores,
        "weights of dog": steps.weights,
        "output of dog": steps.output,
    }
    findings = []
    for name, (theirs, within) in PRINTED.items():
        x = measured[name]
        assert x is not None
        found = [round(y, 4) for y in x.reshape(-1, x.shape[-1])[0].tolist()]
        note = "from weights that were rounded first" if name == "output of dog" else ""
        findings.append(Finding(1, name, theirs, found, judge(theirs, found, within, same_way=False), note))
        if name == "scores of dog":
            scaled = [round(y, 4) for y in steps.scaled.reshape(3, 3)[0].tolist()]
            findings.append(Finding(1, "scores of dog / √2", None, scaled, BESIDE, "which texts do not print"))
    rows: list[dict[str, Any]] = [
        {"query": q, **dict(zip(TOKENS, row, strict=True))}
        for q, row in zip(TOKENS, steps.weights.reshape(3, 3).tolist(), strict=True)
    ]
    return Result("worked-example", TITLE, findings, {"weights": rows}, __doc__ or "")


def draw(result: Result) -> Figure:
    """The weights, with their numbers."""
    from limelight.experiments.figures import heatmap, new_figure

    figure, axis = new_figure(width=4.0)
    rows = result.data["weights"]
    heatmap(axis, [[row[t] for t in TOKENS] for row in rows], TOKENS, TOKENS, numbers=True)
    axis.set(xlabel="key", ylabel="query", title="Weights: each row sums to 1")
    return figure
