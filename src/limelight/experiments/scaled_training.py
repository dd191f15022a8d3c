"""Training with and without the scaling by √d: claim 23."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.findings import Finding, Result, holds, mean_and_spread
from limelight.experiments.lesson import Lesson
from limelight.experiments.small_models import MarkedTexts
from limelight.experiments.training import accuracy, fit
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Training without scaling",
    equation="softmax(q kᵀ / √d) against softmax(q kᵀ)",
    method=(
        "One head of width d learns to say the marked token of 16, with scores divided by √d and not, for two widths "
        "and two initialisations: PyTorch's usual one, and one that gives queries and keys unit variance, as the "
        "argument for the scaling assumes. The share of right answers is measured after a third of the training and "
        "at its end."
    ),
    code="""\
from limelight.experiments.scaled_training import learn
for scaled in (True, False):
    print(scaled, learn(width=64, unit=True, scaled=scaled, seed=0, steps=60))
""",
)
CLASSES, TOKENS = 32, 16
STARTS = {"usual start": False, "unit variance": True}


class Reader(nn.Module):
    """One head, and a linear map to the classes."""

    def __init__(self, width: int, unit: bool, scaled: bool) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, 1, scale=None if scaled else 1.0)
        self.out = nn.Linear(width, CLASSES)
        if unit:
            for part in (self.attention.query, self.attention.key):
                nn.init.normal_(part.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, N, classes)``."""
        logits: Tensor = self.out(self.attention(x))
        return logits


def learn(width: int, unit: bool, scaled: bool, seed: int, steps: int) -> tuple[float, float]:
    """Train one head and return its accuracy after a third of the steps and at the end."""
    torch.manual_seed(seed)
    model, texts = Reader(width, unit, scaled), MarkedTexts(CLASSES, width, seed=seed)

    def batch(count: int = 32) -> tuple[tuple[Tensor, ...], Tensor]:
        x, answer = texts.draw(count, TOKENS)
        return (x,), answer.expand(count, TOKENS)

    fit(model, batch, steps=steps // 3, rate=1e-3)
    early = accuracy(model, lambda: batch(200))
    fit(model, batch, steps=steps - steps // 3, rate=1e-3)
    return early, accuracy(model, lambda: batch(200))


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train with and without scaling, over widths and initialisations."""
    seeds, steps = range(seed, seed + (1 if quick else 2)), 90 if quick else 300
    rows: list[dict[str, Any]] = []
    for width in (64, 256):
        for start, unit in STARTS.items():
            for scaled in (True, False):
                found = [learn(width, unit, scaled, s, steps) for s in seeds]
                row: dict[str, Any] = {"width": width, "start": start, "scaled": scaled}
                for n, name in enumerate(("early", "end")):
                    row[name], row[f"{name} spread"] = mean_and_spread([x[n] for x in found])
                rows.append(row)
    by = {(row["width"], row["start"], row["scaled"]): row for row in rows}
    findings = [_judge(width, start, by) for width in (64, 256) for start in STARTS]
    a, b = (by[256, "unit variance", scaled] for scaled in (True, False))
    takeaway = (
        f"At width 256 with unit variance, a third into the training, {a['early']:.0%} of answers are right with "
        f"scaling and {b['early']:.0%} without, at its end {a['end']:.0%} and {b['end']:.0%}: slower and worse, not "
        "impossible."
        if b["end"] > 2 / CLASSES
        else f"At width 256 with unit variance nothing is learned without scaling ({b['end']:.0%} right)."
    )
    return Result("scaled-training", takeaway, findings, {"training": rows})


def _judge(width: int, start: str, by: dict[tuple[int, str, bool], dict[str, Any]]) -> Finding:
    scaled, unscaled = by[width, start, True], by[width, start, False]
    gap = scaled["end"] - unscaled["end"]
    early = scaled["early"] - unscaled["early"]
    return Finding(
        claim=23,
        what=f"d = {width}, {start}: without scaling it cannot learn; right at the end",
        theirs=f"about {1 / CLASSES:.2f}",
        measured=round(unscaled["end"], 2),
        verdict=holds(unscaled["end"] < 2 / CLASSES, in_part=gap > 0.02 or early > 0.05),
        note=(
            f"with scaling {scaled['end']:.2f}; after a third of the steps {unscaled['early']:.2f} without and "
            f"{scaled['early']:.2f} with: "
            + ("slower or worse, and it learns" if gap > 0.02 or early > 0.05 else "no difference")
        ),
    )


def draw(result: Result) -> Figure:
    """Draw the right answers early and at the end, scaled and not."""
    from limelight.experiments.figures import bars, chance_line, legend_below, new_figure

    figure, axes = new_figure(2, 1, height=2.5)
    rows = result.data["training"]
    for axis, when in zip(axes, ("early", "end"), strict=True):
        names = [f"d = {row['width']}\n{row['start']}" for row in rows if row["scaled"]]
        heights = {k: [r[when] for r in rows if r["scaled"] == v] for k, v in (("scaled", True), ("unscaled", False))}
        bars(axis, names, heights)
        chance_line(axis, 1 / CLASSES)
        axis.set(ylabel="share right", ylim=(0, 1.05))
        axis.set_title("After a third of the training" if when == "early" else "At the end")
    legend_below(figure, axes[0], 3)
    return figure
