"""The house style of figures: for light and dark pages, narrow enough for a phone, and readable in grey.

Series differ in marker, line or hatch as well as in colour. A figure is 5.4 inches wide; panels stand above each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limelight.viz.heatmaps import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import LayoutEngine
    from torch import Tensor

WIDTH = 5.4  # inches
# Colours that also differ in lightness, all of them visible on light and on dark.
COLOURS = ("#d2571b", "#3f7fd9", "#2a9d74", "#8e63c9", "#b8922a", "#cc4f86", "#5b8f2f")
GREY = "#85808c"
HATCHES = ("", "//", "..", "xx", "\\\\", "++")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_INK, _PAPER = ("#1d1b22", "#ebe8ef"), ("#ffffff", "#1a191f")
# Colour maps begin at the background: weights run to one colour, signed numbers to two.
_WEIGHTS = (
    ("#ffffff", "#fddec8", "#f49975", "#cc445a", "#781c6d", "#210c3a"),
    ("#1a191f", "#481960", "#a02d6e", "#e75d4a", "#feb260", "#fdf6be"),
)
_SIGNED = (
    ("#1d4f91", "#7fb0e8", "#ffffff", "#f0a06f", "#a63a0c"),
    ("#7fb0ff", "#2c5a9e", "#1a191f", "#a8502a", "#ff9a5c"),
)
_SIZES: dict[str, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 10,
    "legend.framealpha": 0.0,
    "lines.linewidth": 1.9,
    "lines.markersize": 6,
    "errorbar.capsize": 3,
    "hatch.linewidth": 0.7,
    "axes.grid": True,
    "grid.alpha": 0.22,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.minor.bottom": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "limelight",  # the same figure gives the same file
}


def _style(dark: bool) -> dict[str, Any]:
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    papers = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "hatch.color")
    return {**_SIZES, **dict.fromkeys(inks, _INK[dark]), **dict.fromkeys(papers, _PAPER[dark])}


def styled(draw: Callable[[], Figure], *, dark: bool = False) -> Figure:
    """Call ``draw`` in the house style."""
    need_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(_style(dark)):  # type: ignore[arg-type]
        return draw()


def new_figure(rows: int = 1, cols: int = 1, *, height: float = 3.2) -> tuple[Figure, Any]:
    """Return a figure of the common width, ``height`` inches for each row of panels, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height * rows), layout=constrained_layout())
    return figure, figure.subplots(rows, cols)


def constrained_layout() -> LayoutEngine:
    """Return a layout that leaves a margin around everything."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09)


def _is_dark() -> bool:
    import matplotlib as mpl

    return bool(mpl.rcParams["axes.facecolor"] == _PAPER[True])


def _colour_map(name: str, stops: tuple[tuple[str, ...], tuple[str, ...]]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(name, stops[_is_dark()])


def series(axis: Any, x: Sequence[float], y: Sequence[float], n: int, label: str, *, spread: Any = None) -> None:
    """Draw series number ``n`` as a line with marks, and with error bars where it has a spread."""
    line: Any = LINES[n % len(LINES)]
    colour, mark = COLOURS[n % len(COLOURS)], MARKS[n % len(MARKS)]
    if spread is None:
        axis.plot(x, y, linestyle=line, marker=mark, color=colour, label=label)
    else:
        axis.errorbar(x, y, spread, linestyle=line, marker=mark, color=colour, label=label)


def bars(
    axis: Any,
    names: Sequence[object],
    heights: Mapping[str, Sequence[float]],
    *,
    spreads: Mapping[str, Sequence[float]] | None = None,
    colours: Sequence[str] = COLOURS,
) -> None:
    """Draw a group of bars for each name, with a bar in it for each series."""
    thick = 0.8 / len(heights)
    for n, (label, values) in enumerate(heights.items()):
        places = [i + (n - (len(heights) - 1) / 2) * thick for i in range(len(names))]
        hatch, error = HATCHES[n % len(HATCHES)], (spreads or {}).get(label)
        axis.bar(places, values, thick, yerr=error, color=colours[n], hatch=hatch, label=label, ecolor=GREY)
    axis.set_xticks(range(len(names)), [str(name) for name in names])
    axis.grid(False, axis="x")


def horizontal_bars(axis: Any, names: Sequence[str], values: Sequence[float], *, colour: str = COLOURS[0]) -> None:
    """Draw one bar a name from the top down, with its value at its end."""
    places = range(len(names))
    axis.barh(places, values, 0.62, color=colour)
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.grid(False, axis="y")
    for place, value in zip(places, values, strict=True):
        axis.annotate(f"{value:.2g}", (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9.5)


def chance_line(axis: Any, value: float, label: str = "chance") -> None:
    """Draw a line at the accuracy of guessing."""
    axis.axhline(value, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), label=label, zorder=0)


def lengths_axis(axis: Any, lengths: Sequence[float], label: str) -> None:
    """Make the horizontal axis logarithmic, with the measured lengths as its ticks."""
    axis.set(xscale="log", xlabel=label)
    axis.set_xticks(list(lengths), [f"{n:g}" for n in lengths])


def legend_below(figure: Figure, axis: Any, columns: int = 3) -> None:
    """Put the legend of an axis under the figure, where it covers nothing."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def heatmap(
    axis: Any,
    matrix: Sequence[Sequence[float]],
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    numbers: str = "",
    scale: bool = False,
    signed: bool = False,
    ticks: int = 12,
) -> None:
    """Draw a matrix with the names of its rows and columns, at most ``ticks`` of each.

    ``numbers`` is the format in which each cell is written (``".2f"``), if at all; ``scale`` adds a colour bar. Signed
    numbers get two hues with the paper's colour at 0; others go from 0 to the largest.
    """
    largest = max((abs(x) for row in matrix for x in row), default=1.0) or 1.0
    stops = _SIGNED if signed else _WEIGHTS
    shades = _colour_map("signed" if signed else "weights", stops)
    image = axis.imshow(matrix, cmap=shades, aspect="auto", vmin=-largest if signed else 0.0, vmax=largest)
    axis.grid(False)
    if scale:
        axis.figure.colorbar(image, ax=axis, shrink=0.85)
    for which, names in (("x", cols), ("y", rows)):
        step = max(1, -(-len(names) // ticks))
        getattr(axis, f"set_{which}ticks")(range(0, len(names), step), names[::step])
    if numbers:
        for i, row in enumerate(matrix):
            for j, x in enumerate(row):
                far = abs(x) > (0.45 if not signed else 0.6) * largest
                ink = _INK[not _is_dark()] if far else _INK[_is_dark()]
                axis.text(j, i, format(x, numbers), ha="center", va="center", color=ink, fontsize=9.5)


def over_picture(axis: Any, picture: Tensor, heat: Tensor) -> None:
    """Draw a picture ``(height, width[, 3])`` that fades where its heat ``(rows, cols)`` is low."""
    height, width = picture.shape[:2]
    axis.imshow(picture.numpy(), cmap="gray_r", vmin=0)
    low, high = heat.min().clamp(max=heat.max() / 2), heat.max().clamp(min=1e-9)
    share = ((heat - low) / (high - low)).tolist()
    veil = [[(*_rgb(_PAPER[_is_dark()]), 0.88 * (1 - x)) for x in row] for row in share]
    edges = (-0.5, width - 0.5, height - 0.5, -0.5)
    axis.imshow(veil, extent=edges, interpolation="nearest")
    axis.set_axis_off()


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)
