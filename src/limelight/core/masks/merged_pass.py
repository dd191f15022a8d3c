"""All passes of a mask as one, for what needs all keys of a row at once.

The keys of each pass follow those of the one before, so that a query has the spans of all its passes side by side; a
key that two passes have is there twice. Queries that few passes have come last. In between, neighbours should have keys
in common, both in the order of the tokens and in that of a stride: some residue classes are woven together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from limelight.core.masks.passes import Pass
from limelight.core.spans import tidy

_TOGETHER = 16  # queries whose keys are computed for all of them: the lanes of a vector


def merge(passes: Sequence[Pass], N: int, M: int) -> Pass:
    """Return one pass with the queries, keys and spans of several."""
    order = torch.arange(N)
    few = torch.zeros(N, dtype=torch.bool)
    for x in passes:
        if x.queries is not None and len(x.queries) == N:
            order = _weave(x, x.queries)
        elif x.queries is not None:
            few[x.queries] = True
    order = torch.cat([order[~few[order]], order[few[order]]])
    keys = torch.cat([torch.arange(M) if x.keys is None else x.keys for x in passes])
    begins, ends, first = [], [], 0
    batch = max(1 if x.spans is None else x.spans.shape[0] for x in passes)
    for x in passes:
        count = M if x.keys is None else len(x.keys)
        spans = _of_all_queries(x, N, count)[:, order].expand(batch, -1, -1, -1)
        begins.append(spans[..., 0] + first)
        ends.append(spans[..., 1] + first)
        first += count
    inside = tidy(torch.cat(begins, 2), torch.cat(ends, 2), first, sum(x.shape[2] for x in begins))
    return Pass(order, keys, inside, "of all passes", None, (order, keys))


def _of_all_queries(x: Pass, N: int, keys: int) -> Tensor:
    """The spans of a pass for all queries, empty for those that it does not have."""
    n = N if x.queries is None else len(x.queries)
    spans = torch.tensor([[[[0, keys]]]], dtype=torch.int32).expand(1, n, 1, 2) if x.spans is None else x.spans
    if x.queries is None:
        return spans
    found = spans.new_zeros(spans.shape[0], N, *spans.shape[2:])
    found[:, x.queries] = spans
    return found


def _weave(x: Pass, queries: Tensor) -> Tensor:
    """Reorder the queries of a stride so that the keys of neighbours overlap in the order of the tokens, too.

    ``_TOGETHER`` neighbours of c classes meet the keys of c classes, and stand ``_TOGETHER / c`` strides apart.
    """
    new = torch.cat([torch.zeros(1, dtype=torch.bool), queries.diff() < 0])  # a class begins
    of_class = new.cumsum(0)
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), new.nonzero()[:, 0]])
    rank = torch.arange(len(queries)) - begins[of_class]
    assert x.spans is not None, "a stride has spans"
    keys = float((x.spans[..., 1] - x.spans[..., 0]).sum(2).double().mean())  # of a query
    classes = max(1, min(round(math.sqrt(_TOGETHER * len(begins) / max(keys, 1.0))), _TOGETHER))
    place = ((of_class // classes) * len(queries) + rank) * classes + of_class % classes
    return queries[place.argsort()]
