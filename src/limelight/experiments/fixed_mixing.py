"""A mean, a convolution and a recurrent network in place of attention: claim 29."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, plus_minus
from limelight.experiments.lesson import Lesson
from limelight.experiments.small_models import MarkedTexts
from limelight.experiments.training import accuracy, fit
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Fixed and learned mixing",
    equation="mean: Aᵢⱼ = 1/n;   convolution: Aᵢⱼ = c(i − j);   attention: Aᵢⱼ = f(xᵢ, xⱼ)",
    method=(
        "A text of 24 tokens has one marked token, anywhere, and the last position has to say which token it is. A "
        "mean over all tokens, two convolutions of width 5, a recurrent network (GRU) and one head of attention "
        "learn it for the same number of steps. In a second task the marked token is always the one before the last."
    ),
    code="""\
from limelight.experiments.fixed_mixing import MIXERS, learn
for name in MIXERS:
    print(name, learn(name, moves=True, seed=0, steps=100))
""",
)
CLASSES, WIDTH, TOKENS = 16, 32, 24
MIXERS = ("mean", "convolution", "GRU", "attention")


class Mixer(nn.Module):
    """One way of mixing tokens, and a linear map of what reaches the last position."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.out = nn.Linear(WIDTH, CLASSES)
        if name == "mean":
            self.mix: nn.Module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        elif name == "convolution":
            self.mix = nn.Sequential(
                nn.Conv1d(WIDTH, WIDTH, 5, padding=2), nn.GELU(), nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
            )
        elif name == "GRU":
            self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True)
        else:
            self.mix = MultiHeadAttention(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, 1, classes)`` of the last position."""
        if self.name == "mean":
            y = x.mean(1, keepdim=True)
            y = y + self.mix(y)
        elif self.name == "convolution":
            y = self.mix(x.mT).mT[:, -1:]
        elif self.name == "GRU":
            y = self.mix(x)[0][:, -1:]
        else:
            y = self.mix(x)[:, -1:]
        logits: Tensor = self.out(y)
        return logits


def learn(name: str, *, moves: bool, seed: int, steps: int) -> float:
    """Train a mixer and return the share of marked tokens that it names in new texts."""
    torch.manual_seed(seed)
    model, texts = Mixer(name), MarkedTexts(CLASSES, WIDTH, seed=seed)
    places = None if moves else range(TOKENS - 2, TOKENS - 1)
    fit(model, lambda: _batch(texts, 64, places), steps=steps, rate=5e-3)
    return accuracy(model, lambda: _batch(texts, 500, places))


def _batch(texts: MarkedTexts, count: int, places: range | None) -> tuple[tuple[Tensor, ...], Tensor]:
    x, answer = texts.draw(count, TOKENS, places)
    return (x,), answer


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train every mixer on a mark that moves and on one that stays."""
    seeds, steps = range(seed, seed + (1 if quick else 3)), 200 if quick else 400
    rows: list[dict[str, Any]] = []
    for name in MIXERS:
        row: dict[str, Any] = {"mixer": name}
        for task, moves in (("moves", True), ("stays", False)):
            found = [learn(name, moves=moves, seed=s, steps=steps) for s in seeds]
            row[task], row[f"{task} spread"] = mean_and_spread(found)
        rows.append(row)
    by = {row["mixer"]: row for row in rows}
    takeaway = (
        f"Where the important token moves, attention finds it in {by['attention']['moves']:.0%} of texts, convolutions "
        f"in {by['convolution']['moves']:.0%} and a mean in {by['mean']['moves']:.0%}; where it stays, convolutions "
        f"find it in {by['convolution']['stays']:.0%}."
    )
    return Result("fixed-mixing", takeaway, _findings(by), {"accuracy": rows})


def _findings(by: dict[str, dict[str, Any]]) -> list[Finding]:
    fixed = [by["mean"]["moves"], by["convolution"]["moves"]]
    learned, stays = by["attention"]["moves"], by["convolution"]["stays"]
    return [
        Finding(
            claim=29,
            what="where what matters moves: right answers of the mean and of convolutions",
            theirs="they fail",
            measured=[round(x, 2) for x in fixed],
            verdict=holds(max(fixed) < 0.5, in_part=max(fixed) < 0.8 * learned),
            note=f"guessing is {1 / CLASSES:.2f}; convolutions are right where the mark is near by chance",
        ),
        Finding(
            claim=29,
            what="and of attention",
            theirs="it learns",
            measured=round(learned, 2),
            verdict=holds(learned > 0.9, in_part=learned > 2 * max(fixed)),
            note=f"{plus_minus([by['attention']['moves spread']])} between seeds",
        ),
        Finding(
            claim=29,
            what="where it stays: right answers of convolutions",
            theirs=None,
            measured=round(stays, 2),
            verdict=EXTRA,
            note="a fixed operation is enough where what is important has a fixed place",
        ),
        Finding(
            claim=29,
            what="where it moves: right answers of a GRU",
            theirs=None,
            measured=round(by["GRU"]["moves"], 2),
            verdict=EXTRA,
            note="its gates also depend on the tokens: recurrence is not a fixed operation",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the right answers of each mixer for both tasks."""
    from limelight.experiments.figures import bars, chance_line, legend_below, new_figure

    figure, axis = new_figure(height=3.1)
    rows = result.data["accuracy"]
    labels = {"moves": "what matters moves", "stays": "what matters stays"}
    heights = {label: [row[task] for row in rows] for task, label in labels.items()}
    spreads = {label: [row[f"{task} spread"] for row in rows] for task, label in labels.items()}
    bars(axis, MIXERS, heights, spreads=spreads)
    chance_line(axis, 1 / CLASSES)
    axis.set(ylabel="share right", ylim=(0, 1.05), title="Finding the marked token of 24")
    legend_below(figure, axis, 3)
    return figure
