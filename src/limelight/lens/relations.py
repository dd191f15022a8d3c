"""Relations: ranks heads by how well they point from given tokens to others."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.lens.record import Call, Record

Position = int | Sequence[int]


class Relation(list[dict[str, Any]]):
    """The heads of ``limelight.lens.relation``: a list of one dict for each, the best first.

    ``pandas.DataFrame`` takes it.
    """


def relation(
    record: Record,
    pairs: Iterable[tuple[Position, Position]],
    *,
    kind: str = "self",
    stack: str | None = None,
    batch: int = 0,
) -> Relation:
    """Rank heads by how well they point from given query tokens to given key tokens, such as subjects to their verbs.

    Args:
        record: a record of ``watch``.
        pairs: pairs of positions, query first. A word of several tokens is a list of positions: as a key it receives
            the sum over its tokens, as a query it has the mean of their rows.
        kind: ``"self"``, or ``"cross"`` for pairs of a target and a source.
        stack: ``"encoder"`` or ``"decoder"``; both unless given, and then every position must exist in both.
        batch: the batch element.

    Returns:
        For each head ``weight``, the mean weight from the query to the key of a pair; ``accuracy``, the share of pairs
        whose key receives more than any other token does; ``chance``, the mean weight if all visible keys had equal
        weights; and ``pairs``, the number of pairs. The most accurate head comes first.

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
    for found_stack in dict.fromkeys(call.stack for call in calls):
        _check(wanted, [call for call in calls if call.stack == found_stack], batch)
    found = Relation()
    for name in dict.fromkeys(call.name for call in calls):
        found += _rank_module([call for call in calls if call.name == name], wanted, batch)
    found.sort(key=lambda row: (-row["accuracy"], -row["weight"]))
    return found


def _pair(pair: Any) -> tuple[list[int], list[int]]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"relation: {pair!r} is not a pair of a query and a key")
    return _positions(pair[0]), _positions(pair[1])


def _positions(position: Any) -> list[int]:
    several = isinstance(position, (list, tuple, range)) or getattr(position, "ndim", 0) == 1
    try:
        positions = [operator.index(x) for x in (position if several else [position])]
    except TypeError:
        raise TypeError(f"relation: {position!r} is neither the position of a token nor a list of positions") from None
    if not positions:
        raise ValueError("relation: a word has at least one token")
    return list(dict.fromkeys(positions))


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
                raise ValueError(
                    f"relation: {what} {pair[side]} of the pair {pair} is not within the {most} tokens of the "
                    f"{calls[0].stack}; choose where to look with stack='encoder' or stack='decoder'"
                )


def _rank_module(calls: list[Call], wanted: list[tuple[list[int], list[int]]], batch: int) -> list[dict[str, Any]]:
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
        visible = (row > 0).sum(-1).clamp(min=1)
        weight = weight + mine
        strongest = strongest + (mine > others.amax(-1))
        chance = chance + len(keys) / visible
        count += 1
    call = calls[0]
    place = {"module": call.module or call.name, "stack": call.stack, "kind": call.kind, "layer": call.layer}
    measures = {"weight": weight, "accuracy": strongest, "chance": chance}
    means = {name: (total / max(count, 1)).tolist() for name, total in measures.items()}
    return [
        {**place, "head": head, **{name: mean[head] for name, mean in means.items()}, "pairs": count}
        for head in range(call.shape[1])
    ]


def _rows(calls: list[Call], query: int, batch: int) -> list[Tensor]:
    """Return the row ``(H, M)`` of a query in a list: one row, or none if no call contains the query."""
    begin = 0
    for call in calls:
        *_, N, M = call.shape
        begin = begin if call.kind == "cross" else M - N
        if begin <= query < begin + N:
            return [call.weights[batch, :, query - begin]]
        begin += N
    return []
