"""The result of ``importance``: a table, a heatmap on the terminal, a figure, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from limelight.lens import strict_json
from limelight.viz.characters import Picture
from limelight.viz.heatmaps import figure_of, heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation: the correlation of the ranks, ties sharing their mean rank.

    >>> round(rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]), 6)
    0.5
    """
    x, y = (_ranks(torch.tensor(list(values), dtype=torch.float64)) for values in (a, b))
    x, y = x - x.mean(), y - y.mean()
    scale = float(x.norm() * y.norm())
    return float(x @ y) / scale if scale else 0.0


def _ranks(x: torch.Tensor) -> torch.Tensor:
    _, group, count = torch.unique(x, return_inverse=True, return_counts=True)
    end = count.cumsum(0).double()
    ranks: torch.Tensor = (end - (count - 1) / 2)[group]
    return ranks


class Importance(list[dict[str, Any]]):
    """One dict for each head or layer, which ``pandas.DataFrame`` takes; ``print`` shows a heatmap and a table.

    Attributes:
        metric: the name of the metric.
        clean: the metric without edits; an effect is the metric with the edit minus this.
        by: ``"head"`` or ``"layer"``.
        method: ``"exact"``, ``"gradient"`` or ``"both"``.
        correlation: the rank correlation between exact effects and estimates, for the method ``"both"``.

    """

    def __init__(self, rows: Iterable[dict[str, Any]], *, metric: str, clean: float, by: str, method: str) -> None:
        super().__init__(rows)
        self.metric, self.clean, self.by, self.method = metric, clean, by, method
        self.correlation: float | None = None
        if method == "both":
            self.correlation = rank_correlation(*([row[name] for row in self] for name in ("effect", "estimate")))

    def top(self, count: int = 10) -> list[dict[str, Any]]:
        """Return the rows of the ``count`` heads that matter most, by the magnitude of their effect, largest first."""
        return sorted(self, key=lambda row: -abs(row["effect"]))[:count]

    def pictures(self) -> list[Picture]:
        """Return the magnitudes of the effects as matrices of layers and heads, one for each kind of attention."""
        kinds = list(dict.fromkeys((row["stack"], row["kind"]) for row in self))
        found = []
        for stack, kind in kinds:
            rows = [row for row in self if (row["stack"], row["kind"]) == (stack, kind)]
            names = list(dict.fromkeys((row["module"], row["layer"]) for row in rows))
            heads = 1 + max(row["head"] or 0 for row in rows)
            matrix = torch.zeros(len(names), heads)
            for row in rows:
                matrix[names.index((row["module"], row["layer"])), row["head"] or 0] = abs(row["effect"])
            found.append(
                Picture(
                    title=f"{stack} {kind}-attention: change of the {self.metric}",
                    matrix=matrix,
                    rows=[f"layer {layer}" if layer is not None else module for module, layer in names],
                    cols=["all heads"] if self.by == "layer" else [str(h) for h in range(heads)],
                )
            )
        return found

    def figure(self) -> Figure:
        """Draw the magnitudes of the effects, layers down and heads across."""
        figure = figure_of(self.pictures())
        for axis in figure.axes:
            if axis.get_xlabel():
                axis.set_xlabel("heads", fontsize=8)
                axis.set_ylabel("layers", fontsize=8)
        return figure

    def table(self, count: int = 10, labels: dict[tuple[Any, ...], str] | None = None) -> Table:
        """Return a table of the ``count`` that matter most, with ``labels`` by (module, layer, head) if given."""
        table = Table(
            title=f"what matters most for the {self.metric} ({self.clean:.4g} without edits)", box=SIMPLE_HEAD
        )
        table.title_justify, table.pad_edge = "left", False
        numbers = ["effect", *(["estimate"] if self.method == "both" else [])]
        for name in ("layer", *(["head"] if self.by == "head" else []), *numbers):
            table.add_column(name, justify="right")
        table.add_column("attention")
        if labels is not None:
            table.add_column("label")
        for row in self.top(count):
            cells = [str(row["layer"]), *([str(row["head"])] if self.by == "head" else [])]
            cells += [f"{row[name]:+.4g}" for name in numbers]
            cells.append(f"{row['stack']} {row['kind']}")
            cells += [] if labels is None else [labels.get((row["module"], row["layer"], row["head"]), "")]
            table.add_row(*cells)
        return table

    def json(self) -> str:
        """Return everything as JSON."""
        return strict_json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return everything as a dict."""
        found: dict[str, Any] = {"metric": self.metric, "clean": self.clean, "by": self.by, "method": self.method}
        if self.correlation is not None:
            found["rank_correlation"] = self.correlation
        return {**found, "rows": list(self)}

    def __rich__(self) -> Group:
        """Return a heatmap for each kind of attention, the table, and the rank correlation."""
        parts: list[RenderableType] = [heatmap(picture) for picture in self.pictures()]
        parts.append(self.table())
        if self.correlation is not None:
            parts.append(Text(f"rank correlation of exact effects and gradient estimates: {self.correlation:.2f}"))
        return Group(*parts)

    def __str__(self) -> str:
        console = Console(width=120, no_color=True, force_terminal=False, markup=False, emoji=False, highlight=False)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    __repr__ = __str__
