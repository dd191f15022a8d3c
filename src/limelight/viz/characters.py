"""Heatmaps in plain characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

_SHADES = " ·░▒▓█"  # zero, little, and four quarters of the largest
_COLOURS = ("", "#51127c", "#b73779", "#e75263", "#fc8961", "#fcb93d")
LONGEST_NAME = 14  # characters of a token


@dataclass(frozen=True)
class Picture:
    """A matrix to be drawn, with the names of its rows and columns."""

    title: str
    matrix: Tensor  # (rows, cols)
    rows: Sequence[str]
    cols: Sequence[str]


def shade(x: float, largest: float) -> tuple[str, str]:
    """Return the two characters of a number, and their colour."""
    if x != x:
        return "??", ""
    level = 0 if x <= 0 else 1 + min(4, int(4 * x / largest + 0.5))
    return 2 * _SHADES[level], _COLOURS[level]


def shades(matrix: Tensor) -> list[str]:
    """Draw each row in characters, two for a number: █ for the largest, blank for 0, ? for NaN."""
    top = largest_of(matrix)
    return ["".join(shade(x, top)[0] for x in row) for row in matrix.tolist()]


def largest_of(matrix: Tensor) -> float:
    """Return the largest finite number, or 1 where there is none."""
    finite = matrix[matrix.isfinite()]
    return max(float(finite.max()), 1e-30) if finite.numel() else 1.0


def side_by_side(pictures: Sequence[Picture]) -> str:
    """Draw small matrices next to each other, each under its title."""
    blocks = []
    for p in pictures:
        lines = [p.title, *shades(p.matrix)]
        width = max(map(len, lines))
        blocks.append([line.ljust(width) for line in lines])
    return "\n".join("   ".join(row).rstrip() for row in zip(*blocks, strict=True))


def without_marker(token: str) -> str:
    """Return a token without ``▁``, which stands for the space before it; a space alone is ``␣``."""
    return token.removeprefix("▁").replace("▁", " ") or "␣" * bool(token)


def short(name: str) -> str:
    """Shorten a token to a few printable characters, without the mark of the space before it.

    >>> short("▁cat"), short("▁"), short("▁antidisestablishment")
    ('cat', '␣', 'antidisestabl…')
    """
    name = without_marker(name).replace("\n", "↵").replace("\t", "⇥") or "∅"
    name = "".join(c if c.isprintable() else "�" for c in name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
