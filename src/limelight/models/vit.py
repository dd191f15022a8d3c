"""ViT: an encoder whose tokens are the patches of an image."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from limelight.core.masks import Mask
from limelight.models.configs import Config, dropout, flag, need, number, size, word
from limelight.models.mapping import TensorMap, affine, every_layer, same
from limelight.nn import Block, Encoder, FeedForward, MultiHeadAttention
from limelight.nn.feedforward import activation

TYPES = ("vit",)
PREFIX = "vit."
COPIES = ""
TABLE = ""
OTHERS = r"(pooler\.dense\..*|classifier\..*)"


class Vision(nn.Module):
    """Embeds patches, puts one vector for the whole image before them, adds learned positions, and runs an encoder."""

    def __init__(
        self, width: int, size: int, patch: int, channels: int, encoder: Encoder, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.size, self.channels = size, channels
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.whole = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)

    def forward(self, pixels: Tensor, *, mask: Mask | None = None) -> Tensor:
        """``pixels (B, channels, size, size)`` to hidden states ``(B, 1 + patches, width)``."""
        wanted = (self.channels, self.size, self.size)
        if pixels.ndim != 4 or tuple(pixels.shape[1:]) != wanted:
            raise ValueError(f"give pixels (batch, {', '.join(map(str, wanted))}), not {tuple(pixels.shape)}")
        x = self.patches(pixels).flatten(2).mT
        x = torch.cat([self.whole.expand(len(x), -1, -1), x], 1) + self.positions
        out: Tensor = self.encoder(self.dropout(x), mask=mask)
        return out


def build(config: Config) -> Vision:
    """Build ViT from a configuration."""
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size", "patch_size"
    width, depth, heads, hidden, image, patch = need(config, *names)
    norm = partial(nn.LayerNorm, eps=number(config, "layer_norm_eps", 1e-12))
    act, drop = activation(word(config, "hidden_act", "gelu")), dropout(config, "hidden_dropout_prob")
    bias = flag(config, "qkv_bias", True)

    def block() -> Block:
        weights_drop = dropout(config, "attention_probs_dropout_prob")
        attention = MultiHeadAttention(width, heads, bias=bias, out_bias=True, dropout=weights_drop)
        return Block(attention, FeedForward(width, hidden, act), norm=norm, dropout=drop)

    encoder = Encoder((block() for _ in range(depth)), norm(width))
    return Vision(width, image, patch, size(config, "num_channels", 3), encoder, drop)


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    parts = {
        "layernorm_before": "attention_norm",
        "attention.output.dense": "attention.out",
        "layernorm_after": "feed_forward_norm",
        "intermediate.dense": "feed_forward.up",
        "output.dense": "feed_forward.down",
    }
    pairs = ((f"encoder.layer.*.{theirs}", f"encoder.blocks.*.{ours}") for theirs, ours in parts.items())
    layer = [tensor for theirs, ours in pairs for tensor in affine(theirs, ours)]
    for name in ("query", "key", "value"):
        theirs, ours = f"encoder.layer.*.attention.attention.{name}", f"encoder.blocks.*.attention.{name}"
        layer += affine(theirs, ours, flag(config, "qkv_bias", True))
    return [
        same("embeddings.cls_token", "whole"),
        same("embeddings.position_embeddings", "positions"),
        *affine("embeddings.patch_embeddings.projection", "patches"),
        *every_layer(config["num_hidden_layers"], layer),
        *affine("layernorm", "encoder.norm"),
    ]
