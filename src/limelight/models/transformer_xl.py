"""Transformer-XL: relative positions, and a memory of hidden states that reaches over segments (Dai et al., 2019).

The keys and values of layer n come from ``[stop-gradient(mₙ), hₙ]``, where ``mₙ`` are the last inputs of that layer, so
a segment attends to earlier ones without computing them again, and L layers reach L memory lengths back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limelight.core.masks import Causal, Mask
from limelight.models.configs import Config, dropout, flag, need, number, refuse, shown, size
from limelight.models.mapping import TensorMap, affine, every_layer, same
from limelight.nn import Block, Embedding, FeedForward, MultiHeadAttention, TiedHead
from limelight.nn.linear import Linear
from limelight.nn.positions import XL

TYPES = ("transfo-xl",)
PREFIX = "transformer."
COPIES = r"(crit\.out_layers\.0\.weight|pos_emb\.inv_freq|r_w_bias|r_r_bias)"
TABLE = "word_emb.emb_layers.0.weight"
OTHERS = ""


class MemoryAttention(MultiHeadAttention):
    """Attention from a segment to itself and to the memory before it, which has no gradient."""

    def forward(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | None = None, **other: Any) -> Tensor:
        """``x (B, N, width)`` to the same shape; ``context (B, M, width)`` is the memory."""
        seen = x if context is None else torch.cat([context.detach(), x], 1)
        q = self._split(self.query(x), self.num_heads)
        k, v = self._split(self.key(seen), self.num_heads), self._split(self.value(seen), self.num_heads)
        q, k, bias = self.positions.place(q, k, keys=seen.shape[1], scale=self.scale)
        y = self.attend(q, k, v, mask=mask, bias=bias)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class Segment(NamedTuple):
    """The output for a segment, and the memory for the next one."""

    logits: Tensor  # (B, N, vocabulary), or hidden states (B, N, width) where there is no head
    memory: list[Tensor]  # the last inputs of each layer, (B, at most memory length, width)


class TransformerXL(nn.Module):
    """A language model over segments: ``logits, memory = model(ids, memory)``."""

    def __init__(self, embedding: Embedding, blocks: Sequence[Block], head: nn.Module | None, length: int) -> None:
        super().__init__()
        self.embedding, self.blocks, self.head = embedding, nn.ModuleList(blocks), head
        self.length = length  # tokens that the memory holds

    def forward(self, ids: Tensor, memory: Sequence[Tensor] | None = None) -> Segment:
        """Run a segment ``ids (B, N)`` with the memory that the one before it returned; None for the first."""
        x = self.embedding(ids)
        if memory is not None and (len(memory) != len(self.blocks) or memory[0].shape[::2] != x.shape[::2]):
            have = [tuple(m.shape) for m in memory[:1]]
            raise ValueError(
                f"memory of {len(memory)} layers {have} does not fit {len(self.blocks)} layers of {tuple(x.shape)}; "
                "give the memory that the last call returned, for as many sequences"
            )
        kept = []
        for n, block in enumerate(self.blocks):
            before = None if memory is None else memory[n]
            kept.append(self._remembered(x, before))
            x = block(x, before)
        return Segment(x if self.head is None else self.head(x), kept)

    def _remembered(self, x: Tensor, before: Tensor | None) -> Tensor:
        both = x if before is None else torch.cat([before, x], 1)
        return both[:, max(both.shape[1] - self.length, 0) :].detach()


class MemoryBlock(Block):
    """A block whose attention reaches into a memory."""

    def forward(self, x: Tensor, context: Tensor | None = None, **other: Any) -> Tensor:
        """``x (B, N, width)`` to the same shape; ``context`` is the memory."""
        x = self._add(x, lambda x: self.attention(x, context, mask=Causal()), self.attention_norm)
        return self._add(x, self.feed_forward, self.feed_forward_norm)


def build(config: Config) -> TransformerXL:
    """Build Transformer-XL from a configuration, with one table of tokens (``cutoffs`` empty)."""
    width, heads, depth, vocabulary = need(config, "d_model", "n_head", "n_layer", "vocab_size")
    refuse(config, pre_lnorm=False, same_length=False, untie_r=True, attn_type=0, proj_share_all_but_first=True)
    if config.get("cutoffs") or size(config, "d_embed", width) != width:
        raise ValueError(
            f"config.json: cutoffs = {shown(config.get('cutoffs'))} and d_embed = {shown(config.get('d_embed'))} split "
            f"the table of tokens; only cutoffs = [] and d_embed = d_model = {width} are supported"
        )
    head_width, drop = size(config, "d_head", width // heads), dropout(config, "dropout")

    def norm(width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=number(config, "layer_norm_epsilon", 1e-5))

    def block() -> MemoryBlock:
        attention = MemoryAttention(
            width,
            heads,
            head_width=head_width,
            bias=False,
            positions=XL(heads, head_width, width),
            dropout=dropout(config, "dropatt"),
        )
        feed_forward = FeedForward(width, size(config, "d_inner", 4 * width), nn.ReLU())
        return MemoryBlock(attention, feed_forward, norm=norm, order="post", dropout=drop)

    embedding = Embedding(vocabulary, width, scale=width**0.5, dropout=drop)
    tied = flag(config, "tie_word_embeddings", True)
    head = TiedHead(embedding.table, bias=True) if tied else Linear(width, vocabulary)
    return TransformerXL(embedding, [block() for _ in range(depth)], head, size(config, "mem_len", 1600))


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    theirs, ours = "layers.*.dec_attn", "blocks.*.attention"
    layer = [
        TensorMap(
            f"{theirs}.qkv_net.weight",
            tuple(f"{ours}.{x}.weight" for x in ("query", "key", "value")),
            split=lambda x: x.chunk(3),
            join=lambda *x: torch.cat(x),
        ),
        same(f"{theirs}.o_net.weight", f"{ours}.out.weight"),
        TensorMap(  # checkpoints have all sines before all cosines
            f"{theirs}.r_net.weight",
            (f"{ours}.positions.project.weight",),
            split=lambda x: [torch.stack(x.chunk(2, 1), -1).flatten(1)],
            join=lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1),
        ),
        same(f"{theirs}.r_w_bias", f"{ours}.positions.content"),
        same(f"{theirs}.r_r_bias", f"{ours}.positions.position"),
        *affine(f"{theirs}.layer_norm", "blocks.*.attention_norm"),
        *affine("layers.*.pos_ff.CoreNet.0", "blocks.*.feed_forward.up"),
        *affine("layers.*.pos_ff.CoreNet.3", "blocks.*.feed_forward.down"),
        *affine("layers.*.pos_ff.layer_norm", "blocks.*.feed_forward_norm"),
    ]
    tied = flag(config, "tie_word_embeddings", True)
    own = [] if tied else [same("crit.out_layers.0.weight", "head.weight")]
    return [
        same(TABLE, "embedding.table.weight"),
        *every_layer(config["n_layer"], layer),
        *own,
        same("crit.out_layers.0.bias", "head.bias"),
    ]
