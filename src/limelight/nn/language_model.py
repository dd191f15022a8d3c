"""Whole models: token ids in, logits or hidden states out."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from limelight.core.masks import Mask, Padding
from limelight.nn.arguments import BLOCK, check_module, check_same_width, explain_arguments
from limelight.nn.cache import KVCache, check_cache
from limelight.nn.embedding import Embedding
from limelight.nn.stack import Decoder, Encoder, width_of


class LanguageModel(nn.Module):
    """``head(stack(embedding(ids)))``: logits, or the last hidden states where there is no head.

    Args:
        embedding: token ids to vectors.
        stack: an ``Encoder`` (as BERT) or a ``Decoder`` (as GPT) of the embedding's width.
        head: hidden states to logits, such as ``TiedHead(embedding.table)``.

    >>> import torch
    >>> from limelight.nn import Block, FeedForward, MultiHeadAttention, TiedHead
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
        check_same_width(who, embedding=width_of(embedding), stack=width_of(stack))
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
        check_same_width(who, source=width_of(source), encoder=width_of(encoder))
        check_same_width(who, target=width_of(target), decoder=width_of(decoder))
        self.source, self.encoder = source, encoder
        self.target, self.decoder, self.head = target, decoder, head
        self.never: tuple[int, ...] = ()  # ids of tokens that are never generated

    def encode(self, ids: Tensor, *, mask: Mask | None = None) -> Tensor:
        """Return the encoder's output ``(B, M, width)`` for source ids ``(B, M)``; ``mask`` is their padding."""
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
        """Return logits ``(B, N, vocabulary)`` for token ids ``source (B, M)`` and ``target (B, N)``.

        ``mask`` is the padding of the source, ``target_mask`` that of the target.
        """
        return self.decode(target, self.encode(source, mask=mask), mask=target_mask, context_mask=mask)
