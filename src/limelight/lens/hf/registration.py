"""Attention of transformers' models by limelight: ``attn_implementation="limelight"``.

>>> from transformers import BertConfig, BertModel
>>> register()
>>> config = BertConfig(vocab_size=11, hidden_size=12, num_hidden_layers=1, num_attention_heads=3, intermediate_size=7)
>>> config._attn_implementation = "limelight"
>>> BertModel(config)(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
torch.Size([1, 3, 12])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from limelight.core.biases import Bias, DenseBias, Relative
from limelight.core.masks import Causal, Dense, Mask, Padding
from limelight.core.torch_modes import is_traced
from limelight.functional import attention
from limelight.lens.hf.interfaces import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from limelight.lens.hf.masks import SpanMask, as_spans, span_mask, warn_once
from limelight.lens.recorder import recorders
from limelight.models.checkpoint import ARCHITECTURES

NAME = "limelight"


def register() -> None:
    """Make ``attn_implementation="limelight"`` known to transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, span_mask)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache: Any = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention for a module of transformers; the entry in its registry of attention functions."""
    if cache is not None:
        raise ValueError('attn_implementation="limelight" has no paged cache; use a dynamic or a static one')
    if others.get("output_attentions"):
        warn_once("limelight does not return the weights of output_attentions=True; record them with limelight.watch")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    found = _convert(query.shape[2], key.shape[2], attention_mask, is_causal, position_bias)
    if found.keys < key.shape[2]:
        key, value = key[:, :, : found.keys], value[:, :, : found.keys]
    recorder = recorders.get(module) if recorders else None
    if recorder is not None and s_aux is not None and not torch.is_grad_enabled():
        s_aux = s_aux.detach()  # a parameter: the recorded weights would require gradients later
    compute = attention if recorder is None else partial(recorder.attend, module)
    out = compute(
        query,
        key,
        value,
        mask=found.lowered if recorder is None else found.described,
        bias=found.bias,
        scale=scaling,
        softcap=softcap,
        sink=s_aux,
        dropout=dropout,
    )
    return out.transpose(1, 2).contiguous(), None


class _Converted(NamedTuple):
    """The mask and bias of a call of transformers, as limelight's own."""

    described: Mask | None  # as the record shows it
    lowered: Mask | None  # as the kernels take it
    bias: Bias | None
    keys: int  # number of keys that the mask covers; those after them are the free part of a static cache


def _convert(
    N: int, M: int, attention_mask: Tensor | None, is_causal: bool, position_bias: Tensor | None
) -> _Converted:
    """Convert the mask and the bias of a call with N queries and M keys."""
    causal = attention_mask is None and is_causal and N > 1
    if isinstance(attention_mask, SpanMask) and attention_mask.shape[-1] != M:
        attention_mask = attention_mask.dense()  # a model with a cache of its own, whose mask broadcasts
    keys = attention_mask.keys if isinstance(attention_mask, SpanMask) else N if causal else M
    described: Mask | None = Causal() if causal else None
    lowered, bias = described, None
    if attention_mask is not None:
        described, lowered, bias = _convert_mask(attention_mask, N, keys)
    if position_bias is not None:
        added = _cached_on(position_bias, partial(_convert_bias, position_bias, keys))
        bias = added if bias is None else bias + added
    return _Converted(described, lowered, bias, keys)


def _convert_bias(bias: Tensor, keys: int) -> Bias:
    """Return ``Relative`` for a bias ``(1, heads, queries, keys)`` that depends on distance alone, else dense."""
    bias = bias[..., :keys]
    N, M = bias.shape[-2:]
    if is_traced() or len(bias) > 1 or N > M or not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1]):
        return DenseBias(bias.contiguous())
    before, after = bias[0, :, -1], bias[0, :, 0, M - N + 1 :]  # rows of the last query and of the first
    return Relative(torch.cat([before, after, before.new_zeros(len(before), M - N)], -1))


def _cached_on(x: Tensor, make: Callable[[], Any]) -> Any:
    """Return ``make()``, computed once for a mask or bias tensor that all layers receive."""
    if is_traced() or (x.requires_grad and x.is_leaf):
        return make()
    known = getattr(x, "_limelight", None)
    if known is None or known[0] != x._version:
        known = x._version, make()
        x._limelight = known  # type: ignore[attr-defined]
    return known[1]


