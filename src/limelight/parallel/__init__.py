"""Attention and its statistics over the processes of ``torch.distributed``, and surveys of whole corpora."""

from limelight.parallel.collectives import total
from limelight.parallel.decoding import SpreadCache
from limelight.parallel.layouts import Contiguous, Layout, Zigzag, shard, unshard
from limelight.parallel.matrix import ParallelWeights, weights
from limelight.parallel.ring_attention import attention
from limelight.parallel.wrapping import Sequence, sequence

__all__ = [
    "Contiguous",
    "Layout",
    "ParallelWeights",
    "Sequence",
    "SpreadCache",
    "Zigzag",
    "attention",
    "sequence",
    "shard",
    "total",
    "unshard",
    "weights",
]
