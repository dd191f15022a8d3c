"""The outputs that one changed token changes: claim 22."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight import Causal
from limelight.experiments.findings import EXTRA, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.nn import FeedForward, MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="What one token changes",
    equation="attention: yᵢ = Σⱼ Aᵢⱼ vⱼ;   feed-forward: yᵢ = f(xᵢ)",
    method=(
        "Random layers read 16 tokens, then the same tokens with one exchanged. The outputs that differ are counted, "
        "for attention, for the feed-forward part and for causal attention."
    ),
    code="""\
import torch
from limelight.nn import FeedForward, MultiHeadAttention
x = torch.randn(1, 8, 32)
other = x.clone()
other[0, 5] = torch.randn(32)
for part in (MultiHeadAttention(32, 4), FeedForward(32, 128)):
    print((part(other) - part(x))[0].norm(dim=-1))
""",
)
TOKENS, WIDTH, CHANGED = 16, 32, 5
PARTS = ("attention", "feed-forward", "causal attention")


def run(quick: bool = False, seed: int = 0) -> Result:
    """Count the outputs that change, for several seeds."""
    seeds = range(seed, seed + (3 if quick else 10))
    changes = [_change(s) for s in seeds]
    counts = {name: sorted({sum(change > 0 for change in run[name]) for run in changes}) for name in PARTS}
    rows: list[dict[str, Any]] = [
        {"position": n} | {name: change[n] for name, change in changes[0].items()} for n in range(TOKENS)
    ]
    seeded = f"for each of {len(seeds)} seeds"
    findings = [
        _finding("outputs of attention that change", TOKENS, counts["attention"], seeded),
        _finding("outputs of the feed-forward part that change", 1, counts["feed-forward"], seeded),
        Finding(
            claim=22,
            what="outputs of causal attention that change",
            theirs=None,
            measured=counts["causal attention"],
            verdict=EXTRA,
            note=f"the token's own and those after it, {seeded}",
        ),
    ]
    takeaway = (
        f"One exchanged token of {TOKENS} changes {counts['attention'][0]} outputs of attention and "
        f"{counts['feed-forward'][0]} of the feed-forward part: attention mixes positions, feed-forward does not."
    )
    return Result("mixing", takeaway, findings, {"change": rows})


def _finding(what: str, theirs: int, counts: list[int], note: str) -> Finding:
    measured: Any = counts[0] if len(counts) == 1 else counts
    return Finding(22, f"{what}, of {TOKENS}", theirs, measured, holds(counts == [theirs]), note)


def _change(seed: int) -> dict[str, list[float]]:
    """Return the size of the change at every position, by the part of the network."""
    torch.manual_seed(seed)
    attention, feed_forward = MultiHeadAttention(WIDTH, 4), FeedForward(WIDTH, 4 * WIDTH)
    x = torch.randn(1, TOKENS, WIDTH)
    other = x.clone()
    other[0, CHANGED] = torch.randn(WIDTH)
    parts: dict[str, Callable[[Tensor], Tensor]] = {
        "attention": attention,
        "feed-forward": feed_forward,
        "causal attention": lambda x: attention(x, mask=Causal()),
    }
    with torch.no_grad():
        return {name: (part(other) - part(x))[0].norm(dim=-1).tolist() for name, part in parts.items()}


def draw(result: Result) -> Figure:
    """Draw the change at every position."""
    from limelight.experiments.figures import COLOURS, GREY, MARKS, legend_below, new_figure

    figure, axis = new_figure(height=3.2)
    rows = result.data["change"]
    for name, mark, colour, shift in zip(PARTS, MARKS, COLOURS, (-0.18, 0.0, 0.18), strict=False):
        places = [row["position"] + shift for row in rows]
        axis.scatter(places, [row[name] for row in rows], marker=mark, color=colour, label=name, s=30)
    axis.axvline(CHANGED, color=GREY, alpha=0.6, linewidth=0.8)
    axis.set(xlabel="position", ylabel="change of the output", title=f"Token {CHANGED} is exchanged")
    axis.set_yscale("symlog", linthresh=1e-2)
    axis.set_ylim(-2e-3, 4)
    legend_below(figure, axis, 3)
    return figure