def _convert_mask(mask: Tensor, N: int, M: int) -> tuple[Mask | None, Mask | None, Bias | None]:
    """Return a mask as the record shows it, as the kernels take it, and the bias that a float mask contains."""
    if isinstance(mask, SpanMask):
        return mask.mask, mask.lowered, None
    if mask.ndim == 2:  # True for keys that are not padding
        lengths = mask.sum(1)
        if not torch.equal(mask != 0, torch.arange(M, device=mask.device) < lengths[:, None]):
            return _convert_mask(mask[:, None, None].expand(-1, 1, N, M) != 0, N, M)
        return Padding(lengths), Padding(lengths), None
    if mask.ndim != 4:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}; give (batch, keys) or (batch, heads, queries, keys)"
        )
    mask = mask[..., :M] if mask.shape[-1] >= M else mask.expand(-1, -1, -1, M)
    if mask.dtype != torch.bool:
        allowed = mask > torch.finfo(mask.dtype).min / 2
        bias = None
        if is_traced() or mask.requires_grad or bool((mask.masked_fill(~allowed, 0.0) != 0).any()):
            bias = DenseBias(mask.masked_fill(~allowed, 0.0))
        return Dense(allowed), Dense(allowed), bias
    if is_traced():
        return Dense(mask), Dense(mask), None
    shape = mask.shape[0], mask.shape[1], N, M
    found = _cached_on(mask, lambda: as_spans(mask.expand(shape)))
    if isinstance(found, SpanMask):
        return found.mask, found.lowered, None
    return Dense(found), Dense(found), None


@contextmanager
def using_implementation(model: nn.Module, implementation: str = NAME) -> Iterator[None]:
    """Switch a model to another implementation of attention inside a ``with`` block."""
    configs: dict[int, Any] = {
        id(m.config): m.config for m in model.modules() if hasattr(getattr(m, "config", None), "_attn_implementation")
    }
    before = [(config, config._attn_implementation_internal) for config in configs.values()]
    register()
    try:
        for config, _ in before:
            config._attn_implementation_internal = implementation
        yield
    finally:
        for config, name in before:
            config._attn_implementation_internal = name


def part_with_own_attention(model: nn.Module) -> PreTrainedModel | None:
    """Return a part of a model that computes attention itself instead of asking transformers' registry, or None."""
    parts = (m for m in model.modules() if isinstance(m, PreTrainedModel) and not m._can_set_attn_implementation())
    return next(parts, None)


# Modules whose softmax runs over bands or gathered blocks of keys, so that its columns are not keys.
_BANDED = {
    "LongformerSelfAttention": "longformer",
    "LEDEncoderSelfAttention": "led",
    "BigBirdBlockSparseAttention": "big_bird",
    "BigBirdPegasusBlockSparseAttention": "bigbird_pegasus",
}


def refuse_banded_attention(model: nn.Module) -> None:
    """Raise ``ValueError`` for a model whose softmax is not over keys in their order, however it is watched."""
    found = next((type(m).__name__ for m in model.modules() if type(m).__name__ in _BANDED), None)
    if found is None:
        return
    way = "its attention cannot be watched"
    if _BANDED[found] in ARCHITECTURES:
        way = "save it with model.save_pretrained(folder) and watch limelight.models.load(folder), which gives the same"
    if "BigBird" in found:
        way += ", or set attention_type='original_full' and watch(model, dense=True)"
    raise ValueError(
        f"watch: {found} computes its softmax over bands or gathered blocks of keys, not over the keys in order: {way}"
    )


def refuse_own_attention(model: nn.Module) -> None:
    """Raise ``ValueError`` for a model that computes attention itself."""
    if (part := part_with_own_attention(model)) is None:
        return
    kind, name = part.config.model_type, type(part).__name__
    ours = f"limelight.models.load(folder) gives a {kind} model that can be watched, and "
    raise ValueError(
        f"{name} of transformers {transformers.__version__} computes attention itself and does not ask its registry: "
        f"{ours if kind in ARCHITECTURES else ''}watch(model, dense=True) reads its eager weights"
    )
