"""The base of all masks, their combinations, and the lowering of a mask to spans.

A mask states the same thing twice: ``allows`` is its definition, a condition on a query and a key, and ``lower`` turns
it into the form that the kernels walk over, a few spans of keys for every query, described in O(N).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from limelight.core.broadcasting import common_batch_and_heads, tensor_batch_and_heads
from limelight.core.masks.drawing import draw, draw_html
from limelight.core.spans import complement, count_runs, intersection, runs_of_true, union
from limelight.core.torch_modes import is_traced


class Lowered(NamedTuple):
    """A key is allowed where it lies in one of the query's ``spans`` and ``dense`` is True there.

    ``None`` stands for everything.
    """

    spans: Tensor | None
    dense: Tensor | None


class Mask:
    """Base of all masks: for each query the keys that it may attend to.

    Masks combine with ``&``, ``|`` and ``~``; ``print(mask)`` draws one, ``mask.dense(N, M)`` makes it a tensor.
    """

    fixes_keys = False  # the mask brings data that fixes the number of keys
    reorders = False  # it is computed with queries and keys in another order than that of the tokens (passes.py)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        """Return True where query ``i`` of ``N`` may attend to key ``j`` of ``M``, for index tensors that broadcast.

        The result broadcasts to ``(batch, heads, *broadcast of i and j)``.
        """
        raise NotImplementedError

    def lower(self, N: int, M: int) -> Lowered:
        """Return the same condition as spans of keys for each of ``N`` queries."""
        raise NotImplementedError

    def batch_and_heads(self) -> tuple[int, int]:
        """Return the batch size and the number of heads that the mask is made for; 1 fits any number."""
        return 1, 1

    def cache_key(self) -> Hashable | None:
        """Return a value under which the lowered mask is cached, equal for equal masks, or None: it is not cached."""
        return None

    def dense(self, N: int, M: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """Return the mask as a boolean tensor ``(N, M)``, with leading axes ``(batch, heads)`` where it has them.

        Args:
            N: number of queries.
            M: number of keys, ``N`` unless given. The last query stands at the last key.
            device: where the tensor is made; the CPU unless given.

        >>> import limelight as ll
        >>> ll.Causal().dense(2, 3)
        tensor([[ True,  True, False],
                [ True,  True,  True]])

        """
        M = N if M is None else M
        i, j = torch.arange(N, device=device), torch.arange(M, device=device)
        allowed = self.allows(i[:, None], j[None, :], N, M)
        return allowed.expand(*allowed.shape[:-2], N, M)

    def __and__(self, other: object) -> Mask:
        return And(self, _as_mask(other, "&"))

    def __or__(self, other: object) -> Mask:
        return Or(self, _as_mask(other, "|"))

    def __invert__(self) -> Mask:
        return self.mask if isinstance(self, Not) else Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a mask is neither true nor false; combine masks with &, | and ~, and ask 'mask is None'")

    def _extent(self) -> tuple[int, int]:
        """The number of queries and keys at which a drawing shows what the mask does."""
        return 9, 9

    def __str__(self) -> str:
        return draw(self, *self._extent())

    def _repr_html_(self) -> str:
        return draw_html(self, *self._extent())


def _as_mask(value: object, operator: str) -> Mask:
    if isinstance(value, Mask):
        return value
    hint = "wrap the tensor as Dense(tensor)" if isinstance(value, Tensor) else "both sides must be masks"
    raise TypeError(f"mask {operator} {type(value).__name__}: {hint}")


class LoweredMask:
    """A lowered mask that may be cached; a backend keeps the form that it hands to its kernels in ``prepared``."""

    __slots__ = ("dense", "prepared", "spans")

    def __init__(self, spans: Tensor | None, dense: Tensor | None) -> None:
        self.spans, self.dense = spans, dense
        self.prepared: Any = None


# With more queries than this, lowering costs little compared with the attention itself, and spans are large.
_CACHED_QUERIES = 4096
_CACHED_NUMBERS = 1 << 17  # of spans; more of them would take much memory
_CACHE_SIZE = 256  # masks
_cache: dict[Hashable, LoweredMask] = {}


def lower_mask(mask: Mask, N: int, M: int) -> LoweredMask:
    """Lower a mask for ``N`` queries and ``M`` keys; one that has a ``cache_key`` is lowered once."""
    if N > _CACHED_QUERIES or is_traced():  # tensors of a trace belong to it alone
        return LoweredMask(*skip_empty_blocks(mask.lower(N, M), N, M))
    key = mask.cache_key()
    if key is None:
        return LoweredMask(*skip_empty_blocks(mask.lower(N, M), N, M))
    found = _cache.get((key, N, M))
    if found is None:
        found = LoweredMask(*mask.lower(N, M))
        if found.spans is not None and found.spans.numel() > _CACHED_NUMBERS:
            return found
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[key, N, M] = found
    return found


_ROWS, _COLUMNS = 16, 64  # of the blocks of a dense mask that are looked at as one
_WORTH_LOOKING = 2**16  # elements of a dense mask
_MOST_RUNS = 16  # of blocks that are not empty


def skip_empty_blocks(lowered: Lowered, N: int, M: int) -> Lowered:
    """Add spans that leave out the blocks of a dense mask in which everything is False, so that they cost nothing."""
    spans, dense = lowered
    if dense is None or dense.shape[-2:] != (N, M) or N * M < _WORTH_LOOKING or is_traced() or not dense.is_cpu:
        return lowered
    blocks = pad(dense.view(torch.uint8), (0, -M % _COLUMNS, 0, -N % _ROWS))
    blocks = blocks.unflatten(-1, (-1, _COLUMNS)).amax(-1).unflatten(-2, (-1, _ROWS)).amax(-2)  # (…, rows, columns)
    used = blocks.reshape(-1, tensor_batch_and_heads(dense)[1], *blocks.shape[-2:]).amax(1) > 0  # by batch element
    if bool(used.all()):
        return lowered
    if count_runs(used) > _MOST_RUNS:
        return lowered
    kept = (runs_of_true(used) * _COLUMNS).clamp(max=M)[:, torch.arange(N) // _ROWS].to(torch.int32)
    return Lowered(kept if spans is None else intersection(spans, kept, M), dense)


def positions(i: Tensor, N: int, M: int) -> Tensor:
    """The positions of queries ``i`` among the keys: the last query stands at the last key."""
    return i + (M - N)


@dataclass(frozen=True, repr=False)
class _Pair(Mask):
    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        self.batch_and_heads()
        object.__setattr__(self, "reorders", self.left.reorders or self.right.reorders)

    def batch_and_heads(self) -> tuple[int, int]:
        return common_batch_and_heads(self, self.left.batch_and_heads(), self.right.batch_and_heads())

    def cache_key(self) -> Hashable | None:
        left, right = self.left.cache_key(), self.right.cache_key()
        return None if left is None or right is None else (type(self), left, right)

    def _extent(self) -> tuple[int, int]:
        parts = [mask for mask in (self.left, self.right) if _fixes_keys(mask)] or [self.left, self.right]
        queries, keys = zip(*(mask._extent() for mask in parts), strict=True)
        return max(queries), max(keys)

    def _text(self, symbol: str, bracketed: type[Mask]) -> str:
        parts = (self.left, self.right)
        return f" {symbol} ".join(f"({mask!r})" if isinstance(mask, bracketed) else repr(mask) for mask in parts)


def _fixes_keys(mask: Mask) -> bool:
    """Return True if the mask brings data that fixes the number of keys."""
    if isinstance(mask, _Pair):
        return _fixes_keys(mask.left) or _fixes_keys(mask.right)
    if isinstance(mask, Not):
        return _fixes_keys(mask.mask)
    return mask.fixes_keys


class And(_Pair):
    """Both masks allow it: ``left & right``."""

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return self.left.allows(i, j, N, M) & self.right.allows(i, j, N, M)

    def lower(self, N: int, M: int) -> Lowered:
        a, b = self.left.lower(N, M), self.right.lower(N, M)
        spans = b.spans if a.spans is None else a.spans if b.spans is None else intersection(a.spans, b.spans, M)
        dense = b.dense if a.dense is None else a.dense if b.dense is None else a.dense & b.dense
        return Lowered(spans, dense)

    def __repr__(self) -> str:
        return self._text("&", Or)


class Or(_Pair):
    """Either mask allows it: ``left | right``."""

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return self.left.allows(i, j, N, M) | self.right.allows(i, j, N, M)

    def lower(self, N: int, M: int) -> Lowered:
        a, b = self.left.lower(N, M), self.right.lower(N, M)
        if a.dense is not None or b.dense is not None:
            device = (a.dense if a.dense is not None else b.dense).device  # type: ignore[union-attr]
            return Lowered(None, self.dense(N, M, device))
        if a.spans is None or b.spans is None:
            return Lowered(None, None)
        return Lowered(union(a.spans, b.spans, M), None)

    def __repr__(self) -> str:
        return self._text("|", And)


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """The mask does not allow it: ``~mask``."""

    mask: Mask

    def __post_init__(self) -> None:
        object.__setattr__(self, "reorders", self.mask.reorders)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return ~self.mask.allows(i, j, N, M)

    def lower(self, N: int, M: int) -> Lowered:
        spans, dense = self.mask.lower(N, M)
        if dense is not None:
            return Lowered(None, ~dense if spans is None else self.dense(N, M, dense.device))
        if spans is None:  # everything is allowed, so nothing is left
            return Lowered(torch.full((1, N, 1, 2), M, dtype=torch.int32), None)
        return Lowered(complement(spans, M), None)

    def batch_and_heads(self) -> tuple[int, int]:
        return self.mask.batch_and_heads()

    def cache_key(self) -> Hashable | None:
        key = self.mask.cache_key()
        return None if key is None else (Not, key)

    def __repr__(self) -> str:
        return f"~({self.mask!r})" if isinstance(self.mask, _Pair) else f"~{self.mask!r}"

    def _extent(self) -> tuple[int, int]:
        return self.mask._extent()
