"""Weights of models that make them themselves, read where they make them."""

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
from limelight.matrix.base import Weights

_SOFTMAX = {functional.softmax, torch.softmax, Tensor.softmax, torch.nn.functional.softmax}


class _Reading(TorchFunctionMode):
    """Sees every softmax over the last axis of four, and every call of PyTorch's own attention."""

    def __init__(self, module: Callable[[], nn.Module], told: Callable[[nn.Module, Weights], None]) -> None:
        super().__init__()
        self.module, self.told = module, told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _SOFTMAX and kwargs.get("dim", args[1] if len(args) > 1 else None) in (-1, out.ndim - 1):
            heads = getattr(self.module(), "num_heads", 0)
            if out.ndim == 3 and heads and len(out) % heads == 0:  # batch and heads as one axis
                self.told(self.module(), Weights.from_dense(out.unflatten(0, (-1, heads))))
            elif out.ndim == 4:
                self.told(self.module(), Weights.from_dense(out))
        elif func is functional.scaled_dot_product_attention and out.ndim in (3, 4):
            self.told(self.module(), _of_torch(*args, **kwargs))
        return out


def _of_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Weights:
    """What ``scaled_dot_product_attention`` multiplies the values by."""
    if query.ndim == 3:  # one head
        query, key = query[:, None], key[:, None]
        attn_mask = attn_mask[:, None] if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
    N, M = query.shape[-2], key.shape[-2]
    mask: Any = Causal() if is_causal and N == M else None
    if is_causal and N != M:  # which is aligned at the beginning there
        mask = Dense(torch.ones(N, M, dtype=torch.bool).tril())
    bias = None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        mask = Dense(attn_mask)
    elif attn_mask is not None:
        bias = DenseBias(attn_mask)
    return weights(query, key, mask=mask, bias=bias, scale=scale)


@contextmanager
def reading(model: nn.Module, told: Callable[[nn.Module, Weights], None]) -> Iterator[None]:
    """A model whose own weights are told, with the module that makes them, for a while."""
    running: list[nn.Module] = [model]

    def enter(module: nn.Module, *_: Any) -> None:
        running.append(module)

    def leave(module: nn.Module, *_: Any) -> None:
        del running[max(n for n, m in enumerate(running) if m is module) :]

    with ExitStack() as stack:
        if any(hasattr(getattr(m, "config", None), "_attn_implementation") for m in model.modules()):
            from limelight.lens.hf.registration import in_place

            stack.enter_context(in_place(model, "eager"))
        for module in model.modules():
            for handle in (
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave, always_call=True),
            ):
                stack.callback(handle.remove)
        stack.enter_context(_Reading(lambda: running[-1], told))
        yield
