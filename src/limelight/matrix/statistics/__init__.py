"""The statistics of an attention matrix, one file each.

A file has the statistic itself (its definition in plain torch, and what its kernel takes) and the method of
``Weights`` that computes it. A new statistic is a file here, a kernel in ``cpp/statistics``, and a line in
``STATISTICS`` and in ``Weights``.
"""

from limelight.matrix.statistics.asked import AskedStatistic
from limelight.matrix.statistics.cover import Cover
from limelight.matrix.statistics.distance import Distance
from limelight.matrix.statistics.entropy import Entropy
from limelight.matrix.statistics.mass import Mass
from limelight.matrix.statistics.max import Max
from limelight.matrix.statistics.pool import Pool
from limelight.matrix.statistics.profile import Profile
from limelight.matrix.statistics.received import Received
from limelight.matrix.statistics.similarity import Similarity
from limelight.matrix.statistics.top import TopK

# By the name of the method of Weights, which is also the option of observe.
STATISTICS: dict[str, type[AskedStatistic]] = {
    "entropy": Entropy,
    "received": Received,
    "top": TopK,
    "mass": Mass,
    "distance": Distance,
    "profile": Profile,
    "pool": Pool,
    "similarity": Similarity,
    "max": Max,
    "cover": Cover,
}

__all__ = ["STATISTICS"]
