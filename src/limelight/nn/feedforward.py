"""The feed-forward layer, which works on each token alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from limelight.core.checks import check_count, check_number
from limelight.core.torch_modes import is_eager
from limelight.nn.arguments import check_activation, explain_arguments
from limelight.nn.linear import Linear, add_projection, project


class FeedForward(nn.Module):
    """``activation(x W₁) W₂``, or gated, ``(activation(x W_G) ∘ x W₁) W₂``: SwiGLU with ``F.silu``.

    Args:
        width: the width of ``x`` and of the output.
        hidden: the width between W₁ and W₂, often ``4 · width``.
        activation: a function of tensors such as ``F.relu``.
        gated: multiply by a second projection.
        bias: whether the projections add a bias.
        dropout: share of the hidden features that is dropped in training.

    >>> FeedForward(8, 32, F.silu, gated=True, bias=False)(torch.randn(3, 5, 8)).shape
    torch.Size([3, 5, 8])

    """

    @explain_arguments("FeedForward(width, hidden), such as FeedForward(32, 128)")
    def __init__(
        self,
        width: int,
        hidden: int,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        *,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        width, hidden = check_count(who, "width", width, 1), check_count(who, "hidden", hidden, 1)
        check_activation(who, activation)
        self.activation = activation
        self.gate = Linear(width, hidden, bias=bias) if gated else None
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)
        self.dropout = nn.Dropout(check_number(f"{who}: dropout", dropout))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output ``(…, width)`` for ``x (…, width)``."""
        out: Tensor = self.down(self._hidden(x))
        return out

    def add_to(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Return ``x + self(norm(x))``, in fewer steps; hooks of this layer itself are not called."""
        return add_projection(x, self._hidden(x, norm), self.down)

    def _hidden(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """Return what ``down`` is applied to, ``(…, hidden)``, for ``norm(x)``."""
        if self.gate is None:
            (up,) = project(x, self.up, norm=norm)
            hidden: Tensor = self.activation(up)
        else:
            gate, up = project(x, self.gate, self.up, norm=norm)
            hidden = self.activation(gate) * up
        return self.dropout(hidden) if self.training else hidden


def tanh_gelu(x: Tensor) -> Tensor:
    """``x · sigmoid(2 √(2/π) (x + 0.044715 x³))``: GELU by a tanh, in blocks of rows that fit into the CPU's cache."""
    if not is_eager() or x.ndim < 2 or (torch.is_grad_enabled() and x.requires_grad):
        return F.gelu(x, approximate="tanh")
    c = 2 * math.sqrt(2 / math.pi)
    x = x.contiguous()
    out = torch.empty_like(x)
    for y, z in zip(x.flatten(0, -2).split(64), out.flatten(0, -2).split(64), strict=True):
        torch.mul(y, y, out=z).mul_(0.044715 * c).add_(c).mul_(y).sigmoid_().mul_(y)
    return out


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return an activation by the name that configurations use."""
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_new": tanh_gelu,
        "gelu_fast": tanh_gelu,
        "gelu_pytorch_tanh": tanh_gelu,
        "silu": F.silu,
        "swish": F.silu,
        "tanh": torch.tanh,
    }
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"activation {name!r} is unknown; there are {', '.join(known)}")
    return known[name]
