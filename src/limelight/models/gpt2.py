"""GPT-2: learned positions, pre-norm, one table for tokens in and out.

GPT-3 is the same with dense and banded layers in turn: ``layer_types`` has ``"full_attention"`` or
``"sliding_attention"`` for each layer, and ``sliding_window`` is the number of tokens that a banded layer sees.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.core.masks import Mask, Window
from limelight.models.configs import Config, dropout, need, number, refuse, shown, size, word
from limelight.models.mapping import TensorMap, affine, every_layer, same, transposed, transposed_and_stacked
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
    """Build GPT-2 from a configuration."""
    width, depth, heads, vocabulary, positions = need(
        config, "n_embd", "n_layer", "n_head", "vocab_size", "n_positions"
    )
    refuse(config, scale_attn_by_inverse_layer_idx=False, scale_attn_weights=True, add_cross_attention=False)
    act = activation(word(config, "activation_function", "gelu_new"))
    drop = dropout(config, "resid_pdrop")
    norm = partial(nn.LayerNorm, eps=number(config, "layer_norm_epsilon", 1e-5))

    def block() -> Block:
        attention = MultiHeadAttention(width, heads, dropout=dropout(config, "attn_pdrop"))
        feed_forward = FeedForward(width, size(config, "n_inner", 4 * width), act)
        return Block(attention, feed_forward, norm=norm, dropout=drop)

    embedding = Embedding(vocabulary, width, positions=Learned(positions, width), dropout=dropout(config, "embd_pdrop"))
    decoder = Decoder((block() for _ in range(depth)), norm(width), patterns=bands(config, depth))
    return LanguageModel(embedding, decoder, language_head(config, embedding.table))


def bands(config: Config, depth: int) -> list[Mask | None]:
    """Return the band of each layer as a mask, or None for a dense layer."""
    kinds = config.get("layer_types")
    if kinds is None:
        return [None] * depth
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != depth or not set(map(str, kinds)) <= set(known):
        raise ValueError(
            f"config.json: layer_types = {shown(kinds)} must have {' or '.join(known)} for each of {depth} layers"
        )
    if known[1] not in kinds:
        return [None] * depth
    (window,) = need(config, "sliding_window")
    return [Window(window - 1, 0) if kind == known[1] else None for kind in kinds]


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    qkv = [f"stack.blocks.*.attention.{x}" for x in ("query", "key", "value")]
    layer = [
        *affine("h.*.ln_1", "stack.blocks.*.attention_norm"),
        *transposed_and_stacked("h.*.attn.c_attn", qkv),
        *transposed("h.*.attn.c_proj", "stack.blocks.*.attention.out"),
        *affine("h.*.ln_2", "stack.blocks.*.feed_forward_norm"),
        *transposed("h.*.mlp.c_fc", "stack.blocks.*.feed_forward.up"),
        *transposed("h.*.mlp.c_proj", "stack.blocks.*.feed_forward.down"),
    ]
    return [
        same("wte.weight", "embedding.table.weight"),
        same("wpe.weight", "embedding.positions.table.weight"),
        *every_layer(config["n_layer"], layer),
        *affine("ln_f", "stack.norm"),
        *untied(config, "lm_head.weight"),
    ]
