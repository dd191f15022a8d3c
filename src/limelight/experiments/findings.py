"""Findings: measurements about a claim, and the rules that judge them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import StringIO
from itertools import pairwise
from typing import Any

REPRODUCED, DIRECTION, CORRECTED = "reproduced", "reproduced in direction", "corrected"
EXTRA = "extra, not judged"  # measured in addition, on a point that the texts do not mention
BUSY = "not measured: the machine was busy"
MISSING = "not measured: a package is missing"
JUDGED = (REPRODUCED, DIRECTION, CORRECTED)  # from the most to the least favourable
VERDICTS = (*JUDGED, EXTRA, BUSY, MISSING)


@dataclass(frozen=True)
class Finding:
    """One measurement about a claim.

    Attributes:
        claim: the number of the claim.
        what: the quantity that was measured.
        theirs: its value in the texts; None where they give none.
        measured: the measured value.
        verdict: ``"reproduced"``, ``"reproduced in direction"`` or ``"corrected"``; ``"extra, not judged"`` where the
            texts give no value; or why it was not measured.
        note: how the value was measured, or what is right where the text is wrong.

    """

    claim: int
    what: str
    theirs: Any
    measured: Any
    verdict: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict = {self.verdict!r}; there are {', '.join(VERDICTS)}")
        if self.theirs is None and self.verdict in JUDGED:
            raise ValueError(f"{self.what!r}: texts do not say it, so its verdict is {EXTRA!r}, not {self.verdict!r}")
        if self.theirs is not None and self.verdict == EXTRA:
            raise ValueError(
                f"{self.what!r}: {EXTRA!r} is for what texts do not say, and here theirs = {self.theirs!r}"
            )


@dataclass(frozen=True)
class Result:
    """The outcome of an experiment.

    Attributes:
        name: the experiment, a key of ``EXPERIMENTS``.
        takeaway: what to remember, in a sentence.
        findings: the measurements and their verdicts.
        data: the tables that the figure is drawn from, by name, as lists of rows.

    """

    name: str
    takeaway: str
    findings: list[Finding]
    data: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def json(self) -> str:
        """Return everything as JSON; NaN and infinities become null."""
        return json.dumps(plain(asdict(self)), ensure_ascii=False, indent=2)

    def csv(self, table: str) -> str:
        """Return ``data[table]`` as CSV."""
        rows = self.data[table]
        text = StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def plain(x: Any) -> Any:
    """Convert to values that JSON can hold: NaN and infinities become None."""
    if isinstance(x, Mapping):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def judge(theirs: float | Sequence[float], measured: float | Sequence[float], within: float, *, same_way: bool) -> str:
    """Judge numbers: reproduced within a tolerance, in direction if ``same_way``, corrected otherwise."""
    a, b = ([x] if isinstance(x, (int, float)) else list(x) for x in (theirs, measured))
    if len(a) == len(b) and all(abs(x - y) <= within for x, y in zip(a, b, strict=True)):
        return REPRODUCED
    return DIRECTION if same_way else CORRECTED


def holds(condition: bool, *, in_part: bool = False) -> str:
    """Judge a claim without a number: reproduced, in direction where it holds in part, or corrected."""
    return REPRODUCED if condition else DIRECTION if in_part else CORRECTED


def ordered(numbers: Sequence[float], *, rising: bool) -> bool:
    """Return whether numbers rise, or fall, from each to the next."""
    return all(b > a if rising else b < a for a, b in pairwise(numbers))


def mean_and_spread(numbers: Sequence[float]) -> tuple[float, float]:
    """Return the mean over seeds and the standard deviation between them, which is NaN for a single seed."""
    mean = sum(numbers) / len(numbers)
    if len(numbers) == 1:
        return mean, math.nan
    return mean, math.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


def plus_minus(spreads: Sequence[float]) -> str:
    """Format the spreads between seeds for a note: ``± 0.1, 0.03``."""
    return "one seed, ±?" if any(map(math.isnan, spreads)) else "± " + ", ".join(f"{x:.2g}" for x in spreads)


def rounded(numbers: Sequence[float], digits: int = 2) -> list[float]:
    """Round every number, for a table of findings."""
    return [round(float(x), digits) for x in numbers]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Fit the power p of value ~ sizeᵖ: the slope of log value against log size, by least squares."""
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def growth_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Fit the power of the part of a value that grows, for doubling sizes: a constant part drops out of differences."""
    return exponent(sizes[1:], [max(b - a, 1e-9) for a, b in pairwise(values)])
