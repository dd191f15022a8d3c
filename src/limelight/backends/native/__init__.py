"""Calls of the kernels: checks the memory that they read, and hands over tensors."""

from limelight.backends.native.description import WHOLE, Place
from limelight.backends.native.extension import built, kernels
from limelight.backends.native.gradient import backward, plain_backward, row_sums
from limelight.backends.native.int8 import forward_int8, plain_attention_int8
from limelight.backends.native.memory import empty_output, read_once, readable, zeros_like
from limelight.backends.native.outputs import (
    Cut,
    accumulate,
    attention,
    cut,
    forward_with_normalisers,
    plain_attention,
    quick_attention,
)
from limelight.backends.native.pass_rows import merge_rows, take_rows
from limelight.backends.native.running_statistics import RunningStatistics
from limelight.backends.native.statistic_requests import statistics, statistics_outputs
from limelight.backends.native.tokens import (
    Angles,
    Norm,
    attention_with_cache,
    linear,
    linears_of_few_rows,
    move_to_large_pages,
    rms_norm,
    rotate,
)

isa = kernels.isa
ordinary_sizes = kernels.ordinary_sizes
available_isas = kernels.available_isas
set_isa = kernels.set_isa
peak_flops = kernels.peak_flops
multiply_adds = kernels.multiply_adds
read_bandwidth = kernels.read_bandwidth
shares_threads = kernels.shares_threads

__all__ = [
    "WHOLE",
    "Angles",
    "Cut",
    "Norm",
    "Place",
    "RunningStatistics",
    "accumulate",
    "attention",
    "attention_with_cache",
    "available_isas",
    "backward",
    "built",
    "cut",
    "empty_output",
    "forward_int8",
    "forward_with_normalisers",
    "isa",
    "linear",
    "linears_of_few_rows",
    "merge_rows",
    "move_to_large_pages",
    "multiply_adds",
    "ordinary_sizes",
    "peak_flops",
    "plain_attention",
    "plain_attention_int8",
    "plain_backward",
    "quick_attention",
    "read_bandwidth",
    "read_once",
    "readable",
    "rms_norm",
    "rotate",
    "row_sums",
    "set_isa",
    "shares_threads",
    "statistics",
    "statistics_outputs",
    "take_rows",
    "zeros_like",
]
