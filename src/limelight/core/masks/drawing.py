"""Drawings of masks: in characters, and as HTML for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from limelight.core.masks.base import Mask

_CELLS = 24
_POINTS = 8  # samples in a cell, along each axis
_SIDE = 9  # pixels of a cell


def draw(mask: Mask, N: int, M: int) -> str:
    """Draw a mask in characters: ■ allowed, · not, ▨ a cell of a larger mask that is allowed in part."""
    lines = (" ".join("■" if x == 1 else "·" if x == 0 else "▨" for x in row) for row in _shares(mask, N, M))
    return "\n".join([_title(mask, N, M), *lines])


def draw_html(mask: Mask, N: int, M: int) -> str:
    """Draw a mask as a small picture for a notebook: filled where a query may attend, faint where it may not.

    >>> import limelight as ll
    >>> draw_html(ll.Causal(), 2, 2).count("<rect")
    3
    """
    shares = _shares(mask, N, M)
    rects = []
    for i, row in enumerate(shares):
        begin = 0
        for j in range(1, len(row) + 1):
            if j == len(row) or row[j] != row[begin]:  # a rectangle for each run of equal cells
                opacity = f"{0.08 + 0.84 * row[begin]:.2f}"
                rects.append(f'<rect x="{begin}" y="{i}" width="{j - begin}" height="1" fill-opacity="{opacity}"/>')
                begin = j
    wide, high = len(shares[0]) if shares else 0, len(shares)
    picture = (
        f'<svg role="img" aria-label="mask" viewBox="0 0 {wide} {high}" width="{_SIDE * wide}" height="{_SIDE * high}" '
        f'fill="#c9531c" shape-rendering="crispEdges" style="outline: 1px solid rgb(128 128 128 / .35)">'
        f"{''.join(rects)}</svg>"
    )
    font = "font: 13px/1.4 system-ui, sans-serif; margin: 4px 0; overflow-x: auto"
    return f'<div style="{font}"><div style="margin-bottom: 3px">{escape(_title(mask, N, M))}</div>{picture}</div>'


def _title(mask: Mask, N: int, M: int) -> str:
    return f"{mask!r}, {N} queries × {M} keys"


def _shares(mask: Mask, N: int, M: int) -> list[list[float]]:
    """Return which share of each cell is allowed, for the first batch element and head."""
    if N == 0 or M == 0:
        return []
    i, j = (torch.linspace(0, n - 1, min(n, _CELLS * _POINTS)).round().long() for n in (N, M))
    allowed = mask.allows(i[:, None], j[None, :], N, M)
    allowed = allowed.reshape(-1, len(i), len(j))[0].float()
    rows, cols = min(N, _CELLS), min(M, _CELLS)
    shares: list[list[float]] = torch.nn.functional.adaptive_avg_pool2d(allowed[None], (rows, cols))[0].tolist()
    return shares
