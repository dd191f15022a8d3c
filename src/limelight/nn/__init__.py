"""Layers from which transformers of any common kind are made."""

from limelight.nn.attention import MultiHeadAttention
from limelight.nn.block import Block
from limelight.nn.embedding import Embedding, TiedHead
from limelight.nn.feedforward import FeedForward
from limelight.nn.language_model import LanguageModel, Seq2Seq
from limelight.nn.stack import Decoder, Encoder

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
