"""The report on heads as rows: a table that fits its console, JSON, and HTML in a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

from limelight.lens import strict_json

NEAR = 8  # tokens on either side that count as near
MEASURES = (
    "entropy",
    "spread",
    "first",
    "self",
    "previous",
    "next",
    "near",
    "separators",
    "distance",
    "duplicate",
    "induction",
    "similarity",
)
VALUE_MEASURES = ("value", "attribution")  # measures that only a record with values has
_COLUMN_TITLES = {
    "attribution": "attr",
    "previous": "prev",
    "near": f"±{NEAR}",
    "separators": "sep",
    "distance": "dist",
    "duplicate": "dup",
    "induction": "ind",
    "similarity": "sim",
}
# Where a console is too narrow, columns are left out in this order; numbers are never cut.
_LEAST_NEEDED = ("near", "similarity", "spread", "value", "distance", "duplicate", "next", "separators", "attribution")
# The measure that a label rests on, the most telling labels first.
_TELLING = {
    "induction": "induction",
    "duplicate token": "duplicate",
    "previous token": "previous",
    "next token": "next",
    "separator": "separators",
    "sink": "first",
    "itself": "self",
    "local": "near",
}


class Heads(list[dict[str, Any]]):
    """The report on heads of ``limelight.lens.heads``: a list of one dict for each, which ``pandas.DataFrame`` takes.

    ``print`` shows it as a table, ``json()`` returns it as text.
    """

    def json(self) -> str:
        """Return the rows as JSON."""
        return strict_json.dumps(self)

    def telling(self, count: int) -> Heads:
        """Return the ``count`` most telling heads: the clearest of each label in turn, then sorted by layer."""
        kinds: dict[str, list[dict[str, Any]]] = {}
        for row in self:
            kinds.setdefault(row["label"], []).append(row)
        for label, rows in kinds.items():
            measure = _TELLING.get(label)
            rows.sort(key=lambda row: row["entropy"] if measure is None else -row[measure])
        names = sorted(kinds, key=lambda label: (*_TELLING, label).index(label))
        ranked = [
            row
            for place in range(len(self))
            for row in (kinds[label][place] for label in names if place < len(kinds[label]))
        ]
        chosen = {id(row) for row in ranked[:count]}
        return Heads(row for row in self if id(row) in chosen)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a table for each kind of module, such as ``encoder.layer.*.attention``, with a row for each head."""
        for family, rows in self._families().items():
            yield next(
                table
                for table in _narrowing_tables(family, rows)
                if Measurement.get(console, options.update(width=1000), table).maximum <= options.max_width
                or len(table.columns) <= 6
            )

    def __str__(self) -> str:
        console = Console(width=200, no_color=True, force_terminal=False, markup=False, emoji=False, highlight=False)
        with console.capture() as text:
            console.print(self)
        return text.get().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from limelight.viz.notebook import table_html

        names = [name for name in MEASURES if any(row[name] is not None for row in self)]
        tables = []
        for family, rows in self._families().items():
            rounded = [{n: round(x, 2) if isinstance(x, float) else x for n, x in row.items()} for row in rows]
            tables.append(table_html(rounded, ["layer", "head", "label", *names], family))
        return "".join(tables)

    def _families(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows by the kind of module, such as ``encoder.layer.*.attention``."""
        families: dict[str, list[dict[str, Any]]] = {}
        for row in self:
            families.setdefault(re.sub(r"\b\d+\b", "*", row["module"], count=1), []).append(row)
        return families


def _narrowing_tables(family: str, rows: list[dict[str, Any]]) -> Iterator[Table]:
    """Yield the table with all columns, then with one less at a time."""
    names = [name for name in (*MEASURES, *VALUE_MEASURES) if rows[0].get(name) is not None]
    yield _table(family, rows, names)
    for name in (*_LEAST_NEEDED, *MEASURES[::-1]):
        if name in names:
            names.remove(name)
            yield _table(family, rows, names)


def _table(family: str, rows: list[dict[str, Any]], names: list[str]) -> Table:
    table = Table(title=family, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("layer", "head", *(_COLUMN_TITLES.get(name, name) for name in names)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("label", no_wrap=True)
    layer = None
    for row in rows:
        numbers = (
            f"{row[n]:.1f}" if n == "distance" else f"{row[n]:.{3 if n == 'attribution' else 2}f}" for n in names
        )
        table.add_row("" if row["layer"] == layer else str(row["layer"]), str(row["head"]), *numbers, row["label"])
        layer = row["layer"]
    return table
