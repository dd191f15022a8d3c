"""Masks: which keys a query may attend to, as values that combine with ``&`` and ``|``.

True means attend. Query ``i`` of ``N`` stands at position ``M - N + i`` of ``M`` keys, so the last query
is at the last key and a cache needs nothing special. A mask says the same thing twice: ``allows`` is its
definition, a condition on a query and a key, and ``lower`` turns it into what the kernels walk, a few
spans of keys for every query, described in O(N).

>>> print(Causal() & Window(2))
Causal() & Window(2), 9 queries × 9 keys
■ · · · · · · · ·
■ ■ · · · · · · ·
■ ■ ■ · · · · · ·
· ■ ■ ■ · · · · ·
· · ■ ■ ■ · · · ·
· · · ■ ■ ■ · · ·
· · · · ■ ■ ■ · ·
· · · · · ■ ■ ■ ·
· · · · · · ■ ■ ■
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limelight.core.broadcasting import at, common_lead, dense_lead, fit_dense
from limelight.core.spans import document_spans, intersection, single, union
from limelight.core.tracing import transformed


class Lowered(NamedTuple):
    """A key is allowed where it lies in one of the query's ``spans`` and ``dense`` is True there.

    ``None`` stands for everything.
    """

    spans: Tensor | None
    dense: Tensor | None


class Mask:
    """Base of all masks."""

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        """Whether query ``i`` of ``N`` may attend to key ``j`` of ``M``, for index tensors that broadcast.

        The result broadcasts to ``(batch, heads, *broadcast of i and j)``.
        """
        raise NotImplementedError

    def lower(self, N: int, M: int) -> Lowered:
        """The same as spans of keys for each of ``N`` queries."""
        raise NotImplementedError

    def lead(self) -> tuple[int, int]:
        """For how many batch elements and heads it speaks; 1 stands for any number."""
        return 1, 1

    def dense(self, N: int, M: int | None = None, device: torch.device | str | None = None) -> Tensor:
        """The mask as a boolean tensor ``(N, M)``, with leading axes ``(batch, heads)`` where it has them.

        >>> Causal().dense(2, 3)
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

    def __bool__(self) -> bool:
        raise TypeError("a mask is neither true nor false; combine masks with & and |, and ask 'mask is None'")

    def _extent(self) -> tuple[int, int]:
        """A number of queries and keys at which a drawing shows what the mask does."""
        return 9, 9

    def __str__(self) -> str:
        return draw(self, *self._extent())


def _as_mask(value: object, operator: str) -> Mask:
    if isinstance(value, Mask):
        return value
    hint = "wrap the tensor as Dense(tensor)" if isinstance(value, Tensor) else "both sides must be masks"
    raise TypeError(f"mask {operator} {type(value).__name__}: {hint}")


def positions(i: Tensor, N: int, M: int) -> Tensor:
    """Where query ``i`` stands among the keys: the last query at the last key."""
    return i + (M - N)


def _positions(N: int, M: int) -> Tensor:
    return torch.arange(M - N, M)[None]


