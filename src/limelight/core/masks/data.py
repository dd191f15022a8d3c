"""Masks that bring data: padding, packed documents, tensors, and spans themselves."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from limelight.core.broadcasting import entries_at, fit_dense, tensor_batch_and_heads
from limelight.core.masks.base import Lowered, Mask
from limelight.core.masks.counts import as_column, as_counts, by_batch, show_counts
from limelight.core.spans import document_spans, single_spans
from limelight.core.torch_modes import is_traced

_MOST_LENGTHS = 64  # reading more of them to look up a lowered mask costs as much as to lower it again


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """``key < length``: each batch element has its own number of real keys, the rest is padding.

    Args:
        lengths: the number of real keys, at most that of all keys: one for all batch elements, or one for each,
            ``(batch,)``.
        left: the padding comes first, and the real keys are the last ones: ``key ≥ M - length``.

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
        object.__setattr__(self, "_lengths", as_counts("Padding", "lengths", self.lengths))

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        self._fit(M)
        lengths = by_batch(self._lengths, j)
        return (j >= M - lengths if self.left else j < lengths) & (i >= 0)

    def lower(self, N: int, M: int) -> Lowered:
        self._fit(M)
        lengths = as_column(self._lengths)
        return Lowered(
            single_spans(M - lengths, lengths.new_tensor([[M]]), N, M) if self.left else single_spans(0, lengths, N, M),
            None,
        )

    def counts(self, B: int, M: int) -> Tensor:
        """The length of each of ``B`` batch elements with ``M`` keys."""
        self._fit(M)
        if self._lengths.numel() not in (1, B):
            raise ValueError(f"Padding has {self._lengths.numel()} lengths and there are {B} batch elements")
        return self._lengths.cpu().expand(B)

    def _fit(self, M: int) -> None:
        if is_traced():  # values are unknown; lengths are clipped
            return
        longest = int(self._lengths.max()) if self._lengths.numel() else 0
        if longest > M:
            raise ValueError(f"Padding: length {longest} is more than the {M} keys there are")

    def batch_and_heads(self) -> tuple[int, int]:
        return self._lengths.numel(), 1

    def cache_key(self) -> Hashable | None:
        lengths = self._lengths
        if lengths.numel() > _MOST_LENGTHS or not lengths.is_cpu:
            return None
        return Padding, tuple(lengths.tolist()), self.left

    def __repr__(self) -> str:
        return f"Padding({show_counts(self._lengths)}{', left=True' if self.left else ''})"

    def _extent(self) -> tuple[int, int]:
        n = int(self._lengths.max()) if self._lengths.numel() else 0
        return n + 1, n + 1


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """``id of the query = id of the key``: packed sequences, each of which sees only itself.

    The tokens of a document are expected to stand together.

    Args:
        ids: a whole number for the document of each key, ``(M,)`` or ``(batch, M)``.
        queries: the same for each query, ``(N,)`` or ``(batch, N)``, as in cross-attention between packed sources and
            packed targets; the queries are the last ``N`` keys unless given.

    >>> print(Documents(torch.tensor([7, 7, 7, 8, 8])))
    Documents([7, 7, 7, 8, 8]), 5 queries × 5 keys
    ■ ■ ■ · ·
    ■ ■ ■ · ·
    ■ ■ ■ · ·
    · · · ■ ■
    · · · ■ ■

    """

    fixes_keys = True
    ids: Sequence[int] | Tensor
    queries: Sequence[int] | Tensor | None = None
    _ids: Tensor = field(init=False)
    _queries: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", _id_rows("ids", self.ids))
        object.__setattr__(self, "_queries", None if self.queries is None else _id_rows("queries", self.queries))

    def _sides(self, N: int, M: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ids of queries and keys, and True for each query that stands at a key."""
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

    def batch_and_heads(self) -> tuple[int, int]:
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
    if not isinstance(ids, Tensor) and not tensor.numel():
        raise ValueError(f"Documents: {name} is empty; give a number for each token")
    if tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"Documents: {name} must be whole numbers, not {tensor.dtype}")
    if tensor.ndim == 0:
        raise ValueError(f"Documents: {name} must be (keys,) or (batch, keys), not a single number")
    return tensor.detach().reshape(-1, tensor.shape[-1])


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Mask):
    """``tensor[batch, head, query, key]``: any boolean tensor; True means attend.

    Args:
        tensor: booleans that broadcast to ``(batch, heads, N, M)``, such as ``(N, M)`` or ``(batch, 1, 1, M)``. Large
            parts of it that are False are not computed.

    >>> print(Dense(torch.eye(2).bool()))
    Dense(<(2, 2) bool>), 2 queries × 2 keys
    ■ ·
    · ■

    """

    fixes_keys = True
    tensor: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor) or self.tensor.dtype != torch.bool:
            got = self.tensor.dtype if isinstance(self.tensor, Tensor) else type(self.tensor).__name__
            raise TypeError(
                f"Dense: the mask must be a boolean tensor, not {got}; True means attend "
                "(for numbers that are added to the scores use DenseBias)"
            )

    def check_not_padding(self, batch: int) -> None:
        """Refuse a tensor ``(batch, keys)`` of padding, which would be read as queries × keys.

        It is taken for one where every row is a run of True and then of False, or the other way round, and the runs
        neither only grow nor only shrink from row to row, as those of queries would.
        """
        if self.tensor.ndim != 2 or len(self.tensor) != batch or batch < 3 or is_traced():
            return
        x = self.tensor.int()
        steps, counts = x.diff(dim=1), x.sum(1).diff()
        runs = bool((steps <= 0).all() | (steps >= 0).all())
        if runs and bool((counts > 0).any() & (counts < 0).any()):
            raise ValueError(
                f"Dense: this mask of shape {tuple(x.shape)} looks like padding of {batch} batch elements, and "
                "would be read as queries × keys, since there are as many; write Padding(lengths) or "
                "Dense(mask[:, None, None, :]), where True means attend, or, if it is queries × keys, "
                "Dense(mask[None, None])"
            )

    def _fit(self, N: int, M: int) -> Tensor:
        return fit_dense("Dense", self.tensor, N, M)

    def allows(self, i: Tensor, j: Tensor, N: int, M: int) -> Tensor:
        return entries_at(self._fit(N, M).to(i.device), i, j, N, M)

    def lower(self, N: int, M: int) -> Lowered:
        return Lowered(None, self._fit(N, M))

    def batch_and_heads(self) -> tuple[int, int]:
        return tensor_batch_and_heads(self.tensor)

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

    def batch_and_heads(self) -> tuple[int, int]:
        return self.spans.shape[0], 1

    def __repr__(self) -> str:
        return f"Spans(<{tuple(self.spans.shape)}>)"
