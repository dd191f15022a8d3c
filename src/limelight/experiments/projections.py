"""One projection for queries and keys, or two: claim 13.

With one projection W the scores x W Wᵀ xᵀ are symmetric. The weights are not, since the softmax divides every row by
a sum of its own. With two projections the scores are not symmetric either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from limelight.experiments.findings import CORRECTED, REPRODUCED, Finding, Result, mean_and_spread
from limelight.nn import MultiHeadAttention
from limelight.reference import trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Shared projections"
TOKENS, WIDTH = 12, 32


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
            *(13, "one projection: the scores are symmetric", 0.0, one["scores"]),
            *(REPRODUCED if one["scores"] < 1e-5 else CORRECTED, "|S − Sᵀ| / |S|"),
        ),
        Finding(
            *(13, "one projection: the attention is symmetric", 0.0, round(one["weights"], 3)),
            *(REPRODUCED if one["weights"] < 1e-3 else CORRECTED, "|A − Aᵀ| / |A|: each row is divided by its own sum"),
        ),
        Finding(
            *(13, "two projections: the scores are not symmetric", "above 0", round(two["scores"], 3)),
            REPRODUCED if two["scores"] > 0.1 else CORRECTED,
        ),
    ]
    return Result("projections", TITLE, findings, {"asymmetry": rows, "matrices": _matrices(seed)}, __doc__ or "")


def _steps(seed: int, shared: bool) -> Any:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, 1, bias=False)
    if shared:
        layer.key.weight = layer.query.weight
    x = 2 * torch.randn(1, TOKENS, WIDTH)
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
    """Symmetric scores, and the weights that they become."""
    from limelight.experiments.figures import heatmap, new_figure

    figure, axes = new_figure(1, 2, width=4.0)
    names = [str(n) for n in range(TOKENS)]
    for axis, name, title in zip(
        axes, ("score", "weight"), ("One projection: scores are symmetric", "the weights are not"), strict=True
    ):
        matrix = [[0.0] * TOKENS for _ in names]
        for row in result.data["matrices"]:
            matrix[row["query"]][row["key"]] = row[name]
        heatmap(axis, matrix, names, names)
        axis.set(xlabel="key", ylabel="query", title=title)
    return figure
