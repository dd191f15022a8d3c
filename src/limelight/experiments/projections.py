"""One projection for queries and keys, or two: claim 13."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight import trace
from limelight.experiments.findings import Finding, Result, holds, mean_and_spread, plus_minus
from limelight.experiments.lesson import Lesson
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Shared projections",
    equation="S = x W Wᵀ xᵀ = Sᵀ,  but  Aᵢⱼ = exp Sᵢⱼ / Σₖ exp Sᵢₖ ≠ Aⱼᵢ",
    method=(
        "A layer with one head gets the same projection for queries and keys, or two different ones. The asymmetry "
        "|X − Xᵀ| / |X| is measured for the scores and for the weights, over several seeds. It is 0 for a symmetric "
        "matrix and about √2 for one whose two halves have nothing to do with each other."
    ),
    code="""\
import torch, limelight as ll
x, W = torch.randn(6, 16), torch.randn(16, 8)
steps = ll.trace(x @ W, x @ W, x)
S, A = steps.scores, steps.weights
print((S - S.T).abs().max())   # 0: scores are symmetric
print((A - A.T).abs().max())   # not 0: each row has its own sum
""",
)
TOKENS, WIDTH = 12, 32
SPREAD = 1.5  # standard deviation of the tokens, for weights that are neither equal nor one-hot


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure how far scores and weights are from their transposes."""
    seeds = range(seed, seed + (3 if quick else 8))
    rows = []
    for shared in (True, False):
        found = [tuple(map(asymmetry, _scores_and_weights(s, shared))) for s in seeds]
        row: dict[str, Any] = {"projections": "one" if shared else "two"}
        for n, name in enumerate(("scores", "weights")):
            row[name], row[f"{name} spread"] = mean_and_spread([x[n] for x in found])
        rows.append(row)
    one, two = rows
    findings = [
        Finding(
            claim=13,
            what="one projection: asymmetry of the scores",
            theirs=0.0,
            measured=one["scores"],
            verdict=holds(one["scores"] < 1e-5),
            note="|S − Sᵀ| / |S|",
        ),
        Finding(
            claim=13,
            what="one projection: asymmetry of the weights",
            theirs=0.0,
            measured=round(one["weights"], 3),
            verdict=holds(one["weights"] < 1e-3),
            note=(
                f"{plus_minus([one['weights spread']])} between seeds: the scores are symmetric, the weights are not, "
                "since the softmax divides each row by its own sum"
            ),
        ),
        Finding(
            claim=13,
            what="two projections: asymmetry of the scores",
            theirs="above 0",
            measured=round(two["scores"], 3),
            verdict=holds(two["scores"] > 0.1),
            note=f"{plus_minus([two['scores spread']])} between seeds",
        ),
    ]
    takeaway = (
        f"With one projection the scores are symmetric and the weights are not (asymmetry {one['weights']:.2f}); with "
        f"two, not even the scores are ({two['scores']:.2f})."
    )
    return Result("projections", takeaway, findings, {"asymmetry": rows, "matrices": _matrices(seed)})


def asymmetry(x: Tensor) -> float:
    """Compute |X − Xᵀ| / |X|."""
    return float((x.double() - x.double().mT).norm() / x.double().norm())


def _scores_and_weights(seed: int, shared: bool) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    layer = MultiHeadAttention(WIDTH, 1, bias=False)
    if shared:
        layer.key.weight = layer.query.weight
    x = SPREAD * torch.randn(1, TOKENS, WIDTH)
    with torch.no_grad():
        steps = trace(layer.query(x)[:, None], layer.key(x)[:, None], layer.value(x)[:, None])
    return steps.scores[0, 0], steps.weights[0, 0]


def _matrices(seed: int) -> list[dict[str, Any]]:
    scores, weights = _scores_and_weights(seed, shared=True)
    every = ((i, j) for i in range(TOKENS) for j in range(TOKENS))
    return [{"query": i, "key": j, "score": float(scores[i, j]), "weight": float(weights[i, j])} for i, j in every]


def draw(result: Result) -> Figure:
    """Draw the difference to the transpose, of the scores and of the weights."""
    from limelight.experiments.figures import heatmap, new_figure

    figure, axes = new_figure(1, 2, height=3.0)
    names = [str(n) for n in range(TOKENS)]
    for axis, what in zip(axes, ("score", "weight"), strict=True):
        matrix = torch.zeros(TOKENS, TOKENS)
        for row in result.data["matrices"]:
            matrix[row["query"], row["key"]] = row[what]
        difference = (matrix - matrix.mT) / matrix.abs().max()
        heatmap(axis, difference.tolist(), names, names, signed=True, ticks=6)
        zero = "0 everywhere" if float(difference.abs().max()) < 1e-5 else f"up to {float(difference.abs().max()):.2f}"
        axis.set(xlabel="key", title=f"{what}s − transpose:\n{zero}", box_aspect=1)
    axes[0].set_ylabel("query")
    figure.supxlabel("one projection; as a share of the largest", fontsize=9.5)
    return figure
