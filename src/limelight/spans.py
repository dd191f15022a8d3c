"""Spans of keys for every query, and their algebra.

An array of spans is ``(batch or 1, N, count, 2)``: for each query ``count`` half-open spans, sorted and disjoint,
the empty ones last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Spans = NDArray[np.int32]

_MOST_RUNS = 64


def runs_of(queries: NDArray[np.int64], keys: NDArray[np.int64], present: NDArray[np.bool_], M: int) -> Spans:
    """For every query the runs of keys that have its id: ``(N, count, 2)``."""
    if M == 0 or queries.size == 0:
        return np.full((queries.size, 1, 2), M, dtype=np.int32)
    begins = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    ends = np.append(begins[1:], M)
    order = np.argsort(keys[begins], kind="stable")  # runs of one id side by side, in order of position
    ids = keys[begins][order]
    low, high = np.searchsorted(ids, queries, "left"), np.searchsorted(ids, queries, "right")
    count = max(int((high - low).max()), 1)
    if count > _MOST_RUNS:
        raise ValueError(
            f"Documents: the tokens of one document stand in {count} separate runs; sort the tokens so that each "
            "document is together, or use Dense(queries[:, None] == keys[None, :])"
        )
    spans = np.full((queries.size, count, 2), M, dtype=np.int32)
    for c in range(count):
        has = (low + c < high) & present
        run = order[np.minimum(low + c, len(order) - 1)]
        spans[has, c, 0] = begins[run[has]]
        spans[has, c, 1] = ends[run[has]]
    return spans


def intersection(a: Spans, b: Spans, M: int) -> Spans:
    """The spans of keys that lie in a span of ``a`` and in a span of ``b``."""
    begin = np.maximum(a[..., :, None, 0], b[..., None, :, 0])
    end = np.minimum(a[..., :, None, 1], b[..., None, :, 1])
    return _tidy(begin.reshape(*begin.shape[:2], -1), end.reshape(*end.shape[:2], -1), M)


def union(a: Spans, b: Spans, M: int) -> Spans:
    """The spans of keys that lie in a span of ``a`` or of ``b``."""
    batch = max(a.shape[0], b.shape[0])
    both = np.concatenate([np.broadcast_to(x, (batch, *x.shape[1:])) for x in (a, b)], axis=2)
    both = _tidy(both[..., 0], both[..., 1], M)
    begin, end = both[..., 0].copy(), both[..., 1].copy()
    for c in range(1, begin.shape[2]):
        meets = begin[..., c] <= end[..., c - 1]
        begin[..., c] = np.where(meets, begin[..., c - 1], begin[..., c])
        end[..., c] = np.where(meets, np.maximum(end[..., c - 1], end[..., c]), end[..., c])
        end[..., c - 1] = np.where(meets, begin[..., c - 1], end[..., c - 1])
    return _tidy(begin, end, M)


def _tidy(begin: NDArray[np.int32], end: NDArray[np.int32], M: int) -> Spans:
    """Sorts by begin, puts the empty spans last and drops the columns in which all are empty."""
    empty = begin >= end
    spans: Spans = np.stack([np.where(empty, M, begin), np.where(empty, M, end)], axis=-1).astype(np.int32)
    if spans.shape[2] > 1:
        order = np.argsort(spans[..., 0], axis=2, kind="stable")
        spans = np.take_along_axis(spans, order[..., None], axis=2)
        count = max(int((spans[..., 0] < spans[..., 1]).sum(axis=2).max(initial=1)), 1)
        spans = spans[:, :, :count]
    return np.ascontiguousarray(spans)
