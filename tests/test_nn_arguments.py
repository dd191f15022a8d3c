"""Arguments of layers that do not fit: each error names what clashed and shows what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import limelight as ll
from limelight.nn import (
    Block,
    Decoder,
    Embedding,
    Encoder,
    FeedForward,
    LanguageModel,
    MultiHeadAttention,
    Seq2Seq,
    TiedHead,
)

BLOCK = "Block(MultiHeadAttention(32, 4), FeedForward(32, 128))"

X = torch.zeros(2, 5, 12)


def block(width: int = 12, **options: Any) -> Block:
    return Block(MultiHeadAttention(width, 3), FeedForward(width, 17), **options)


def attend(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(12, 3, **options)


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # Block
    (lambda: Block(6, 2), TypeError, "Block: attention must be a layer such as MultiHeadAttention(32, 4), not 6"),
    (lambda: Block(attend(), 48), TypeError, "feed_forward must be a layer such as FeedForward(32, 128), not 48"),
    (
        lambda: Block(),
        TypeError,
        f"Block: missing a required argument: 'attention'; write Block(attention, feed_forward), such as {BLOCK}",
    ),
    (
        lambda: Block(attend()),
        TypeError,
        f"missing a required argument: 'feed_forward'; write Block(attention, feed_forward), such as {BLOCK}",
    ),
    (
        lambda: Block(d_model=64, nhead=8),
        TypeError,
        f"Block: there is no argument 'd_model'; write Block(attention, feed_forward), such as {BLOCK}",
    ),
    (
        lambda: Block(attend(), FeedForward(12, 17), norm_first=True),
        TypeError,
        "no argument 'norm_first', which is called 'order' here",
    ),
    (
        lambda: Block(attend(), FeedForward(12, 17), attend()),
        TypeError,
        "Block: too many positional arguments; write Block(",
    ),
    (
        lambda: Block(MultiHeadAttention, FeedForward),
        TypeError,
        "attention must be a layer such as MultiHeadAttention(32, 4), not the class MultiHeadAttention",
    ),
    (
        lambda: Block(nn.MultiheadAttention(12, 3), FeedForward(12, 17)),
        TypeError,
        "attention is torch's own; convert it with MultiHeadAttention.from_torch(layer)",
    ),
    (
        lambda: Block(FeedForward(12, 17), attend()),
        TypeError,
        "attention must be a layer such as MultiHeadAttention(32, 4), not FeedForward",
    ),
    (
        lambda: Block(attend(), FeedForward(15, 17)),
        ValueError,
        "Block: attention has width 12 and feed_forward has width 15; give both the same",
    ),
    (lambda: block(cross=MultiHeadAttention(15, 3)), ValueError, "attention has width 12 and cross has width 15"),
    (lambda: block(cross=True), TypeError, "cross must be a layer such as MultiHeadAttention(32, 4), not True"),
    (
        lambda: block(norm=nn.LayerNorm(12)),
        TypeError,
        "norm must make a norm for a width, such as the class nn.LayerNorm itself, not LayerNorm",
    ),
    (
        lambda: block(norm="rms"),
        TypeError,
        "norm must make a norm for a width, such as the class nn.LayerNorm itself, not 'rms'",
    ),
    (lambda: block(order="middle"), ValueError, "Block: order = 'middle'; there are pre, post, parallel"),
    (lambda: block(dropout="0.1"), TypeError, "Block: dropout must be a number, not str"),
    (lambda: block(dropout=-0.5), ValueError, "between 0 and 1, but got -0.5"),
    # MultiHeadAttention
    (
        lambda: MultiHeadAttention(12),
        TypeError,
        "MultiHeadAttention: missing a required argument: 'heads'; write MultiHeadAttention(width, heads), such as",
    ),
    (
        lambda: MultiHeadAttention(embed_dim=12, num_heads=3),
        TypeError,
        "there is no argument 'embed_dim', which is called 'width' here; write MultiHeadAttention(width, heads)",
    ),
    (lambda: attend(batch_first=True), TypeError, "MultiHeadAttention: there is no argument 'batch_first'; write"),
    (
        lambda: MultiHeadAttention(12, 5),
        ValueError,
        "MultiHeadAttention: width = 12 is not a multiple of heads = 5; give head_width, or heads that divide it",
    ),
    (lambda: MultiHeadAttention(12, 0), ValueError, "MultiHeadAttention: heads = 0 must be at least 1"),
    (lambda: MultiHeadAttention(-12, 3), ValueError, "MultiHeadAttention: width = -12 must be at least 1"),
    (lambda: MultiHeadAttention("12", 3), TypeError, "MultiHeadAttention: width must be a whole number, not '12'"),
    (lambda: MultiHeadAttention(12, 1.5), TypeError, "MultiHeadAttention: heads must be a whole number, not 1.5"),
    (lambda: attend(kv_heads=2), ValueError, "MultiHeadAttention: heads = 3 must be a multiple of kv_heads = 2"),
    (lambda: attend(kv_heads=0), ValueError, "MultiHeadAttention: kv_heads = 0 must be at least 1"),
    (lambda: attend(head_width=-4), ValueError, "MultiHeadAttention: head_width = -4 must be at least 1"),
    (lambda: attend(context_width="7"), TypeError, "MultiHeadAttention: context_width must be a whole number, not '7'"),
    (lambda: attend(scale="auto"), TypeError, "MultiHeadAttention: scale must be a number, not str"),
    (lambda: attend(dropout=1.5), ValueError, "dropout = 1.5 must be at least 0 and below 1"),
    (
        lambda: attend(norm=nn.RMSNorm(4)),
        TypeError,
        "norm must make a norm for a width, such as the class nn.LayerNorm itself, not RMSNorm",
    ),
    (
        lambda: attend(positions="rotary"),
        TypeError,
        "positions must be a scheme of limelight.positions such as Rotary(8) or ALiBi(4), not 'rotary'",
    ),
    (lambda: attend(positions=ll.positions.Rotary), TypeError, "not the class Rotary"),
    (lambda: attend(positions=ll.ALiBi(3)), TypeError, "not the bias ALiBi"),
    (lambda: attend()(X[0]), TypeError, "x must be a tensor (batch, tokens, width), not (5, 12)"),
    (lambda: attend()(X[..., :11]), ValueError, "x (2, 5, 11) has width 11, and the layer is made for width 12"),
    (
        lambda: attend(context_width=7)(X, X),
        ValueError,
        "context (2, 5, 12) has width 12, and the layer is made for width 7",
    ),
    # FeedForward
    (
        lambda: FeedForward(12),
        TypeError,
        "FeedForward: missing a required argument: 'hidden'; write FeedForward(width, hidden), such as",
    ),
    (
        lambda: FeedForward(12, dim_feedforward=17),
        TypeError,
        "no argument 'dim_feedforward', which is called 'hidden' here",
    ),
    (lambda: FeedForward(12, -17), ValueError, "FeedForward: hidden = -17 must be at least 1"),
    (lambda: FeedForward(12.0, 17), TypeError, "FeedForward: width must be a whole number, not 12.0"),
    (
        lambda: FeedForward(12, 17, "relu"),
        TypeError,
        "activation must be a function of a tensor such as torch.nn.functional.gelu, not 'relu'",
    ),
    (
        lambda: FeedForward(12, 17, nn.ReLU),
        TypeError,
        "activation must be a function of a tensor such as torch.nn.functional.gelu, not the class ReLU",
    ),
    # Encoder and Decoder
    (
        lambda: Encoder(),
        TypeError,
        f"Encoder: missing a required argument: 'blocks'; write Encoder([{BLOCK} for _ in range(6)])",
    ),
    (lambda: Encoder(6), TypeError, f"Encoder: blocks must be a list such as [{BLOCK} for _ in range(6)], not 6"),
    (lambda: Encoder(block()), TypeError, "not Block; a single block is a list of one"),
    (lambda: Encoder([6, 2]), TypeError, f"Encoder: blocks[0] must be a layer such as {BLOCK}, not 6"),
    (lambda: Encoder([block(), Block]), TypeError, "Encoder: blocks[1] must be a layer such as"),
    (
        lambda: Encoder(block(), num_layers=6),
        TypeError,
        "Encoder: there is no argument 'num_layers'; write Encoder([Block(",
    ),
    (
        lambda: Encoder([block(), block(15)]),
        ValueError,
        "Encoder: blocks[0] has width 12 and blocks[1] has width 15; give both the same",
    ),
    (
        lambda: Encoder([block()], nn.LayerNorm),
        TypeError,
        "Encoder: norm must be a layer such as nn.LayerNorm(32), not the class LayerNorm",
    ),
    (lambda: Decoder(6, 2), TypeError, "Decoder: blocks must be a list such as"),
    (
        lambda: Decoder([block()], mask="causal"),
        TypeError,
        "Decoder: mask must be a mask such as Causal(), not 'causal'",
    ),
    (
        lambda: Decoder([block()], mask=torch.ones(3, 3)),
        TypeError,
        "mask must be a mask such as Causal(), not a torch.float32 tensor",
    ),
    (lambda: Decoder([block()], patterns=[]), ValueError, "Decoder: 0 patterns for 1 blocks; give one for each"),
    (
        lambda: Decoder([block()], patterns=[3]),
        TypeError,
        "Decoder: patterns[0] must be a mask such as Causal(), not 3",
    ),
    (lambda: Encoder([block()])(X[0]), TypeError, "x must be a tensor (batch, tokens, width), not (5, 12)"),
    (lambda: Decoder([block()])("text"), TypeError, "x must be a tensor (batch, tokens, width), not str"),
    # Whole models
    (
        lambda: Embedding(31),
        TypeError,
        "Embedding: missing a required argument: 'width'; write Embedding(vocabulary, width), such as",
    ),
    (lambda: Embedding(31, 0), ValueError, "Embedding: width = 0 must be at least 1"),
    (lambda: Embedding("31", 12), TypeError, "Embedding: vocabulary must be a whole number, not '31'"),
    (
        lambda: Embedding(31, 12, norm=nn.LayerNorm),
        TypeError,
        "Embedding: norm must be a layer such as nn.LayerNorm(32), not the class LayerNorm",
    ),
    (lambda: Embedding(31, 12, segments=-1), ValueError, "Embedding: segments = -1 must be at least 0"),
    (
        lambda: LanguageModel(31, 12),
        TypeError,
        "LanguageModel: embedding must be a layer such as Embedding(1000, 32), not 31",
    ),
    (
        lambda: LanguageModel(Embedding(31, 12), [block()]),
        TypeError,
        f"LanguageModel: stack must be a layer such as Decoder([{BLOCK}]), not list",
    ),
    (
        lambda: LanguageModel(Embedding(31, 15), Decoder([block()])),
        ValueError,
        "LanguageModel: embedding has width 15 and stack has width 12; give both the same",
    ),
    (
        lambda: Seq2Seq(Embedding(31, 12), Encoder([block()])),
        TypeError,
        "Seq2Seq: missing a required argument: 'target'; write Seq2Seq(Embedding(",
    ),
    (
        lambda: Seq2Seq(Embedding(31, 12), Encoder([block()]), Embedding(31, 15), Decoder([block()])),
        ValueError,
        "Seq2Seq: target has width 15 and decoder has width 12",
    ),
    (
        lambda: LanguageModel(Embedding(31, 12), Decoder([block()]))("text"),
        TypeError,
        "give token ids as a tensor (batch, length) of whole numbers, not str",
    ),
    (
        lambda: TiedHead(Embedding(31, 12)),
        TypeError,
        "TiedHead: table must be a torch.nn.Embedding such as embedding.table, not Embedding",
    ),
]


@pytest.mark.parametrize("n", range(len(WRONG)))
def test_what_does_not_fit_is_named(n: int) -> None:
    make, kind, message = WRONG[n]
    with pytest.raises(kind, match=re.escape(message)):
        make()


def test_what_fits_is_made() -> None:
    """Numbers of numpy, generators of blocks, layers and stacks of one's own, and classes derived from a layer."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12)

    class Own(nn.Module):
        def forward(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
            return 2 * x

    class Wide(Block):
        def __init__(self, width: int) -> None:
            super().__init__(MultiHeadAttention(width, 3), FeedForward(width, 17))

    layer = MultiHeadAttention(np.int64(12), np.int32(3), head_width=np.int64(5))  # type: ignore[arg-type]
    assert layer(x).shape == x.shape
    assert type(layer.num_heads) is int
    assert Block(layer, Own())(x).shape == x.shape  # type: ignore[arg-type]
    assert torch.equal(Encoder([Own(), Own()])(x), 4 * x)  # type: ignore[list-item]
    assert Encoder(Wide(12) for _ in range(2))(x).shape == x.shape
    assert Encoder(nn.ModuleList([Wide(12)]), nn.LayerNorm(12))(x).shape == x.shape
