"""Tables and consoles of rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from limelight.viz.characters import Picture
from limelight.viz.text import one_line

_WIDE = 160  # columns, where the output is not a terminal


def wide_console() -> Console:
    """Return the standard output, wide enough for tables where it is not a terminal."""
    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, emoji=False, width=_WIDE)


def messages_console() -> Console:
    """Return the standard error, for messages of one line each, however long."""
    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def matrix_table(picture: Picture) -> Table:
    """Make a table of the numbers of a matrix; names are text, whatever they contain."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("")
    for name in picture.cols:
        table.add_column(Text(one_line(name)), justify="right")
    for name, values in zip(picture.rows, picture.matrix.tolist(), strict=True):
        table.add_row(Text(one_line(name)), *(_number(x) for x in values))
    return table


def _number(x: float) -> str:
    return {float("-inf"): "−∞", float("inf"): "∞"}.get(x, f"{x:.3f}".replace("-", "−"))


def matrix_tables(pictures: Sequence[Picture]) -> RenderableType:
    """Make a table for each matrix under its title, one below the other."""
    parts: list[RenderableType] = []
    for picture in pictures:
        parts += [Text(picture.title, style="bold"), matrix_table(picture)]
    return Group(*parts)


def tables_as_text(pictures: Sequence[Picture]) -> str:
    """Write the tables as plain text."""
    widest = max((len(picture.cols) for picture in pictures), default=0)
    console = Console(width=max(80, 12 * widest), no_color=True, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(matrix_tables(pictures))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
