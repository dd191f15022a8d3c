"""LLaMA and Mistral: rotary positions, grouped heads, RMSNorm, SwiGLU; Mistral looks back over a window."""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.core.masks import Causal, Window
from limelight.models.configs import Config, need, refuse, rotary
from limelight.models.mapping import Link, affine, layers, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, FeedForward, LanguageModel, MultiHeadAttention
from limelight.nn.feedforward import activation

TYPES = ("llama", "mistral")
PREFIX = "model."
COPIES = r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
OTHERS = ""
TABLE = "embed_tokens.weight"


def build(config: Config) -> LanguageModel:
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"
    width, depth, heads, hidden, vocabulary = need(config, *names)
    refuse(config, pretraining_tp=1)
    head_width = config.get("head_dim") or width // heads
    norm = partial(nn.RMSNorm, eps=config.get("rms_norm_eps", 1e-6))
    positions = rotary(config, head_width)
    act = activation(config.get("hidden_act", "silu"))

    def block() -> Block:
        attention = MultiHeadAttention(
            width,
            heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_width=head_width,
            bias=_has_bias(config),
            positions=positions,
            dropout=config.get("attention_dropout", 0.0),
        )
        return Block(
            attention, FeedForward(width, hidden, act, gated=True, bias=config.get("mlp_bias", False)), norm=norm
        )

    # A window of w tokens holds the token itself and the w - 1 before it.
    window = config.get("sliding_window") if config["model_type"] == "mistral" else None
    mask = None if window is None else Causal() & Window(window - 1, 0)
    embedding = Embedding(vocabulary, width)
    decoder = Decoder((block() for _ in range(depth)), norm(width), mask)
    return LanguageModel(embedding, decoder, language_head(config, embedding.table, tied=False))


def _has_bias(config: Config) -> bool:
    return bool(config.get("attention_bias", False)) and config["model_type"] == "llama"


def links(config: Config) -> list[Link]:
    projections = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out"}
    parts = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    bias, mlp_bias = _has_bias(config), config.get("mlp_bias", False)
    layer = [
        same("layers.*.input_layernorm.weight", "stack.blocks.*.attention_norm.weight"),
        same("layers.*.post_attention_layernorm.weight", "stack.blocks.*.feed_forward_norm.weight"),
    ]
    for theirs, ours in projections.items():
        layer += affine(f"layers.*.self_attn.{theirs}", f"stack.blocks.*.attention.{ours}", bias)
    for theirs, ours in parts.items():
        layer += affine(f"layers.*.mlp.{theirs}", f"stack.blocks.*.feed_forward.{ours}", mlp_bias)
    found = [
        same("embed_tokens.weight", "embedding.table.weight"),
        *layers(config["num_hidden_layers"], layer),
        same("norm.weight", "stack.norm.weight"),
    ]
    return found + untied(config, "lm_head.weight", tied=False)
