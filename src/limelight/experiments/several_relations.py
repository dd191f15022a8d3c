"""One head against several of the same total width, where several relations matter: claim 25."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, plus_minus, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.small_models import MarkedTexts
from limelight.experiments.training import accuracy, fit
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Several relations at once",
    equation="y = concat(head₁, …, head_h) W_O, h · d_k = 48",
    method=(
        "Three tokens of a text of 12 carry three different marks (think of subject, place and time), and one position "
        "has to name all three tokens. A layer with 1, 2, 4 or 8 heads of the same total width learns it; in a second "
        "task there is one mark only. An answer counts where all tokens are named right."
    ),
    code="""\
from limelight.experiments.several_relations import learn
for heads in (1, 4):
    print(heads, "heads:", learn(heads, marks=3, seed=0, steps=150))
""",
)
CLASSES, WIDTH, TOKENS, MARKS = 16, 48, 12, 3
HEADS = (1, 2, 4, 8)
ENOUGH = 0.9  # share of right answers above which a layer has learned the relations
SEVERAL = 4  # number of heads that is judged: at least one for each relation


class Reader(nn.Module):
    """A layer of attention, read at the first position, with one linear map for each mark."""

    def __init__(self, heads: int, marks: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(WIDTH, heads)
        self.out, self.marks = nn.Linear(WIDTH, marks * CLASSES), marks

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, marks, classes)``."""
        y: Tensor = self.out(self.attention(x)[:, 0])
        return y.view(len(y), self.marks, CLASSES)


def learn(heads: int, marks: int, seed: int, steps: int) -> float:
    """Train a layer and return the share of marked tokens that it names."""
    torch.manual_seed(seed)
    model, texts = Reader(heads, marks), MarkedTexts(CLASSES, WIDTH, marks=marks, seed=seed)

    def batch(count: int = 64) -> tuple[tuple[Tensor, ...], Tensor]:
        x, answer = texts.draw(count, TOKENS)
        return (x,), answer

    fit(model, batch, steps=steps, rate=5e-3)
    return accuracy(model, lambda: batch(500))


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train layers with 1 to 8 heads on three relations, and on one."""
    seeds, steps = range(seed, seed + (1 if quick else 2)), 250 if quick else 400
    rows: list[dict[str, Any]] = []
    for heads in HEADS[::2] if quick else HEADS:
        row: dict[str, Any] = {"heads": heads}
        for marks in (MARKS, 1):
            row[f"{marks}"], row[f"{marks} spread"] = mean_and_spread([learn(heads, marks, s, steps) for s in seeds])
        rows.append(row)
    by = {row["heads"]: row for row in rows}
    one, several = by[1], by[SEVERAL]
    findings = [
        Finding(
            claim=25,
            what="three relations at once: right with one head",
            theirs="not enough",
            measured=round(one["3"], 2),
            verdict=holds(one["3"] < ENOUGH, in_part=one["3"] < several["3"] - 0.05),
            note=(
                f"{plus_minus([one['3 spread']])}; the mean of three values does not say which came from which mark; "
                f"reproduced: below {ENOUGH:g}"
            ),
        ),
        Finding(
            claim=25,
            what=f"three relations at once: right with {several['heads']} heads of the same total width",
            theirs="enough",
            measured=round(several["3"], 2),
            verdict=holds(several["3"] > ENOUGH, in_part=several["3"] > one["3"] + 0.05),
            note=(
                f"by the number of heads {rounded([row['3'] for row in rows])}; guessing is {1 / CLASSES:.2f}; "
                f"reproduced: above {ENOUGH:g} with {SEVERAL} heads, the fewest here that are one for each relation"
            ),
        ),
        Finding(
            claim=25,
            what="one relation: right with one head",
            theirs=None,
            measured=round(one["1"], 2),
            verdict=EXTRA,
            note="there one head is enough",
        ),
    ]
    takeaway = (
        f"With three relations one head names {one['3']:.0%} of the tokens and {several['heads']} heads of the same "
        f"total width {several['3']:.0%}; with one relation one head names {one['1']:.0%}."
    )
    return Result("several-relations", takeaway, findings, {"accuracy": rows})


def draw(result: Result) -> Figure:
    """Draw the right answers by the number of heads."""
    from limelight.experiments.figures import chance_line, legend_below, lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.1)
    rows = result.data["accuracy"]
    heads = [row["heads"] for row in rows]
    for n, (marks, label) in enumerate((("3", "three relations"), ("1", "one relation"))):
        series(axis, heads, [row[marks] for row in rows], n, label, spread=[row[f"{marks} spread"] for row in rows])
    chance_line(axis, 1 / CLASSES)
    axis.set(ylabel="share right", ylim=(0, 1.05), title=f"Heads that share a width of {WIDTH}")
    lengths_axis(axis, heads, "heads")
    legend_below(figure, axis, 3)
    return figure
