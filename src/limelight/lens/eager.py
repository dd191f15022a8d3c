"""Reads attention weights from models that compute attention themselves, at their softmax or their call of SDPA."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from limelight.matrix.base import Weights

_SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax}


class _InterceptAttention(TorchFunctionMode):
    """Reports the result of every softmax over the last of four axes, and the weights of every SDPA call.

    Args:
        current_module: returns the innermost module that is running.
        report: takes that module and the weights.

    """

    def __init__(self, current_module: Callable[[], nn.Module], report: Callable[[nn.Module, Weights], None]) -> None:
        super().__init__()
        self.current_module, self.report = current_module, report

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _SOFTMAX and kwargs.get("dim", args[1] if len(args) > 1 else None) in (-1, out.ndim - 1):
            heads = getattr(self.current_module(), "num_heads", 0)
            if out.ndim == 3 and heads and len(out) % heads == 0:  # batch and heads as one axis
                self.report(self.current_module(), Weights.from_dense(out.unflatten(0, (-1, heads))))
            elif out.ndim == 4:
                self.report(self.current_module(), Weights.from_dense(out))
        elif func is functional.scaled_dot_product_attention and out.ndim in (3, 4):
            self.report(self.current_module(), _sdpa_weights(*args, **kwargs))
        return out


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
def intercept_attention(model: nn.Module, report: Callable[[nn.Module, Weights], None]) -> Iterator[None]:
    """Report the weights that a model computes itself, with the module that computes them, inside a ``with`` block."""
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
        stack.enter_context(_InterceptAttention(lambda: running[-1], report))
        yield
