"""Which heads point from some tokens to others."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.lens.calls import Call, Record

Place = int | Sequence[int]


class Relation(list[dict[str, Any]]):
    """A row a head, the best first; ``pandas.DataFrame`` takes them."""


def relation(
    record: Record,
    pairs: Iterable[tuple[Place, Place]],
    *,
    kind: str = "self",
    stack: str | None = None,
    batch: int = 0,
) -> Relation:
    """How well each head points from given query tokens to given key tokens, such as subjects to their verbs.

    Args:
        record: what ``watch`` made.
        pairs: of positions; a word of several tokens is a list of them: what it gets is the sum over its tokens, what
            it gives the mean.
        kind: ``"self"``, or ``"cross"`` for pairs of a target and a source.
        stack: ``"encoder"`` or ``"decoder"``; both unless given.
        batch: which batch element.

    Returns:
        For each head ``weight``, the mean weight from the query to the key of a pair; ``accuracy``, the share of pairs
        whose key gets more than any other token does; ``chance``, the mean weight if all that a query sees were equal;
        and ``pairs``, over how many this is. The most accurate head comes first.

    >>> import torch, limelight as ll
    >>> layer = ll.nn.MultiHeadAttention(8, 2)
    >>> with ll.watch(layer) as record:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> [sorted(row) for row in relation(record, [(3, 1), (4, [1, 2])])][0]
    ['accuracy', 'chance', 'head', 'kind', 'layer', 'module', 'pairs', 'stack', 'weight']

    """
    wanted = [_pair(pair) for pair in pairs]
    if not wanted:
        raise ValueError("relation: give at least one pair of a query and a key")
    calls = [c for c in record.log if c.kind == kind and stack in (None, c.stack)]
    if not calls:
        raise ValueError(f"relation: there is no {stack or ''} {kind}-attention in this record".replace("  ", " "))
    _check(wanted, calls, batch)
    found = Relation()
    for name in dict.fromkeys(call.name for call in calls):
        found += _of_module([call for call in calls if call.name == name], wanted, batch)
    found.sort(key=lambda row: (-row["accuracy"], -row["weight"]))
    return found


def _pair(pair: Any) -> tuple[list[int], list[int]]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"relation: {pair!r} is no pair of a query and a key")
    return _places(pair[0]), _places(pair[1])


def _places(place: Any) -> list[int]:
    several = isinstance(place, (list, tuple, range)) or getattr(place, "ndim", 0) == 1
    try:
        places = [operator.index(x) for x in (place if several else [place])]
    except TypeError:
        raise TypeError(f"relation: {place!r} is no position of a token, nor a list of them") from None
    if not places:
        raise ValueError("relation: a word has at least one token")
    return list(dict.fromkeys(places))


def _check(wanted: list[tuple[list[int], list[int]]], calls: list[Call], batch: int) -> None:
    B = min(call.shape[0] for call in calls)
    if not 0 <= batch < B:
        raise ValueError(f"relation: batch = {batch} must be from 0 to {B - 1}")
    cross = calls[0].kind == "cross"
    queries = sum(c.shape[2] for c in calls if c.name == calls[0].name) if cross else max(c.shape[3] for c in calls)
    keys = max(c.shape[3] for c in calls)
    for side, most, what in ((0, queries, "query"), (1, keys, "key")):
        for pair in wanted:
            if not all(0 <= x < most for x in pair[side]):
                raise ValueError(f"relation: {what} {pair[side]} of the pair {pair} is not within the {most} tokens")


def _of_module(calls: list[Call], wanted: list[tuple[list[int], list[int]]], batch: int) -> list[dict[str, Any]]:
    weight = strongest = chance = torch.zeros(calls[0].shape[1], dtype=torch.float64)
    count = 0
    for queries, keys in wanted:
        rows = [row for q in queries for row in _rows(calls, q, batch)]
        if not rows:
            continue
        row = torch.stack(rows).double().mean(0)  # (H, M)
        mine = row[:, keys].sum(-1)
        others = row.clone()
        others[:, keys] = 0.0
        seen = (row > 0).sum(-1).clamp(min=1)
        weight = weight + mine
        strongest = strongest + (mine > others.amax(-1))
        chance = chance + len(keys) / seen
        count += 1
    call = calls[0]
    head = {"module": call.name, "stack": call.stack, "kind": call.kind, "layer": call.layer}
    measures = {"weight": weight, "accuracy": strongest, "chance": chance}
    means = {name: (x / max(count, 1)).tolist() for name, x in measures.items()}
    return [
        {**head, "head": h, **{name: x[h] for name, x in means.items()}, "pairs": count} for h in range(call.shape[1])
    ]


def _rows(calls: list[Call], query: int, batch: int) -> list[Tensor]:
    """The row ``(H, M)`` of a query, which stands in one of the calls."""
    begin = 0
    for call in calls:
        *_, N, M = call.shape
        begin = begin if call.kind == "cross" else M - N
        if begin <= query < begin + N:
            return [call.weights[batch, :, query - begin]]
        begin += N
    return []
