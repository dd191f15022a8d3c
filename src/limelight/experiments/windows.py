"""Local windows, and how far a stack of them sees: claim 30."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import Window
from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.small_models import MarkedTexts, encoder
from limelight.experiments.training import accuracy, fit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Windows",
    equation="reach of L layers with windows of w = 2 r + 1: L · r tokens on either side",
    method=(
        "Stacks of 1 to 4 layers, each with a window of 4 tokens on either side, read 48 tokens; one token is "
        "exchanged, and the farthest output that changes is found. Then stacks learn to say the marked token at a "
        "position that is 2, 6 or 10 tokens away from it, with windows and with full attention."
    ),
    code="""\
import torch, limelight as ll
from limelight.experiments.small_models import encoder
x = torch.randn(1, 40, 32)
other = x.clone()
other[0, 20] += 1
for layers in (1, 2, 3):
    stack = encoder(32, 2, layers)
    changed = (stack(x, mask=ll.Window(4)) - stack(other, mask=ll.Window(4)))[0].norm(dim=-1) > 0
    print(layers, changed.nonzero().flatten().tolist())
""",
)
RADIUS, CLASSES, WIDTH, TOKENS = 4, 8, 32, 24
DISTANCES, LAYERS = (2, 6, 10), (1, 2, 3)


class Reader(nn.Module):
    """A stack with or without windows, read at the last position."""

    def __init__(self, layers: int, radius: int | None) -> None:
        super().__init__()
        self.stack, self.out = encoder(WIDTH, 2, layers), nn.Linear(WIDTH, CLASSES)
        self.mask = None if radius is None else Window(radius)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, 1, classes)``."""
        logits: Tensor = self.out(self.stack(x, mask=self.mask)[:, -1:])
        return logits


def _reach(layers: int) -> int:
    """Exchange the first token and return the position of the last output that changes."""
    stack = encoder(WIDTH, 2, layers)
    x = torch.randn(1, 48, WIDTH)
    other = x.clone()
    other[0, 0] = torch.randn(WIDTH)
    with torch.no_grad():
        changed = (stack(x, mask=Window(RADIUS)) - stack(other, mask=Window(RADIUS)))[0].norm(dim=-1) > 0
    return int(changed.nonzero().max())


def learn(layers: int, radius: int | None, distance: int, seed: int, steps: int) -> float:
    """Train a stack to name the token ``distance`` before the last; return the share that is right."""
    torch.manual_seed(seed)
    model, texts = Reader(layers, radius), MarkedTexts(CLASSES, WIDTH, seed=seed)
    at = TOKENS - 1 - distance

    def batch(count: int = 32) -> tuple[tuple[Tensor, ...], Tensor]:
        x, answer = texts.draw(count, TOKENS, range(at, at + 1))
        return (x,), answer

    fit(model, batch, steps=steps, rate=3e-3)
    return accuracy(model, lambda: batch(300))


def run(quick: bool = False, seed: int = 0) -> Result:
    """Find the reach of stacks, and train them at several distances."""
    torch.manual_seed(seed)
    steps, seeds = (120, [seed]) if quick else (300, [seed])
    reach = {layers: _reach(layers) for layers in (1, 2, 3, 4)}
    kinds = [(layers, RADIUS) for layers in (LAYERS[::2] if quick else LAYERS)] + [(1, None)]
    rows: list[dict[str, Any]] = []
    for layers, radius in kinds:
        row: dict[str, Any] = {"layers": layers, "window": radius or "full", "reach": layers * radius if radius else 48}
        for distance in DISTANCES:
            found = [learn(layers, radius, distance, s, steps) for s in seeds]
            row[f"{distance}"], row[f"{distance} spread"] = mean_and_spread(found)
        rows.append(row)
    one, deep = rows[0], rows[-2]
    takeaway = (
        f"One window of {RADIUS} sees {reach[1]} tokens far, four stacked ones {reach[4]}: at a distance of 6 tokens "
        f"one layer is right in {one['6']:.0%} of texts and {deep['layers']} layers in {deep['6']:.0%}."
    )
    counted = [{"layers": layers, "reach": x} for layers, x in reach.items()]
    return Result("windows", takeaway, _findings(rows, reach), {"accuracy": rows, "reach": counted})


def _findings(rows: list[dict[str, Any]], reach: dict[int, int]) -> list[Finding]:
    one, deep, full = rows[0], rows[-2], rows[-1]
    beyond = [row[f"{distance}"] for row in rows for distance in DISTANCES if distance > row["reach"]]
    within = [row[f"{distance}"] for row in rows for distance in DISTANCES if distance <= row["reach"]]
    return [
        Finding(
            claim=30,
            what=(
                "one layer loses what is outside of its window: right at a distance of "
                f"{', '.join(map(str, DISTANCES))}"
            ),
            theirs="right, lost, lost",
            measured=rounded([one[f"{d}"] for d in DISTANCES]),
            verdict=holds(one["2"] > 0.9 and max(one["6"], one["10"]) < 0.4),
            note=f"a window of {RADIUS} on either side; guessing is {1 / CLASSES:.2f}",
        ),
        Finding(
            claim=30,
            what=f"so a local model loses global context: {deep['layers']} layers, the same distances",
            theirs="right, lost, lost",
            measured=rounded([deep[f"{d}"] for d in DISTANCES]),
            verdict=holds(max(deep["6"], deep["10"]) < 0.4, in_part=min(deep["6"], deep["10"]) < 0.6),
            note="stacked windows hand on what they see: their reach is w · L, and its far end takes longest to learn",
        ),
        Finding(
            claim=30,
            what="reach of 1, 2, 3, 4 layers, counted",
            theirs=None,
            measured=list(reach.values()),
            verdict=EXTRA,
            note=f"{RADIUS} tokens more with each layer",
        ),
        Finding(
            claim=30,
            what="least accuracy within the reach, most beyond it",
            theirs=None,
            measured=rounded([min(within), max(beyond)]),
            verdict=EXTRA,
            note=f"full attention, one layer: {rounded([full[f'{d}'] for d in DISTANCES])}",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the right answers by distance for each stack."""
    from limelight.experiments.figures import bars, chance_line, legend_below, new_figure

    figure, axis = new_figure(height=3.2)
    rows = result.data["accuracy"]
    names = [
        f"{r['layers']} layer{'s' * (r['layers'] > 1)}, " + (f"±{r['window']}" if r["reach"] < 48 else "full")
        for r in rows
    ]
    heights = {name: [row[f"{d}"] for d in DISTANCES] for name, row in zip(names, rows, strict=True)}
    bars(axis, [f"{d} away" for d in DISTANCES], heights)
    chance_line(axis, 1 / CLASSES)
    axis.set(ylabel="share right", ylim=(0, 1.05), title="Windows reach farther in a stack")
    legend_below(figure, axis, 3)
    return figure
