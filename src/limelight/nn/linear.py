"""Linear layers that are fast for a few tokens."""

from __future__ import annotations

from torch import Tensor, nn

from limelight.backends import linear, linears


class Linear(nn.Linear):
    """``x Wᵀ + b``; for a few tokens, as in generation, a kernel that reads ``W`` once, which is the whole cost."""

    def forward(self, input: Tensor) -> Tensor:
        """``(…, in_features)`` to ``(…, out_features)``."""
        return linear(input, self.weight, self.bias)


def project(x: Tensor, *layers: nn.Module) -> list[Tensor]:
    """Return the outputs of up to three linear layers for the same ``x``, from one call where nothing else is attached.

    A layer of another class, or one with hooks, is called as it is.
    """
    if all(type(layer) is Linear and not has_hooks(layer) for layer in layers):
        return linears(x, [(layer.weight, layer.bias) for layer in layers])  # type: ignore[misc]
    return [layer(x) for layer in layers]


def has_hooks(module: nn.Module) -> bool:
    """Return True if calling a module does more than its ``forward``."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
