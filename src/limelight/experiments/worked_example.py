"""The worked example "dog ate dinner", and one output by hand: claims 1 and 45."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limelight import attention, trace
from limelight.core.examples import TOKENS, worked_example
from limelight.experiments.findings import EXTRA, Finding, Result, holds, judge, rounded
from limelight.experiments.lesson import Lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="The worked example",
    equation="output = softmax(q kᵀ / √d) v",
    method=(
        "Three words with three numbers each are projected to queries, keys and values of width 2. Every step that "
        "texts print for “dog” is compared with the same step of limelight's trace, to the last printed digit. Then "
        "the output of every word is added up by hand, weight times value, and compared with what attention returns."
    ),
    code="""\
import torch, limelight as ll
x = torch.tensor([[1.0, 2.0, 3.0], [0.5, 1.0, 1.5], [2.0, 1.0, 0.5]])
W_Q = torch.tensor([[0.6, -0.2], [0.1, 0.5], [-0.3, 0.4]])
W_K = torch.tensor([[0.2, 0.3], [-0.4, 0.7], [0.5, -0.1]])
W_V = torch.tensor([[0.9, 0.1], [0.2, 0.8], [-0.1, 0.6]])
steps = ll.trace(x @ W_Q, x @ W_K, x @ W_V, tokens=["dog", "ate", "dinner"])
print(steps)
row = steps.weights[0]
print(sum(w * v for w, v in zip(row, x @ W_V)))  # by hand
""",
)
# The printed numbers, and half a unit of their last digit.
PRINTED: dict[str, tuple[list[float], float]] = {
    "query of dog": ([-0.10, 2.00], 5e-3),
    "key of dog": ([0.90, 1.40], 5e-3),
    "value of dog": ([1.0, 3.5], 5e-2),
    "scores of dog": ([2.71, 1.36, 2.48], 5e-3 + 1e-9),
    "weights of dog": ([0.448, 0.172, 0.380], 5e-4),
    "output of dog": ([1.275, 2.363], 1e-3),  # texts compute it from rounded weights
}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Compare every printed step, and add up the outputs by hand."""
    steps = trace(*worked_example(), tokens=TOKENS)
    assert steps.output is not None
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
        found = rounded(x.reshape(-1, x.shape[-1])[0].tolist(), 4)
        note = "texts multiply weights that they have rounded first" if name == "output of dog" else ""
        verdict = judge(theirs, found, within, same_way=False)
        findings.append(Finding(claim=1, what=name, theirs=theirs, measured=found, verdict=verdict, note=note))
        if name == "scores of dog":
            scaled = rounded(steps.scaled.reshape(3, 3)[0].tolist(), 4)
            findings.append(Finding(1, "scores of dog / √2", None, scaled, EXTRA, "a step that texts do not print"))
    weights: list[list[float]] = steps.weights.reshape(3, 3).tolist()
    rows: list[dict[str, Any]] = [
        {"query": q} | dict(zip(TOKENS, row, strict=True)) for q, row in zip(TOKENS, weights, strict=True)
    ]
    findings.append(_by_hand(weights))
    top = max(zip(weights[0], TOKENS, strict=True))
    takeaway = (
        f"Dog looks most at {top[1]} ({top[0]:.2f}); its output is a weighted mean of the three values, and every "
        "printed step can be checked with a pocket calculator."
    )
    return Result("worked-example", takeaway, findings, {"weights": rows})


def _by_hand(weights: list[list[float]]) -> Finding:
    """Add up weight times value in plain Python, and compare with ``attention``."""
    q, k, v = worked_example()
    values = v.tolist()
    by_hand = [[sum(row[j] * values[j][d] for j in range(3)) for d in range(2)] for row in weights]
    returned = attention(q[None], k[None], v[None])[0].tolist()
    rows = zip(by_hand, returned, strict=True)
    off = max(abs(a - b) for by_hand_row, returned_row in rows for a, b in zip(by_hand_row, returned_row, strict=True))
    return Finding(
        claim=45,
        what="all three outputs, added up by hand, against attention(q, k, v): largest difference",
        theirs=0.0,
        measured=round(off, 8),
        verdict=holds(off < 1e-5),
        note=f"dog: {weights[0][0]:.3f} v₁ + {weights[0][1]:.3f} v₂ + {weights[0][2]:.3f} v₃",
    )


def draw(result: Result) -> Figure:
    """Draw the weights, with their numbers."""
    from limelight.experiments.figures import heatmap, new_figure

    figure, axis = new_figure(height=2.3)
    rows = result.data["weights"]
    heatmap(axis, [[row[t] for t in TOKENS] for row in rows], TOKENS, TOKENS, numbers=".3f")
    axis.set(xlabel="key", ylabel="query", title="Weights: each row sums to 1")
    return figure
