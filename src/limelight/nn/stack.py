"""Stacks of blocks: vectors of tokens in, vectors of the same width out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from limelight.core.masks import Causal, Dense, Mask, Padding, Spans
from limelight.core.torch_modes import is_traced
from limelight.nn.arguments import (
    BLOCK,
    check_blocks,
    check_mask,
    check_norm,
    check_same_width,
    check_sequence,
    explain_arguments,
)
from limelight.nn.attention import MultiHeadAttention
from limelight.nn.block import Block
from limelight.nn.cache import KVCache, check_cache
from limelight.nn.embedding import Embedding
from limelight.nn.positions import XL


def lowered(mask: Any, N: int, M: int) -> Mask | None:
    """Return a mask as spans or a dense tensor, lowered once for all layers."""
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        hint = "Padding(lengths) or Dense(tensor)" if isinstance(mask, Tensor) else "Padding(lengths)"
        raise TypeError(f"mask must be a mask such as {hint}, not {type(mask).__name__}")
    if mask.reorders:  # such a mask is computed in passes, which are planned from the mask itself
        return mask
    spans, dense = mask.lower(N, M)
    if spans is None:
        return None if dense is None else Dense(dense)
    return Spans(spans) if dense is None else Spans(spans) & Dense(dense)


class Encoder(nn.Module):
    """Blocks in which every token may attend to every other, and an optional norm at the end.

    In a batch with ``Padding`` nothing is computed for padding: the sequences are packed into one row, in which each
    attends to itself alone. The output at positions of padding has no meaning.

    Args:
        blocks: the blocks, the first first; all of one width.
        norm: a norm of the last block's output, such as ``nn.LayerNorm(width)``, which blocks of order ``"pre"`` need.

    """

    @explain_arguments(f"Encoder([{BLOCK} for _ in range(6)])")
    def __init__(self, blocks: Iterable[Block], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = _blocks(self, blocks)
        check_norm(type(self).__name__, norm)
        self.norm = norm
        # XL makes a bias as large as the weights, and a packed row has more weights than its sequences have separately.
        self._packs = not any(isinstance(module, XL) for module in self.modules())

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        """Return the output ``(B, N, width)`` for ``x (B, N, width)``; ``mask`` is for all blocks."""
        check_sequence("x", x)
        B, N, _ = x.shape
        if isinstance(mask, Padding) and not mask.left and self._packs and B > 1 and not is_traced():
            return self._packed(x, mask.counts(B, N))
        return self._run(x, lowered(mask, N, N))

    def _run(self, x: Tensor, mask: Mask | None) -> Tensor:
        for block in self.blocks:
            x = block(x, mask=mask)
        return x if self.norm is None else self.norm(x)

    def _packed(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]
        end = lengths.cumsum(0)
        spans = torch.stack([end - lengths, end], -1).repeat_interleave(lengths, 0)[None, :, None]  # (1, tokens, 1, 2)
        y = self._run(x[real][None], Spans(spans.int()))
        return torch.zeros_like(x).masked_scatter(real[..., None], y)


class Decoder(nn.Module):
    """Blocks in which a token attends to itself and earlier tokens, and an optional norm at the end.

    Args:
        blocks: the blocks, the first first; all of one width. With ``cross`` they also attend to a context.
        norm: a norm of the last block's output, such as ``nn.LayerNorm(width)``, which blocks of order ``"pre"`` need.
        mask: the mask of all blocks; ``Causal()`` unless given.
        patterns: for each block a further mask, such as ``Window(256)``, that is combined with ``mask`` by ``&``, or
            None.

    """

    @explain_arguments(f"Decoder([{BLOCK} for _ in range(6)])")
    def __init__(
        self,
        blocks: Iterable[Block],
        norm: nn.Module | None = None,
        mask: Mask | None = None,
        patterns: Sequence[Mask | None] | None = None,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        self.blocks = _blocks(self, blocks)
        check_norm(who, norm)
        check_mask(who, "mask", mask)
        self.norm = norm
        self.mask = Causal() if mask is None else mask
        self.patterns = [None] * len(self.blocks) if patterns is None else list(patterns)
        if len(self.patterns) != len(self.blocks):
            raise ValueError(f"{who}: {len(self.patterns)} patterns for {len(self.blocks)} blocks; give one for each")
        for n, pattern in enumerate(self.patterns):
            check_mask(who, f"patterns[{n}]", pattern)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        cache: KVCache | None = None,
        first: int | Tensor = 0,
    ) -> Tensor:
        """Return the output ``(B, N, width)`` for ``x (B, N, width)``.

        Args:
            x: the tokens, or with a cache the new ones.
            context: what blocks with cross-attention attend to, ``(B, M, width)``.
            mask: combined with the decoder's own mask by ``&``.
            context_mask: the mask of cross-attention, such as the padding of the context.
            cache: keys and values of earlier tokens, to which those of ``x`` are appended.
            first: the position of the first token of ``x``, a number or ``(B,)``.

        """
        check_sequence("x", x)
        N = x.shape[1]
        M = N if cache is None else check_cache("forward", cache).begin(N)
        # One causal token may attend to all keys, so it needs no mask.
        combined = None if N == 1 and type(self.mask) is Causal else self.mask
        for other in (mask, None if cache is None else cache.mask(N)):
            combined = other if combined is None else combined if other is None else combined & other
        masks: dict[Mask | None, Mask | None] = {None: lowered(combined, N, M)}
        for pattern in self.patterns:
            if pattern not in masks:
                masks[pattern] = lowered(pattern if combined is None else combined & pattern, N, M)
        if context is not None:
            context_mask = lowered(context_mask, N, context.shape[1])
        for n, block in enumerate(self.blocks):
            slot = None if cache is None else cache[n]
            x = block(x, context, mask=masks[self.patterns[n]], context_mask=context_mask, cache=slot, first=first)
        return x if self.norm is None else self.norm(x)


def _blocks(stack: nn.Module, blocks: Iterable[Block]) -> nn.ModuleList:
    """Check the blocks of a stack, which all have one width."""
    who, found = type(stack).__name__, check_blocks(type(stack).__name__, blocks)
    for n, block in enumerate(found[1:], start=1):
        check_same_width(who, **{"blocks[0]": width_of(found[0]), f"blocks[{n}]": width_of(block)})
    return nn.ModuleList(found)


def width_of(layer: nn.Module) -> int | None:
    """Return the number of features that a layer gives to each token, or None for a class that is not limelight's."""
    if isinstance(layer, Embedding):
        return layer.table.embedding_dim
    if isinstance(layer, (Encoder, Decoder)):
        return width_of(layer.blocks[0]) if layer.blocks else None
    attention = layer.attention if isinstance(layer, Block) else None
    return attention.out.out_features if isinstance(attention, MultiHeadAttention) else None
