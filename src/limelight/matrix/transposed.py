"""The transposed matrix: products from queries back to keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from limelight.core.checks import DTYPES
from limelight.core.problem import batched
from limelight.matrix.statistics.transposed import TransposedMatmul

if TYPE_CHECKING:
    from limelight.matrix.base import Weights


class Transposed:
    """``Aᵀ``, which is not stored either."""

    __slots__ = ("T",)

    def __init__(self, weights: Weights) -> None:
        self.T = weights

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, keys, queries)``."""
        *lead, N, M = self.T.shape
        return (*lead, M, N)

    def __matmul__(self, u: Tensor) -> Tensor:
        """``Aᵀ u``, from queries back to keys, ``(…, heads, keys, width)``."""
        *lead, N, _ = self.T.shape
        if isinstance(u, Tensor) and u.dtype not in DTYPES:
            raise TypeError(f"u is {u.dtype}; it must be floats, such as u.float()")
        if not isinstance(u, Tensor) or list(u.shape[:-1]) != [*lead, N]:
            got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ValueError(f"u {got} does not fit Aᵀ {self.shape}: it must be {(*lead, N)} and a width")
        return self.T._one(TransposedMatmul(batched(u))).to(u.dtype)

    def __repr__(self) -> str:
        return f"{self.T._described()}.T"
