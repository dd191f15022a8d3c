"""Passes: a mask as parts that are computed one after the other, each on queries and keys in an order of its own.

``Strided`` and ``Dilated`` allow a query many short spans of keys. Sorted by ``position % stride``, queries and keys of
one residue class lie side by side, and such a mask is one span again. Scattered global tokens are brought together in
the same way. A union of patterns that want different orders becomes several passes, each without the pairs of those
before it, so that no pair is computed twice.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from limelight.core.masks.base import And, Lowered, Mask, Not, Or
from limelight.core.masks.positional import Window
from limelight.core.masks.sparse import Dilated, Global, GlobalKeys, GlobalQueries, Strided
from limelight.core.spans import tidy

_MOST_SPANS = 16  # of a query in a pass
_MOST_TERMS = 32  # of a mask that is written as a union of intersections
_FAR = 2**31  # no two positions are so far apart
_CACHE_SIZE = 16
_cache: dict[Hashable, list[Pass] | None] = {}
_lock = threading.Lock()


class Pass(NamedTuple):
    """Some queries and keys in the order in which they are computed, and the spans of those keys for each query.

    ``None`` stands for all of them in their own order, and for spans of everything.
    """

    queries: Tensor | None  # (n,)
    keys: Tensor | None  # (m,)
    spans: Tensor | None  # (batch or 1, n, count, 2), int32
    order: str  # in words
    step: int | None  # positions are so many times as far apart as their places in this order; None where they vary
    places: tuple[Tensor, Tensor] | None = None  # of queries and keys, unless both are in their own order


def plan(mask: Mask, N: int, M: int) -> list[Pass] | None:
    """Return disjoint passes that cover a mask, or None where it cannot be written with few spans in each."""
    key = mask.cache_key()
    if key is None:
        return _plan(mask, N, M)
    with _lock:
        if (key, N, M) in _cache:
            return _cache[key, N, M]
    found = _plan(mask, N, M)
    with _lock:
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[key, N, M] = found
    return found


def _plan(mask: Mask, N: int, M: int) -> list[Pass] | None:
    terms = _terms(mask, False)
    if terms is None:
        return None
    groups: dict[_Order, list[Mask | None]] = {}
    for term in terms:
        order, factors = _split(term)
        groups.setdefault(order, []).append(functools.reduce(operator.and_, factors) if factors else None)
    if sum(isinstance(order, _Residues) for order in groups) > 1:
        return None  # in the order of one stride, the pairs of another are many spans
    passes: list[Pass] = []
    before: Mask | None = None
    for order in sorted(groups, key=lambda x: x.rank):
        rest = _union(groups[order])
        left = rest if before is None else ~before if rest is None else rest & ~before
        lowered = Lowered(None, None) if left is None else left.lower(N, M)
        if lowered.dense is not None:
            return None
        found = order.arrange(lowered.spans, N, M)
        if found.spans is not None and found.spans.shape[2] > _MOST_SPANS:
            return None
        passes.append(found if found.queries is found.keys is None else found._replace(places=_places(found, N, M)))
        factor = order.mask()
        whole = factor if rest is None else rest if factor is None else factor & rest
        if whole is not None:
            before = whole if before is None else before | whole
    return passes


def _places(x: Pass, N: int, M: int) -> tuple[Tensor, Tensor]:
    queries, keys = (torch.arange(n) if y is None else y for n, y in ((N, x.queries), (M, x.keys)))
    return queries.contiguous(), keys.contiguous()


def _union(masks: list[Mask | None]) -> Mask | None:
    """The union of masks of which None stands for everything."""
    known = [mask for mask in masks if mask is not None]
    return functools.reduce(operator.or_, known) if len(known) == len(masks) else None


class _Order:
    """An order of queries and keys in which a factor of an intersection is one span; here that of the tokens."""

    rank = 1  # in which passes are made: those whose complement is simple come first

    def mask(self) -> Mask | None:
        """The factor itself."""
        return None

    def arrange(self, spans: Tensor | None, N: int, M: int) -> Pass:
        """Make the pass of the factor and the spans of the other factors."""
        return Pass(None, None, spans, "in order", 1)

    def identity(self) -> Hashable:
        """A value that two orders of one class share if they are the same."""
        return None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash((type(self), self.identity()))


class _Residues(_Order):
    """By ``position % stride``, then by position."""

    rank = 3

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def mask(self) -> Mask:
        return Strided(self.stride)

    def identity(self) -> Hashable:
        return self.stride

    def arrange(self, spans: Tensor | None, N: int, M: int) -> Pass:
        of_query = torch.arange(M - N, M) % self.stride
        of_key = torch.arange(M) % self.stride
        queries, keys = of_query.argsort(stable=True), of_key.argsort(stable=True)
        if self.stride > N:  # some classes have no query
            keys = keys[torch.isin(of_key[keys], of_query)]
        # The place of a key: its class, then its position. A query's own keys begin at the place of its class.
        places, first = of_key[keys] * (M + 1) + keys, of_query[queries] * (M + 1)
        chosen = torch.tensor([0, M]).expand(1, N, 1, 2) if spans is None else spans[:, queries]
        inside = _spans_of_places(places, first[:, None, None] + chosen)
        return Pass(queries, keys, inside, f"by residues of {self.stride}", self.stride if N == M else None)


class _QueriesFirst(_Order):
    """The global queries alone, with all keys."""

    rank = 0

    def __init__(self, tokens: Global) -> None:
        self.tokens = tokens

    def mask(self) -> Mask:
        return GlobalQueries(self.tokens)

    def identity(self) -> Hashable:
        return self.tokens.identity()

    def arrange(self, spans: Tensor | None, N: int, M: int) -> Pass:
        queries = self.tokens.global_queries(N, M)[0].nonzero()[:, 0]
        return Pass(queries, None, None if spans is None else spans[:, queries], "global queries", None)


class _KeysTogether(_Order):
    """All queries, with the global keys alone."""

    rank = 2

    def __init__(self, tokens: Global) -> None:
        self.tokens = tokens

    def mask(self) -> Mask:
        return GlobalKeys(self.tokens)

    def identity(self) -> Hashable:
        return self.tokens.identity()

    def arrange(self, spans: Tensor | None, N: int, M: int) -> Pass:
        keys = self.tokens.is_global(torch.arange(M), M)[0].nonzero()[:, 0]
        inside = None if spans is None else _spans_of_places(keys, spans)
        return Pass(None, keys, inside, "global keys", None)


def _spans_of_places(places: Tensor, spans: Tensor) -> Tensor:
    """Turn spans of places into spans of indices: which of the sorted ``places`` lie in each.

    >>> _spans_of_places(torch.tensor([2, 5, 7]), torch.tensor([[[[3, 9]]]])).flatten()
    tensor([1, 3], dtype=torch.int32)
    """
    begin, end = torch.searchsorted(places, spans.to(places.dtype).contiguous()).to(torch.int32).unbind(-1)
    return tidy(begin, end, len(places), spans.shape[2])


def _terms(mask: Mask, negated: bool) -> list[list[Mask]] | None:
    """Write a mask as a union of intersections; None where there are too many."""
    if isinstance(mask, Not):
        return _terms(mask.mask, not negated)
    if isinstance(mask, (And, Or)):
        left, right = _terms(mask.left, negated), _terms(mask.right, negated)
        if left is None or right is None:
            return None
        joins = isinstance(mask, Or) != negated
        terms = left + right if joins else [one + other for one in left for other in right]
        return terms if len(terms) <= _MOST_TERMS else None
    if isinstance(mask, Global) and mask.reorders and not negated:
        return [[GlobalQueries(mask)], [GlobalKeys(mask)]]
    return [[Not(mask) if negated else mask]]


def _split(term: list[Mask]) -> tuple[_Order, list[Mask]]:
    """Return the order of an intersection and its other factors."""
    strided = [x for x in term if isinstance(x, Strided)]
    dilated = [x for x in term if isinstance(x, Dilated)]
    if strided or dilated:  # a multiple of several strides is one of their least common multiple
        stride = min(math.lcm(*(x.stride for x in strided), *(x.dilation for x in dilated)), _FAR)
        rest = [x for x in term if not isinstance(x, (Strided, Dilated))]
        return _Residues(stride), [*rest, *(Window(x.window * x.dilation) for x in dilated)]
    for at, factor in enumerate(term):
        rest = term[:at] + term[at + 1 :]
        if isinstance(factor, GlobalQueries):
            return _QueriesFirst(factor.tokens), rest
        if isinstance(factor, GlobalKeys):
            return _KeysTogether(factor.tokens), rest
    return _Order(), term
