"""Parts of a call: some batch elements, heads, queries and keys of a specification that is already lowered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limelight.core.problem import LoweredSpec, Sizes


def take(x: Tensor, places: Sequence[int] | None, axis: int) -> Tensor:
    """Return some places of an axis: a view where they are consecutive, all of it where ``places`` is None."""
    if places is None:
        return x
    if len(places) and list(places) == list(range(places[0], places[0] + len(places))):
        return x.narrow(axis, places[0], len(places))
    return x.index_select(axis, torch.tensor(list(places), dtype=torch.long, device=x.device))


def key_heads(heads: Sequence[int] | None, group: int) -> list[int] | None:
    """Return the key heads of some query heads, each once if all serve equally many of them, otherwise repeated.

    >>> key_heads([2, 3, 4, 5], 2), key_heads([0, 1, 5], 4)
    ([1, 2], [0, 0, 1])
    """
    if heads is None:
        return None
    each = [h // group for h in heads]
    used = list(dict.fromkeys(each))
    share = len(each) // max(len(used), 1)
    return used if each == [k for k in used for _ in range(share)] else each


def part_of(
    lowered: LoweredSpec,
    sizes: Sizes,
    *,
    batch: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: range | None = None,
    keys: int | None = None,
) -> LoweredSpec:
    """Return the specification of a part: some batch elements and heads, consecutive queries and the first keys."""
    N, M = sizes.N, sizes.M
    rows = range(N) if queries is None else queries
    K = M if keys is None else keys

    def cells(x: Tensor | None) -> Tensor | None:  # broadcasts to (B, H, N, M)
        if x is None:
            return None
        x = x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))
        x = take(x, batch, 0) if x.shape[0] > 1 else x
        x = take(x, heads, 1) if x.shape[1] > 1 else x
        x = x[:, :, rows.start : rows.stop] if x.shape[2] > 1 else x
        return x[..., :K] if x.shape[3] > 1 else x

    def by_head(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.shape[0] == 1 else take(x, heads, 0)

    spans = lowered.spans
    if spans is not None:
        spans = take(spans, batch, 0) if spans.shape[0] > 1 else spans
        spans = spans[:, rows.start : rows.stop].clamp(max=K)
    slopes, offsets = by_head(lowered.slopes), by_head(lowered.offsets)
    if (len(rows), K) != (N, M):
        slopes, offsets = _shifted(slopes, offsets, rows, K, N, M)
    sink = lowered.sink if lowered.sink is None else take(lowered.sink, heads, 0)
    return lowered._replace(
        spans=spans, mask=cells(lowered.mask), bias=cells(lowered.bias), slopes=slopes, offsets=offsets, sink=sink
    )


def _shifted(
    slopes: Tensor | None, offsets: Tensor | None, rows: range, K: int, N: int, M: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return biases by distance for a part, whose last query need not stand at its last key as in the whole."""
    first = M - N + rows.start  # the position of the first query
    if first + len(rows) == K:
        kept = None if offsets is None else offsets[:, N - len(rows) : N + K - 1]
        return slopes, kept
    distance = torch.arange(first - K + 1, first + len(rows))
    if offsets is not None:
        offsets = offsets[:, distance.to(offsets.device) + N - 1]
    if slopes is not None:
        sloped = -slopes[:, None] * distance.to(slopes.device).abs()
        offsets = sloped if offsets is None else offsets + sloped
    return None, offsets
