"""The interface between a statistic of the weights and the backends that compute it.

A statistic is one class (in ``limelight.matrix.statistics``) that states the same thing twice. For plain torch:
``of_block`` computes its part for a block of rows, and ``join`` puts the parts of all blocks together. For the kernels:
the name of its kernel (in ``cpp/statistics``), the tensors that the kernel writes, and the result that is made of them.
Where the kernels compute its gradient too, it also states how the gradient of its result becomes one of what the kernel
writes. Where a mask is computed in several passes, ``add_pass`` puts together what the kernel writes for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.core.masks import Mask
from limelight.core.masks.passes import Pass
from limelight.core.problem import Sizes


@dataclass(frozen=True)
class WeightsBlock:
    """The weights of queries ``i`` for keys ``j``, ``(B, H, len(i), len(j))``, of a matrix with N queries and M keys.

    The keys are consecutive; keys that are left out have no weight.
    """

    weights: Tensor
    i: Tensor
    j: Tensor
    N: int
    M: int

    def for_all_keys(self, x: Tensor) -> Tensor:
        """Extend values by key ``(…, len(j))`` to ``(…, M)``, with zeros elsewhere."""
        first = int(self.j[0]) if len(self.j) else 0
        return pad(x, (first, self.M - first - len(self.j)))


@dataclass(frozen=True)
class Crop:
    """The queries and keys that a column statistic looks at, as half-open ranges."""

    query_begin: int
    query_end: int
    key_begin: int
    key_end: int


class Statistic:
    """Base of all statistics; by default one number for each row, ``(B, H, N)``."""

    kernel: ClassVar[str]  # its name in cpp/statistics
    mask: Mask | None = None  # a mask that the kernel takes; the result is each row's weight on what it allows
    operand: Tensor | None = None  # a tensor (B, H, N, width) that the kernel takes, to which a gradient may flow
    crop: Crop | None = None  # None for the whole matrix
    needs_whole_rows: ClassVar[bool] = False  # cannot be made of parts of the rows
    of_rows: ClassVar[bool] = False  # the kernels can add keys to a record of each row (native.RunningStatistics)

    @property
    def has_kernel_gradient(self) -> bool:
        """True if the kernels compute its gradient (cpp/statistics/gradient_terms.h); else plain torch does."""
        return False

    def of_block(self, block: WeightsBlock) -> Tensor:
        """Compute the part of one block of rows."""
        raise NotImplementedError

    def join(self, parts: Sequence[Tensor]) -> Any:
        """Put the parts of all blocks together; by default those of rows, one after the other."""
        return torch.cat(list(parts), 2)

    def outputs(self, sizes: Sizes, dtype: torch.dtype) -> list[Tensor]:
        """Allocate the tensors that the kernel writes, filled with zeros."""
        return [torch.zeros(sizes.B, sizes.Hq, sizes.N, dtype=dtype)]

    def numbers(self) -> list[float]:
        """The numbers that the kernel takes."""
        return []

    def result(self, outputs: list[Tensor], sizes: Sizes) -> Any:
        """Return the result, made of the tensors that the kernel wrote."""
        return outputs[0]

    def of_pass(self, x: Pass, sizes: Sizes) -> Statistic:
        """The statistic as it is asked of the queries and keys of a pass, of a matrix of these sizes."""
        if self.operand is None or x.queries is None:
            return self
        return self.with_operand(self.operand.index_select(2, x.queries))

    def add_pass(self, total: list[Tensor], part: list[Tensor], x: Pass) -> None:
        """Add what the kernel wrote for the queries and keys of a pass to what it writes for all of them.

        The weights of a pass are those of the whole rows, and passes share no weight. By default rows are added up.
        Statistics with a record of each row (``of_rows``) come here in one pass alone, whose rows are whole.
        """
        for to, of_pass in zip(total, part, strict=True):
            add_at(to, x.queries, of_pass)

    def differentiable(self) -> Statistic:
        """The statistic that is computed where a gradient may be asked for; by default this one."""
        return self

    def of_differentiable(self, result: Any) -> Any:
        """The result, made of that of ``differentiable``."""
        return result

    def weighted_gradient(self, gradient: Any, result: Any, total: Tensor | float) -> Tensor | None:
        """Σ of each row's weights times their gradients, ``(B, H, N)``, where it follows from the result; else None.

        ``total`` is the sum of a row's weights: 1, or less where a sink takes a part. By default the result is linear
        in the weights of its row.
        """
        found: Tensor = gradient * result
        return found

    def output_gradient(self, gradient: Tensor, sizes: Sizes) -> Tensor:
        """The gradient of what the kernel writes; by default that is the result."""
        return gradient

    def gradient_tensors(self, gradient: Any, result: Any, sizes: Sizes) -> list[Tensor]:
        """The tensors that the kernel of the gradient takes: the gradient of what the kernel writes, and others."""
        return [self.output_gradient(gradient, sizes)]

    def tensors_of_pass(self, tensors: list[Tensor], x: Pass, sizes: Sizes) -> list[Tensor]:
        """The parts of ``gradient_tensors`` that belong to a pass; by default those of its rows."""
        return tensors if x.queries is None else [y.index_select(2, x.queries) for y in tensors]

    def gradient_numbers(self, sizes: Sizes) -> list[float]:
        """The numbers that the kernel of the gradient takes."""
        return self.numbers()

    def flatten(self, result: Any) -> list[Tensor]:
        """The tensors of a result, for autograd."""
        return [result]

    def unflatten(self, tensors: list[Tensor]) -> Any:
        """Take the tensors of a result from the front of a list, and make the result of them again."""
        return tensors.pop(0)

    def with_operand(self, operand: Tensor) -> Statistic:
        """The same statistic of another tensor."""
        raise NotImplementedError


def add_at(total: Tensor, places: Tensor | None, part: Tensor) -> None:
    """Add a part to some places along the third axis, or to all in their order."""
    if places is None:
        total += part
    else:
        total[:, :, places] += part


def sum_parts(parts: Sequence[Tensor]) -> Tensor:
    """Join parts that each cover all keys."""
    return torch.stack(list(parts)).sum(0)
