"""BLOOM: ALiBi, and a norm of the embeddings."""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.models.configs import Config, dropout, need, number, refuse
from limelight.models.mapping import TensorMap, affine, every_layer, interleaved_by_head, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention
from limelight.nn.feedforward import activation
from limelight.nn.positions import ALiBiPositions

TYPES = ("bloom",)
PREFIX = "transformer."
COPIES = r"lm_head\.weight"
OTHERS = ""
TABLE = "word_embeddings.weight"


def build(config: Config) -> LanguageModel:
    """Build BLOOM from a configuration."""
    width, depth, heads, vocabulary = need(_current_names(config), "hidden_size", "n_layer", "n_head", "vocab_size")
    refuse(config, apply_residual_connection_post_layernorm=False)
    norm = partial(nn.LayerNorm, eps=number(config, "layer_norm_epsilon", 1e-5))
    positions, drop = ALiBiPositions(heads), dropout(config, "hidden_dropout")

    def block() -> Block:
        attention = MultiHeadAttention(width, heads, positions=positions, dropout=dropout(config, "attention_dropout"))
        return Block(attention, FeedForward(width, 4 * width, activation("gelu_new")), norm=norm, dropout=drop)

    embedding = Embedding(vocabulary, width, norm=norm(width))
    decoder = Decoder((block() for _ in range(depth)), norm(width))
    return LanguageModel(embedding, decoder, language_head(config, embedding.table))


def _current_names(config: Config) -> Config:
    """Return the configuration with the names of older published versions replaced by today's."""
    older = {"hidden_size": "n_embed", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    return {**{new: config.get(old) for new, old in older.items()}, **config}


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    depth, heads = need(_current_names(config), "n_layer", "n_head")
    qkv = [f"stack.blocks.*.attention.{x}" for x in ("query", "key", "value")]
    layer = [
        *affine("h.*.input_layernorm", "stack.blocks.*.attention_norm"),
        *affine("h.*.post_attention_layernorm", "stack.blocks.*.feed_forward_norm"),
        *interleaved_by_head("h.*.self_attention.query_key_value", qkv, heads),
        *affine("h.*.self_attention.dense", "stack.blocks.*.attention.out"),
        *affine("h.*.mlp.dense_h_to_4h", "stack.blocks.*.feed_forward.up"),
        *affine("h.*.mlp.dense_4h_to_h", "stack.blocks.*.feed_forward.down"),
    ]
    return [
        same("word_embeddings.weight", "embedding.table.weight"),
        *affine("word_embeddings_layernorm", "embedding.norm"),
        *every_layer(depth, layer),
        *affine("ln_f", "stack.norm"),
        *untied(config, "lm_head.weight"),
    ]
