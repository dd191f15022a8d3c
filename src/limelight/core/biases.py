"""Biases: numbers added to the logits, as values that combine with ``+``.

A bias that depends only on the distance between a query and a key never becomes an n × n tensor: it lowers
to a slope for each head or to one number for each distance and head. ``DenseBias`` alone brings a tensor.
Query ``i`` of ``N`` stands at position ``M - N + i``, as for masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limelight.core.broadcasting import common_batch_and_heads, entries_at, fit_dense, tensor_batch_and_heads
from limelight.core.masks import positions


class LoweredBias(NamedTuple):
    """``-slopes · |distance| + offsets[position - key + N - 1] + dense``, each absent where ``None``."""

    slopes: Tensor | None  # (heads,)
    offsets: Tensor | None  # (heads, N + M - 1)
    dense: Tensor | None  # broadcasts to (batch, heads, N, M)


class Bias:
    """Base of all biases: numbers for each query and key that are added to the logits. Biases combine with ``+``."""

    def values(self, i: Tensor, j: Tensor, N: int, M: int, dtype: torch.dtype | None = None) -> Tensor:
        """The bias of query ``i`` of ``N`` and key ``j`` of ``M``, for index tensors that broadcast.

        The result broadcasts to ``(batch, heads, *broadcast of i and j)`` and is computed in ``dtype``, or in
        the type of the bias's own tensors.
        """
        raise NotImplementedError

    def lower(self, N: int, M: int, dtype: torch.dtype | None = None) -> LoweredBias:
        """Return the bias for ``N`` queries and ``M`` keys as slopes, offsets by distance and a tensor.

        Biases that are added to one another are summed in ``dtype``.
        """
        raise NotImplementedError

    def batch_and_heads(self) -> tuple[int, int]:
        """Return the batch size and the number of heads that the bias is made for; 1 fits any number."""
        raise NotImplementedError

    def tensors(self) -> list[Tensor]:
        """The tensors that gradients may flow to."""
        raise NotImplementedError

    def dense(self, N: int, M: int | None = None) -> Tensor:
        """Return the bias of ``N`` queries and ``M`` keys (``N`` unless given) as a tensor ``(…, N, M)``.

        >>> ALiBi(2).dense(1, 3)
        tensor([[[-0.1250, -0.0625, -0.0000]],
        <BLANKLINE>
                [[-0.0078, -0.0039, -0.0000]]])
        """
        M = N if M is None else M
        device = self.tensors()[0].device
        i, j = torch.arange(N, device=device), torch.arange(M, device=device)
        return self.values(i[:, None], j[None, :], N, M)

    def __add__(self, other: object) -> Bias:
        if isinstance(other, Bias):
            return Sum(self, other)
        hint = "wrap the tensor as DenseBias(tensor)" if isinstance(other, Tensor) else "both sides must be biases"
        raise TypeError(f"bias + {type(other).__name__}: {hint}")


def alibi_slopes(heads: int) -> Tensor:
    """The published slopes: ``2^(-8/n), 2^(-16/n), …`` for a power of two n, filled from 2n for the others.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    n = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * (h + 1) / n) for h in range(n)]
    slopes += [2.0 ** (-4 * (h + 1) / n) for h in range(0, 2 * (heads - n), 2)]
    return torch.tensor(slopes)


@dataclass(frozen=True, eq=False, repr=False)
class ALiBi(Bias):
    """``-slope · |position - key|``: a penalty that grows with the distance (Press et al., 2022).

    Args:
        slopes: the number of heads, which then have the published slopes, or a slope for each of them, ``(heads,)``,
            which may require grad.

    >>> ALiBi(2).dense(2)
    tensor([[[-0.0000, -0.0625],
             [-0.0625, -0.0000]],
    <BLANKLINE>
            [[-0.0000, -0.0039],
             [-0.0039, -0.0000]]])

    """

    slopes: int | Tensor
    _slopes: Tensor = field(init=False)

    def __post_init__(self) -> None:
        s = self.slopes
        if isinstance(s, Tensor):
            if s.ndim != 1 or not s.is_floating_point() or s.numel() == 0:
                raise ValueError(f"ALiBi: slopes must be floats of shape (heads,), not {s.dtype} {tuple(s.shape)}")
        elif isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 1:
            raise ValueError(f"ALiBi: heads = {s!r}; give a number of heads ≥ 1 or a tensor of slopes (heads,)")
        object.__setattr__(self, "_slopes", s if isinstance(s, Tensor) else alibi_slopes(s))

    def batch_and_heads(self) -> tuple[int, int]:
        return 1, self._slopes.numel()

    def values(self, i: Tensor, j: Tensor, N: int, M: int, dtype: torch.dtype | None = None) -> Tensor:
        distance = (positions(i, N, M) - j).abs()
        return -self._slopes.to(i.device, dtype)[:, None, None] * distance

    def lower(self, N: int, M: int, dtype: torch.dtype | None = None) -> LoweredBias:
        return LoweredBias(self._slopes, None, None)

    def tensors(self) -> list[Tensor]:
        return [self._slopes]

    def __repr__(self) -> str:
        return f"ALiBi({self._slopes.numel()})"


