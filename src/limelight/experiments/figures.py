"""Figures for a slide: readable in grey, on light and on dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from limelight.pictures import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Different in lightness too, and all of them visible on white and on black.
COLOURS = ("#2b7bba", "#e8743b", "#19a979", "#945ecf", "#c9a227", "#d1478c")
_INK = "#808080"  # text and axes: grey is read on either
STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    **{"axes.titlecolor": _INK, "legend.framealpha": 0.0, "legend.fontsize": 8, "axes.titlesize": 10},
    **{"axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8, "lines.linewidth": 1.6, "axes.axisbelow": True},
    **{"axes.grid": True, "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False},
    **{"figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "svg.fonttype": "none"},
    **{"errorbar.capsize": 2, "hatch.linewidth": 0.6, "xtick.minor.bottom": False},
}


def styled(draw: Callable[[], Figure]) -> Figure:
    """What ``draw`` makes, in the house style."""
    need_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        return draw()


def new_figure(rows: int = 1, cols: int = 1, *, width: float = 4.6, height: float = 3.4) -> tuple[Figure, Any]:
    """A figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * cols, height * rows), layout="constrained")
    return figure, figure.subplots(rows, cols)


def heatmap(axis: Any, matrix: list[list[float]], rows: Any, cols: Any, *, numbers: bool = False) -> None:
    """A matrix with the names of its rows and columns, and its numbers if wanted; weights begin at 0."""
    low = min(0.0, *(min(row) for row in matrix))
    axis.imshow(matrix, cmap="Blues" if numbers else "viridis", aspect="equal", vmin=low)
    axis.grid(False)
    step = max(1, len(rows) // 8)
    axis.set_xticks(range(0, len(cols), step), [cols[n] for n in range(0, len(cols), step)])
    axis.set_yticks(range(0, len(rows), step), [rows[n] for n in range(0, len(rows), step)])
    largest = max(max(row) for row in matrix)
    for i, row in enumerate(matrix if numbers else []):
        for j, x in enumerate(row):
            axis.text(j, i, f"{x:.3f}", ha="center", va="center", color="white" if x > 0.6 * largest else "black")
