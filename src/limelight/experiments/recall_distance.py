"""Recall over distance for recurrent networks and attention: claim 28."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.findings import EXTRA, Finding, Result, exponent, holds, mean_and_spread, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import accuracy, fit
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Memory over distance",
    equation="RNN: hₜ = tanh(W hₜ₋₁ + U xₜ), ∂hₙ/∂x₁ = Π …;   attention: ∂yₙ/∂x₁ in one step",
    method=(
        "The first token of a text is one of eight symbols, and after d other tokens it has to be said again. A "
        "plain recurrent network (tanh), a GRU and one attention layer without positions learn it at each distance, "
        "with the same width, steps and examples. Before training, the gradient of the last output with respect to "
        "the first token is measured for the same distances."
    ),
    code="""\
from limelight.experiments.recall_distance import NETS, learn
for distance in (4, 32):
    for name in NETS:
        print(distance, name, learn(name, distance, seed=0, steps=60))
""",
)
SYMBOLS, OTHERS, WIDTH = 8, 8, 32
NETS = ("RNN", "GRU", "attention")


class Reader(nn.Module):
    """A network that reads a text and answers at its end."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.table, self.out = nn.Embedding(SYMBOLS + OTHERS, WIDTH), nn.Linear(WIDTH, SYMBOLS)
        if name == "attention":
            self.net: nn.Module = MultiHeadAttention(WIDTH, 2)
        else:
            self.net = (nn.RNN if name == "RNN" else nn.GRU)(WIDTH, WIDTH, batch_first=True)

    def read(self, x: Tensor) -> Tensor:
        """Return the last output ``(B, 1, width)`` for embedded tokens."""
        y: Tensor = self.net(x) if self.name == "attention" else self.net(x)[0]
        return y[:, -1:]

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits ``(B, 1, symbols)``."""
        logits: Tensor = self.out(self.read(self.table(ids)))
        return logits


def learn(name: str, distance: int, seed: int, steps: int) -> float:
    """Train a network and return the share of first tokens that it says again."""
    torch.manual_seed(seed)
    model = Reader(name)

    def batch(count: int = 32) -> tuple[tuple[Tensor, ...], Tensor]:
        first = torch.randint(0, SYMBOLS, (count, 1))
        others = torch.randint(SYMBOLS, SYMBOLS + OTHERS, (count, distance))
        return (torch.cat([first, others], 1),), first

    fit(model, batch, steps=steps, rate=3e-3)
    return accuracy(model, lambda: batch(500))


def _gradient(name: str, distance: int, seed: int) -> float:
    """Measure the gradient that reaches the first token from the last output of a new network."""
    torch.manual_seed(seed)
    model = Reader(name)
    x = torch.randn(8, distance + 1, WIDTH, requires_grad=True)
    model.read(x).sum().backward()
    assert x.grad is not None
    return float(x.grad[:, 0].norm(dim=-1).mean())


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train at several distances, and measure the gradient before training."""
    seeds, steps = range(seed, seed + (1 if quick else 2)), 120 if quick else 200
    distances = (4, 64) if quick else (4, 16, 64, 128)
    rows: list[dict[str, Any]] = []
    for distance in distances:
        row: dict[str, Any] = {"distance": distance}
        for name in NETS:
            row[name], row[f"{name} spread"] = mean_and_spread([learn(name, distance, s, steps) for s in seeds])
            row[f"{name} gradient"] = sum(_gradient(name, distance, s) for s in range(5)) / 5
        rows.append(row)
    far = rows[-1]
    takeaway = (
        f"At a distance of {far['distance']} tokens a plain RNN recalls {far['RNN']:.0%}, a GRU {far['GRU']:.0%} and "
        f"attention {far['attention']:.0%} of the first tokens."
    )
    return Result("recall-distance", takeaway, _findings(rows), {"recall": rows})


def _findings(rows: list[dict[str, Any]]) -> list[Finding]:
    near, far = rows[0], rows[-1]
    fall = {name: far[f"{name} gradient"] / near[f"{name} gradient"] for name in NETS}
    power = exponent([row["distance"] for row in rows], [row["attention gradient"] for row in rows])
    return [
        Finding(
            claim=28,
            what=f"a plain RNN forgets with distance: right answers at {near['distance']} and {far['distance']}",
            theirs="falls",
            measured=rounded([near["RNN"], far["RNN"]]),
            verdict=holds(near["RNN"] > 0.9 and far["RNN"] < 0.5, in_part=far["RNN"] < near["RNN"] - 0.1),
            note=f"guessing is {1 / SYMBOLS:.2f}",
        ),
        Finding(
            claim=28,
            what="attention does not: right answers at the same distances",
            theirs="stays",
            measured=rounded([near["attention"], far["attention"]]),
            verdict=holds(far["attention"] > 0.9, in_part=far["attention"] > far["RNN"] + 0.2),
            note="one layer, without positions",
        ),
        Finding(
            claim=28,
            what="a GRU at the same distances",
            theirs=None,
            measured=rounded([near["GRU"], far["GRU"]]),
            verdict=EXTRA,
            note="its gates can keep a token; they have to learn to first",
        ),
        Finding(
            claim=28,
            what="gradient at the first token of new networks, far / near: RNN, attention",
            theirs=None,
            measured=[f"{fall['RNN']:.0e}", f"{fall['attention']:.0e}"],
            verdict=EXTRA,
            note=(
                f"exponential in an RNN; in attention a power of the distance ({power:.1f}), since weights share one "
                "sum"
            ),
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw recall against distance."""
    from limelight.experiments.figures import chance_line, legend_below, lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.1)
    rows = result.data["recall"]
    distances = [row["distance"] for row in rows]
    for n, name in enumerate(reversed(NETS)):
        series(axis, distances, [row[name] for row in rows], n, name, spread=[row[f"{name} spread"] for row in rows])
    chance_line(axis, 1 / SYMBOLS)
    axis.set(ylabel="share recalled", ylim=(0, 1.05), title="Saying the first token again")
    lengths_axis(axis, distances, "tokens in between")
    legend_below(figure, axis, 4)
    return figure
