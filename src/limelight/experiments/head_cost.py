"""The cost and the shapes of several heads: claims 6 and 44."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from limelight import attention, trace
from limelight.experiments.findings import EXTRA, Finding, Result, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.measuring import judge_ratio, operations, time_ratio
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="What heads cost",
    equation="d_k = d_v = d_model / h;   concat: h × (n, d_v) → (n, h d_v);   W_O: (h d_v, d_model)",
    method=(
        "Layers of width 768 with 1 to 16 heads are counted: operations of projections, scores, weighted values and "
        "W_O, and parameters. The same is done for heads that each have the whole width. The time of 16 heads is "
        "measured against that of one, in turns. The shapes that texts print are compared with those of real layers."
    ),
    code="""\
import torch
from limelight.nn import MultiHeadAttention
for h in (1, 4, 16):
    layer = MultiHeadAttention(256, h)
    print(h, 256 // h, sum(p.numel() for p in layer.parameters()))
eight = torch.cat([torch.randn(4, 64) for _ in range(8)], -1)
print(eight.shape, MultiHeadAttention(512, 8).out(eight).shape)
""",
)
HEADS, WIDTH, TOKENS = (1, 2, 4, 8, 16), 768, 256


def run(quick: bool = False, seed: int = 0) -> Result:
    """Count operations and parameters by the number of heads, and compare shapes."""
    torch.manual_seed(seed)
    rows = [_row(h) for h in HEADS]
    relative = {name: [round(row[name] / rows[0][name], 2) for row in rows] for name in rows[0] if name != "heads"}
    findings = [*_counted(relative), _timed(), *_shapes()]
    takeaway = (
        f"{HEADS[-1]} heads that share the width cost {relative['operations'][-1]:g} times the operations of one; "
        f"with the whole width each, {relative['operations at full width'][-1]:g} times."
    )
    return Result("head-cost", takeaway, findings, {"cost": rows})


def _row(h: int) -> dict[str, Any]:
    layer = MultiHeadAttention(WIDTH, h)
    x = torch.randn(1, TOKENS, WIDTH)

    def attend() -> None:
        with torch.no_grad():
            parts = (layer.query(x), layer.key(x), layer.value(x))
            output = trace(*(part.unflatten(-1, (h, -1)).transpose(1, 2) for part in parts)).output
            assert output is not None
            layer.out(output.transpose(1, 2).flatten(2))

    full = torch.randn(3, 1, h, TOKENS, WIDTH)
    # A full-width layer has h times as many columns in every projection, and h times as many rows in W_O.
    projections = 2 * 4 * TOKENS * WIDTH * (h * WIDTH)
    return {
        "heads": h,
        "operations": operations(attend),
        "parameters": sum(p.numel() for p in layer.parameters()),
        "operations at full width": projections + operations(lambda: trace(*full)),
    }


def _counted(relative: dict[str, list[float]]) -> list[Finding]:
    heads = ", ".join(map(str, HEADS))
    same = all(x == 1 for name in ("operations", "parameters") for x in relative[name])
    return [
        Finding(
            claim=6,
            what=f"counted operations of {heads} heads, relative to one",
            theirs=[1] * len(HEADS),
            measured=relative["operations"],
            verdict=holds(same),
            note="projections, scores, weights times values and W_O; parameters are as many, too",
        ),
        Finding(
            claim=6,
            what="the same where every head has the whole width",
            theirs=None,
            measured=relative["operations at full width"],
            verdict=EXTRA,
            note="which is what dividing the width saves",
        ),
    ]


def _timed() -> Finding:
    many, one = (partial(attention, *torch.randn(3, 1, h, 512, WIDTH // h)) for h in (HEADS[-1], 1))
    ratio = time_ratio(many, one)
    return Finding(
        claim=6,
        what=f"time of {HEADS[-1]} heads against that of one",
        theirs=1,
        measured=round(ratio.median, 2),
        verdict=judge_ratio(ratio, 1 / 1.3, 1.3, same_way=0.5 < ratio.median < 2),
        note=(
            f"quartiles {ratio.low:.2f} to {ratio.high:.2f}; reproduced within a factor of 1.3: exponentials grow "
            "with the number of heads, multiplications do not"
        ),
    )


def _shapes() -> list[Finding]:
    bert, eight = MultiHeadAttention(768, 12), MultiHeadAttention(512, 8)
    shapes = [bert.query.weight.shape[0] // 12, *bert.out.weight.shape]
    heads = [torch.randn(4, 64) for _ in range(8)]
    joined = torch.cat(heads, -1)
    found = [list(joined.shape), list(eight.out(joined).shape)]
    wanted = [[4, 512], [4, 512]]
    return [
        Finding(
            claim=6,
            what="BERT-base: width of a head, and W_O from and to",
            theirs=[64, 768, 768],
            measured=shapes,
            verdict=holds(shapes == [64, 768, 768]),
        ),
        Finding(
            claim=44,
            what="eight heads (4, 64): concatenated, and after W_O",
            theirs=wanted,
            measured=found,
            verdict=holds(found == wanted),
            note="W_O keeps the shape because it is square here; with another width of values it returns to d_model",
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the operations by the number of heads, with the width divided and not."""
    from limelight.experiments.figures import lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.1)
    rows = result.data["cost"]
    for n, (name, label) in enumerate(
        (("operations", "width divided"), ("operations at full width", "whole width each"))
    ):
        series(axis, HEADS, [row[name] / 1e9 for row in rows], n, label)
    axis.set(yscale="log", ylabel="billion operations", title=f"A layer of width {WIDTH}, {TOKENS} tokens")
    lengths_axis(axis, HEADS, "heads")
    axis.legend()
    return figure
