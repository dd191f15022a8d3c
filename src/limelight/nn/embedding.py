"""Token ids to vectors, and vectors back to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from limelight.backends import linear
from limelight.core.checks import check_count, check_number, describe
from limelight.nn.arguments import check_norm, check_positions, check_scale, explain_arguments
from limelight.nn.positions import Positions


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
        """Return the logits ``(B, N, vocabulary)`` for hidden states ``x (B, N, width)``."""
        x = x if self.scale == 1.0 else x * self.scale
        return linear(x, self.table.weight, self.bias)
