"""T5: an encoder-decoder with a bias for each bucket of distances, which all layers of a stack share."""

from __future__ import annotations

from functools import partial

from torch import nn

from limelight.models.configs import Config, need
from limelight.models.mapping import Link, affine, layers, same
from limelight.models.output import language_head, untied
from limelight.nn import Block, Decoder, Embedding, Encoder, FeedForward, MultiHeadAttention, Seq2Seq
from limelight.nn.feedforward import activation
from limelight.nn.positions import T5

TYPES = ("t5", "mt5")
PREFIX = ""
COPIES = r"((encoder|decoder)\.embed_tokens\.weight|lm_head\.weight)"
OTHERS = ""
TABLE = "shared.weight"


def _shape(config: Config) -> tuple[str, bool]:
    """The activation of the feed-forward, and whether it is gated."""
    kind = config.get("feed_forward_proj", "relu")
    gated = kind.startswith("gated-")
    name = kind.removeprefix("gated-")
    return ("gelu_new" if gated and name == "gelu" else name), gated


def _depths(config: Config) -> tuple[int, int]:
    depth = config["num_layers"]
    return depth, config.get("num_decoder_layers") or depth


def build(config: Config) -> Seq2Seq:
    names = "d_model", "num_layers", "num_heads", "d_kv", "d_ff", "vocab_size"
    width, _, heads, head_width, hidden, vocabulary = need(config, *names)
    norm = partial(nn.RMSNorm, eps=config.get("layer_norm_epsilon", 1e-6))
    name, gated = _shape(config)
    drop = config.get("dropout_rate", 0.0)
    buckets = {
        "buckets": config.get("relative_attention_num_buckets", 32),
        "max_distance": config.get("relative_attention_max_distance", 128),
    }

    def attention(positions: T5 | None = None) -> MultiHeadAttention:
        return MultiHeadAttention(
            width, heads, head_width=head_width, bias=False, positions=positions, scale=1.0, dropout=drop
        )

    def block(positions: T5, cross: bool) -> Block:
        feed_forward = FeedForward(width, hidden, activation(name), gated=gated, bias=False, dropout=drop)
        other = attention() if cross else None
        return Block(attention(positions), feed_forward, cross=other, norm=norm, dropout=drop)

    encoding, decoding = _depths(config)
    before_and_after, before = T5(heads, **buckets), T5(heads, **buckets, two_sided=False)
    encoder = Encoder((block(before_and_after, False) for _ in range(encoding)), norm(width))
    decoder = Decoder((block(before, True) for _ in range(decoding)), norm(width))
    embedding = Embedding(vocabulary, width, dropout=drop)
    # T5 scales what it ties; mT5, which is tied in name only, does not.
    scaled = config["model_type"] == "t5" and config.get("scale_decoder_outputs", True)
    head = language_head(config, embedding.table, scale=width**-0.5 if scaled else 1.0)
    return Seq2Seq(embedding, encoder, embedding, decoder, head)


def links(config: Config) -> list[Link]:
    _, gated = _shape(config)
    encoding, decoding = _depths(config)
    found = [same("shared.weight", "source.table.weight")]
    for stack, depth, last in (("encoder", encoding, 1), ("decoder", decoding, 2)):
        theirs, ours = f"{stack}.block.*.layer", f"{stack}.blocks.*"
        feed = f"{theirs}.{last}.DenseReluDense"
        layer = [
            same(f"{theirs}.0.layer_norm.weight", f"{ours}.attention_norm.weight"),
            *_attention(f"{theirs}.0.SelfAttention", f"{ours}.attention"),
            same(f"{theirs}.{last}.layer_norm.weight", f"{ours}.feed_forward_norm.weight"),
            same(f"{feed}.wo.weight", f"{ours}.feed_forward.down.weight"),
        ]
        if gated:
            layer.append(same(f"{feed}.wi_0.weight", f"{ours}.feed_forward.gate.weight"))
        layer.append(same(f"{feed}.wi_1.weight" if gated else f"{feed}.wi.weight", f"{ours}.feed_forward.up.weight"))
        if stack == "decoder":
            layer.append(same(f"{theirs}.1.layer_norm.weight", f"{ours}.cross_norm.weight"))
            layer += _attention(f"{theirs}.1.EncDecAttention", f"{ours}.cross")
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found += [
            *layers(depth, layer),
            same(table, f"{stack}.blocks.0.attention.positions.table.weight"),
            same(f"{stack}.final_layer_norm.weight", f"{stack}.norm.weight"),
        ]
    return found + untied(config, "lm_head.weight")


def _attention(theirs: str, ours: str) -> list[Link]:
    names = {"q": "query", "k": "key", "v": "value", "o": "out"}
    return [x for a, b in names.items() for x in affine(f"{theirs}.{a}", f"{ours}.{b}", bias=False)]
