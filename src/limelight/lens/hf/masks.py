"""The masks of transformers as masks of limelight.

transformers describes a mask as a function of a query's and a key's position, with what is known of padding beside it.
The functions that it makes itself are read as the values that they stand for, any other is evaluated. What results is
handed through a model as a tensor that holds no numbers: ``Visible`` has the shape of the boolean mask that a model
expects, and becomes that mask where somebody computes with it.
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
from transformers import masking_utils
from transformers.masking_utils import prepare_padding_mask, sdpa_mask

from limelight.core.checks import SlowPathWarning
from limelight.core.masks import Causal, Dense, Documents, First, Mask, Padding, Spans, Window
from limelight.core.spans import single
from limelight.core.tracing import is_traced
from limelight.nn.stack import lowered

_MOST = 16  # spans of a query, beyond which a dense mask is no slower


class Visible(Tensor):
    """A boolean mask ``(batch, 1, queries, keys)`` that is described and not stored."""

    mask: Mask  # for the first ``keys`` keys, of which the last is where the last query stands
    lowered: Mask | None  # the same as spans
    keys: int

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, mask: Mask, shape: tuple[int, int, int, int], keys: int, device: Any = "cpu") -> Visible:
        found: Visible = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        found.mask, found.keys = mask, keys
        found.lowered = lowered(mask, shape[2], keys)
        return found

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def numbers(self) -> Tensor:
        """The mask itself."""
        B, _, N, M = self.shape
        allowed = self.mask.dense(N, self.keys, self.device)
        return torch.nn.functional.pad(allowed, (0, M - self.keys)).expand(B, 1, N, M)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = tree_map_only(Visible, Visible.numbers, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Visible({tuple(self.shape)}, {self.mask!r})"


def visible_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: Any = "cpu",
    **others: Any,
) -> Tensor | None:
    """What stands in transformers' registry of masks: None where everything is visible, and ``Visible`` otherwise."""
    arguments: dict[str, Any] = {
        **{"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "kv_offset": kv_offset},
        **{"q_offset": q_offset, "mask_function": mask_function, "attention_mask": attention_mask},
        **{"allow_is_causal_skip": False, "use_vmap": use_vmap, "device": device},
    }
    if is_traced():
        return sdpa_mask(**arguments, allow_is_bidirectional_skip=allow_is_bidirectional_skip, **others)
    first = int(q_offset) - kv_offset  # the position of the first query among the keys
    try:
        parts = _read(mask_function, int(q_offset), q_length, kv_offset, kv_length)
    except _Unknown:
        whole = sdpa_mask(**{**arguments, "q_offset": int(q_offset)})
        assert whole is not None
        return compressed(whole)
    # The last query stands at the last key, beyond which a causal one sees nothing (the rest of a static cache).
    keys = min(first + q_length, kv_length) if any(isinstance(x, (Causal, Window)) for x in parts) else kv_length
    parts = [x for x in parts if q_length > 1 or not isinstance(x, Causal)]
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        parts += _padding(padding[:, kv_offset : kv_offset + keys], q_length)
    skip = allow_is_causal_skip or allow_is_bidirectional_skip
    if not parts and keys == kv_length and skip:
        return None
    return Visible(reduce(and_, parts or [First(keys)]), (batch_size, 1, q_length, kv_length), keys, device)


class _Unknown(Exception):
    """A mask function that transformers did not make itself."""


def _read(function: Callable[..., Any], q_offset: int, N: int, kv_offset: int, M: int) -> list[Mask]:
    """The masks that a function is the intersection of, for queries of which the last stands at the last key."""
    if function is masking_utils.causal_mask_function:
        return [Causal()]
    if function is masking_utils.bidirectional_mask_function:
        return []
    if getattr(function, "__module__", None) != masking_utils.__name__:
        raise _Unknown
    known = inspect.getclosurevars(function).nonlocals
    match function.__qualname__.split(".")[0]:
        case "and_masks":
            parts = [x for f in known["mask_functions"] for x in _read(f, q_offset, N, kv_offset, M)]
            window = next((x for x in parts if isinstance(x, Window)), None)
            if window is not None and Causal() in parts:
                parts = [x for x in parts if x not in (window, Causal())] + [Window(window.left, 0)]
            return parts
        case "sliding_window_overlay" if known["sliding_window"] > 0:
            return [Window(known["sliding_window"] - 1, N + M)]
        case "sliding_window_bidirectional_overlay" if q_offset - kv_offset == M - N:
            return [Window(known["sliding_window"])]
        case "packed_sequence_mask_function" if q_offset == kv_offset == 0 and N == M:
            return [Documents(known["packed_sequence_mask"])]
        case "chunked_overlay" if q_offset - kv_offset == M - N:
            size, left = known["chunk_size"], known["left_padding"].reshape(-1, 1).cpu()
            begin = left + (torch.arange(q_offset, q_offset + N) - left) // size * size - kv_offset
            return [Spans(single(begin, begin + size, N, M))]
    raise _Unknown


def _padding(real: Tensor, N: int) -> list[Mask]:
    """What a two-dimensional mask ``(batch, keys)`` says of the keys."""
    real = real.cpu()
    if bool(real.all()):
        return []
    M, lengths = real.shape[1], real.sum(1)
    place = torch.arange(M)
    if torch.equal(real, place < lengths[:, None]):
        return [Padding(lengths)]
    if torch.equal(real, place >= M - lengths[:, None]):
        return [Padding(lengths, left=True)]
    spans = spans_of(real[:, None])
    return [Dense(real[:, None, None])] if spans is None else [Spans(spans.expand(-1, N, -1, -1))]


def spans_of(allowed: Tensor) -> Tensor | None:
    """The spans of a boolean mask ``(batch, queries, keys)``, or None where they are many."""
    B, N, M = allowed.shape
    edge = torch.nn.functional.pad(allowed.to(torch.int8), (1, 1)).diff(dim=-1)
    begins = edge == 1
    count = begins.sum(-1)
    most = int(count.max()) if count.numel() else 0
    if most > _MOST:
        return None
    spans = torch.full((B, N, max(most, 1), 2), M, dtype=torch.int32)
    for side, there in enumerate((begins, edge == -1)):
        b, i, j = there.nonzero(as_tuple=True)
        spans[b, i, there.cumsum(-1)[b, i, j] - 1, side] = j.int()
    return spans


_said: set[str] = set()


def say_once(text: str) -> None:
    """A warning, the first time."""
    if text not in _said:
        _said.add(text)
        warnings.warn(text, SlowPathWarning, stacklevel=3)


def compressed(allowed: Tensor) -> Tensor:
    """A boolean mask ``(batch or 1, heads or 1, queries, keys)`` as spans, or as it is where it has many."""
    B, H, N, M = allowed.shape
    spans = spans_of(allowed[:, 0].cpu()) if H == 1 else None
    if spans is None:
        say_once("a mask of this model is not made of a few spans of keys, so it is used as it is: exact, but slower")
        return allowed
    return Visible(Spans(spans), (B, 1, N, M), M, allowed.device)
