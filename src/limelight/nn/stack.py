"""Stacks of blocks, and whole models: tokens in, logits or hidden states out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from limelight.backends import linear
from limelight.core.checks import check_count, check_number, describe
from limelight.core.masks import Causal, Dense, Mask, Padding, Spans
from limelight.core.tracing import is_traced
from limelight.nn.arguments import (
    BLOCK,
    check_blocks,
    check_mask,
    check_module,
    check_norm,
    check_positions,
    check_same_width,
    check_scale,
    check_sequence,
    explain_arguments,
)
from limelight.nn.attention import MultiHeadAttention
from limelight.nn.block import Block
from limelight.nn.cache import KVCache, check_cache
from limelight.nn.positions import XL, Positions


class Embedding(nn.Module):
    """``norm(scale · table[ids] + positions + segment)``: token ids to vectors.

    Args:
        vocabulary: the number of tokens.
        width: the width of the vectors.
        positions: a scheme that adds to embeddings, such as ``positions.Sinusoidal()`` or ``Learned(count, width)``.
        segments: the number of kinds of segments (BERT's sentences A and B), each with a learned vector; 0 for none.
        norm: a norm of the sum, such as ``nn.LayerNorm(width)``.
        scale: factor of the table's vectors, such as ``width ** 0.5`` in the original Transformer.
        dropout: share of the result that is dropped in training.

    >>> Embedding(1000, 32)(torch.tensor([[5, 7, 11]])).shape
    torch.Size([1, 3, 32])

    """

    @explain_arguments("Embedding(vocabulary, width), such as Embedding(1000, 32)")
    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        positions: Positions | None = None,
        segments: int = 0,
        norm: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        vocabulary, width = check_count(who, "vocabulary", vocabulary, 1), check_count(who, "width", width, 1)
        check_norm(who, norm)
        self.table = nn.Embedding(vocabulary, width)
        self.positions = check_positions(who, positions)
        self.segments = nn.Embedding(segments, width) if check_count(who, "segments", segments, 0) else None
        self.norm, self.scale = norm, check_scale(who, scale)
        self.dropout = nn.Dropout(check_number(f"{who}: dropout", dropout))

    def forward(self, ids: Tensor, first: int | Tensor = 0, segments: Tensor | None = None) -> Tensor:
        """Return the vectors ``(B, N, width)`` of token ids ``(B, N)``.

        ``first`` is the position of the first token, a number or ``(B,)``; ``segments (B, N)`` are the numbers of the
        segments, all 0 unless given.
        """
        if not isinstance(ids, Tensor):
            raise TypeError(f"give token ids as a tensor (batch, length) of whole numbers, not {describe(ids)}")
        if ids.ndim != 2 or ids.is_floating_point():
            raise ValueError(f"give token ids (batch, length) of whole numbers, not {ids.dtype} {tuple(ids.shape)}")
        count = self.table.num_embeddings
        low, high = (int(x) for x in ids.aminmax()) if ids.numel() else (0, 0)
        if low < 0 or high >= count:
            raise ValueError(f"token ids from {low} to {high}; the vocabulary has 0 to {count - 1}")
        x = self.table(ids)
        if self.scale != 1.0:
            x = x * self.scale
        x = self.positions.embed(x, first)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.norm is not None:
            x = self.norm(x)
        out: Tensor = self.dropout(x)
        return out


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
        check_same_width(who, **{"blocks[0]": _width(found[0]), f"blocks[{n}]": _width(block)})
    return nn.ModuleList(found)


def _width(layer: nn.Module) -> int | None:
    """Return the number of features that a layer gives to each token, or None for a class that is not limelight's."""
    if isinstance(layer, Embedding):
        return layer.table.embedding_dim
    if isinstance(layer, (Encoder, Decoder)):
        return _width(layer.blocks[0]) if layer.blocks else None
    attention = layer.attention if isinstance(layer, Block) else None
    return attention.out.out_features if isinstance(attention, MultiHeadAttention) else None


class LanguageModel(nn.Module):
    """``head(stack(embedding(ids)))``: logits, or the last hidden states where there is no head.

    Args:
        embedding: token ids to vectors.
        stack: an ``Encoder`` (as BERT) or a ``Decoder`` (as GPT) of the embedding's width.
        head: hidden states to logits, such as ``TiedHead(embedding.table)``.

    >>> from limelight.nn import FeedForward
    >>> block = Block(MultiHeadAttention(32, 4), FeedForward(32, 128))
    >>> embedding = Embedding(1000, 32)
    >>> model = LanguageModel(embedding, Decoder([block], nn.LayerNorm(32)), TiedHead(embedding.table))
    >>> model(torch.tensor([[5, 7, 11]])).shape
    torch.Size([1, 3, 1000])

    """

    @explain_arguments(f"LanguageModel(Embedding(1000, 32), Decoder([{BLOCK}]))")
    def __init__(self, embedding: Embedding, stack: Encoder | Decoder, head: nn.Module | None = None) -> None:
        super().__init__()
        who = type(self).__name__
        check_module(who, "embedding", embedding, "Embedding(1000, 32)")
        check_module(who, "stack", stack, f"Decoder([{BLOCK}])")
        if head is not None:
            check_module(who, "head", head, "TiedHead(embedding.table)")
        check_same_width(who, embedding=_width(embedding), stack=_width(stack))
        self.embedding, self.stack, self.head = embedding, stack, head

    def forward(
        self,
        ids: Tensor,
        *,
        mask: Mask | None = None,
        cache: KVCache | None = None,
        segments: Tensor | None = None,
        first: int | Tensor = 0,
        last: bool = False,
    ) -> Tensor:
        """Return the logits ``(B, N, vocabulary)`` for token ids ``(B, N)``; hidden states where there is no head.

        Args:
            ids: the tokens, or with a cache the new ones.
            mask: such as ``Padding(lengths)``; combined with the stack's own mask.
            cache: keys and values of earlier tokens, to which those of ``ids`` are appended.
            segments: the numbers of the tokens' segments, ``(B, N)``, where the embedding has some.
            first: the position of the first token, a number or ``(B,)``; tokens at negative positions are padding.
                With a cache it comes from the cache.
            last: return the last token's logits only, ``(B, 1, vocabulary)``.

        """
        if cache is not None and isinstance(mask, Padding):
            raise ValueError("a cache needs padding on the left; models.generate(…, mask=Padding(lengths)) arranges it")
        first = first if cache is None else check_cache("forward", cache).first()
        x = self.embedding(ids, first, segments)
        if isinstance(self.stack, Decoder):
            x = self.stack(x, mask=mask, cache=cache, first=first)
        elif cache is not None:
            raise ValueError("an encoder attends to all tokens at once and cannot use a cache")
        else:
            x = self.stack(x, mask=mask)
        return _logits(x, self.head, last)


def _logits(x: Tensor, head: Callable[[Tensor], Tensor] | None, last: bool) -> Tensor:
    x = x[:, -1:] if last else x
    return x if head is None else head(x)


class Seq2Seq(nn.Module):
    """An encoder of the source, and a decoder of the target with cross-attention to the encoder's output.

    Args:
        source: the embedding of the source's token ids.
        encoder: the encoder.
        target: the embedding of the target's token ids; it may be that of the source.
        decoder: the decoder, whose blocks have cross-attention.
        head: hidden states to logits, such as ``TiedHead(target.table)``; hidden states are returned without one.

    """

    @explain_arguments("Seq2Seq(Embedding(…), Encoder(…), Embedding(…), Decoder(…))")
    def __init__(
        self, source: Embedding, encoder: Encoder, target: Embedding, decoder: Decoder, head: nn.Module | None = None
    ) -> None:
        super().__init__()
        who = type(self).__name__
        check_module(who, "source", source, "Embedding(1000, 32)")
        check_module(who, "encoder", encoder, f"Encoder([{BLOCK}])")
        check_module(who, "target", target, "Embedding(1000, 32)")
        check_module(who, "decoder", decoder, "Decoder([Block(…, cross=MultiHeadAttention(32, 4))])")
        if head is not None:
            check_module(who, "head", head, "TiedHead(target.table)")
        check_same_width(who, source=_width(source), encoder=_width(encoder))
        check_same_width(who, target=_width(target), decoder=_width(decoder))
        self.source, self.encoder = source, encoder
        self.target, self.decoder, self.head = target, decoder, head
        self.never: tuple[int, ...] = ()  # ids of tokens that are never generated

    def encode(self, ids: Tensor, *, mask: Mask | None = None) -> Tensor:
        """Return the encoder's output ``(B, M, width)`` for source ids ``(B, M)``, which the decoder attends to."""
        context: Tensor = self.encoder(self.source(ids), mask=mask)
        return context

    def decode(
        self,
        ids: Tensor,
        context: Tensor,
        *,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        cache: KVCache | None = None,
        last: bool = False,
    ) -> Tensor:
        """Return the logits ``(B, N, vocabulary)`` for target ids ``(B, N)``: all so far, or with a cache the new ones.

        ``context (B, M, width)`` is what ``encode`` returned and ``context_mask`` its padding; ``mask`` is that of the
        target. ``last`` asks for the last token's logits only.
        """
        first = 0 if cache is None else check_cache("decode", cache).first()
        x = self.target(ids, first)
        x = self.decoder(x, context, mask=mask, context_mask=context_mask, cache=cache, first=first)
        return _logits(x, self.head, last)

    def forward(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None, target_mask: Mask | None = None
    ) -> Tensor:
        """``source (B, M)`` and ``target (B, N)`` to logits ``(B, N, vocabulary)``; ``mask`` is that of the source."""
        return self.decode(target, self.encode(source, mask=mask), mask=target_mask, context_mask=mask)


class TiedHead(nn.Module):
    """``scale · x · tableᵀ (+ bias)``: logits from the embedding's table.

    Args:
        table: ``embedding.table``, whose weights ``(vocabulary, width)`` are shared.
        bias: add a learned number for each token.
        scale: factor of ``x``.

    """

    @explain_arguments("TiedHead(embedding.table)")
    def __init__(self, table: nn.Embedding, *, bias: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        if not isinstance(table, nn.Embedding):
            raise TypeError(
                f"TiedHead: table must be a torch.nn.Embedding such as embedding.table, not {describe(table)}"
            )
        self.table, self.scale = table, check_scale("TiedHead", scale)
        self.bias = nn.Parameter(torch.zeros(table.num_embeddings)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, width)`` to ``(B, N, vocabulary)``."""
        x = x if self.scale == 1.0 else x * self.scale
        return linear(x, self.table.weight, self.bias)
