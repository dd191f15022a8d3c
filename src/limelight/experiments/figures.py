"""Figures for a slide, on light and on dark, which can be read in grey: series differ in marker, line or hatch too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limelight.viz.heatmaps import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Different in lightness too, and all of them visible on white and on black.
COLOURS = ("#2b7bba", "#e8743b", "#19a979", "#945ecf", "#c9a227", "#d1478c")
GREY = "#808080"
_HATCHES = ("", "//", "..", "xx")
_SIZES: dict[str, Any] = {
    **{"axes.titlesize": 11, "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9},
    **{"lines.linewidth": 1.8, "errorbar.capsize": 3, "hatch.linewidth": 0.7, "legend.framealpha": 0.0},
    **{"axes.grid": True, "grid.alpha": 0.25, "axes.axisbelow": True, "xtick.minor.bottom": False},
    **{"axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"},
}


def _style(dark: bool) -> dict[str, Any]:
    ink, paper = ("#ececf2", "#14141a") if dark else ("#1b1b22", "#ffffff")
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    papers = ("figure.facecolor", "axes.facecolor", "savefig.facecolor", "hatch.color")
    return {**_SIZES, **dict.fromkeys(inks, ink), **dict.fromkeys(papers, paper)}


def styled(draw: Callable[[], Figure], *, dark: bool = False) -> Figure:
    """What ``draw`` makes, in the house style."""
    need_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(_style(dark)):  # type: ignore[arg-type]
        return draw()


def new_figure(rows: int = 1, cols: int = 1, *, width: float = 4.6, height: float = 3.4) -> tuple[Figure, Any]:
    """A figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * cols, height * rows), layout="constrained")
    return figure, figure.subplots(rows, cols)


def bars(
    axis: Any,
    names: Sequence[object],
    series: Mapping[str, Sequence[float]],
    *,
    spreads: Mapping[str, Sequence[float]] | None = None,
    colours: Sequence[str] = COLOURS,
) -> None:
    """A group of bars for each name, with a bar in it for each series."""
    thick = 0.8 / len(series)
    for n, (label, heights) in enumerate(series.items()):
        places = [i + (n - (len(series) - 1) / 2) * thick for i in range(len(names))]
        options = {"color": colours[n], "hatch": _HATCHES[n % len(_HATCHES)], "label": label, "ecolor": GREY}
        axis.bar(places, heights, thick, yerr=(spreads or {}).get(label), **options)
    axis.set_xticks(range(len(names)), [str(name) for name in names])
    axis.grid(False, axis="x")


def lengths_axis(axis: Any, lengths: Sequence[float], label: str) -> None:
    """A logarithmic axis with the lengths that were measured as its ticks."""
    axis.set(xscale="log", xlabel=label)
    axis.set_xticks(list(lengths), [f"{n:g}" for n in lengths])


def heatmap(
    axis: Any, matrix: list[list[float]], rows: Any, cols: Any, *, numbers: bool = False, scale: bool = False
) -> None:
    """A matrix with the names of its rows and columns, and its numbers or a scale if wanted; weights begin at 0."""
    low = min(0.0, *(min(row) for row in matrix))
    image = axis.imshow(matrix, cmap="Blues" if numbers else "viridis", aspect="equal", vmin=low)
    axis.grid(False)
    if scale:
        axis.figure.colorbar(image, ax=axis, shrink=0.8)
    step = max(1, len(rows) // 8)
    axis.set_xticks(range(0, len(cols), step), [cols[n] for n in range(0, len(cols), step)])
    axis.set_yticks(range(0, len(rows), step), [rows[n] for n in range(0, len(rows), step)])
    largest = max(max(row) for row in matrix)
    for i, row in enumerate(matrix if numbers else []):
        for j, x in enumerate(row):
            axis.text(j, i, f"{x:.3f}", ha="center", va="center", color="white" if x > 0.6 * largest else "black")
