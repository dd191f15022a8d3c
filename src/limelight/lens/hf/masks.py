"""The masks of transformers as masks of limelight.

transformers describes a mask as a function of a query's and a key's position, plus a padding mask. The functions that
transformers makes itself are translated into limelight's masks; any other function is evaluated. The result travels
through the model as a ``SpanMask``: a tensor subclass that has the shape of the boolean mask that the model expects
and stores no elements. Where the model computes with it, it turns into the dense mask.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import reduce
from operator import and_
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from limelight.core.checks import SlowPathWarning
from limelight.core.masks import Causal, Dense, Documents, First, Mask, Padding, Spans, Window
from limelight.core.spans import count_runs, runs_of_true, single_spans
from limelight.core.torch_modes import is_traced
from limelight.lens.hf.interfaces import masking_utils, prepare_padding_mask, sdpa_mask
from limelight.nn.stack import lowered

_MAX_SPANS = 16  # spans per query; beyond that a dense mask is as fast


class SpanMask(Tensor):
    """A boolean mask ``(batch, 1, queries, keys)`` that is described by a limelight mask and not stored.

    Attributes:
        mask: the description, for the first ``keys`` keys; the last of these is at the position of the last query.
        lowered: the same mask as spans.
        keys: how many keys the description covers; those after them (the free part of a static cache) are masked.

    """

    mask: Mask
    lowered: Mask | None
    keys: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, mask: Mask, shape: tuple[int, int, int, int], keys: int, device: Any = "cpu") -> SpanMask:
        found: SpanMask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        found.mask, found.keys = mask, keys
        found.lowered = lowered(mask, shape[2], keys)
        return found

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def dense(self) -> Tensor:
        """Return the boolean tensor."""
        B, _, N, M = self.shape
        allowed = self.mask.dense(N, self.keys, self.device)
        return torch.nn.functional.pad(allowed, (0, M - self.keys)).expand(B, 1, N, M)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = tree_map_only(SpanMask, SpanMask.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"SpanMask({tuple(self.shape)}, {self.mask!r})"


def span_mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: Any = "cpu",
    cache_position: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """Return None where everything is visible, otherwise a ``SpanMask``; the entry in transformers' registry of masks.

    transformers 5 passes ``q_length`` and ``q_offset``, transformers 4 ``cache_position``, the positions of queries.
    """
    if cache_position is not None:
        q_length, device = len(cache_position), cache_position.device
        q_offset = 0 if is_traced() else int(cache_position[0])
    assert q_length is not None

    def dense_mask(**more: Any) -> Tensor | None:
        queries = {"q_length": q_length, "q_offset": q_offset, "use_vmap": use_vmap, "device": device}
        mask: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            kv_length=kv_length,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            **(queries if cache_position is None else {"cache_position": cache_position}),
            **more,
        )
        return mask

    if is_traced():
        return dense_mask(allow_is_bidirectional_skip=allow_is_bidirectional_skip, **others)
    try:
        parts, keys = _parts_and_keys(mask_function, attention_mask, int(q_offset), q_length, kv_offset, kv_length)
    except _UnknownFunction:
        whole = dense_mask()
        assert whole is not None
        return as_spans(whole)
    if not parts and keys == kv_length and (allow_is_causal_skip or allow_is_bidirectional_skip):
        return None
    return SpanMask(reduce(and_, parts or [First(keys)]), (batch_size, 1, q_length, kv_length), keys, device)


def _parts_and_keys(
    function: Callable[..., Any], attention_mask: Tensor | None, q_offset: int, N: int, kv_offset: int, M: int
) -> tuple[list[Mask], int]:
    """Return the masks whose intersection a call's mask is, and the number of keys that they cover."""
    parts = _masks_of(function, q_offset, N, kv_offset, M)
    # A causal query sees nothing after its own position, so the keys end with the last query (in a static cache).
    is_local = any(isinstance(x, (Causal, Window)) for x in parts)
    keys = min(q_offset - kv_offset + N, M) if is_local else M
    if N == 1:
        parts = [x for x in parts if not isinstance(x, Causal)]
    padding = _padding_mask(attention_mask, M, kv_offset)
    if padding is not None:
        parts += _masks_of_padding(padding[:, kv_offset : kv_offset + keys], N)
    return parts, keys


