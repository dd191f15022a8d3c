"""Masks of sparse transformers: global tokens, strides and dilated windows.

Each speaks of positions: query ``i`` of ``N`` stands at ``M - N + i``, so a pattern stays the same while a cache grows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from limelight.core.masks.base import Lowered, Mask, positions
from limelight.core.masks.counts import check_whole
from limelight.core.spans import runs_of_true, single_spans

_FEW_RUNS = 2  # of global keys, which cost little where they are
_SHOWN = 24  # positions that are written out


@dataclass(frozen=True)
class Strided(Mask):
    """``position - key`` is a multiple of ``stride``: every ``stride``-th key, in both directions (Child et al., 2019).

    Combine it with ``Causal()`` for the past alone, and with ``Window`` for the neighbours:
    ``Causal() & (Window(128) | Strided(128))``.

    Args:
        stride: the distance between two keys, 1 or more.

    >>> print(Strided(3).dense(4).int())
    tensor([[1, 0, 0, 1],
            [0, 1, 0, 0],
            [0, 0, 1, 0],
            [1, 0, 0, 1]], dtype=torch.int32)

    """

    reorders = True
    stride: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "stride", _check_step("Strided", "stride", self.stride))

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return (positions(i, N, M) - j) % self.stride == 0

    def lower(self, N: int, M: int) -> Lowered:
        p = torch.arange(M - N, M)
        return Lowered(
            _spans_at_multiples(self.stride, torch.zeros_like(p), torch.full_like(p, M), N, M, -(-M // self.stride)),
            None,
        )

    def cache_key(self) -> Hashable | None:
        return Strided, self.stride

    def __repr__(self) -> str:
        return f"Strided({self.stride})"

    def _extent(self) -> tuple[int, int]:
        n = max(9, 3 * self.stride + 1)
        return n, n


@dataclass(frozen=True)
class Dilated(Mask):
    """``|position - key| ≤ window · dilation``, and a multiple of ``dilation``: a window with gaps.

    Args:
        window: the number of keys on each side of the query's own.
        dilation: the distance between two of them, 1 or more.

    >>> print(Dilated(1, 2).dense(5).int())
    tensor([[1, 0, 1, 0, 0],
            [0, 1, 0, 1, 0],
            [1, 0, 1, 0, 1],
            [0, 1, 0, 1, 0],
            [0, 0, 1, 0, 1]], dtype=torch.int32)

    """

    reorders = True
    window: int
    dilation: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", check_whole("Dilated", "window", self.window))
        object.__setattr__(self, "dilation", _check_step("Dilated", "dilation", self.dilation))

    def reach(self, N: int, M: int) -> int:
        """The distance of the furthest key, no further than the ends."""
        return min(self.window, N + M) * self.dilation

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        distance = positions(i, N, M) - j
        return (distance % self.dilation == 0) & (distance.abs() <= self.reach(N, M))

    def lower(self, N: int, M: int) -> Lowered:
        p = torch.arange(M - N, M)
        reach, widest = self.reach(N, M), -(-M // self.dilation)
        count = min(2 * self.window + 1, widest)
        return Lowered(_spans_at_multiples(self.dilation, p - reach, p + (reach + 1), N, M, count), None)

    def cache_key(self) -> Hashable | None:
        return Dilated, self.window, self.dilation

    def __repr__(self) -> str:
        return f"Dilated({self.window}, {self.dilation})"

    def _extent(self) -> tuple[int, int]:
        n = max(9, 3 * (self.window * self.dilation + 1))
        return n, n


def _spans_at_multiples(step: int, begin: Tensor, end: Tensor, N: int, M: int, count: int) -> Tensor:
    """Spans of the keys ``begin ≤ key < end`` at distances that are multiples of ``step``; at most ``count``."""
    if step == 1:  # neighbours are one span
        return single_spans(begin[None], end[None], N, M)
    low, high = begin.clamp(min=0), end.clamp(max=M)
    first = low + (torch.arange(M - N, M) - low) % step
    keys = first[:, None] + step * torch.arange(max(count, 1))
    inside = keys < high[:, None]
    keys = torch.where(inside, keys, M)
    return torch.stack([keys, keys + inside.to(keys.dtype)], -1)[None].to(torch.int32)


def _check_step(mask: str, name: str, value: object) -> int:
    step = check_whole(mask, name, value)
    if step == 0:
        raise ValueError(f"{mask}: {name} = 0; give 1 for every key, 2 for every second one, and so on")
    return step


@dataclass(frozen=True, eq=False, repr=False)
class Global(Mask):
    """``position`` or ``key`` is one of ``positions``: these tokens see all and are seen by all (Longformer, BigBird).

    ``Causal() & Global(…)`` leaves what lies in the past.

    Args:
        positions: the global tokens, counted from the first key, 0; those that a cache does not hold yet have no
            effect. Or booleans ``(keys,)`` or ``(batch, keys)`` that mark the global tokens of each batch element.

    >>> print(Global([1]).dense(3).int())
    tensor([[0, 1, 0],
            [1, 1, 1],
            [0, 1, 0]], dtype=torch.int32)

    """

    positions: int | Sequence[int] | Tensor
    _flags: Tensor | None = field(init=False)  # (batch or 1, keys), where it is given by a boolean tensor
    _positions: Tensor | None = field(init=False)  # sorted, otherwise
    _runs: Tensor = field(init=False)  # (batch or 1, count, 2): the runs of global keys

    def __post_init__(self) -> None:
        flags, chosen = _read_positions(self.positions)
        object.__setattr__(self, "_flags", flags)
        object.__setattr__(self, "_positions", chosen)
        object.__setattr__(self, "fixes_keys", flags is not None)
        if flags is None:
            assert chosen is not None
            # A run begins where the position before is not global, and ends where the next is not.
            before, after = ~torch.isin(chosen - 1, chosen), ~torch.isin(chosen + 1, chosen)
            found = torch.stack([chosen[before], chosen[after] + 1], -1)[None]
        else:
            found = runs_of_true(flags.cpu())
        object.__setattr__(self, "_runs", found)
        object.__setattr__(self, "reorders", found.shape[0] == 1 and found.shape[1] > _FEW_RUNS)

    def is_global(self, at: Tensor, M: int) -> Tensor:
        """Return True for global positions, ``(batch or 1, *shape of at)``."""
        if self._flags is None:
            assert self._positions is not None
            return torch.isin(at, self._positions.to(at.device))[None]
        if self._flags.shape[1] != M:
            raise ValueError(f"Global: {self._flags.shape[1]} flags for {M} keys; give one for each key")
        return self._flags.to(at.device)[:, at.clamp(min=0)] & (at >= 0)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        found = self.is_global(positions(i, N, M), M) | self.is_global(j, M)
        return found[0] if found.shape[0] == 1 else found[:, None]

    def lower(self, N: int, M: int) -> Lowered:
        every = self.global_queries(N, M)[:, :, None, None]  # (batch or 1, N, 1, 1)
        keys = self.global_keys(M)[:, None]  # (batch or 1, 1, count, 2)
        everything = torch.full_like(keys, M)
        everything[..., 0, 0] = 0
        return Lowered(torch.where(every, everything, keys).to(torch.int32), None)

    def global_queries(self, N: int, M: int) -> Tensor:
        """Return True for the queries that see all, ``(batch or 1, N)``."""
        return self.is_global(torch.arange(M - N, M), M)

    def global_keys(self, M: int) -> Tensor:
        """Return the runs of keys that are seen by all, ``(batch or 1, count, 2)``."""
        none = self._runs.new_full((self._runs.shape[0], 1, 2), M)
        return self._runs.clamp(max=M) if self._runs.shape[1] else none

    def batch_and_heads(self) -> tuple[int, int]:
        return self._runs.shape[0], 1

    def cache_key(self) -> Hashable | None:
        return None if isinstance(self.positions, Tensor) else (Global, self.identity())

    def identity(self) -> Hashable:
        """A value that two of these masks share if they have the same tokens."""
        return tuple(self._runs.shape), tuple(self._runs.flatten().tolist())

    def __repr__(self) -> str:
        if self._flags is not None:
            return f"Global(<{tuple(self._flags.shape)} bool>)"
        chosen = self._positions.tolist()  # type: ignore[union-attr]
        return f"Global({chosen if len(chosen) <= _SHOWN else f'<{len(chosen)} positions>'})"

    def _extent(self) -> tuple[int, int]:
        n = int(self._runs.max()) if self._runs.numel() else 0
        n = self._flags.shape[1] if self._flags is not None else max(9, n + 2)
        return n, n


@dataclass(frozen=True, eq=False)
class GlobalQueries(Mask):
    """The rows of ``Global``: its tokens see all."""

    tokens: Global

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        found = self.tokens.is_global(positions(i, N, M), M)
        return (found[0] if found.shape[0] == 1 else found[:, None]) & (j >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(single_spans(0, torch.where(self.tokens.global_queries(N, M), M, 0), N, M), None)

    def batch_and_heads(self) -> tuple[int, int]:
        return self.tokens.batch_and_heads()

    def cache_key(self) -> Hashable | None:
        key = self.tokens.cache_key()
        return None if key is None else (GlobalQueries, key)


@dataclass(frozen=True, eq=False)
class GlobalKeys(Mask):
    """The columns of ``Global``: its tokens are seen by all."""

    tokens: Global

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        found = self.tokens.is_global(j, M)
        return (found[0] if found.shape[0] == 1 else found[:, None]) & (i >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(self.tokens.global_keys(M)[:, None].expand(-1, N, -1, -1).to(torch.int32), None)

    def batch_and_heads(self) -> tuple[int, int]:
        return self.tokens.batch_and_heads()

    def cache_key(self) -> Hashable | None:
        key = self.tokens.cache_key()
        return None if key is None else (GlobalKeys, key)


def _read_positions(value: object) -> tuple[Tensor | None, Tensor | None]:
    """Return flags ``(batch or 1, keys)`` or positions in order, whichever is given."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"Global: positions must be whole numbers, not {value!r}") from None
    tensor = tensor.detach()
    if tensor.dtype == torch.bool:
        if tensor.ndim not in (1, 2):
            raise ValueError(f"Global: flags have shape {tuple(tensor.shape)}; give (keys,) or (batch, keys)")
        return tensor.reshape(-1, tensor.shape[-1]), None
    if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
        raise TypeError(f"Global: positions must be whole numbers, not {tensor.dtype}")
    if tensor.ndim > 1:
        raise ValueError(
            f"Global: positions have shape {tuple(tensor.shape)}; give a list of positions for all batch elements, or "
            "a boolean tensor (batch, keys) that marks those of each"
        )
    tensor = tensor.reshape(-1).to("cpu", torch.int64).unique()
    if tensor.numel() and int(tensor[0]) < 0:
        raise ValueError(f"Global: position {int(tensor[0])} is negative; positions count from the first key, 0")
    return None, tensor
