"""Tables in text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from limelight.viz.text import printable

if TYPE_CHECKING:
    from torch import Tensor

    from limelight.core.reference import Trace

_TITLES = {
    "q": "q, the queries",
    "k": "k, the keys",
    "v": "v, the values",
    "scores": "scores = q kᵀ",
    "scaled": "scaled = scale · scores",
    "capped": "capped = c · tanh(scaled / c)",
    "biased": "biased = capped + bias",
    "masked": "masked: −∞ where the mask forbids",
    "weights": "weights = softmax, by row",
    "output": "output = weights v",
}


_WIDE = 160  # columns, where there is no terminal


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}  # a user's text is no markup


def wide_console() -> Console:
    """The standard output, wide enough for tables where it is no terminal."""
    console = Console(**_PLAIN)
    return console if console.is_terminal else Console(**_PLAIN, width=_WIDE)


def messages_console() -> Console:
    """The standard error, for what is said beside the result: one line each, however long."""
    return Console(stderr=True, soft_wrap=True, **_PLAIN)


def matrix_table(title: str, matrix: Tensor, rows: Sequence[str], cols: Sequence[str]) -> Table:
    """A labelled table of one matrix."""
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("")
    for name in cols:
        table.add_column(printable(name), justify="right")
    for name, values in zip(rows, matrix.tolist(), strict=True):
        table.add_row(printable(name), *(_number(x) for x in values))
    return table


def _number(x: float) -> str:
    return {float("-inf"): "−∞", float("inf"): "∞"}.get(x, f"{x:.3f}".replace("-", "−"))


def trace_tables(trace: Trace) -> RenderableType:
    """The steps of a trace, one table for each step and head."""
    parts: list[RenderableType] = []
    for step in trace.shown:
        x = getattr(trace, step)
        rows = trace.keys if step in ("k", "v") else trace.queries
        wide = x.shape[-1]
        cols = [str(d) for d in range(wide)] if step in ("q", "k", "v", "output") else trace.keys
        heads = x.reshape(-1, *x.shape[-2:])
        for h, matrix in enumerate(heads):
            title = _TITLES[step] + (f" (head {h})" if len(heads) > 1 else "")
            parts += [matrix_table(title, matrix, rows, cols), Text()]
    return Group(*parts)


def trace_text(trace: Trace) -> str:
    """The same as plain text."""
    console = Console(width=max(80, 12 * len(trace.keys)), no_color=True, **_PLAIN)
    with console.capture() as capture:
        console.print(trace_tables(trace))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
