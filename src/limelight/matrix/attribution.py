"""Attention times its gradient, ``A ∘ (dO vᵀ)``: a signed matrix over queries and keys that is never stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.backends import WeightsBlock, grouped_matmul, statistics_of_blocks
from limelight.core.checks import check_count
from limelight.core.parts import take
from limelight.core.problem import batched
from limelight.matrix.indexing import places
from limelight.matrix.statistics.asked import AskedStatistic
from limelight.matrix.statistics.pool import Pool
from limelight.matrix.statistics.top import Top, TopK

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Attribution:
    """``A ∘ (dO vᵀ)``: how much a loss depends, to first order, on what each query takes from each key.

    ``dO`` is the gradient of the loss by the output ``A v``. Setting a weight to 0 changes the loss by about minus its
    entry. Made by ``Weights.attribution``.

    >>> import torch, limelight as ll
    >>> A = ll.weights(torch.randn(2, 9, 8), torch.randn(2, 9, 8), mask=ll.Causal())
    >>> v, dout = torch.randn(2, 9, 4), torch.randn(2, 9, 4)
    >>> C = A.attribution(v, dout)
    >>> C.shape, C.received().shape, C.sums().shape, C.pool(3, 3).shape, C[0, 5, :3].shape
    ((2, 9, 9), torch.Size([2, 9]), torch.Size([2, 9]), torch.Size([2, 3, 3]), torch.Size([3]))
    >>> torch.allclose(C.received().sum(), C.sums().sum(), atol=1e-5)
    True
    """

    __slots__ = ("_dout", "_v", "weights")

    def __init__(self, weights: Weights, v: Tensor, dout: Tensor) -> None:
        *lead, H, N, M = weights.shape
        shapes = (("v", v, (*lead, v.shape[-3] if v.ndim > 2 else 0, M)), ("dout", dout, (*lead, H, N)))
        for name, x, want in shapes:
            if tuple(x.shape[:-1]) != want:
                raise ValueError(f"attribution: {name} {tuple(x.shape)} does not fit weights {weights.shape}")
        if v.shape[-1] != dout.shape[-1] or H % max(v.shape[-3], 1):
            raise ValueError(f"attribution: v {tuple(v.shape)} and dout {tuple(dout.shape)} do not fit each other")
        self.weights = weights
        self._v, self._dout = (batched(x).to(weights.dtype) for x in (v, dout))

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        return self.weights.shape

    def received(self) -> Tensor:
        """The sum of each column, ``(…, heads, keys)``: ``v · (Aᵀ dO)``, in one pass."""
        sent = self.weights.batched().T @ self._dout
        return self._with_lead((sent * self._values()).sum(-1))

    def sums(self) -> Tensor:
        """The sum of each row, ``(…, heads, queries)``: ``dO · (A v)``, in one pass."""
        return self._with_lead((self._dout * (self.weights.batched() @ self._v)).sum(-1))

    def top(self, k: int) -> Top:
        """Each query's ``k`` keys of the largest magnitude, with their signs, ``(…, heads, queries, k)``."""
        found = self._statistic(_LargestMagnitudes(check_count("top", "k", k, 1, self.shape[-1])))
        return Top(*map(self._with_lead, (found.values.to(self._v.dtype), found.indices)))

    def pool(self, rows: int, cols: int) -> Tensor:
        """A picture ``(…, heads, rows, cols)``: each cell the mean of the entries that it covers."""
        return self._with_lead(self._statistic(Pool.checked(rows, cols)))

    def dense(self) -> Tensor:
        """Return the whole matrix, ``(…, heads, queries, keys)``; it has to fit into memory."""
        return self._with_lead(batched(self.weights.dense()) * grouped_matmul(self._dout, self._v.mT))

    def __getitem__(self, index: Any) -> Tensor:
        """Return any part of the matrix, exactly; the indices are those of ``Weights``."""
        chosen, shape, paired = places(index, self.shape)
        *lead, heads, rows, cols = chosen
        everything = torch.arange(self._dout.shape[0]).reshape(self.shape[:-3])
        for axis, at in enumerate(lead):
            everything = everything.index_select(axis, torch.tensor(at, dtype=torch.long))
        batch = everything.reshape(-1).tolist()
        d = take(take(take(self._dout, batch, 0), heads, 1), rows, 2)
        v = take(take(take(self._values(), batch, 0), heads, 1), cols, 2)
        products = (d * v).sum(-1) if paired else d @ v.mT
        return self.weights[index] * products.reshape(shape)

    def _values(self) -> Tensor:
        """The values of every query head, ``(B, H, M, width)``; those of a group are views of the same."""
        B, kv, M, width = self._v.shape
        group = self._dout.shape[1] // kv
        if group == 1:
            return self._v
        return self._v[:, :, None].expand(B, kv, group, M, width).reshape(B, kv * group, M, width)

    def _statistic(self, statistic: AskedStatistic) -> Any:
        (found,) = statistics_of_blocks(self._block, self.weights._sizes, [statistic], recompute=False)
        return found

    def _block(self, rows: slice) -> WeightsBlock:
        B, H, N, M = self.weights._sizes
        i, j = torch.arange(N, device=self._v.device)[rows], torch.arange(M, device=self._v.device)
        every = torch.arange(B, device=self._v.device), torch.arange(H, device=self._v.device)
        part = self.weights.batched()._crop(*every, i, j) * grouped_matmul(self._dout[:, :, rows], self._v.mT)
        return WeightsBlock(part, i, j, N, M)

    def _with_lead(self, x: Tensor) -> Tensor:
        return self.weights._with_lead(x)

    def __repr__(self) -> str:
        return f"Attribution(shape={self.shape})"


class _LargestMagnitudes(TopK):
    """The ``k`` entries of each row that are farthest from 0, with their signs."""

    def of_block(self, block: WeightsBlock) -> Tensor:
        keys = torch.sort(block.weights.abs(), dim=-1, descending=True, stable=True).indices[..., : self.k]
        return torch.stack([block.weights.gather(-1, keys).double(), keys.double()])
