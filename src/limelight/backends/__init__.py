"""Backends: the kernels (native), blocks of plain torch, and the one dispatch between them."""

from limelight.backends.blocks import (
    dense_weights,
    grouped_matmul,
    masked_logits,
    statistics_of_blocks,
)
from limelight.backends.dispatch import (
    Backend,
    attention,
    attention_int8,
    attention_with_normalisers,
    choose,
    logsumexp,
    runs_natively,
    statistics,
)
from limelight.backends.int8 import Int8Rows
from limelight.backends.native import (
    Normalisers,
    available_isas,
    isa,
    linear,
    move_to_large_pages,
    peak_flops,
    read_bandwidth,
    set_isa,
)
from limelight.backends.statistic import Statistic, WeightsBlock, Window, sum_parts

__all__ = [
    "Backend",
    "Int8Rows",
    "Normalisers",
    "Statistic",
    "WeightsBlock",
    "Window",
    "attention",
    "attention_int8",
    "attention_with_normalisers",
    "available_isas",
    "choose",
    "dense_weights",
    "grouped_matmul",
    "isa",
    "linear",
    "logsumexp",
    "masked_logits",
    "move_to_large_pages",
    "peak_flops",
    "read_bandwidth",
    "runs_natively",
    "set_isa",
    "statistics",
    "statistics_of_blocks",
    "sum_parts",
]
