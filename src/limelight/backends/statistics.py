"""What can be asked of an attention matrix, and how blocks of its rows answer it.

A question makes a part of its answer from every block and joins the parts: those of rows stand one after the
other, those of columns add up. Nothing larger than a block is ever held. The kernels answer the same questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.core.masks import Mask, positions


@dataclass(frozen=True)
class Block:
    """The weights of queries ``i`` for keys ``j``, ``(B, H, len(i), len(j))``, of a matrix with N queries and M keys.

    The keys are consecutive; those that are left out have no weight.
    """

    weights: Tensor
    i: Tensor
    j: Tensor
    N: int
    M: int

    def everywhere(self, x: Tensor) -> Tensor:
        """Something by key, ``(…, len(j))``, as ``(…, M)`` with zeros elsewhere."""
        first = int(self.j[0]) if len(self.j) else 0
        return pad(x, (first, self.M - first - len(self.j)))


class Question:
    """Something to ask."""

    def part(self, b: Block) -> Tensor:
        """What one block contributes."""
        raise NotImplementedError

    def join(self, parts: Sequence[Tensor]) -> Any:
        """The answer, a tensor or several; by default the parts are those of rows."""
        return torch.cat(list(parts), 2)


class Entropy(Question):
    """``-Σ a log a`` of each row, in nats."""

    def part(self, b: Block) -> Tensor:
        none = b.weights == 0
        return torch.where(none, 0.0, -b.weights * torch.log(torch.where(none, 1.0, b.weights))).sum(-1)


class Received(Question):
    """``Σ a`` of each column."""

    def part(self, b: Block) -> Tensor:
        return b.everywhere(b.weights.sum(2))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).sum(0)


@dataclass(frozen=True)
class Mass(Question):
    """``Σ a`` of each row over the keys that a mask allows."""

    mask: Mask

    def part(self, b: Block) -> Tensor:
        allowed = self.mask.allows(b.i[:, None], b.j[None, :], b.N, b.M)
        return torch.where(allowed, b.weights, 0.0).sum(-1)


class Distance(Question):
    """``Σ a · |position - key|`` of each row."""

    def part(self, b: Block) -> Tensor:
        return (b.weights * (positions(b.i, b.N, b.M)[:, None] - b.j).abs()).sum(-1)


class Top(NamedTuple):
    """The largest weights of each row and their keys, as ``torch.topk`` has them."""

    values: Tensor
    indices: Tensor


@dataclass(frozen=True)
class Strongest(Question):
    """The ``k`` largest weights of each row, ties by the lower key."""

    k: int

    def part(self, b: Block) -> Tensor:
        weights, keys = torch.sort(b.everywhere(b.weights), dim=-1, descending=True, stable=True)
        return torch.stack([weights[..., : self.k].double(), keys[..., : self.k].double()])

    def join(self, parts: Sequence[Tensor]) -> Top:
        weights, keys = torch.cat(list(parts), 3)
        return Top(weights, keys.long())


@dataclass(frozen=True)
class Profile(Question):
    """The mean weight at every distance ``key - position`` from ``-radius`` to ``radius``."""

    radius: int

    def part(self, b: Block) -> Tensor:
        reach = torch.arange(-self.radius, self.radius + 1, device=b.i.device)
        if not len(b.j):
            return b.weights.new_zeros(*b.weights.shape[:2], len(reach))
        column = positions(b.i, b.N, b.M)[:, None] + reach - b.j[0]
        inside = (column >= 0) & (column < len(b.j))
        index = column.clamp(0, len(b.j) - 1).expand(*b.weights.shape[:2], -1, -1)
        cells = torch.where(inside, b.weights.gather(3, index), 0.0).sum(2)
        return cells / self.counts(b.N, b.M, b.i.device)

    def counts(self, N: int, M: int, device: torch.device) -> Tensor:
        """How many weights there are at each distance, or 1."""
        d = torch.arange(
            -self.radius, self.radius + 1, device=device
        )  # query i has a key there if 0 <= M - N + i + d < M
        return ((N - d).clamp(max=N) - (N - M - d).clamp(min=0)).clamp(min=1)

    def from_diagonals(self, sums: Tensor, N: int, M: int) -> Tensor:
        """From the sums by ``position - key``, from ``-(N - 1)`` up."""
        d = torch.arange(-self.radius, self.radius + 1, device=sums.device)
        there = (d > -M) & (d < N)
        return torch.where(there, sums[..., torch.where(there, N - 1 - d, 0)], 0.0) / self.counts(N, M, sums.device)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).sum(0)


def cells(n: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first of ``n`` rows that each of ``count`` cells covers, and the one after its last; parts of rows count."""
    c = torch.arange(count, device=device)
    return c * n // count, -(-(c + 1) * n // count)


REDUCE = ("mean", "max")


@dataclass(frozen=True)
class Pool(Question):
    """A picture of ``rows × cols`` cells, each the mean or the largest of the weights that it covers."""

    rows: int
    cols: int
    reduce: str = "mean"

    def part(self, b: Block) -> Tensor:
        if not (b.N and b.M):
            return b.weights.new_zeros(*b.weights.shape[:2], self.rows, self.cols)
        (top, bottom), (left, right) = cells(b.N, self.rows, b.i.device), cells(b.M, self.cols, b.i.device)
        down = (top[:, None] <= b.i) & (b.i < bottom[:, None])  # (rows, i): which queries a cell covers
        across = (left[:, None] <= b.j) & (b.j < right[:, None])  # (cols, j)
        if self.reduce == "mean":
            wide = b.weights @ (across.to(b.weights.dtype) / (right - left)[:, None]).mT
            return (down.to(b.weights.dtype) / (bottom - top)[:, None]) @ wide
        columns = torch.stack([_largest(b.weights[..., c]) for c in across], -1)
        return torch.stack([_largest(columns[:, :, r].mT) for r in down], 2)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        every = torch.stack(list(parts))
        return every.sum(0) if self.reduce == "mean" else every.amax(0)


def _largest(x: Tensor) -> Tensor:
    """Over the last axis; 0, which no weight is below, where there is nothing."""
    return x.amax(-1) if x.shape[-1] else x.new_zeros(x.shape[:-1])


class Similarity(Question):
    """The cosine between the matrices of every two heads."""

    def part(self, b: Block) -> Tensor:
        flat = b.weights.flatten(2)
        return flat @ flat.mT

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return self.cosines(torch.stack(list(parts)).sum(0))

    @staticmethod
    def cosines(products: Tensor) -> Tensor:
        """From ``Σ a b`` over the weights of every two heads."""
        norms = products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        scale = norms[:, :, None] * norms[:, None, :]
        return torch.where(scale == 0, 0.0, products / torch.where(scale == 0, 1.0, scale))


@dataclass(frozen=True)
class Sent(Question):
    """``Aᵀ u``: what each key gets back from the queries."""

    u: Tensor  # (B, H, N, width)

    def part(self, b: Block) -> Tensor:
        back = b.weights.mT @ self.u[:, :, b.i].to(b.weights.dtype)
        return b.everywhere(back.mT).mT

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).sum(0)


@dataclass(frozen=True)
class Observation:
    """The answers that were asked for; None where they were not."""

    entropy: Tensor | None = None
    received: Tensor | None = None
    top: Top | None = None
    mass: Tensor | None = None
    distance: Tensor | None = None
    profile: Tensor | None = None
    pool: Tensor | None = None
    similarity: Tensor | None = None
