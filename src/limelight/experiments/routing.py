"""Attention only, feed-forward only, or both: claim 26."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight.experiments.findings import Finding, Result, holds, mean_and_spread
from limelight.experiments.lesson import Lesson
from limelight.experiments.training import accuracy, fit
from limelight.nn import FeedForward, MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Routing and transforming",
    equation="routing: yᵢ = class of the marked token;   transforming: yᵢ = (aᵢ + bᵢ) mod 7",
    method=(
        "Each token is a pair of numbers (a, b), each a random vector, and one token of a text is marked. Three "
        "tasks: every position says a of the marked token (routing), (a + b) mod 7 of its own (transforming), or "
        "(a + b) mod 7 of the marked token (both). Attention alone, a feed-forward part alone, and one after the "
        "other learn them, for the same number of steps."
    ),
    code="""\
from limelight.experiments.routing import PARTS, TASKS, learn
for task in TASKS:
    for parts in PARTS:
        print(task, "|", parts, "|", learn(task, parts, seed=0, steps=50))
""",
)
CLASSES, WIDTH, TOKENS = 7, 48, 8
TASKS = ("routing", "transforming", "both")
PARTS = ("attention", "feed-forward", "attention + feed-forward")
CAN, CANNOT = 0.9, 0.6  # a part can do a task above the first share of right answers, and cannot below the second


class Net(nn.Module):
    """Attention, feed-forward or both, each added to its input, and a linear map to the classes."""

    def __init__(self, parts: str) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(WIDTH, 2) if "attention" in parts else None
        self.feed_forward = FeedForward(WIDTH, 6 * WIDTH) if "feed-forward" in parts else None
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(B, N, classes)``."""
        if self.attention is not None:
            x = x + self.attention(x)
        if self.feed_forward is not None:
            x = x + self.feed_forward(x)
        logits: Tensor = self.out(x)
        return logits


def learn(task: str, parts: str, seed: int, steps: int) -> float:
    """Train a net and return the share of right answers on new texts."""
    torch.manual_seed(seed)
    model, table = Net(parts), torch.randn(2 * CLASSES + 1, WIDTH)

    def batch(count: int = 64) -> tuple[tuple[Tensor, ...], Tensor]:
        a, b = torch.randint(0, CLASSES, (2, count, TOKENS))
        marked = torch.randint(0, TOKENS, (count, 1))
        x = table[a] + table[CLASSES + b]
        x[torch.arange(count), marked[:, 0]] += 2 * table[-1]
        if task == "routing":
            return (x,), a.gather(1, marked).expand(count, TOKENS)
        answer = (a + b) % CLASSES
        return (x,), answer if task == "transforming" else answer.gather(1, marked).expand(count, TOKENS)

    fit(model, batch, steps=steps, rate=3e-3)
    return accuracy(model, lambda: batch(256))


def run(quick: bool = False, seed: int = 0) -> Result:
    """Train all parts on all tasks."""
    seeds, steps = range(seed, seed + (1 if quick else 2)), 300 if quick else 600
    rows: list[dict[str, Any]] = []
    for task in TASKS:
        for parts in PARTS:
            mean, spread = mean_and_spread([learn(task, parts, s, steps) for s in seeds])
            rows.append({"task": task, "parts": parts, "right": mean, "spread": spread})
    right = {(row["task"], row["parts"]): row["right"] for row in rows}
    findings = [_judge(parts, right) for parts in PARTS]
    takeaway = (
        f"Attention alone gets {right['both', PARTS[0]]:.0%} of the task that needs both, feed-forward alone "
        f"{right['both', PARTS[1]]:.0%}, the two together {right['both', PARTS[2]]:.0%}."
    )
    return Result("routing", takeaway, findings, {"accuracy": rows})


def _judge(parts: str, right: dict[tuple[str, str], float]) -> Finding:
    able = {
        "attention": {"routing": True, "transforming": False, "both": False},
        "feed-forward": {"routing": False, "transforming": True, "both": False},
        "attention + feed-forward": {"routing": True, "transforming": True, "both": True},
    }[parts]
    met = [right[task, parts] > CAN if can else right[task, parts] < CANNOT for task, can in able.items()]
    notes = {
        "attention": "its softmax is not linear, so that it transforms a little",
        "feed-forward": "it never sees another token",
        "attention + feed-forward": "one layer of each",
    }
    return Finding(
        claim=26,
        what=f"{parts}: right in {', '.join(TASKS)}",
        theirs=", ".join("yes" if can else "no" for can in able.values()),
        measured=[round(right[task, parts], 2) for task in TASKS],
        verdict=holds(all(met), in_part=sum(met) >= 2),
        note=f"{notes[parts]}; yes is above {CAN}, no is below {CANNOT}; guessing is {1 / CLASSES:.2f}",
    )


def draw(result: Result) -> Figure:
    """Draw the right answers of each part by task."""
    from limelight.experiments.figures import bars, chance_line, legend_below, new_figure

    figure, axis = new_figure(height=3.2)
    rows = result.data["accuracy"]
    heights = {parts: [row["right"] for row in rows if row["parts"] == parts] for parts in PARTS}
    spreads = {parts: [row["spread"] for row in rows if row["parts"] == parts] for parts in PARTS}
    bars(axis, TASKS, heights, spreads=spreads)
    chance_line(axis, 1 / CLASSES)
    axis.set(ylabel="share right", ylim=(0, 1.05), title="One routes, the other transforms")
    legend_below(figure, axis, 2)
    return figure
