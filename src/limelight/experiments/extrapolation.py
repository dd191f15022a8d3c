"""Position schemes beyond the lengths of training: claim 49."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.experiments.findings import EXTRA, Finding, Result, holds, mean_and_spread, rounded
from limelight.experiments.lesson import Lesson
from limelight.experiments.small_models import decoder
from limelight.experiments.training import accuracy, fit
from limelight.positions import T5, ALiBi, Positions, Rotary, Sinusoidal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Longer than in training",
    equation="train on n = 24, test on n = 24, 48, 96, 192",
    method=(
        "Some tokens of a text are marked, and every position has to say which token was marked last: a rule about "
        "recency. A causal model of two layers learns it on texts of 24 tokens, with each position scheme and with "
        "none, and is tested in the last quarter of texts that are up to eight times as long."
    ),
    code="""\
from limelight.experiments.extrapolation import SCHEMES, learn
for name in SCHEMES:
    print(name, learn(name, seed=0, steps=30, lengths=(24, 96)))
""",
)
CLASSES, WIDTH, HEADS, TRAINED = 8, 32, 4, 24
LENGTHS = (24, 48, 96, 192)
SCHEMES: dict[str, Callable[[], Positions]] = {
    "none": Positions,
    "sinusoidal": Sinusoidal,
    "rotary": lambda: Rotary(WIDTH // HEADS),
    "T5": lambda: T5(HEADS, two_sided=False),
    "ALiBi": lambda: ALiBi(HEADS),
}


def learn(name: str, seed: int, steps: int, lengths: tuple[int, ...] = LENGTHS) -> list[float]:
    """Train with a scheme; return the share of right answers in the last quarter of texts, by length."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = decoder(2 * CLASSES, WIDTH, HEADS, 2, positions=SCHEMES[name])

    def batch(n: int, count: int = 32, scored: int = 0) -> tuple[tuple[Tensor, ...], Tensor]:
        ids = torch.randint(0, CLASSES, (count, n), generator=g)
        marked = torch.rand(count, n, generator=g) < 0.2
        marked[:, 0] = True  # there is an answer everywhere
        latest = torch.where(marked, torch.arange(n), 0).cummax(1).values
        target = ids.gather(1, latest)
        target[:, :scored] = -100
        return (ids + CLASSES * marked,), target

    fit(model, lambda: batch(TRAINED), steps=steps, rate=3e-3)
    return [accuracy(model, lambda n=n: batch(n, 64, scored=3 * n // 4)) for n in lengths]  # type: ignore[misc]


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train with every scheme and test on longer texts."""
    seeds, steps = range(seed, seed + 1 if quick else seed + 2), 120 if quick else 250
    rows: list[dict[str, Any]] = []
    for name in SCHEMES:
        found = [learn(name, s, steps) for s in seeds]
        for n, length in enumerate(LENGTHS):
            mean, spread = mean_and_spread([x[n] for x in found])
            rows.append({"positions": name, "tokens": length, "right": mean, "spread": spread})
    right = {(row["positions"], row["tokens"]): row["right"] for row in rows}
    far = LENGTHS[-1]
    kept = {name: right[name, far] / right[name, TRAINED] for name in SCHEMES}
    others = [name for name in SCHEMES if name not in ("ALiBi", "sinusoidal")]
    findings = [
        Finding(
            claim=49,
            what=f"sinusoidal: right at {', '.join(map(str, LENGTHS))} tokens",
            theirs="fails beyond 24",
            measured=rounded([right["sinusoidal", n] for n in LENGTHS]),
            verdict=holds(kept["sinusoidal"] < 0.6, in_part=kept["sinusoidal"] < 0.9),
            note=f"guessing is {1 / CLASSES:.2f}",
        ),
        Finding(
            claim=49,
            what="ALiBi: the same",
            theirs="holds",
            measured=rounded([right["ALiBi", n] for n in LENGTHS]),
            verdict=holds(kept["ALiBi"] > 0.95 and right["ALiBi", TRAINED] > 0.8, in_part=kept["ALiBi"] > 0.8),
        ),
        Finding(
            claim=49,
            what=f"the others at {far} tokens, as a share of what they do at {TRAINED}",
            theirs=None,
            measured={name: round(kept[name], 2) for name in others},
            verdict=EXTRA,
            note=f"at {TRAINED}: " + ", ".join(f"{name} {right[name, TRAINED]:.2f}" for name in others),
        ),
    ]
    takeaway = (
        f"On texts eight times as long as in training, sinusoidal positions keep {kept['sinusoidal']:.0%} of their "
        f"right answers, rotary {kept['rotary']:.0%} and ALiBi {kept['ALiBi']:.0%}."
    )
    return Result("extrapolation", takeaway, findings, {"accuracy": rows})


def draw(result: Result) -> Figure:
    """Draw the right answers against the length, by scheme."""
    from limelight.experiments.figures import GREY, chance_line, legend_below, lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.3)
    for n, name in enumerate(reversed(SCHEMES)):
        mine = [row for row in result.data["accuracy"] if row["positions"] == name]
        spreads = [row["spread"] for row in mine]
        series(axis, LENGTHS, [row["right"] for row in mine], n, name, spread=spreads)
    chance_line(axis, 1 / CLASSES)
    axis.axvline(TRAINED, color=GREY, linewidth=0.9)
    axis.set(ylabel="share right", ylim=(0, 1.05), title="Trained on 24 tokens, tested on more")
    lengths_axis(axis, LENGTHS, "tokens")
    legend_below(figure, axis, 3)
    return figure
