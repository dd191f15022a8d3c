"""GPT-NeoX: rotary positions on a part of each head, attention and feed-forward in parallel."""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.models.configs import Config, dropout, flag, need, number, rotary, word
from limelight.models.mapping import TensorMap, affine, every_layer, interleaved_by_head, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention
from limelight.nn.feedforward import activation

TYPES = ("gpt_neox",)
PREFIX = "gpt_neox."
COPIES = r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"
OTHERS = ""
TABLE = "embed_in.weight"


def build(config: Config) -> LanguageModel:
    """Build GPT-NeoX from a configuration."""
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"
    width, depth, heads, hidden, vocabulary = need(config, *names)
    norm = partial(nn.LayerNorm, eps=number(config, "layer_norm_eps", 1e-5))
    # The default of rotary_pct is a quarter of each head.
    positions = rotary({"rotary_pct": 0.25, **config}, width // heads, partial=True)
    act = activation(word(config, "hidden_act", "gelu"))
    order = "parallel" if flag(config, "use_parallel_residual", True) else "pre"

    def block() -> Block:
        attention = MultiHeadAttention(
            width,
            heads,
            bias=flag(config, "attention_bias", True),
            positions=positions,
            dropout=dropout(config, "attention_dropout"),
        )
        drop = dropout(config, "hidden_dropout")
        return Block(attention, FeedForward(width, hidden, act), norm=norm, order=order, dropout=drop)

    embedding = Embedding(vocabulary, width, dropout=dropout(config, "hidden_dropout"))
    decoder = Decoder((block() for _ in range(depth)), norm(width))
    return LanguageModel(embedding, decoder, language_head(config, embedding.table, tied=False))


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    qkv = [f"stack.blocks.*.attention.{x}" for x in ("query", "key", "value")]
    bias = flag(config, "attention_bias", True)
    layer = [
        *affine("layers.*.input_layernorm", "stack.blocks.*.attention_norm"),
        *affine("layers.*.post_attention_layernorm", "stack.blocks.*.feed_forward_norm"),
        *interleaved_by_head("layers.*.attention.query_key_value", qkv, config["num_attention_heads"], bias),
        *affine("layers.*.attention.dense", "stack.blocks.*.attention.out", bias),
        *affine("layers.*.mlp.dense_h_to_4h", "stack.blocks.*.feed_forward.up"),
        *affine("layers.*.mlp.dense_4h_to_h", "stack.blocks.*.feed_forward.down"),
    ]
    found = [
        same("embed_in.weight", "embedding.table.weight"),
        *every_layer(config["num_hidden_layers"], layer),
        *affine("final_layer_norm", "stack.norm"),
    ]
    return found + untied(config, "embed_out.weight", tied=False)
