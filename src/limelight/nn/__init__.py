"""Layers from which transformers of any common kind are made."""

from limelight.nn.attention import MultiHeadAttention
from limelight.nn.block import Block
from limelight.nn.feedforward import FeedForward
from limelight.nn.stack import Decoder, Embedding, Encoder, LanguageModel, Seq2Seq, TiedHead

__all__ = [
    "Block",
    "Decoder",
    "Embedding",
    "Encoder",
    "FeedForward",
    "LanguageModel",
    "MultiHeadAttention",
    "Seq2Seq",
    "TiedHead",
]
