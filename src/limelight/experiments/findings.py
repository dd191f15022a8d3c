"""What an experiment finds, and how it is judged."""

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
BESIDE = "beside the claim"  # measured too, where the texts say nothing: no part of a claim's verdict


@dataclass(frozen=True)
class Finding:
    """A claim, what the text says, what was measured, and the verdict.

    ``note`` says how it was measured, or what is right where the text is not. What a text does not say is None.
    """

    claim: int
    what: str
    theirs: Any
    measured: Any
    verdict: str
    note: str = ""

    def __post_init__(self) -> None:
        known = (REPRODUCED, DIRECTION, CORRECTED, BESIDE)
        if self.verdict not in known:
            raise ValueError(f"verdict = {self.verdict!r}; there are {', '.join(known)}")
        if (self.theirs is None) != (self.verdict == BESIDE):
            raise ValueError(f"{self.what!r}: {BESIDE!r} is the verdict on what texts do not say, and on nothing else")


@dataclass(frozen=True)
class Result:
    """The findings of an experiment, and its data: tables by name, each a list of rows."""

    name: str
    title: str
    findings: list[Finding]
    data: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    explanation: str = ""

    def json(self) -> str:
        """Everything as JSON; what is no number is null."""
        return json.dumps(plain(asdict(self)), ensure_ascii=False, indent=2)

    def csv(self, table: str) -> str:
        """One of the tables."""
        rows = self.data[table]
        text = StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


def plain(x: Any) -> Any:
    """For JSON: what is no number is null."""
    if isinstance(x, Mapping):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def judge(theirs: float | Sequence[float], measured: float | Sequence[float], within: float, *, same_way: bool) -> str:
    """Reproduced where every number is within a tolerance, in direction where ``same_way``, corrected otherwise."""
    a, b = ([x] if isinstance(x, (int, float)) else list(x) for x in (theirs, measured))
    if len(a) == len(b) and all(abs(x - y) <= within for x, y in zip(a, b, strict=True)):
        return REPRODUCED
    return DIRECTION if same_way else CORRECTED


def holds(condition: bool, *, in_part: bool = False) -> str:
    """For a claim without a number: reproduced, in direction where it holds in part, or corrected."""
    return REPRODUCED if condition else DIRECTION if in_part else CORRECTED


def ordered(numbers: Sequence[float], *, rising: bool) -> bool:
    """Whether numbers rise, or fall, all the way."""
    return all(b > a if rising else b < a for a, b in pairwise(numbers))


def mean_and_spread(numbers: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds and the standard deviation between them; NaN where there is but one."""
    mean = sum(numbers) / len(numbers)
    if len(numbers) == 1:
        return mean, math.nan
    return mean, math.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


def plus_minus(spreads: Sequence[float]) -> str:
    """The spreads between seeds of the numbers of a finding, for its note."""
    return "± " + ", ".join(f"{x:.2g}" for x in spreads)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value against log size, by least squares: the power by which it grows."""
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
