"""GPT-2: learned positions, pre-norm, one table for tokens in and out."""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.models.configs import Config, need, refuse
from limelight.models.mapping import Link, affine, layers, same, turned, turned_thirds
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention
from limelight.nn.feedforward import activation
from limelight.nn.positions import Learned

TYPES = ("gpt2",)
PREFIX = "transformer."
COPIES = r"(h\.\d+\.attn\.(bias|masked_bias)|lm_head\.weight)"
OTHERS = ""
TABLE = "wte.weight"


def build(config: Config) -> LanguageModel:
    width, depth, heads, vocabulary, places = need(config, "n_embd", "n_layer", "n_head", "vocab_size", "n_positions")
    refuse(config, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False)
    act = activation(config.get("activation_function", "gelu_new"))
    drop = config.get("resid_pdrop", 0.0)
    norm = partial(nn.LayerNorm, eps=config.get("layer_norm_epsilon", 1e-5))

    def block() -> Block:
        attention = MultiHeadAttention(width, heads, dropout=config.get("attn_pdrop", 0.0))
        feed_forward = FeedForward(width, config.get("n_inner") or 4 * width, act)
        return Block(attention, feed_forward, norm=norm, dropout=drop)

    embedding = Embedding(vocabulary, width, positions=Learned(places, width), dropout=config.get("embd_pdrop", 0.0))
    decoder = Decoder((block() for _ in range(depth)), norm(width))
    return LanguageModel(embedding, decoder, language_head(config, embedding.table))


def links(config: Config) -> list[Link]:
    qkv = [f"stack.blocks.*.attention.{x}" for x in ("query", "key", "value")]
    layer = [
        *affine("h.*.ln_1", "stack.blocks.*.attention_norm"),
        *turned_thirds("h.*.attn.c_attn", qkv),
        *turned("h.*.attn.c_proj", "stack.blocks.*.attention.out"),
        *affine("h.*.ln_2", "stack.blocks.*.feed_forward_norm"),
        *turned("h.*.mlp.c_fc", "stack.blocks.*.feed_forward.up"),
        *turned("h.*.mlp.c_proj", "stack.blocks.*.feed_forward.down"),
    ]
    return [
        same("wte.weight", "embedding.table.weight"),
        same("wpe.weight", "embedding.positions.table.weight"),
        *layers(config["n_layer"], layer),
        *affine("ln_f", "stack.norm"),
        *untied(config, "lm_head.weight"),
    ]
