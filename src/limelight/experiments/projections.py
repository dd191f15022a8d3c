"""One projection for queries and keys, or two: claim 13.

Texts say that with one projection W attention is symmetric. The scores x W Wᵀ xᵀ are; the weights are not, since the
softmax divides every row by a sum of its own. With two projections the scores are not symmetric either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import Finding, Result, holds, mean_and_spread, plus_minus
from limelight.matrix.steps import Trace, trace
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Shared projections"
TOKENS, WIDTH = 12, 32
SPREAD = 1.5  # of the tokens, so that the weights are neither equal nor one-hot


def run(quick: bool = False, seed: int = 0) -> Result:
    """How far scores and weights are from their transposes."""
    seeds = range(seed, seed + (3 if quick else 8))
    rows = []
    for shared in (True, False):
        found = [_asymmetry(s, shared) for s in seeds]
        row: dict[str, Any] = {"projections": "one" if shared else "two"}
        for n, name in enumerate(("scores", "weights")):
            row[name], row[f"{name} spread"] = mean_and_spread([x[n] for x in found])
        rows.append(row)
    one, two = rows
    findings = [
        Finding(
            *(13, "one projection: asymmetry of the scores", 0.0, one["scores"], holds(one["scores"] < 1e-5)),
            "|S − Sᵀ| / |S|",
        ),
        Finding(
            *(13, "one projection: asymmetry of the weights", 0.0, round(one["weights"], 3)),
            holds(one["weights"] < 1e-3),
            f"|A − Aᵀ| / |A|, {plus_minus([one['weights spread']])} between seeds: each row is divided by its own sum",
        ),
        Finding(
            *(13, "two projections: asymmetry of the scores", "above 0", round(two["scores"], 3)),
            *(holds(two["scores"] > 0.1), f"{plus_minus([two['scores spread']])} between seeds"),
        ),
    ]
    return Result("projections", TITLE, findings, {"asymmetry": rows, "matrices": _matrices(seed)}, __doc__ or "")


def _steps(seed: int, shared: bool) -> Trace:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, 1, bias=False)
    if shared:
        layer.key.weight = layer.query.weight
    x = SPREAD * torch.randn(1, TOKENS, WIDTH)
    with torch.no_grad():
        q, k, v = (part(x)[:, None] for part in (layer.query, layer.key, layer.value))
        return trace(q, k, v)


def _asymmetry(seed: int, shared: bool) -> tuple[float, float]:
    steps = _steps(seed, shared)
    both = (steps.scores[0, 0].double(), steps.weights[0, 0].double())
    scores, weights = (float((x - x.mT).norm() / x.norm()) for x in both)
    return scores, weights


def _matrices(seed: int) -> list[dict[str, Any]]:
    steps = _steps(seed, True)
    scores, weights = steps.scores[0, 0], steps.weights[0, 0]
    every = ((i, j) for i in range(TOKENS) for j in range(TOKENS))
    return [{"query": i, "key": j, "score": float(scores[i, j]), "weight": float(weights[i, j])} for i, j in every]


def draw(result: Result) -> Figure:
    """Symmetric scores, the weights that they become, and how these differ from their transpose."""
    from limelight.experiments.figures import heatmap, new_figure

    figure, axes = new_figure(1, 3, width=4.2)
    names = [str(n) for n in range(TOKENS)]
    matrices = {name: torch.zeros(TOKENS, TOKENS) for name in ("score", "weight")}
    for row in result.data["matrices"]:
        for name, matrix in matrices.items():
            matrix[row["query"], row["key"]] = row[name]
    weight = matrices["weight"]
    panels = {
        "One projection: scores are symmetric": matrices["score"],
        "the weights are not": weight,
        "weights − their transpose": weight - weight.mT,
    }
    for axis, (title, matrix) in zip(axes, panels.items(), strict=True):
        heatmap(axis, matrix.tolist(), names, names, scale=True)
        axis.set(xlabel="key", ylabel="query", title=title)
    return figure
