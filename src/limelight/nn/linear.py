"""Linear layers that are fast for a few tokens."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from limelight.backends import linear, linears_of_few_rows
from limelight.nn.norm import RMSNorm


class Linear(nn.Linear):
    """``x Wᵀ + b``; for a few tokens, as in generation, a kernel that reads ``W`` once, which is the whole cost."""

    def forward(self, input: Tensor) -> Tensor:
        """``(…, in_features)`` to ``(…, out_features)``."""
        return linear(input, self.weight, self.bias)


def project(x: Tensor, *layers: nn.Module, norm: nn.Module | None = None) -> list[Tensor]:
    """Return the outputs of up to three linear layers for ``norm(x)``, or ``x`` where there is no norm.

    They come from one call where nothing else is attached; a layer of another class, or one with hooks, is called as it
    is.
    """
    if all(is_plain(layer, Linear) for layer in layers):
        fused = norm.of_width(x.shape[-1]) if isinstance(norm, RMSNorm) and is_plain(norm, RMSNorm) else None
        if fused is None and norm is not None:
            x, norm = norm(x), None
        outs = linears_of_few_rows(x, [_parameters(layer) for layer in layers], norm=fused)
        if outs is not None:
            return outs
    y = x if norm is None else norm(x)
    return [layer(y) for layer in layers]


def add_projection(x: Tensor, y: Tensor, layer: nn.Module) -> Tensor:
    """Return ``x + layer(y)``, from one call where nothing else is attached to the layer."""
    outs = linears_of_few_rows(y, [_parameters(layer)], residual=x) if is_plain(layer, Linear) else None
    return x + layer(y) if outs is None else outs[0]


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if calling a module does what the ``forward`` of this class does, and no more."""
    return type(module) is kind and not has_hooks(module) and "forward" not in vars(module)


def has_hooks(module: nn.Module) -> bool:
    """Return True if calling a module does more than its ``forward``."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(own) or _has_any_global_hook()


def _parameters(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight and the bias of a plain layer, in a third of the time that the attributes take."""
    held = layer._parameters
    return held["weight"], held["bias"]  # type: ignore[return-value]
