"""Reads attention weights from models that compute attention themselves, at their softmax or their call of SDPA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from limelight.core.biases import DenseBias
from limelight.core.masks import Causal, Dense
from limelight.functional import weights
from limelight.lens.hf.arguments import is_transformers_model
from limelight.lens.recorder import Recorder
from limelight.matrix.base import Weights

_SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}
_PRODUCTS = {torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.bmm, Tensor.mm, Tensor.__matmul__}
_DROPOUTS = {functional.dropout, torch.dropout}


class _InterceptAttention(TorchFunctionMode):
    """Reports the result of every softmax that is attention, and the weights of every SDPA call.

    A softmax over the last of four axes is attention. Over the last of two or three, as in a plain module without
    heads, it is attention if its result is then multiplied with values, perhaps after dropout.

    Args:
        running: the model, and those of its modules that are running, the innermost last.
        recorder: records and edits the weights.
        computes: let limelight compute all calls of SDPA; otherwise only those that are edited.

    """

    def __init__(self, running: list[nn.Module], recorder: Recorder, computes: bool = False) -> None:
        super().__init__()
        self.running, self.recorder, self.computes = running, recorder, computes
        self._candidates: dict[int, tuple[Tensor, nn.Module, Tensor]] = {}  # by id: the tensor, its module, the weights

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if len(self.running) == 1 and any(len(other.running) > 1 for other in _active):
            return func(*args, **kwargs)  # the call belongs to another watched model
        if func is functional.scaled_dot_product_attention and (self.computes or self.recorder.editors):
            return self._computed_sdpa(*args, **kwargs)
        out = func(*args, **kwargs)
        if func in _SOFTMAX and kwargs.get("dim", args[1] if len(args) > 1 else None) in (-1, out.ndim - 1):
            heads = _count_heads(self.current_module())
            if out.ndim == 3 and heads and len(out) % heads == 0:  # batch and heads as one axis
                return self._edited(out, out.unflatten(0, (-1, heads)), self.current_module())
            if out.ndim == 4:
                return self._edited(out, out, self.current_module())
            if out.ndim in (2, 3):
                self._candidates[id(out)] = out, self.current_module(), out
        elif func in _DROPOUTS and id(args[0]) in self._candidates:
            _, module, weights = self._candidates.pop(id(args[0]))
            self._candidates[id(out)] = out, module, weights
        elif func in _PRODUCTS and id(args[0]) in self._candidates:
            _, module, weights = self._candidates.pop(id(args[0]))
            edited = self._edited(weights, weights[:, None] if weights.ndim == 3 else weights[None, None], module)
            return out if edited is weights else func(edited, *args[1:], **kwargs)
        elif func is functional.scaled_dot_product_attention and out.ndim in (3, 4):
            self.recorder.add(self.current_module(), _sdpa_weights(*args, **kwargs))
        return out

    def current_module(self) -> nn.Module:
        """Return the innermost module that is running, other than ``nn.Softmax``."""
        return next(m for m in reversed(self.running) if type(m) is not nn.Softmax)

    def _edited(self, result: Tensor, four: Tensor, module: nn.Module) -> Tensor:
        """Record weights, given in their own shape and with four axes, and return the edited ones."""
        edited = self.recorder.edit_dense(module, Weights.from_dense(four))
        return result if edited is None else edited.dense().reshape(result.shape)

    def _computed_sdpa(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute and record a call of SDPA with its edits."""
        found = _sdpa_weights(query, key, value, *args, **kwargs)
        dropout = kwargs.get("dropout_p", args[1] if len(args) > 1 else 0.0)
        spec = found._problem.spec
        four = query.ndim == 4
        q, k, v = (x if four else x[:, None] for x in (query, key, value))
        out = self.recorder.attend(
            self.current_module(), q, k, v, dropout=dropout, mask=spec.mask, bias=spec.bias, scale=spec.scale
        )
        return out if four else out[:, 0]


_active: list[_InterceptAttention] = []  # one for each model that is being watched


def _count_heads(module: nn.Module) -> int:
    """Return the number of heads that a module of transformers or diffusers states, or 0."""
    found = (getattr(module, name, None) for name in ("num_heads", "heads"))
    return next((x for x in found if isinstance(x, int)), 0)


def _sdpa_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Weights:
    """Return the weights of a call of ``scaled_dot_product_attention``; the arguments are those of that function."""
    if query.ndim == 3:  # one head
        query, key = query[:, None], key[:, None]
        attn_mask = attn_mask[:, None] if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
    N, M = query.shape[-2], key.shape[-2]
    mask: Any = Causal() if is_causal and N == M else None
    if is_causal and N != M:  # SDPA aligns query 0 with key 0, limelight the last query with the last key
        mask = Dense(torch.ones(N, M, dtype=torch.bool).tril())
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = Dense(attn_mask)
    elif attn_mask is not None:
        bias = DenseBias(attn_mask)
    return weights(query, key, mask=mask, bias=bias, scale=scale)


@contextmanager
def intercept_attention(model: nn.Module, recorder: Recorder, computes: bool = False) -> Iterator[None]:
    """Record and edit the weights that a model computes itself inside a ``with`` block.

    With ``computes``, limelight computes the model's calls of SDPA.
    """
    running: list[nn.Module] = [model]

    def enter(module: nn.Module, *_: Any) -> None:
        running.append(module)

    def leave(module: nn.Module, *_: Any) -> None:
        del running[max(n for n, m in enumerate(running) if m is module) :]

    with ExitStack() as stack:
        if is_transformers_model(model):
            from limelight.lens.hf.registration import using_implementation

            stack.enter_context(using_implementation(model, "eager"))
        for module in model.modules():
            stack.callback(module.register_forward_pre_hook(enter).remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        interceptor = _InterceptAttention(running, recorder, computes)
        _active.append(interceptor)
        stack.callback(_active.remove, interceptor)
        stack.enter_context(interceptor)
        yield
