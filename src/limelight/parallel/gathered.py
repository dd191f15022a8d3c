"""Statistics that need whole rows of the weights: gradients of statistics, parts of the matrix, and ``cover``.

Every process gets all keys, so memory grows with the whole sequence, though never with its square: the weights of some
queries are made, used and dropped, in plain torch, as in the gradient of statistics in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends import Statistic, WeightsBlock, statistics_of_blocks, sum_parts, weights_of
from limelight.matrix.statistics.pool import Pool
from limelight.matrix.statistics.similarity import Similarity, cosines, unscaled_products
from limelight.parallel.collectives import largest, place_rows, sum_over, total
from limelight.parallel.layouts import positions_of
from limelight.parallel.partials import KEYS, WHOLE
from limelight.parallel.shards import Shards


def all_keys(shards: Shards) -> Tensor:
    """Return the keys of all processes, ``(B, Hkv, M, D)``; their gradients go back to the processes that hold them."""
    own = positions_of(shards.own_keys).to(shards.k.device)
    k = shards.k.to(shards.problem.compute_dtype)
    return sum_over(place_rows(k, own, shards.M, 2), shards.processes)


def compute(shards: Shards, asked: Sequence[Statistic], recompute: bool) -> list[Any]:
    """Compute statistics as ``statistics.compute`` does, differentiably."""
    p, q = shards.problem, shards.q
    k = all_keys(shards)
    i = positions_of(shards.own_queries).to(q.device)
    j = torch.arange(shards.M, device=q.device)

    def block(rows: slice) -> WeightsBlock:
        weights, _, _ = weights_of(p, q[:, :, rows], k, i[rows], j)
        return WeightsBlock(weights, i[rows], j, shards.N, shards.M)

    prepared = [_prepare(x, i, shards.N) for x in asked]
    sizes = (q.shape[0], q.shape[1], q.shape[2], shards.M)
    found = statistics_of_blocks(block, sizes, prepared, recompute)
    return [_finish(x, result, shards) for x, result in zip(asked, found, strict=True)]


class _Products(Similarity):
    """``Σ a b`` over the weights of every two heads; the complete sums become cosines."""

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return sum_parts([unscaled_products(x[..., :-1], x[..., -1]) for x in parts])


def _prepare(x: Statistic, i: Tensor, N: int) -> Statistic:
    if isinstance(x, Similarity):
        return _Products()
    return x if x.operand is None else x.with_operand(place_rows(x.operand, i, N, 2))


def _finish(x: Statistic, found: Any, shards: Shards) -> Any:
    """Combine the results of all processes."""
    if type(x) in KEYS:
        own = positions_of(shards.own_keys).to(found.device)
        return sum_over(found, shards.processes).index_select(2, own)
    if isinstance(x, Similarity):
        return cosines(total(found, shards.processes)).to(shards.problem.compute_dtype)
    if isinstance(x, Pool) and x.reduce == "max":
        return largest(found, shards.processes)
    return total(found, shards.processes) if type(x) in WHOLE else found
