"""Heatmaps of plain matrices: in colour on a terminal, and as figures of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from limelight.viz.characters import LONGEST_NAME, Picture, largest_of, shade, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NUMBERS = 24  # rows and columns of a matrix whose numbers are written into the cells
_FEW_CELLS = 48 * 48  # up to this many cells of a figure, each one keeps a colour of its own


def heatmap(picture: Picture) -> Text:
    """Draw a matrix with the names of its rows on the left and of its columns on top, letter below letter."""
    rows, cols = ([short(name) for name in names] for names in (picture.rows, picture.cols))
    margin = max(map(len, rows), default=0)
    height = max(map(len, cols), default=0)
    text = Text(f"{picture.title}\n", style="bold", no_wrap=True, end="")
    for line in range(height):
        letters = (name.rjust(height)[line] for name in cols)
        text.append(f"{'':{margin}} {''.join(f'{c} ' for c in letters)}".rstrip() + "\n", "not bold")
    largest = largest_of(picture.matrix)
    for name, numbers in zip(rows, picture.matrix.tolist(), strict=True):
        text.append(f"{name:>{margin}} ", "not bold")
        while numbers and numbers[-1] == 0:
            numbers.pop()
        for x in numbers:
            characters, colour = shade(x, largest)
            text.append(characters, f"not bold {colour}")
        text.append("\n")
    text.append(f"{'':{margin}} █ {largest:.3g}\n", "not bold dim")
    return text


def print_heatmaps(pictures: Sequence[Picture], console: Console) -> None:
    """Print heatmaps on a console."""
    for p in pictures:
        console.print(heatmap(p), soft_wrap=True)


def figure_of(pictures: Sequence[Picture], numbers: bool = False) -> Figure:
    """Draw a figure with a heatmap for each picture, if wanted with its numbers in the cells."""
    need_matplotlib()
    cols = math.ceil(math.sqrt(len(pictures)))
    lines = math.ceil(len(pictures) / cols)
    figure = new_figure((1 + 3.6 * cols, 0.6 + 3.4 * lines))
    axes = figure.subplots(lines, cols, squeeze=False).flat
    for axis, picture in zip(axes, pictures, strict=False):
        draw(picture, axis, numbers)
    for axis in axes[len(pictures) :]:
        axis.set_axis_off()
    return figure


def new_figure(size: tuple[float, float]) -> Figure:
    """Return a figure that a notebook shows as a cell's value: once, whether or not pyplot has been imported."""
    from io import BytesIO

    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            file = BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return NotebookFigure(figsize=size, layout="constrained")


def draw(picture: Picture, axis: Axes, numbers: bool = False) -> None:
    """Draw on given axes. Colours follow the square root; in a large picture, a few cells may saturate."""
    from matplotlib.colors import PowerNorm

    x = picture.matrix.float()
    large = x.numel() > _FEW_CELLS
    brightest = float(x.nan_to_num().flatten().quantile(0.999)) if large else largest_of(x)
    norm = PowerNorm(0.5, vmin=0, vmax=brightest or 1.0)
    image = axis.imshow(x.numpy(), cmap="magma", interpolation="nearest", aspect="auto", norm=norm)
    axis.figure.colorbar(image, ax=axis, shrink=0.8, extend="max" if large else "neither")
    axis.set_title(picture.title, fontsize=10)
    for which, names in (("x", picture.cols), ("y", picture.rows)):
        step = max(1, math.ceil(len(names) / (16 if large else 48)))
        ticks = range(0, len(names), step)
        rotation = 90 if which == "x" and max(map(len, names), default=0) > 2 else 0
        getattr(axis, f"set_{which}ticks")(
            ticks, [short(names[i]).replace("$", r"\$") for i in ticks], fontsize=7, rotation=rotation
        )
    if numbers:
        _write_numbers(picture, axis, brightest or 1.0)
    axis.set_xlabel("keys", fontsize=8)
    axis.set_ylabel("queries", fontsize=8)


def _write_numbers(picture: Picture, axis: Axes, brightest: float) -> None:
    """Write each number into its cell, dark on bright cells and bright on dark ones."""
    rows, cols = picture.matrix.shape
    size = max(4.0, min(8.0, 60 / max(rows, cols)))
    for i, row in enumerate(picture.matrix.tolist()):
        for j, x in enumerate(row):
            colour = "black" if x > 0.35 * brightest else "white"
            axis.text(j, i, f"{x:.2f}", ha="center", va="center", fontsize=size, color=colour)


def check_numbers(rows: int, cols: int) -> None:
    """Raise an error where numbers would not fit into the cells."""
    if max(rows, cols) > MOST_NUMBERS:
        raise ValueError(
            f"show: numbers=True writes into {rows} × {cols} cells, and there is room for {MOST_NUMBERS} × "
            f"{MOST_NUMBERS}; draw a part with ll.Weights.from_dense(A[…, queries, keys])"
        )


def room(on: Any) -> tuple[int, int]:
    """Return how many rows and columns of a matrix a terminal or a figure can show."""
    if on == "terminal" or isinstance(on, Console):
        width = (on if isinstance(on, Console) else Console()).width
        return 48, min(48, max(8, (width - LONGEST_NAME - 2) // 2))
    return 512, 512


def need_matplotlib() -> None:
    """Raise an error that says what to do where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("a figure needs matplotlib: pip install 'limelight-attention[plot]'") from None


def put(pictures: Sequence[Picture], on: Any, numbers: bool = False) -> Any:
    """Draw on a terminal, a console of rich, a new figure or the axes of one; with ``numbers``, write the weights."""
    if on == "terminal" or isinstance(on, Console):
        console = on if isinstance(on, Console) else Console(highlight=False)
        if not numbers:
            return print_heatmaps(pictures, console)
        from limelight.viz.tables import matrix_tables

        return console.print(matrix_tables(pictures))
    if on == "figure":
        return figure_of(pictures, numbers)
    if hasattr(on, "imshow"):
        if len(pictures) != 1:
            raise ValueError(f"show: one matrix fits on axes and there are {len(pictures)}; choose one with head=…")
        draw(pictures[0], on, numbers)
        return on.figure
    raise TypeError(f"show: on = {on!r}; give 'terminal', 'figure', a rich Console or the axes of a matplotlib figure")
