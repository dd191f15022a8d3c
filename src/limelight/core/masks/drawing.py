"""Drawings of masks in characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from limelight.core.masks.base import Mask

_CELLS = 24
_POINTS = 8  # samples in a cell, along each axis


def draw(mask: Mask, N: int, M: int) -> str:
    """Draw a mask in characters: ■ allowed, · not, ▨ a cell of a larger mask that is allowed in part."""
    title = f"{mask!r}, {N} queries × {M} keys"
    if N == 0 or M == 0:
        return title
    i, j = (torch.linspace(0, n - 1, min(n, _CELLS * _POINTS)).round().long() for n in (N, M))
    allowed = mask.allows(i[:, None], j[None, :], N, M)
    allowed = allowed.reshape(-1, len(i), len(j))[0].float()  # the first batch element and head
    rows, cols = min(N, _CELLS), min(M, _CELLS)
    share = torch.nn.functional.adaptive_avg_pool2d(allowed[None], (rows, cols))[0]
    lines = (" ".join("■" if x == 1 else "·" if x == 0 else "▨" for x in row) for row in share.tolist())
    return "\n".join([title, *lines])