@dataclass(frozen=True, eq=False, repr=False)
class Relative(Bias):
    """``table[head, bucket(key - position)]``: a learned bias by distance.

    It holds the tensor that it was given: where a module's parameters are exchanged for others, as
    ``torch.func.functional_call`` does, build it in ``forward``.

    Args:
        table: the biases ``(heads, 2·r + 1)`` at distances ``-r … r`` (key minus query), which may require grad; beyond
            them that at the edge holds.
        buckets: another map from distances to the columns of the table, which ``Relative.t5`` makes.

    >>> table = torch.tensor([[0.5, 0.0, -0.5]])  # before, here, after
    >>> Relative(table).dense(3)
    tensor([[[ 0.0000, -0.5000, -0.5000],
             [ 0.5000,  0.0000, -0.5000],
             [ 0.5000,  0.5000,  0.0000]]])

    """

    table: Tensor
    buckets: Buckets | None = None

    def __post_init__(self) -> None:
        t = self.table
        if not isinstance(t, Tensor) or t.ndim != 2 or not t.is_floating_point() or t.numel() == 0:
            got = f"{t.dtype} {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
            raise ValueError(f"Relative: table must be floats of shape (heads, distances), not {got}")
        if self.buckets is None and t.shape[1] % 2 == 0:
            raise ValueError(
                f"Relative: a table by distance has an odd number of columns (-r … r), not {t.shape[1]}; "
                "use Relative.t5(table) for a table of buckets"
            )

    @classmethod
    def t5(cls, table: Tensor, *, two_sided: bool = True, max_distance: int = 128) -> Relative:
        """Make the bias of T5: a column for each near distance, then for ranges that grow logarithmically.

        Args:
            table: the biases ``(heads, buckets)``, which may require grad.
            two_sided: half of the buckets are for later keys; otherwise all are for earlier keys, and later keys have
                the bias of distance 0.
            max_distance: all distances from this on share the last bucket of their side.

        >>> Relative.t5(torch.arange(8.0)[None], max_distance=16).dense(4)[0, 0]
        tensor([0., 5., 6., 6.])

        """
        if isinstance(table, Tensor) and table.ndim == 2:
            return cls(table, Buckets(table.shape[1], max_distance, two_sided))
        return cls(table)

    def batch_and_heads(self) -> tuple[int, int]:
        return 1, self.table.shape[0]

    def _column(self, distance: Tensor) -> Tensor:
        if self.buckets is not None:
            return self.buckets.of(distance)
        r = self.table.shape[1] // 2
        return distance.clamp(-r, r) + r

    def values(self, i: Tensor, j: Tensor, N: int, M: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.table.to(i.device, dtype)[:, self._column(j - positions(i, N, M))]

    def lower(self, N: int, M: int, dtype: torch.dtype | None = None) -> LoweredBias:
        last = min(-M, N - 1)  # position - key runs from -(N - 1) to M - 1; the range is empty where N + M is 0
        distance = torch.arange(N - 1, last, -1, device=self.table.device)
        # An embedding and not an index: its gradient is summed in the same order for any number of threads.
        return LoweredBias(None, torch.nn.functional.embedding(self._column(distance), self.table.T).T, None)

    def tensors(self) -> list[Tensor]:
        return [self.table]

    def __repr__(self) -> str:
        how = "" if self.buckets is None else f", {self.buckets}"
        return f"Relative(<{tuple(self.table.shape)}>{how})"


@dataclass(frozen=True)
class Buckets:
    """T5's map from a relative position (key minus query) to one of ``count`` buckets.

    Half of the buckets (of one side) are exact, the other half grow logarithmically to ``max_distance``.
    """

    count: int
    max_distance: int = 128
    two_sided: bool = True

    def __post_init__(self) -> None:
        least = 4 if self.two_sided else 2
        if self.count < least or self.max_distance <= self._side // 2:
            raise ValueError(f"{self}: needs at least {least} buckets and max_distance above {max(self._side // 2, 1)}")

    @property
    def _side(self) -> int:
        return self.count // 2 if self.two_sided else self.count

    def of(self, distance: Tensor) -> Tensor:
        """The bucket of each relative position.

        >>> Buckets(8, 16).of(torch.tensor([-20, -2, -1, 0, 1, 2, 20]))
        tensor([3, 2, 1, 0, 5, 6, 7])
        """
        side, exact = self._side, self._side // 2
        far = distance.abs() if self.two_sided else (-distance).clamp(min=0)
        grown = torch.log(far.clamp(min=1).float() / exact) / math.log(self.max_distance / exact) * (side - exact)
        bucket = torch.where(far < exact, far, (exact + grown.long()).clamp(max=side - 1))
        return bucket + side * (distance > 0) if self.two_sided else bucket


@dataclass(frozen=True, eq=False, repr=False)
class DenseBias(Bias):
    """``tensor[batch, head, query, key]``: any tensor of floats; −∞ removes a key.

    Args:
        tensor: floats that broadcast to ``(batch, heads, N, M)``, which may require grad.

    >>> DenseBias(torch.tensor([[0.0, 1.0]])).dense(2)
    tensor([[0., 1.],
            [0., 1.]])

    """

    tensor: Tensor

    def __post_init__(self) -> None:
        t = self.tensor
        if not isinstance(t, Tensor) or not t.is_floating_point():
            got = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"DenseBias: needs a tensor of floats, not {got} (for a boolean mask use Dense)")

    def values(self, i: Tensor, j: Tensor, N: int, M: int, dtype: torch.dtype | None = None) -> Tensor:
        return entries_at(fit_dense("DenseBias", self.tensor, N, M), i, j, N, M).to(i.device, dtype)

    def lower(self, N: int, M: int, dtype: torch.dtype | None = None) -> LoweredBias:
        return LoweredBias(None, None, fit_dense("DenseBias", self.tensor, N, M))

    def tensors(self) -> list[Tensor]:
        return [self.tensor]

    def batch_and_heads(self) -> tuple[int, int]:
        return tensor_batch_and_heads(self.tensor)

    def __repr__(self) -> str:
        return f"DenseBias(<{tuple(self.tensor.shape)}>)"


