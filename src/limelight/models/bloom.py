"""BLOOM: ALiBi, and a norm of the embeddings."""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.models.configs import Config, need, refuse
from limelight.models.mapping import Link, affine, by_head, layers, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention
from limelight.nn.feedforward import activation
from limelight.nn.positions import ALiBi

TYPES = ("bloom",)
PREFIX = "transformer."
COPIES = r"lm_head\.weight"
OTHERS = ""
TABLE = "word_embeddings.weight"


def build(config: Config) -> LanguageModel:
    width, depth, heads, vocabulary = need(_named(config), "hidden_size", "n_layer", "n_head", "vocab_size")
    refuse(config, apply_residual_connection_post_layernorm=False)
    norm = partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5))
    positions, drop = ALiBi(heads), config.get("hidden_dropout", 0.0)

    def block() -> Block:
        attention = MultiHeadAttention(width, heads, positions=positions, dropout=config.get("attention_dropout", 0.0))
        return Block(attention, FeedForward(width, 4 * width, activation("gelu_new")), norm=norm, dropout=drop)

    embedding = Embedding(vocabulary, width, norm=norm(width))
    decoder = Decoder((block() for _ in range(depth)), norm(width))
    return LanguageModel(embedding, decoder, language_head(config, embedding.table))


def _named(config: Config) -> Config:
    """Under the names that all published versions can be brought to."""
    older = {"hidden_size": "n_embed", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    return {**{new: config.get(old) for new, old in older.items()}, **config}


def links(config: Config) -> list[Link]:
    depth, heads = need(_named(config), "n_layer", "n_head")
    qkv = [f"stack.blocks.*.attention.{x}" for x in ("query", "key", "value")]
    layer = [
        *affine("h.*.input_layernorm", "stack.blocks.*.attention_norm"),
        *affine("h.*.post_attention_layernorm", "stack.blocks.*.feed_forward_norm"),
        *by_head("h.*.self_attention.query_key_value", qkv, heads),
        *affine("h.*.self_attention.dense", "stack.blocks.*.attention.out"),
        *affine("h.*.mlp.dense_h_to_4h", "stack.blocks.*.feed_forward.up"),
        *affine("h.*.mlp.dense_4h_to_h", "stack.blocks.*.feed_forward.down"),
    ]
    return [
        same("word_embeddings.weight", "embedding.table.weight"),
        *affine("word_embeddings_layernorm", "embedding.norm"),
        *layers(depth, layer),
        *affine("ln_f", "stack.norm"),
        *untied(config, "lm_head.weight"),
    ]
