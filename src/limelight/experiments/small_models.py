"""Small transformers for the experiments that train one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from limelight.nn import Block, Decoder, Embedding, Encoder, FeedForward, LanguageModel, MultiHeadAttention
from limelight.positions import Positions


class MarkedTexts:
    """Texts in which some tokens carry marks, drawn from one seed.

    A token is a fixed random vector of its class, and a mark is another that is added to it; so a
    model has to learn only what to do with them.
    """

    def __init__(self, classes: int, width: int, *, marks: int = 1, seed: int = 0) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.classes, self.marks = classes, marks
        self.table = torch.randn(classes + marks, width, generator=self.g)

    def draw(self, count: int, n: int, places: range | None = None) -> tuple[Tensor, Tensor]:
        """Draw texts ``(count, n, width)`` and the classes ``(count, marks)`` of their marked tokens."""
        ids = torch.randint(0, self.classes, (count, n), generator=self.g)
        at = torch.rand(count, n, generator=self.g)
        if places is not None:
            allowed = torch.zeros(n)
            allowed[places.start : places.stop] = 1.0
            at = at * allowed
        at = at.argsort(1, descending=True)[:, : self.marks]  # different places, one for each mark
        x = self.table[ids]
        for mark in range(self.marks):
            x[torch.arange(count), at[:, mark]] += self.table[self.classes + mark]
        return x, ids.gather(1, at)


def decoder(
    vocabulary: int, width: int, heads: int, layers: int, *, positions: Any = Positions, feed_forward: int = 2
) -> LanguageModel:
    """Build a causal language model; ``positions()`` makes the scheme that all layers share."""
    scheme: Positions = positions()
    blocks = _blocks(width, heads, layers, scheme, feed_forward)
    return LanguageModel(Embedding(vocabulary, width, positions=scheme), Decoder(blocks), nn.Linear(width, vocabulary))


def encoder(width: int, heads: int, layers: int, *, dropout: float = 0.0) -> Encoder:
    """Build a stack of blocks without positions, for texts that are vectors already."""
    blocks = _blocks(width, heads, layers, Positions(), 2)
    for block in blocks:
        block.attention.dropout = dropout
    return Encoder(blocks)


def _blocks(width: int, heads: int, layers: int, scheme: Positions, feed_forward: int) -> list[Block]:
    return [
        Block(MultiHeadAttention(width, heads, positions=scheme), FeedForward(width, feed_forward * width))
        for _ in range(layers)
    ]