@dataclass(frozen=True)
class Causal(Mask):
    """``key ≤ position of the query``: nothing of the future.

    >>> print(Causal().dense(3).int())
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return j <= positions(i, N, M)

    def lower(self, N: int, M: int) -> Lowered:
        if N == 1:
            return Lowered(None, None)
        return Lowered(single(0, _positions(N, M) + 1, N, M), None)


@dataclass(frozen=True)
class Window(Mask):
    """``position - left ≤ key ≤ position + right``; ``right`` is ``left`` unless given.

    >>> print(Window(1).dense(4).int())
    tensor([[1, 1, 0, 0],
            [1, 1, 1, 0],
            [0, 1, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    left: int
    right: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "left", _whole("Window", "left", self.left))
        if self.right is not None:
            object.__setattr__(self, "right", _whole("Window", "right", self.right))

    @property
    def _after(self) -> int:
        return self.left if self.right is None else self.right

    def _reach(self, N: int, M: int) -> tuple[int, int]:
        """No further than the ends, which keeps the arithmetic of positions small."""
        return min(self.left, N + M), min(self._after, N + M)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        p = positions(i, N, M)
        left, right = self._reach(N, M)
        return (j >= p - left) & (j <= p + right)

    def lower(self, N: int, M: int) -> Lowered:
        p = _positions(N, M)
        left, right = self._reach(N, M)
        return Lowered(single(p - left, p + (right + 1), N, M), None)

    def __repr__(self) -> str:
        return f"Window({self.left})" if self.right is None else f"Window({self.left}, {self.right})"

    def _extent(self) -> tuple[int, int]:
        n = max(9, 3 * (max(self.left, self._after) + 1))
        return n, n


def _whole(mask: str, name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{mask}: {name} must be a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"{mask}: {name} = {value} is negative; it counts keys, so give 0 or more")
    return int(value)


def _counts(mask: str, name: str, value: object) -> Tensor:
    """A number, or one for each batch element, as an int64 tensor ``(batch,)`` or ``(1,)``."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{mask}: {name} must be whole numbers, not {value!r}") from None
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"{mask}: {name} must be whole numbers, not {tensor.dtype}")
    tensor = tensor.detach().to(torch.int64).reshape(-1)
    if not transformed() and tensor.numel() and int(tensor.min()) < 0:
        raise ValueError(f"{mask}: {name} = {int(tensor.min())} is negative; it counts keys, so give 0 or more")
    return tensor


def _show(counts: Tensor) -> str:
    values = counts.tolist()
    return str(values[0]) if len(values) == 1 else str(values)


@dataclass(frozen=True, eq=False, repr=False)
class First(Mask):
    """``key < n``: the first ``n`` keys, such as attention sinks or global tokens. ``n`` may differ by batch."""

    n: int | Sequence[int] | Tensor
    _n: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_n", _counts(type(self).__name__, "n", self.n))

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return (j < _by_batch(self._n, j)) & (i >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(single(0, _column(self._n), N, M), None)

    def lead(self) -> tuple[int, int]:
        return self._n.numel(), 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_show(self._n)})"

    def _extent(self) -> tuple[int, int]:
        n = max(9, 2 * int(self._n.max()) if self._n.numel() else 9)
        return n, n


class Prefix(First):
    """``key < n or key ≤ position``: a prefix that all may see, causal after it (prefix-LM)."""

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return super().allows(i, j, N, M) | (j <= positions(i, N, M))

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(single(0, torch.maximum(_positions(N, M) + 1, _column(self._n)), N, M), None)


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """``key < length``: each batch element has its own number of real keys, the rest is padding.

    With ``left`` the padding comes first, and the real keys are the last ones.

    >>> print(Padding([2, 3]).dense(1, 3).int().flatten(1))
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    >>> print(Padding([2, 3], left=True).dense(1, 3).int().flatten(1))
    tensor([[0, 1, 1],
            [1, 1, 1]], dtype=torch.int32)
    """

    lengths: int | Sequence[int] | Tensor
    left: bool = False
    _lengths: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lengths", _counts("Padding", "lengths", self.lengths))

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        self._fit(M)
        lengths = _by_batch(self._lengths, j)
        return (j >= M - lengths if self.left else j < lengths) & (i >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        self._fit(M)
        lengths = _column(self._lengths)
        return Lowered(
            single(M - lengths, lengths.new_tensor([[M]]), N, M) if self.left else single(0, lengths, N, M), None
        )

    def counts(self, B: int, M: int) -> Tensor:
        """The length of each of ``B`` batch elements with ``M`` keys."""
        self._fit(M)
        if self._lengths.numel() not in (1, B):
            raise ValueError(f"Padding speaks of {self._lengths.numel()} batch elements and there are {B}")
        return self._lengths.cpu().expand(B)

    def _fit(self, M: int) -> None:
        if transformed():  # where values are not known; lengths are clipped
            return
        longest = int(self._lengths.max()) if self._lengths.numel() else 0
        if longest > M:
            raise ValueError(f"Padding: length {longest} is more than the {M} keys there are")

    def lead(self) -> tuple[int, int]:
        return self._lengths.numel(), 1

    def __repr__(self) -> str:
        return f"Padding({_show(self._lengths)}{', left=True' if self.left else ''})"

    def _extent(self) -> tuple[int, int]:
        n = int(self._lengths.max()) if self._lengths.numel() else 0
        return n + 1, n + 1


def _by_batch(counts: Tensor, like: Tensor) -> Tensor:
    """Shape ``(batch, 1, 1, 1)``, or ``()`` where there is one number for all."""
    counts = counts.to(like.device)
    return counts.reshape(()) if counts.numel() == 1 else counts.reshape(-1, 1, 1, 1)


def _column(counts: Tensor) -> Tensor:
    return counts.cpu().reshape(-1, 1)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """``id of the query = id of the key``: packed sequences, each of which sees only itself.

    ``ids`` names the document of every key, ``(M,)`` or ``(batch, M)``. The queries are the last ``N`` of
    them unless ``queries``, ``(N,)`` or ``(batch, N)``, names theirs (cross-attention between packed
    sources and packed targets). The tokens of a document are expected to stand together.

    >>> print(Documents(torch.tensor([7, 7, 7, 8, 8])))
    Documents([7, 7, 7, 8, 8]), 5 queries × 5 keys
    ■ ■ ■ · ·
    ■ ■ ■ · ·
    ■ ■ ■ · ·
    · · · ■ ■
    · · · ■ ■
    """

    ids: Sequence[int] | Tensor
    queries: Sequence[int] | Tensor | None = None
    _ids: Tensor = field(init=False)
    _queries: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", _id_rows("ids", self.ids))
        object.__setattr__(self, "_queries", None if self.queries is None else _id_rows("queries", self.queries))

    def _sides(self, N: int, M: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ids of the queries and of the keys, and which queries stand at a key at all."""
        if self._ids.shape[-1] != M:
            raise ValueError(f"Documents: {self._ids.shape[-1]} ids for {M} keys; give one for each key")
        if self._queries is not None:
            if self._queries.shape[-1] != N:
                raise ValueError(
                    f"Documents: {self._queries.shape[-1]} query ids for {N} queries; give one for each query"
                )
            return self._queries, self._ids, torch.ones(N, dtype=torch.bool, device=self._ids.device)
        before = max(N - M, 0)  # queries that stand before the first key
        queries = torch.nn.functional.pad(self._ids[:, M - (N - before) :], (before, 0))
        return queries, self._ids, torch.arange(N, device=self._ids.device) >= before

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        queries, keys, present = (x.to(i.device) for x in self._sides(N, M))
        same = (queries[:, i] == keys[:, j]) & present[i]
        return same[0] if same.shape[0] == 1 else same[:, None]

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(document_spans(*self._sides(N, M)), None)

    def lead(self) -> tuple[int, int]:
        return max(self._ids.shape[0], 1 if self._queries is None else self._queries.shape[0]), 1

    def __repr__(self) -> str:
        def text(ids: Tensor) -> str:
            shown = ids[0].tolist() if ids.shape[0] == 1 else ids.tolist()
            return str(shown) if ids.numel() <= 24 else f"<{tuple(ids.shape)} ids>"

        return f"Documents({text(self._ids)}" + (f", {text(self._queries)})" if self._queries is not None else ")")

    def _extent(self) -> tuple[int, int]:
        M = self._ids.shape[-1]
        return M if self._queries is None else self._queries.shape[-1], M


def _id_rows(name: str, ids: Sequence[int] | Tensor) -> Tensor:
    try:
        tensor = ids if isinstance(ids, Tensor) else torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"Documents: {name} must be whole numbers, as many in every row") from None
    if tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"Documents: {name} must be whole numbers, not {tensor.dtype}")
    if tensor.ndim == 0:
        raise ValueError(f"Documents: {name} must be (keys,) or (batch, keys), not a single number")
    return tensor.detach().reshape(-1, tensor.shape[-1])


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """Any boolean tensor that broadcasts to ``(batch, heads, N, M)``; True means attend."""

    tensor: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor) or self.tensor.dtype != torch.bool:
            got = self.tensor.dtype if isinstance(self.tensor, Tensor) else type(self.tensor).__name__
            raise TypeError(
                f"Dense: the mask must be a boolean tensor, not {got}; True means attend "
                "(for numbers that are added to the scores use DenseBias)"
            )

    def _fit(self, N: int, M: int) -> Tensor:
        return fit_dense("Dense", self.tensor, N, M)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return at(self._fit(N, M).to(i.device), i, j, N, M)

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(None, self._fit(N, M))

    def lead(self) -> tuple[int, int]:
        return dense_lead(self.tensor)

    def __repr__(self) -> str:
        return f"Dense(<{tuple(self.tensor.shape)} bool>)"

    def _extent(self) -> tuple[int, int]:
        return self.tensor.shape[-2], self.tensor.shape[-1]


