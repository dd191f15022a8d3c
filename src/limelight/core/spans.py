"""Spans of keys for every query, and their algebra.

A tensor of spans is ``(batch or 1, N, count, 2)`` in int32: for each query ``count`` half-open spans, sorted and
disjoint, the empty ones last. Everything here is plain torch, so that ``torch.compile`` sees through it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.core.torch_modes import is_traced

_MOST_RUNS = 64


def single_spans(begin: Tensor | int, end: Tensor, N: int, M: int) -> Tensor:
    """Make one span for each query from begins and ends ``(batch or 1, N or 1)``, clipped to the keys."""
    end = end.clamp(0, M)
    begin = torch.zeros_like(end) if isinstance(begin, int) and begin == 0 else begin
    begin = torch.minimum(torch.as_tensor(begin).clamp(min=0), end)
    spans = torch.stack(torch.broadcast_tensors(begin, end), -1)
    return spans.expand(-1, N, -1)[:, :, None].to(torch.int32)


def runs_of_ids(queries: Tensor, keys: Tensor, present: Tensor, count: int | None = None) -> Tensor:
    """Find for every query ``(batch or 1, N)`` the runs of keys ``(batch or 1, M)`` that have its id.

    There are as many spans as the most scattered document has runs, unless ``count`` says how many there may be.
    """
    batch, N, M = max(queries.shape[0], keys.shape[0]), queries.shape[1], keys.shape[1]
    rows = [
        _runs_of_one(queries[b % queries.shape[0]], keys[b % keys.shape[0]], present, M, count) for b in range(batch)
    ]
    most = max((r.shape[1] for r in rows), default=1) if count is None else count
    spans = torch.full((batch, N, most, 2), M, dtype=torch.int32)
    for b, r in enumerate(rows):
        spans[b, :, : r.shape[1]] = r
    return spans


def _runs_of_one(queries: Tensor, keys: Tensor, present: Tensor, M: int, allowed: int | None) -> Tensor:
    N = queries.numel()
    if M == 0 or N == 0:
        return torch.full((N, 1, 2), M, dtype=torch.int32)
    changes = torch.nonzero(keys[1:] != keys[:-1]).flatten() + 1
    bounds = torch.cat([changes.new_zeros(1), changes, changes.new_tensor([M])])
    ids, order = torch.sort(keys[bounds[:-1]], stable=True)  # runs of one id side by side, in order of position
    low, high = torch.searchsorted(ids, queries), torch.searchsorted(ids, queries, right=True)
    count = max(int((high - low).max()), 1)
    if count > (_MOST_RUNS if allowed is None else allowed):
        where = "" if allowed is None else " inside torch.compile"
        raise ValueError(
            f"Documents{where}: the tokens of one document stand in {count} separate runs; sort the tokens so that "
            "each document is together, or use Dense(queries[:, None] == keys[None, :])"
        )
    nth = low[:, None] + torch.arange(count)
    run = order[nth.clamp(max=len(order) - 1)]
    spans = torch.stack([bounds[run], bounds[run + 1]], -1)
    has = (nth < high[:, None]) & present[:, None]
    return torch.where(has[..., None], spans, M).to(torch.int32)


@torch.library.custom_op("limelight::runs_of", mutates_args=())
def _runs_of_op(queries: Tensor, keys: Tensor, present: Tensor) -> Tensor:
    return runs_of_ids(queries, keys, present, 1)


@_runs_of_op.register_fake
def _(queries: Tensor, keys: Tensor, present: Tensor) -> Tensor:
    batch = max(queries.shape[0], keys.shape[0])
    return keys.new_empty((batch, queries.shape[1], 1, 2), dtype=torch.int32)


def document_spans(queries: Tensor, keys: Tensor, present: Tensor) -> Tensor:
    """Find the runs of every document; inside ``torch.compile`` this is one operator, with one run to a document."""
    if is_traced():
        spans: Tensor = _runs_of_op(queries, keys, present)
        return spans
    return runs_of_ids(queries.cpu(), keys.cpu(), present.cpu())


def count_runs(flags: Tensor) -> int:
    """Return the largest number of runs of True that a row along the last axis has."""
    begins = flags & ~pad(flags, (1, -1)) if flags.shape[-1] else flags
    return int(begins.sum(-1).max()) if flags.numel() else 0


def runs_of_true(flags: Tensor) -> Tensor:
    """Return the runs of True along the last axis as spans, ``(…, count, 2)``; the most scattered row has ``count``.

    >>> runs_of_true(torch.tensor([[True, True, False, True], [False, True, False, False]])).tolist()
    [[[0, 2], [3, 4]], [[1, 2], [4, 4]]]
    """
    n = flags.shape[-1]
    spans = torch.full((*flags.shape[:-1], max(count_runs(flags), 1), 2), n, device=flags.device)
    edges = pad(flags.to(torch.int8), (1, 1)).diff(dim=-1)  # 1 at the begin of a run, -1 at its end
    for side, found in enumerate((edges == 1, edges == -1)):
        places: tuple[Tensor, ...] = found.nonzero(as_tuple=True)
        nth = found.cumsum(-1)[places] - 1
        spans[(*places[:-1], nth, torch.full_like(nth, side))] = places[-1]
    return spans


_MANY_PAIRS = 64  # with more pairs of spans than this, an intersection is made from complements


def intersection(a: Tensor, b: Tensor, M: int) -> Tensor:
    """The spans of keys that lie in a span of ``a`` and in a span of ``b``."""
    if min(a.shape[2], b.shape[2]) > 1 and a.shape[2] * b.shape[2] > _MANY_PAIRS:
        return complement(union(complement(a, M), complement(b, M), M), M)
    begin = torch.maximum(a[..., :, None, 0], b[..., None, :, 0]).flatten(2)
    end = torch.minimum(a[..., :, None, 1], b[..., None, :, 1]).flatten(2)
    return tidy(begin, end, M, a.shape[2] + b.shape[2] - 1)


def union(a: Tensor, b: Tensor, M: int) -> Tensor:
    """The spans of keys that lie in a span of ``a`` or of ``b``."""
    batch, N = max(a.shape[0], b.shape[0]), a.shape[1]
    both = torch.cat([x.expand(batch, N, -1, -1) for x in (a, b)], 2)
    count = both.shape[2]
    begin, end = tidy(both[..., 0], both[..., 1], M, count).unbind(-1)
    if begin.shape[2] == 1:
        return torch.stack([begin, end], -1)
    # A span that begins behind the end of all before it begins a run, which ends before the next one begins.
    reach = end.cummax(2).values
    apart = (begin[..., 1:] > reach[..., :-1]) | (begin[..., 1:] == M)
    edge = torch.ones_like(apart[..., :1])
    begins, ends = torch.cat([edge, apart], 2), torch.cat([apart, edge], 2)
    first = torch.where(begins, begin, M).sort(2).values
    last = torch.where(ends, reach, M).sort(2).values
    return tidy(first, last, M, count)


def complement(a: Tensor, M: int) -> Tensor:
    """The spans of keys that lie in no span of ``a``."""
    a = tidy(a[..., 0], a[..., 1], M, a.shape[2])
    edge = a.new_zeros(*a.shape[:2], 1)
    begin = torch.cat([edge, a[..., 1]], 2)
    end = torch.cat([a[..., 0], edge + M], 2)
    return tidy(begin, end, M, a.shape[2] + 1)


def clip(a: Tensor, first: int, last: int) -> Tensor:
    """The parts of spans that lie in ``first ≤ key < last``, counted from ``first``."""
    begin, end = (a - first).clamp(0, last - first).unbind(-1)
    return tidy(begin, end, last - first, a.shape[2])


def tidy(begin: Tensor, end: Tensor, M: int, most: int) -> Tensor:
    """Sort spans by begin with the empty ones last; at most ``most`` are not empty.

    As many columns remain as there really are, or ``most`` under ``torch.compile``, where shapes come first.
    """
    empty = begin >= end
    begin, end = torch.where(empty, M, begin), torch.where(empty, M, end)
    if begin.shape[2] > 1:
        begin, order = torch.sort(begin, dim=2, stable=True)
        end = end.gather(2, order)
        if not is_traced() and begin.numel():
            most = max(int((begin < end).sum(2).max()), 1)
        begin, end = begin[..., :most], end[..., :most]
    return torch.stack([begin, end], -1)
