"""GPT-NeoX: rotary positions on a part of each head, attention and feed-forward in parallel."""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.models.configs import Config, need, rotary
from limelight.models.mapping import Link, affine, by_head, layers, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention
from limelight.nn.feedforward import activation

TYPES = ("gpt_neox",)
PREFIX = "gpt_neox."
COPIES = r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
OTHERS = ""
TABLE = "embed_in.weight"


def build(config: Config) -> LanguageModel:
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"
    width, depth, heads, hidden, vocabulary = need(config, *names)
    norm = partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-5))
    # Before rotary_pct could be left out, a quarter was turned.
    named = {"rotary_pct": 0.25, **config}
    positions = rotary(named, width // heads, partial=True)
    act = activation(config.get("hidden_act", "gelu"))
    order = "parallel" if config.get("use_parallel_residual", True) else "pre"

    def block() -> Block:
        attention = MultiHeadAttention(
            width,
            heads,
            bias=config.get("attention_bias", True),
            positions=positions,
            dropout=config.get("attention_dropout", 0.0),
        )
        drop = config.get("hidden_dropout", 0.0)
        return Block(attention, FeedForward(width, hidden, act), norm=norm, order=order, dropout=drop)

    embedding = Embedding(vocabulary, width, dropout=config.get("hidden_dropout", 0.0))
    decoder = Decoder((block() for _ in range(depth)), norm(width))
    return LanguageModel(embedding, decoder, language_head(config, embedding.table, tied=False))


def links(config: Config) -> list[Link]:
    qkv = [f"stack.blocks.*.attention.{x}" for x in ("query", "key", "value")]
    bias = config.get("attention_bias", True)
    layer = [
        *affine("layers.*.input_layernorm", "stack.blocks.*.attention_norm"),
        *affine("layers.*.post_attention_layernorm", "stack.blocks.*.feed_forward_norm"),
        *by_head("layers.*.attention.query_key_value", qkv, config["num_attention_heads"], bias),
        *affine("layers.*.attention.dense", "stack.blocks.*.attention.out", bias),
        *affine("layers.*.mlp.dense_h_to_4h", "stack.blocks.*.feed_forward.up"),
        *affine("layers.*.mlp.dense_4h_to_h", "stack.blocks.*.feed_forward.down"),
    ]
    found = [
        same("embed_in.weight", "embedding.table.weight"),
        *layers(config["num_hidden_layers"], layer),
        *affine("final_layer_norm", "stack.norm"),
    ]
    return found + untied(config, "embed_out.weight", tied=False)
