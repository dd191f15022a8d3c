"""Questions of the page: a name and arguments in, numbers out.

One list of questions serves the server, the notebook's widget and the saved page. Arguments come from outside, so each
question reads them through ``Arguments``, which checks type and range and says what is wrong. An answer is a
JSON-able dict and named arrays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from limelight.explorer.head import Head
    from limelight.explorer.subject import Matrix, Subject


QUICK, SLOW, BACKGROUND = "quick", "slow", "background"  # lanes: see limelight.explorer.workers


class RefusedError(ValueError):
    """Raised for a question with wrong arguments; the message is shown to the user."""


@dataclass(frozen=True)
class Answer:
    """A JSON-able dict, and arrays by name."""

    data: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def head(self) -> dict[str, Any]:
        """Return the dict, with the type and shape of every array in the order of ``buffers``."""
        shapes = {name: {"type": x.dtype.name, "shape": list(x.shape)} for name, x in self.arrays.items()}
        return {"data": self.data, "arrays": shapes}

    def buffers(self) -> list[bytes]:
        """Return the bytes of the arrays, little-endian."""
        return [np.ascontiguousarray(x, x.dtype.newbyteorder("<")).tobytes() for x in self.arrays.values()]

    def packed(self) -> bytes:
        """Return the answer as bytes: length of the head (4 bytes), head as JSON, padding to 8 bytes, arrays."""
        head = json.dumps(self.head(), ensure_ascii=False, allow_nan=False).encode()
        head += b" " * (-(len(head) + 4) % 8)
        return len(head).to_bytes(4, "little") + head + b"".join(self.buffers())


class Arguments:
    """The arguments of a question, checked as they are read."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise RefusedError("arguments must be an object")
        self._given = given

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """Return a whole number from ``low`` to ``high``."""
        return _whole(name, self._get(name, default), low, high)

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number from ``low`` to ``high``."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RefusedError(f"{name} must be a number")
        if not low <= value <= high:
            raise RefusedError(f"{name} = {value:g} must be from {low:g} to {high:g}")
        return float(value)

    def choice(self, name: str, options: Sequence[str], default: str | None = None) -> str:
        """Return one of some words."""
        value = self._get(name, default)
        if value not in options:
            raise RefusedError(f"{name} must be one of {', '.join(options)}")
        return str(value)

    def text(self, name: str, most: int, default: str | None = None) -> str:
        """Return a text of at most so many characters."""
        value = self._get(name, default)
        if not isinstance(value, str) or len(value) > most:
            raise RefusedError(f"{name} must be a text of at most {most} characters")
        return value

    def items(self, name: str, most: int) -> list[Any]:
        """Return a list of one to ``most`` items."""
        value = self._get(name, None)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            raise RefusedError(f"{name} must be a list of 1 to {most}")
        return value

    def has(self, name: str) -> bool:
        """Return whether an argument is given."""
        return self._given.get(name) is not None

    def matrix(self, subject: Subject) -> Matrix:
        """Return the matrix that ``call`` names."""
        return subject.matrices[self.whole("call", 0, len(subject.matrices) - 1)]

    def batch(self, matrix: Matrix) -> int:
        """Return the batch element; the first unless given."""
        return self.whole("batch", 0, matrix.B - 1, 0)

    def head(self, subject: Subject) -> Head:
        """Return the head that ``call``, ``batch`` and ``head`` name."""
        matrix = self.matrix(subject)
        return subject.head(matrix.number, self.batch(matrix), self.whole("head", 0, matrix.H - 1))

    def _get(self, name: str, default: Any) -> Any:
        value = self._given.get(name)
        value = default if value is None else value
        if value is None:
            raise RefusedError(f"{name} is missing")
        return value


def wholes(name: str, values: Any, bounds: Sequence[tuple[int, int]]) -> list[int]:
    """Return a list of whole numbers, each within its bounds."""
    if not isinstance(values, list) or len(values) != len(bounds):
        raise RefusedError(f"{name} must be {len(bounds)} whole numbers")
    return [_whole(name, x, low, high) for x, (low, high) in zip(values, bounds, strict=True)]


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedError(f"{name} must be a whole number")
    if not low <= value <= high:
        raise RefusedError(f"{name} = {value} must be from {low} to {high}")
    return value


Ask = Callable[["Subject", Arguments], Answer]


@dataclass(frozen=True)
class Question:
    """Something that the page may ask, and the lane in which it is answered."""

    name: str
    ask: Ask
    lane: Callable[[Subject, Arguments], str]


def question(name: str, lane: str | Callable[[Subject, Arguments], str] = QUICK) -> Callable[[Ask], Question]:
    """Make a question of a function ``(subject, arguments) → answer``."""

    def made(ask: Ask) -> Question:
        return Question(name, ask, lane if callable(lane) else lambda subject, arguments: lane)

    return made
