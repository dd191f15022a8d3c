"""``LayerTrace``: the steps of a whole layer, as tables, HTML and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from limelight.viz.characters import Picture

_COLS = 8  # features shown of each token; all tokens are shown
_ROWS = 24
_HEADS = 4  # heads shown in a notebook; the terminal prints one head or all


@dataclass(frozen=True)
class Step:
    """One step: a matrix ``(rows, cols)``, or one for each head ``(heads, rows, cols)``.

    ``rows`` are the names of tokens; ``cols`` too, or None where columns are features. ``of`` names the earlier steps
    that it is computed from, as far as they are known.
    """

    name: str
    title: str
    value: Tensor
    rows: Sequence[str]
    cols: Sequence[str] | None = None
    of: tuple[str, ...] = ()

    @property
    def sizes(self) -> str:
        """The shape in words, such as ``8 heads, 7 × 32``."""
        *heads, rows, cols = self.value.shape
        one = f"{rows} × {cols}"
        return one if not heads else f"{heads[0]} head{'s' if heads[0] > 1 else ''}, {one}"

    def pictures(self) -> list[Picture]:
        """Return the matrix, or those of all heads, to be drawn; of wide or long ones, the beginning."""
        x = self.value if self.value.ndim == 3 else self.value[None]
        return [self._picture(matrix, h if len(x) > 1 else None) for h, matrix in enumerate(x)]

    def _picture(self, matrix: Tensor, head: int | None) -> Picture:
        rows, cols = list(self.rows), self.cols
        if cols is None:
            names = [str(d) for d in range(min(matrix.shape[1], _COLS))]
        else:
            names = list(cols)[:_ROWS]
        shown = matrix[:_ROWS, : len(names)].detach().double()
        if self.name == "weights":  # show that rows sum to 1
            names = [*names, "sum"]
            shown = _with_sums(shown, matrix[:_ROWS].detach().double().sum(1))
        title = f"{self.title} ({self.sizes}"
        title += f", head {head}" if head is not None else ""
        title += f", first {shown.shape[1]} columns" if shown.shape[1] < matrix.shape[1] else ""
        title += f", first {_ROWS} rows" if len(rows) > _ROWS else ""
        return Picture(f"{title})", shown, rows[:_ROWS], names)


def _with_sums(x: Tensor, sums: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0], x.shape[1] + 1)
    out[:, :-1], out[:, -1] = x, sums
    return out


class LayerTrace:
    """The steps of a layer in order; ``trace["weights"]`` is the tensor of one, ``print(trace)`` shows all.

    ``trace.head(3)`` is the same with one head's matrices alone.

    Args:
        steps: the steps.
        queries: names of the queries.
        keys: names of the keys.
        module: the name of the attention module.
        scale: what the scores are multiplied by.

    """

    def __init__(
        self, steps: Sequence[Step], queries: Sequence[str], keys: Sequence[str], module: str, scale: float
    ) -> None:
        self.steps, self.queries, self.keys = list(steps), list(queries), list(keys)
        self.module, self.scale = module, scale

    def __getitem__(self, name: str) -> Tensor:
        found = next((step.value for step in self.steps if step.name == name), None)
        if found is None:
            raise KeyError(f"there is no step {name!r}; there are {', '.join(step.name for step in self.steps)}")
        return found

    def head(self, head: int) -> LayerTrace:
        """Return the trace with the matrices of one head alone."""
        count = max((len(step.value) for step in self.steps if step.value.ndim == 3), default=1)
        if not 0 <= head < count:
            raise ValueError(f"there is no head {head}; there are 0 to {count - 1}")
        steps = [_of_head(step, head, count) if step.value.ndim == 3 else step for step in self.steps]
        return LayerTrace(steps, self.queries, self.keys, self.module, self.scale)

    def pictures(self) -> list[Picture]:
        """Return every step as matrices with titles and names, to be drawn."""
        return [picture for step in self.steps for picture in step.pictures()]

    def as_dict(self) -> dict[str, Any]:
        """Return the steps as plain lists, for JSON."""
        steps = [
            {"name": s.name, "title": s.title, "shape": list(s.value.shape), "value": s.value.tolist()}
            for s in self.steps
        ]
        return {"module": self.module, "queries": self.queries, "keys": self.keys, "steps": steps}

    def __str__(self) -> str:
        from limelight.viz.tables import tables_as_text

        return tables_as_text(self.pictures())

    def __repr__(self) -> str:
        lines = [f"Trace of {self.module or 'a layer'}: {len(self.steps)} steps"]
        return "\n".join([*lines, *(f"  {step.name}: {step.sizes}" for step in self.steps)])

    def _repr_html_(self) -> str:
        return "".join(map(_step_html, self.steps))


def _step_html(step: Step) -> str:
    """Return a step as a table, or as those of its first heads in a row."""
    from limelight.viz.notebook import matrix_html, side_by_side_html

    pictures = step.pictures()
    if len(pictures) == 1:
        p = pictures[0]
        return matrix_html(p.matrix, p.rows, p.cols, p.title)
    heads = [matrix_html(p.matrix, p.rows, p.cols, f"head {h}") for h, p in enumerate(pictures[:_HEADS])]
    more = f"; the first {_HEADS} heads, .head(h) shows one" if len(pictures) > _HEADS else ""
    return side_by_side_html(heads, f"{step.title} ({step.sizes}{more})")


def _of_head(step: Step, head: int, heads: int) -> Step:
    own = head * len(step.value) // heads  # several query heads may share a key head
    return replace(step, title=f"{step.title}, head {head}", value=step.value[own])
