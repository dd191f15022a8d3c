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
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from limelight.core.biases import Bias, DenseBias, Relative
from limelight.core.masks import Causal, Dense, Mask, Padding
from limelight.core.tracing import is_traced
from limelight.functional import attention
from limelight.lens.hf.masks import Visible, compressed, say_once, visible_mask
from limelight.models.checkpoint import ARCHITECTURES

NAME = "limelight"

# Who wants to see what a module attends to: it is given q, k, v, dropout and the options of ``weights``, and attends.
Witness = Callable[[Tensor, Tensor, Tensor, float, dict[str, Any]], Tensor]
witnesses: WeakKeyDictionary[nn.Module, Witness] = WeakKeyDictionary()


def register() -> None:
    """Makes ``attn_implementation="limelight"`` known to transformers."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, visible_mask)


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
    """What stands in transformers' registry of attention functions."""
    if cache is not None:
        raise ValueError('attn_implementation="limelight" has no paged cache; use a dynamic or a static one')
    if others.get("output_attentions"):
        say_once("limelight never makes the weights that output_attentions asks for; look at them with limelight.watch")
    N = query.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = attention_mask is None and is_causal and N > 1
    if isinstance(attention_mask, Visible) and attention_mask.shape[-1] != key.shape[2]:
        attention_mask = attention_mask.numbers()  # a model with a cache of its own, whose mask broadcasts
    keys = attention_mask.keys if isinstance(attention_mask, Visible) else N if causal else key.shape[2]
    if keys < key.shape[2]:
        key, value = key[:, :, :keys], value[:, :, :keys]
    shown, used, bias = _understood(attention_mask, query, key) if attention_mask is not None else (None, None, None)
    if causal:
        shown = used = Causal()
    if position_bias is not None:
        added = _once(position_bias, partial(_positional, position_bias, keys))
        bias = added if bias is None else bias + added
    options: dict[str, Any] = {"bias": bias, "scale": scaling, "softcap": softcap, "sink": s_aux}
    witness = witnesses.get(module) if witnesses else None
    if witness is None:
        out = attention(query, key, value, mask=used, dropout=dropout, **options)
    else:
        if s_aux is not None and not torch.is_grad_enabled():
            options["sink"] = s_aux.detach()  # a parameter, which would ask for gradients later
        out = witness(query, key, value, dropout, {"mask": shown, **options})
    return out.transpose(1, 2).contiguous(), None


def _positional(given: Tensor, keys: int) -> Bias:
    """A bias ``(1, heads, queries, keys)``: by distance alone where it is (T5's), so that nothing n × n is kept."""
    given = given[..., :keys]
    N, M = given.shape[-2:]
    if is_traced() or len(given) > 1 or N > M or not torch.equal(given[..., 1:, 1:], given[..., :-1, :-1]):
        return DenseBias(given.contiguous())
    before, after = given[0, :, -1], given[0, :, 0, M - N + 1 :]  # what the last query sees, and the first
    return Relative(torch.cat([before, after, before.new_zeros(len(before), M - N)], -1))


def _once(x: Tensor, make: Callable[[], Any]) -> Any:
    """What is made of a mask or bias that comes to every layer, made for the first."""
    if is_traced() or (x.requires_grad and x.is_leaf):
        return make()
    known = getattr(x, "_limelight", None)
    if known is None or known[0] != x._version:
        known = x._version, make()
        x._limelight = known  # type: ignore[attr-defined]
    return known[1]


def _understood(given: Tensor, q: Tensor, k: Tensor) -> tuple[Mask | None, Mask | None, Bias | None]:
    """A mask as it is shown, as it is used, and what is added to the logits."""
    if isinstance(given, Visible):
        return given.mask, given.lowered, None
    N, M = q.shape[2], k.shape[2]
    if given.ndim == 2:  # which keys are real
        lengths = given.sum(1)
        if not torch.equal(given != 0, torch.arange(M, device=given.device) < lengths[:, None]):
            return _understood(given[:, None, None].expand(-1, 1, N, M) != 0, q, k)
        return Padding(lengths), Padding(lengths), None
    if given.ndim != 4:
        raise ValueError(
            f"attention_mask has shape {tuple(given.shape)}; give (batch, keys) or (batch, heads, queries, keys)"
        )
    given = given[..., :M] if given.shape[-1] >= M else given.expand(-1, -1, -1, M)
    if given.dtype != torch.bool:
        allowed = given > torch.finfo(given.dtype).min / 2
        bias = None
        if is_traced() or given.requires_grad or bool((given.masked_fill(~allowed, 0.0) != 0).any()):
            bias = DenseBias(given.masked_fill(~allowed, 0.0))
        return Dense(allowed), Dense(allowed), bias
    if is_traced():
        return Dense(given), Dense(given), None
    shape = given.shape[0], given.shape[1], N, M
    found = _once(given, lambda: compressed(given.expand(shape)))
    return (found.mask, found.lowered, None) if isinstance(found, Visible) else (Dense(found), Dense(found), None)


@contextmanager
def in_place(model: nn.Module, implementation: str = NAME) -> Iterator[None]:
    """The model with another implementation of attention, for a while."""
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


def on_its_own(model: nn.Module) -> PreTrainedModel | None:
    """The part of a model that computes attention itself and does not ask transformers' registry, if there is one."""
    parts = (m for m in model.modules() if isinstance(m, PreTrainedModel) and not m._can_set_attn_implementation())
    return next(parts, None)


def refuse_others(model: nn.Module) -> None:
    """An error where there is one."""
    if (module := on_its_own(model)) is None:
        return
    kind, name = module.config.model_type, type(module).__name__
    ours = f"limelight.models.load(folder) gives a {kind} model that can be watched, and "
    raise ValueError(
        f"{name} computes attention itself and does not ask transformers' registry: "
        f"{ours if kind in ARCHITECTURES else ''}watch(model, dense=True) reads its eager weights"
    )


@contextmanager
def witnessed(model: nn.Module, told: Callable[..., Tensor]) -> Iterator[None]:
    """The modules of a model, whose calls are told, for a while."""
    before = {module: witnesses[module] for module in model.modules() if module in witnesses}
    for module in model.modules():
        witnesses[module] = partial(told, module)
    try:
        yield
    finally:
        for module in model.modules():
            witnesses.pop(module, None)
        witnesses.update(before)
