"""Pool: a picture of the matrix, or of a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight.backends import Crop, Statistic, WeightsBlock
from limelight.core.checks import check_count
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes
from limelight.matrix.statistics.asked import AskedStatistic

if TYPE_CHECKING:
    from limelight.matrix.base import Weights

REDUCTIONS = ("mean", "max")


def cells(n: int, count: int, device: torch.device, side: int = 0) -> tuple[Tensor, Tensor]:
    """Return the first row that each of ``count`` cells covers, of ``n`` rows, and the row after its last one.

    A row that lies partly in a cell counts as a whole one, so that neighbours may share a row. With a ``side``, cells
    have so many rows, and the last one what is left.
    """
    c = torch.arange(count, device=device)
    if side:
        return c * side, ((c + 1) * side).clamp(max=n)
    return c * n // count, -(-(c + 1) * n // count)


@dataclass(frozen=True)
class Pool(AskedStatistic):
    """A picture of ``rows × cols`` cells, each the mean or the largest of the weights that it covers."""

    rows: int
    cols: int
    reduce: str = "mean"
    crop: Crop | None = None
    side: int = 0  # queries and keys of a cell; 0 where the number of cells is given instead
    kernel = "pool"

    @property
    def has_kernel_gradient(self) -> bool:
        """True for means; the gradient of a maximum needs to know which weight that is."""
        return self.reduce == "mean"

    @classmethod
    def asked(cls, weights: Weights, value: Any) -> AskedStatistic | None:
        """Make the statistic for ``(rows, cols)`` or the side of a cell, either with a reduction at its end."""
        if value is None:
            return None
        given = list(value) if isinstance(value, (tuple, list)) else [value]
        reduce = given.pop() if given and isinstance(given[-1], str) else "mean"
        if len(given) == 1:
            *_, N, M = weights.shape
            return cls.of_side(given[0], N, M, reduce)
        if len(given) != 2:
            raise TypeError(f"pool: give (rows, cols) or the side of a cell, not {value!r}")
        return cls.checked(given[0], given[1], reduce)

    @classmethod
    def checked(cls, rows: Any, cols: Any, reduce: str = "mean", crop: Crop | None = None) -> Pool:
        """Check the numbers of cells and the reduction."""
        if reduce not in REDUCTIONS:
            raise ValueError(f"pool: reduce = {reduce!r}; there are 'mean' and 'max'")
        return cls(check_count("pool", "rows", rows, 1), check_count("pool", "cols", cols, 1), reduce, crop)

    @classmethod
    def of_side(cls, side: Any, N: int, M: int, reduce: str = "mean", crop: Crop | None = None) -> Pool:
        """Make cells of ``side × side`` weights, counted from the upper left corner of the crop."""
        n = check_count("pool", "cell", side, 1)
        w = crop or Crop(0, N, 0, M)
        rows, cols = -(-(w.query_end - w.query_begin) // n), -(-(w.key_end - w.key_begin) // n)
        found = cls.checked(max(rows, 1), max(cols, 1), reduce, crop)
        return cls(found.rows, found.cols, found.reduce, crop, n)

    def of_block(self, block: WeightsBlock) -> Tensor:
        a = block.weights
        w = self.crop or Crop(0, block.N, 0, block.M)
        N, M = w.query_end - w.query_begin, w.key_end - w.key_begin
        if not (N and M):
            return a.new_zeros(*a.shape[:2], self.rows, self.cols)
        i, j = block.i - w.query_begin, block.j - w.key_begin
        (top, bottom), (left, right) = (
            cells(n, count, i.device, self.side) for n, count in ((N, self.rows), (M, self.cols))
        )
        down = (top[:, None] <= i) & (i < bottom[:, None])  # (rows, i): the queries that a cell covers
        across = (left[:, None] <= j) & (j < right[:, None])  # (cols, j)
        if self.reduce == "mean":
            wide = a @ (across.to(a.dtype) / (right - left)[:, None]).mT
            return (down.to(a.dtype) / (bottom - top)[:, None]) @ wide
        columns = torch.stack([_largest(a[..., c]) for c in across], -1)
        return torch.stack([_largest(columns[:, :, r].mT) for r in down], 2)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        every = torch.stack(list(parts))
        return every.sum(0) if self.reduce == "mean" else every.amax(0)

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(sizes.B, sizes.Hq, self.rows, self.cols, dtype=dtype)]

    def numbers(self) -> list[float]:
        return [self.rows, self.cols, self.reduce == "max", self.side]

    def of_pass(self, x: Pass, sizes: Sizes) -> Statistic:
        """Return the whole picture, to which the pass adds what its queries and keys have in the crop."""
        if x.places is None:
            return self
        w = self.crop or Crop(0, sizes.N, 0, sizes.M)
        queries, keys = w.query_end - w.query_begin, w.key_end - w.key_begin
        return PartOfPicture(
            self.rows, self.cols, self.reduce, None, self.side, -w.query_begin, queries, -w.key_begin, keys
        )

    def add_pass(self, total: list[Tensor], part: list[Tensor], x: Pass) -> None:
        total[0] = total[0] + part[0] if self.reduce == "mean" else torch.maximum(total[0], part[0])

    def tensors_of_pass(self, tensors: list[Tensor], x: Pass, sizes: Sizes) -> list[Tensor]:
        return tensors

    def weighted_gradient(self, gradient: Tensor, result: Tensor, total: Tensor | float) -> None:
        return None

    def output_gradient(self, gradient: Tensor, sizes: Sizes) -> Tensor:
        """The gradient of each weight in a cell."""
        w = self.crop or Crop(0, sizes.N, 0, sizes.M)
        top, bottom = cells(w.query_end - w.query_begin, self.rows, gradient.device, self.side)
        left, right = cells(w.key_end - w.key_begin, self.cols, gradient.device, self.side)
        return gradient / ((bottom - top)[:, None] * (right - left))

    def gradient_numbers(self, sizes: Sizes) -> list[float]:
        """The cells down and across, the crop that they show, and the side of a cell or 0."""
        w = self.crop or Crop(0, sizes.N, 0, sizes.M)
        return [self.rows, self.cols, w.query_begin, w.query_end, w.key_begin, w.key_end, self.side]


@dataclass(frozen=True)
class PartOfPicture(Pool):
    """The part of a larger picture that some queries and keys add to: the place of the first ones, and the size."""

    first_query: int = 0
    queries: int = 0
    first_key: int = 0
    keys: int = 0

    def numbers(self) -> list[float]:
        return [*super().numbers(), self.first_query, self.queries, self.first_key, self.keys]


def _largest(x: Tensor) -> Tensor:
    """Return the maximum over the last axis, or 0 where that is empty; no weight is below 0."""
    return x.amax(-1) if x.shape[-1] else x.new_zeros(x.shape[:-1])


def pool(
    self: Weights,
    rows: int | None = None,
    cols: int | None = None,
    reduce: str = "mean",
    *,
    cell: int | None = None,
    queries: slice | range | None = None,
    keys: slice | range | None = None,
) -> Tensor:
    """A picture ``(…, heads, rows, cols)``: each cell the mean of the weights that it covers, or their maximum.

    Give the number of ``rows`` and ``cols``, or with ``cell`` the side of a cell: squares of ``cell × cell`` weights,
    of which those at the lower and right edge cover what is left. ``reduce`` is ``"mean"`` or ``"max"``. ``queries``
    and ``keys`` choose a rectangle of the matrix; once the normalisers of the rows are known, only the rectangle is
    computed.

    >>> import torch, limelight as ll
    >>> A = ll.weights(torch.zeros(1, 6, 8), torch.zeros(1, 6, 8), mask=ll.Causal())
    >>> A.pool(2, 2)
    tensor([[[0.3333, 0.0000],
             [0.2056, 0.1278]]])
    >>> A.pool(1, 2, queries=slice(3, 6), keys=slice(0, 4))
    tensor([[[0.2056, 0.2056]]])
    >>> A.pool(cell=4)
    tensor([[[0.2500, 0.0000],
             [0.1833, 0.1333]]])

    """
    *_, N, M = self.shape
    crop = None
    if queries is not None or keys is not None:
        crop = Crop(*_bounds("queries", queries, N), *_bounds("keys", keys, M))
    if cell is not None:
        if rows is not None or cols is not None:
            raise TypeError("pool: give rows and cols, or cell, not both")
        return self._one(Pool.of_side(cell, N, M, reduce, crop))
    return self._one(Pool.checked(rows, cols, reduce, crop))


def _bounds(name: str, chosen: slice | range | None, n: int) -> tuple[int, int]:
    if chosen is None:
        return 0, n
    if not isinstance(chosen, (slice, range)):
        raise TypeError(f"pool: {name} = {chosen!r}; give a slice such as slice(100, 200)")
    begin, end, step = (chosen.start, chosen.stop, chosen.step) if isinstance(chosen, range) else chosen.indices(n)
    if step != 1 or not 0 <= begin < end <= n:
        raise ValueError(f"pool: {name} = {chosen!r} must be a range of step 1 inside the {n} {name}, and not empty")
    return begin, end
