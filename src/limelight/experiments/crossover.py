"""The length at which attention costs more than the rest of a block: claim 43."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from limelight import attention, trace
from limelight.experiments.findings import EXTRA, Finding, Result, exponent, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.measuring import operations, time_ratio
from limelight.nn import FeedForward

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Where attention begins to dominate",
    equation="attention 4 n² d (+ projections 8 n d²);   feed-forward 16 n d²;   RNN 4 n d²",
    method=(
        "The operations of one layer are counted for growing lengths at three widths: attention's two products, its "
        "four projections, a feed-forward part of four times the width, and a recurrent layer step by step. The "
        "length at which the counts are equal follows from the counts, and the time of attention against "
        "feed-forward is measured at that length, in turns."
    ),
    code="""\
d = 512
for n in (128, 512, 2048, 8192):
    attention, projections, feed_forward, rnn = 4 * n * n * d, 8 * n * d * d, 16 * n * d * d, 4 * n * d * d
    print(n, attention / rnn, attention / feed_forward, attention / (attention + projections + feed_forward))
""",
)
WIDTHS, LENGTHS = (32, 64, 128), (16, 64, 256, 1024)
PARTS = ("attention", "projections", "feed-forward", "RNN")


def run(quick: bool = False, seed: int = 0) -> Result:
    """Count the operations of every part, and find where they cross."""
    torch.manual_seed(seed)
    rows = [{"width": d, "tokens": n} | _count(n, d) for d in WIDTHS for n in LENGTHS]
    mine = [row for row in rows if row["width"] == WIDTHS[1]]
    powers = {part: round(exponent(LENGTHS, [row[part] for row in mine]), 2) for part in PARTS}
    meets = {row["width"]: [_meets(row, part) for part in ("RNN", "feed-forward")] for row in rows}
    findings = [
        Finding(
            claim=43,
            what=f"counted operations: powers of n, {', '.join(PARTS)}",
            theirs=[2, 1, 1, 1],
            measured=list(powers.values()),
            verdict=holds(list(powers.values()) == [2, 1, 1, 1]),
        ),
        Finding(
            claim=43,
            what="so attention costs more than an RNN layer: at 16 tokens of width 128, times as much",
            theirs="above 1",
            measured=_ratio(rows, 16, 128),
            verdict=holds(_ratio(rows, 16, 128) > 1),
            note=(
                f"with widths it is n² d against n d²: they meet at n = d (counted: {[x[0] for x in meets.values()]} "
                f"for d = {list(WIDTHS)}), and below that attention is cheaper"
            ),
        ),
        Finding(
            claim=43,
            what=f"length from which on attention's products cost more than feed-forward, d = {list(WIDTHS)}",
            theirs=None,
            measured=[x[1] for x in meets.values()],
            verdict=EXTRA,
            note="4 d: at width 4096 that is 16,384 tokens",
        ),
        _timed(WIDTHS[-1]),
    ]
    takeaway = (
        f"Attention's n² overtakes an RNN layer at n = d ({meets[128][0]} tokens at width 128) and the feed-forward "
        f"part at n = 4 d ({meets[128][1]}); below that, the width costs more than the length."
    )
    return Result("crossover", takeaway, findings, {"operations": rows})


def _count(n: int, d: int) -> dict[str, int]:
    x, q = torch.randn(1, n, d), torch.randn(3, 1, 1, n, d)
    linear, feed_forward = nn.Linear(d, d), FeedForward(d, 4 * d)
    cell = nn.RNNCell(d, d)

    def recurrent() -> None:
        h = torch.zeros(1, d)
        for token in x[0]:
            h = cell(token[None], h)

    with torch.no_grad():
        return {
            "attention": operations(lambda: trace(*q)),
            "projections": 4 * operations(lambda: linear(x)),
            "feed-forward": operations(lambda: feed_forward(x)),
            "RNN": operations(recurrent),
        }


def _meets(row: dict[str, Any], part: str) -> int:
    """Return the length at which a part, which grows as n, costs as much as attention, which grows as n²."""
    n, attention_operations = int(row["tokens"]), int(row["attention"])
    return round(int(row[part]) * n / attention_operations)


def _ratio(rows: list[dict[str, Any]], n: int, d: int) -> float:
    row = next(row for row in rows if row["tokens"] == n and row["width"] == d)
    return float(round(row["attention"] / row["RNN"], 3))


def _timed(d: int) -> Finding:
    n = 4 * d
    feed_forward, x = FeedForward(d, 4 * d), torch.randn(1, n, d)
    with torch.no_grad():
        q, k, v = torch.randn(3, 1, 1, n, d)
        ratio = time_ratio(partial(attention, q, k, v), partial(feed_forward, x))
    return Finding(
        claim=43,
        what=f"time of attention / feed-forward at n = 4 d = {n}, where the counts are equal",
        theirs=None,
        measured=round(ratio.median, 2),
        verdict=EXTRA,
        note=f"quartiles {ratio.low:.2f} to {ratio.high:.2f}"
        + ("" if ratio.steady else "; not steady: the machine was busy"),
    )


def draw(result: Result) -> Figure:
    """Draw the operations of the parts against the length, at the middle width."""
    from limelight.experiments.figures import GREY, lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.4)
    d = WIDTHS[1]
    rows = [row for row in result.data["operations"] if row["width"] == d]
    for n, part in enumerate(PARTS):
        series(axis, LENGTHS, [row[part] / 1e6 for row in rows], n, part)
    for at, name in ((d, "n = d"), (4 * d, "n = 4 d")):
        axis.axvline(at, color=GREY, linewidth=0.9)
        axis.annotate(
            name, (at, 0.02), (3, 0), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=9.5
        )
    axis.set(yscale="log", ylabel="million operations", title=f"One layer of width {d}")
    lengths_axis(axis, LENGTHS, "tokens n")
    axis.legend()
    return figure
