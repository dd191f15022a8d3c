"""A block of a transformer: attention and feed-forward, each with a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from limelight.core.checks import check_number
from limelight.core.masks import Mask
from limelight.nn.arguments import (
    ATTENTION,
    BLOCK,
    FEED_FORWARD,
    check_module,
    check_norm_maker,
    check_same_width,
    explain_arguments,
)
from limelight.nn.attention import MultiHeadAttention
from limelight.nn.cache import Slot
from limelight.nn.feedforward import FeedForward
from limelight.nn.linear import is_plain

ORDERS = ("pre", "post", "parallel")


class Block(nn.Module):
    """Self-attention, optional cross-attention and feed-forward, each added to its input.

    Args:
        attention: self-attention.
        feed_forward: the feed-forward layer.
        cross: cross-attention to a context, in the decoder of an encoder-decoder.
        norm: returns a norm for a width, such as ``nn.LayerNorm`` or ``nn.RMSNorm``.
        order: ``"pre"``: ``x + f(norm(x))``; ``"post"``: ``norm(x + f(x))``, the original one; ``"parallel"``:
            ``x + attention(norm(x)) + feed_forward(norm(x))``.
        dropout: share of each layer's output that is dropped before it is added, in training.

    >>> import torch
    >>> block = Block(MultiHeadAttention(32, 4), FeedForward(32, 128), norm=nn.RMSNorm)
    >>> block(torch.randn(3, 5, 32)).shape
    torch.Size([3, 5, 32])

    """

    @explain_arguments(f"Block(attention, feed_forward), such as {BLOCK}")
    def __init__(
        self,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        *,
        cross: MultiHeadAttention | None = None,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        order: str = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        _check_attention(who, "attention", attention)
        check_module(who, "feed_forward", feed_forward, FEED_FORWARD)
        if cross is not None:
            _check_attention(who, "cross", cross)
        check_norm_maker(who, norm)
        if order not in ORDERS:
            raise ValueError(f"{who}: order = {order!r}; there are {', '.join(ORDERS)}")
        if order == "parallel" and cross is not None:
            raise ValueError(
                f"{who}: order = 'parallel' has no cross-attention; leave out cross, or use 'pre' or 'post'"
            )
        width = attention.out.out_features
        check_same_width(
            who,
            attention=width,
            feed_forward=feed_forward.down.out_features if isinstance(feed_forward, FeedForward) else None,
            cross=cross.out.out_features if isinstance(cross, MultiHeadAttention) else None,
        )
        self.order = order
        self.attention, self.attention_norm = attention, norm(width)
        self.cross, self.cross_norm = cross, None if cross is None else norm(width)
        self.feed_forward, self.feed_forward_norm = feed_forward, norm(width)
        self.dropout = nn.Dropout(check_number(f"{who}: dropout", dropout))

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        cache: Slot | None = None,
        first: int | Tensor = 0,
    ) -> Tensor:
        """Return the output ``(B, N, width)`` for ``x (B, N, width)``.

        Args:
            x: the tokens, or with a cache the new ones.
            context: what cross-attention attends to, ``(B, M, width)``.
            mask: the mask of self-attention.
            context_mask: the mask of cross-attention.
            cache: the layer's slot of a cache, such as ``KVCache()[0]``.
            first: the position of the first token of ``x``, a number or ``(B,)``.

        """

        def attend(x: Tensor) -> Tensor:
            y: Tensor = self.attention(x, mask=mask, cache=cache, first=first)
            return y

        if self.order == "parallel":
            a, f = attend(self.attention_norm(x)), self.feed_forward(self.feed_forward_norm(x))
            return x + self._drop(a) + self._drop(f)
        if self._adds_directly(self.attention, MultiHeadAttention):
            x = self.attention.add_to(x, self.attention_norm, mask=mask, cache=cache, first=first)
        else:
            x = self._add(x, attend, self.attention_norm)
        if self.cross is not None:
            if context is None:
                raise ValueError("this block has cross-attention and needs a context; give block(x, context)")
            cross, norm = self.cross, self.cross_norm
            assert norm is not None
            x = self._add(x, lambda x: cross(x, context, mask=context_mask, cache=cache), norm)
        if self._adds_directly(self.feed_forward, FeedForward):
            return self.feed_forward.add_to(x, self.feed_forward_norm)
        return self._add(x, self.feed_forward, self.feed_forward_norm)

    def _adds_directly(self, layer: nn.Module, kind: type[nn.Module]) -> bool:
        """Return True if ``layer.add_to(x, norm)`` is what is wanted: nothing comes between the layer and the sum."""
        return self.order == "pre" and not self.training and is_plain(layer, kind)

    def _add(self, x: Tensor, f: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        if self.order == "pre":
            return x + self._drop(f(norm(x)))
        y: Tensor = norm(x + self._drop(f(x)))
        return y

    def _drop(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(x) if self.training else x
        return y


def _check_attention(who: str, name: str, layer: Any) -> None:
    check_module(who, name, layer, ATTENTION)
    if isinstance(layer, nn.MultiheadAttention):
        raise TypeError(f"{who}: {name} is torch's own; convert it with MultiHeadAttention.from_torch(layer)")
    if not hasattr(layer, "out"):
        raise TypeError(f"{who}: {name} must be a layer such as {ATTENTION}, not {type(layer).__name__}")
