"""Top: each query's strongest keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from limelight.backends import WeightsBlock
from limelight.core.checks import check_count
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import AskedStatistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Top(NamedTuple):
    """The largest weights of each row and their keys, as ``torch.topk`` has them."""

    values: Tensor
    indices: Tensor


_NO_KEY = 2**31  # behind all keys


@dataclass(frozen=True)
class TopK(AskedStatistic):
    """The ``k`` largest weights of each row, ties by the lower key."""

    k: int
    kernel = "top"

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for a number of keys."""
        return None if value is None else cls(check_count("top", "k", value, 1, weights.shape[-1]))

    def of_block(self, block: WeightsBlock) -> Tensor:
        weights, keys = torch.sort(block.for_all_keys(block.weights), dim=-1, descending=True, stable=True)
        return torch.stack([weights[..., : self.k].double(), keys[..., : self.k].double()])

    def join(self, parts: Sequence[Tensor]) -> Top:
        weights, keys = torch.cat(list(parts), 3)
        return Top(weights, keys.long())

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        shape = (sizes.B, sizes.Hq, sizes.N, self.k)
        return [torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=torch.long)]

    def numbers(self) -> list[float]:
        return [self.k]

    def result(self, outputs: list[Tensor], sizes: Sizes) -> Top:
        return Top(*outputs)

    def add_pass(self, total: list[Tensor], part: list[Tensor], x: Pass) -> None:
        """Choose among the keys so far and those of a pass, head by head, which takes less memory."""
        rows = slice(None) if x.queries is None else x.queries
        for weights, keys, new_weights, new_keys in zip(*(y.unbind(1) for y in (*total, *part)), strict=True):
            if x.keys is not None:
                new_keys = x.keys[new_keys.clamp(max=len(x.keys) - 1)]  # what is no key of the pass has a weight of 0
            if weights[:, rows].any():  # what a pass found is in order already
                both = (torch.cat([weights[:, rows], new_weights], -1), torch.cat([keys[:, rows], new_keys], -1))
                new_weights, new_keys = _strongest(*both, self.k)
            weights[:, rows], keys[:, rows] = new_weights, new_keys
            _fill(keys, weights == 0)

    def flatten(self, result: Any) -> list[Tensor]:
        return list(result)

    def unflatten(self, tensors: list[Tensor]) -> Top:
        return Top(tensors.pop(0), tensors.pop(0))


def _strongest(weights: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` largest of some weights and their keys, ties by the lower key."""
    keys, by_key = keys.masked_fill(weights == 0, _NO_KEY).sort(dim=-1, stable=True)
    weights, by_weight = weights.gather(-1, by_key).sort(dim=-1, descending=True, stable=True)
    return weights[..., :k], keys.gather(-1, by_weight[..., :k])


def _fill(keys: Tensor, empty: Tensor) -> None:
    """Put the lowest keys that are not there into the empty places at the end of each row."""
    k = keys.shape[-1]
    absent = torch.ones(*keys.shape[:-1], k + 1, dtype=torch.bool)
    absent.scatter_(-1, keys.masked_fill(empty, k).clamp(max=k), False)
    lowest = absent[..., :k].sort(dim=-1, descending=True, stable=True).indices
    nth = empty.cumsum(-1) - 1  # of the absent keys
    keys.copy_(torch.where(empty, lowest.gather(-1, nth.clamp(min=0)), keys))


def top(self: Weights, k: int) -> Top:
    """Each query's ``k`` strongest keys, ties by the lower: ``values`` and ``indices``, ``(…, heads, queries, k)``.

    Where a query may attend to fewer than ``k`` keys, other keys follow with a weight of 0.
    """
    (found,) = self._compute([TopK(check_count("top", "k", k, 1, self.shape[-1]))])
    assert isinstance(found, Top)
    return found