def _padding_mask(attention_mask: Tensor | None, kv_length: int, kv_offset: int) -> Tensor | None:
    """Return transformers' padding mask, extended to at least ``kv_offset + kv_length`` keys."""
    slicing = {"_slice": False} if "_slice" in inspect.signature(prepare_padding_mask).parameters else {}
    padding: Tensor | None = prepare_padding_mask(attention_mask, kv_length, kv_offset, **slicing)
    return padding


class _UnknownFunction(Exception):
    """Raised for a mask function that transformers did not make itself."""


def _masks_of(function: Callable[..., Any], q_offset: int, N: int, kv_offset: int, M: int) -> list[Mask]:
    """Return the masks whose intersection a mask function is; the last query must be at the last key's position."""
    if function is masking_utils.causal_mask_function:
        return [Causal()]
    if function is getattr(masking_utils, "bidirectional_mask_function", None):
        return []
    if getattr(function, "__module__", None) != masking_utils.__name__:
        raise _UnknownFunction
    captured = inspect.getclosurevars(function).nonlocals
    match function.__qualname__.split(".")[0]:
        case "and_masks":
            functions = captured["mask_functions"]
            parts = [mask for each in functions for mask in _masks_of(each, q_offset, N, kv_offset, M)]
            window = next((x for x in parts if isinstance(x, Window)), None)
            if window is not None and Causal() in parts:
                parts = [x for x in parts if x not in (window, Causal())] + [Window(window.left, 0)]
            return parts
        case "sliding_window_overlay" if captured["sliding_window"] > 0:
            return [Window(captured["sliding_window"] - 1, N + M)]
        case "sliding_window_bidirectional_overlay" if q_offset - kv_offset == M - N:
            return [Window(captured["sliding_window"])]
        case "packed_sequence_mask_function" if q_offset == kv_offset == 0 and N == M:
            return [Documents(captured["packed_sequence_mask"])]
        case "remap_positions_for_packed_sequence":
            # transformers combines it with the mask of documents, and positions are consecutive inside a document. So
            # a mask that depends only on the distance between query and key is the same for positions that restart.
            parts = _masks_of(captured["mask_function"], q_offset, N, kv_offset, M)
            if all(isinstance(x, (Causal, Window)) for x in parts):
                return parts
        case "chunked_overlay" if q_offset - kv_offset == M - N:
            size, left = captured["chunk_size"], captured["left_padding"].reshape(-1, 1).cpu()
            begin = left + (torch.arange(q_offset, q_offset + N) - left) // size * size - kv_offset
            return [Spans(single_spans(begin, begin + size, N, M))]
    raise _UnknownFunction


def _masks_of_padding(real: Tensor, N: int) -> list[Mask]:
    """Return the masks for ``real (batch, keys)``, which is False where a key is padding."""
    real = real.cpu()
    if bool(real.all()):
        return []
    M, lengths = real.shape[1], real.sum(1)
    position = torch.arange(M)
    if torch.equal(real, position < lengths[:, None]):
        return [Padding(lengths)]
    if torch.equal(real, position >= M - lengths[:, None]):
        return [Padding(lengths, left=True)]
    spans = _spans(real[:, None])
    return [Dense(real[:, None, None])] if spans is None else [Spans(spans.expand(-1, N, -1, -1))]


def _spans(allowed: Tensor) -> Tensor | None:
    """Return the spans of a boolean mask ``(batch, queries, keys)``, or None if a query has too many."""
    return None if count_runs(allowed) > _MAX_SPANS else runs_of_true(allowed).to(torch.int32)


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Issue a ``SlowPathWarning`` the first time that this text is given."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, SlowPathWarning, stacklevel=3)


def as_spans(allowed: Tensor) -> Tensor:
    """Return a boolean mask ``(batch or 1, heads or 1, queries, keys)`` as a ``SpanMask``, else unchanged."""
    B, H, N, M = allowed.shape
    spans = _spans(allowed[:, 0].cpu()) if H == 1 else None
    if spans is None:
        warn_once("a mask of this model is not made of a few spans of keys, so it is used as it is: exact, but slower")
        return allowed
    return SpanMask(Spans(spans), (B, 1, N, M), M, allowed.device)
