"""Backends: the kernels (native), blocks of plain torch, and the one dispatch between them."""

from limelight.backends.blocks import (
    dense_weights,
    grouped_matmul,
    masked_logits,
    statistics_of_blocks,
    weights_of,
)
from limelight.backends.dispatch import (
    Backend,
    attention,
    attention_int8,
    attention_with_normalisers,
    choose,
    explain_for_attention,
    logsumexp,
    ordinary_sizes,
    runs_natively,
    statistics,
)
from limelight.backends.gradients import Normalisers
from limelight.backends.int8 import Int8Rows
from limelight.backends.native import (
    available_isas,
    built,
    isa,
    linear,
    linears,
    move_to_large_pages,
    multiply_adds,
    peak_flops,
    read_bandwidth,
    read_once,
    rms_norm,
    rotate,
    set_isa,
    shares_threads,
)
from limelight.backends.running_rows import RunningRows
from limelight.backends.shared import SharedBackward
from limelight.backends.statistic import Crop, Statistic, WeightsBlock, add_at, sum_parts

__all__ = [
    "Backend",
    "Crop",
    "Int8Rows",
    "Normalisers",
    "RunningRows",
    "SharedBackward",
    "Statistic",
    "WeightsBlock",
    "add_at",
    "attention",
    "attention_int8",
    "attention_with_normalisers",
    "available_isas",
    "built",
    "choose",
    "dense_weights",
    "explain_for_attention",
    "grouped_matmul",
    "isa",
    "linear",
    "linears",
    "logsumexp",
    "masked_logits",
    "move_to_large_pages",
    "multiply_adds",
    "ordinary_sizes",
    "peak_flops",
    "read_bandwidth",
    "read_once",
    "rms_norm",
    "rotate",
    "runs_natively",
    "set_isa",
    "shares_threads",
    "statistics",
    "statistics_of_blocks",
    "sum_parts",
    "weights_of",
]