@dataclass(frozen=True, eq=False, repr=False)
class Offsets(Bias):
    """A bias by distance in its lowered form: ``offsets[head, position - key + N - 1]``."""

    offsets: Tensor  # (heads, N + M - 1)

    def values(self, i: Tensor, j: Tensor, N: int, M: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.offsets.to(i.device, dtype)[:, positions(i, N, M) - j + N - 1]

    def lower(self, N: int, M: int, dtype: torch.dtype | None = None) -> LoweredBias:
        return LoweredBias(None, self.offsets, None)

    def tensors(self) -> list[Tensor]:
        return [self.offsets]

    def batch_and_heads(self) -> tuple[int, int]:
        return 1, self.offsets.shape[0]

    def __repr__(self) -> str:
        return f"Offsets(<{tuple(self.offsets.shape)}>)"


@dataclass(frozen=True, eq=False, repr=False)
class AtPlaces(Bias):
    """A bias for queries and keys chosen from ``N`` queries and ``M`` keys; its lowered form is that of all of them."""

    bias: Bias
    queries: Tensor  # places among N
    keys: Tensor  # places among M
    N: int
    M: int

    def values(self, i: Tensor, j: Tensor, N: int, M: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.bias.values(self.queries[i], self.keys[j], self.N, self.M, dtype)

    def lower(self, N: int, M: int, dtype: torch.dtype | None = None) -> LoweredBias:
        return self.bias.lower(self.N, self.M, dtype)

    def tensors(self) -> list[Tensor]:
        return self.bias.tensors()

    def batch_and_heads(self) -> tuple[int, int]:
        return self.bias.batch_and_heads()

    def __repr__(self) -> str:
        return f"AtPlaces({self.bias!r})"


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Bias):
    """``left + right``."""

    left: Bias
    right: Bias

    def __post_init__(self) -> None:
        self.batch_and_heads()

    def batch_and_heads(self) -> tuple[int, int]:
        return common_batch_and_heads(self, self.left.batch_and_heads(), self.right.batch_and_heads())

    def values(self, i: Tensor, j: Tensor, N: int, M: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.left.values(i, j, N, M, dtype) + self.right.values(i, j, N, M, dtype)

    def lower(self, N: int, M: int, dtype: torch.dtype | None = None) -> LoweredBias:
        a, b = self.left.lower(N, M, dtype), self.right.lower(N, M, dtype)
        pairs = zip(a, b, strict=True)
        return LoweredBias(*(y if x is None else x if y is None else x.to(dtype) + y.to(dtype) for x, y in pairs))

    def tensors(self) -> list[Tensor]:
        return self.left.tensors() + self.right.tensors()

    def __repr__(self) -> str:
        return f"{self.left!r} + {self.right!r}"
