"""BigBird: BERT with windows of blocks and global blocks (Zaheer et al., 2020).

Every block of queries sees its neighbours, the first and the last block; those two see all. transformers draws
random blocks in training only; in evaluation it takes the first block in place of each of them, which multiplies the
weights of that block's keys by ``1 + num_random_blocks`` before they are normalised. Here a bias of
``log(1 + num_random_blocks)`` does the same.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from limelight.core.biases import DenseBias
from limelight.core.masks import Blocks, Mask, Padding, Spans
from limelight.models import bert
from limelight.models.configs import Config, flag, has_head, refuse, shown, size, word
from limelight.models.mapping import TensorMap
from limelight.nn import Encoder, LanguageModel, MultiHeadAttention

TYPES = ("big_bird",)
PREFIX = "bert."
COPIES = bert.COPIES
TABLE = bert.TABLE
OTHERS = r"(pooler\.(weight|bias)|cls\.seq_relationship\..*)"


class BlockSparseAttention(MultiHeadAttention):
    """Attention to blocks: the neighbours, the first and the last; short texts are computed in full.

    It attends twice: the queries between the first and the last block, then those two blocks.
    """

    def __init__(self, width: int, heads: int, *, block: int, random: int, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.block, self.random = block, random

    def forward(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | None = None, **other: Any) -> Tensor:
        """``x (B, N, width)`` to the same shape; ``mask`` is ``Padding`` or None."""
        N, block = x.shape[1], self.block
        if (5 + 2 * self.random) * block >= N:
            return super().forward(x, mask=mask)
        q, k, v, _ = self._operands(x, None, None, 0)
        last = (N - 1) // block * block  # where the last block begins
        layout = Blocks(window_and_global(last // block + 1), block)
        spans = (layout if mask is None else layout & mask).lower(N, N).spans
        assert spans is not None
        middle, edges = slice(block, last), [*range(block), *range(last, N)]
        repeated = torch.zeros(1, N, dtype=torch.float32, device=x.device)
        repeated[:, :block] = math.log1p(self.random)
        inner = self.attend(q[:, :, middle], k, v, mask=Spans(spans[:, middle]), bias=DenseBias(repeated))
        outer = self.attend(q[:, :, edges], k, v, mask=Spans(spans[:, edges]), bias=None)
        y = torch.cat([outer[:, :, :block], inner, outer[:, :, block:]], 2)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


def window_and_global(blocks: int) -> Tensor:
    """The layout of blocks: neighbours, first and last row, first and last column."""
    at = torch.arange(blocks)
    layout = (at[:, None] - at).abs() <= 1
    layout[[0, -1]] = True
    layout[:, [0, -1]] = True
    return layout


class BigBirdEncoder(Encoder):
    """Blocks with attention to blocks of tokens."""

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        """``x (B, N, width)`` to the same shape."""
        if mask is not None and (not isinstance(mask, Padding) or mask.left):
            raise TypeError(f"BigBird: mask must be Padding(lengths) or None, not {mask!r}; the blocks are its own")
        return self._run(x, mask)


def build(config: Config) -> LanguageModel:
    """Build BigBird from a configuration."""
    refuse(config, use_bias=True)
    kind = word(config, "attention_type", "block_sparse")
    if kind not in ("block_sparse", "original_full"):
        raise ValueError(f"config.json: attention_type = {shown(kind)}; there are block_sparse and original_full")
    sparse = partial(
        BlockSparseAttention, block=size(config, "block_size", 64), random=size(config, "num_random_blocks", 3)
    )
    width = size(config, "hidden_size", 1)
    act, scale = "gelu_new", width**0.5 if flag(config, "rescale_embeddings", False) else 1.0
    embedding, blocks = bert.parts(
        config, lambda _: sparse if kind == "block_sparse" else MultiHeadAttention, act=act, scale=scale
    )
    head = bert.masked_head(config, embedding.table, word(config, "hidden_act", act)) if has_head(config) else None
    return LanguageModel(embedding, (BigBirdEncoder if kind == "block_sparse" else Encoder)(blocks), head)


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    return bert.tensors(config)