@dataclass(frozen=True, eq=False, repr=False)
class Spans(Mask):
    """A mask in its lowered form: ``begin ≤ key < end`` for one of the query's spans ``(batch or 1, N, count, 2)``."""

    spans: Tensor

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        begin, end = self.spans.to(i.device)[:, i].unbind(-1)
        inside = ((begin <= j[..., None]) & (j[..., None] < end)).any(-1)
        return inside[:, None]

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(self.spans, None)

    def lead(self) -> tuple[int, int]:
        return self.spans.shape[0], 1

    def __repr__(self) -> str:
        return f"Spans(<{tuple(self.spans.shape)}>)"


@dataclass(frozen=True, repr=False)
class _Pair(Mask):
    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        self.lead()

    def lead(self) -> tuple[int, int]:
        return common_lead(self, self.left.lead(), self.right.lead())

    def _extent(self) -> tuple[int, int]:
        own = [m._extent() for m in (self.left, self.right) if _bound(m)]
        sizes = own or [self.left._extent(), self.right._extent()]
        return max(n for n, _ in sizes), max(m for _, m in sizes)

    def _text(self, symbol: str, looser: type[Mask]) -> str:
        return f" {symbol} ".join(f"({m!r})" if isinstance(m, looser) else repr(m) for m in (self.left, self.right))


def _bound(mask: Mask) -> bool:
    """Whether the mask brings data that fixes the number of keys."""
    if isinstance(mask, _Pair):
        return _bound(mask.left) or _bound(mask.right)
    return isinstance(mask, (Dense, Documents))


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


_CELLS = 24
_POINTS = 8  # looked at in a cell, along each axis


def draw(mask: Mask, N: int, M: int) -> str:
    """The mask in characters: ■ allowed, · not, ▨ a cell of a larger mask that is allowed in part."""
    title = f"{mask!r}, {N} queries × {M} keys"
    if N == 0 or M == 0:
        return title
    i, j = (torch.linspace(0, n - 1, min(n, _CELLS * _POINTS)).round().long() for n in (N, M))
    allowed = mask.allows(i[:, None], j[None, :], N, M)
    allowed = allowed.reshape(-1, len(i), len(j))[0].float()  # the first batch element and head
    rows, cols = min(N, _CELLS), min(M, _CELLS)
    share = torch.nn.functional.adaptive_avg_pool2d(allowed[None], (rows, cols))[0]
    lines = (" ".join("■" if x == 1 else "·" if x == 0 else "▨" for x in row) for row in share.tolist())
    return "\n".join([title, *lines])
