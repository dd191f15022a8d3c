"""The original Transformer: an encoder-decoder with sinusoidal positions and post-norm.

Its checkpoints have the format of Marian, which has the same design, so transformers loads what is trained here.
"""

from __future__ import annotations

import math
from functools import partial

from torch import nn

from limelight.models.configs import Config, dropout, flag, need, refuse, token_id, word
from limelight.models.mapping import TensorMap, affine, every_layer, same
from limelight.nn import Block, Decoder, Embedding, Encoder, FeedForward, MultiHeadAttention, Seq2Seq, TiedHead
from limelight.nn.feedforward import activation
from limelight.nn.positions import Sinusoidal

TYPES = ("marian",)
PREFIX = "model."
COPIES = r"((encoder|decoder)\.embed_(positions|tokens)\.weight|lm_head\.weight)"
TABLE = "shared.weight"
OTHERS = ""


def build(config: Config) -> Seq2Seq:
    """Build the original Transformer from a configuration of Marian."""
    width, vocabulary = need(config, "d_model", "vocab_size")
    refuse(config, share_encoder_decoder_embeddings=True, tie_word_embeddings=True)
    norm = nn.LayerNorm
    act, drop = activation(word(config, "activation_function", "gelu")), dropout(config, "dropout")

    def blocks(stack: str) -> list[Block]:
        depth, heads, hidden = need(config, f"{stack}_layers", f"{stack}_attention_heads", f"{stack}_ffn_dim")
        attention = partial(MultiHeadAttention, width, heads, dropout=dropout(config, "attention_dropout"))
        feed_forward = partial(FeedForward, width, hidden, act, dropout=dropout(config, "activation_dropout"))

        def block() -> Block:
            cross = attention() if stack == "decoder" else None
            return Block(attention(), feed_forward(), cross=cross, norm=norm, order="post", dropout=drop)

        return [block() for _ in range(depth)]

    scale = math.sqrt(width) if flag(config, "scale_embedding", False) else 1.0
    embedding = Embedding(vocabulary, width, positions=Sinusoidal(halves=True), scale=scale, dropout=drop)
    head = TiedHead(embedding.table, bias=True)
    model = Seq2Seq(embedding, Encoder(blocks("encoder")), embedding, Decoder(blocks("decoder")), head)
    if config.get("pad_token_id") is not None:
        model.never = (token_id(config, "pad_token_id"),)  # it begins every target and is never learned as a next token
    return model


def tensors(config: Config) -> list[TensorMap]:
    """Map the tensors of a checkpoint to the parameters of ``build``."""
    found = [
        same("shared.weight", "source.table.weight"),
        TensorMap("final_logits_bias", ("head.bias",), split=lambda x: [x.reshape(-1)], join=lambda x: x[None]),
    ]
    for stack in ("encoder", "decoder"):
        theirs, ours = f"{stack}.layers.*", f"{stack}.blocks.*"
        layer = [
            *_attention(f"{theirs}.self_attn", f"{ours}.attention"),
            *affine(f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norm"),
            *affine(f"{theirs}.fc1", f"{ours}.feed_forward.up"),
            *affine(f"{theirs}.fc2", f"{ours}.feed_forward.down"),
            *affine(f"{theirs}.final_layer_norm", f"{ours}.feed_forward_norm"),
        ]
        if stack == "decoder":
            layer += _attention(f"{theirs}.encoder_attn", f"{ours}.cross")
            layer += affine(f"{theirs}.encoder_attn_layer_norm", f"{ours}.cross_norm")
        found += every_layer(config[f"{stack}_layers"], layer)
    return found


def _attention(theirs: str, ours: str) -> list[TensorMap]:
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
    pairs = ((f"{theirs}.{name}", f"{ours}.{own}") for name, own in names.items())
    return [tensor for pair in pairs for tensor in affine(*pair)]
