"""Rectangles of an attention matrix: some queries with some keys, whose place in the whole a ``Place`` tells.

``limelight.parallel`` computes a matrix in rectangles: ``accumulate`` and ``RunningStatistics`` go on from what earlier
rectangles of the same rows left, ``backward`` and ``statistics_outputs`` give the part of one. The kernels alone can.
"""

from limelight.backends.native import (
    Place,
    RunningStatistics,
    accumulate,
    backward,
    statistics_outputs,
    zeros_like,
)

__all__ = ["Place", "RunningStatistics", "accumulate", "backward", "statistics_outputs", "zeros_like"]
