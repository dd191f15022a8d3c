"""Masks: the keys that a query may attend to, as values that combine with ``&``, ``|`` and ``~``.

True means attend. Query ``i`` of ``N`` stands at position ``M - N + i`` of ``M`` keys, so the last query is at the last
key and a cache needs nothing special.

>>> print(Causal() & Window(2))
Causal() & Window(2), 9 queries × 9 keys
■ · · · · · · · ·
■ ■ · · · · · · ·
■ ■ ■ · · · · · ·
· ■ ■ ■ · · · · ·
· · ■ ■ ■ · · · ·
· · · ■ ■ ■ · · ·
· · · · ■ ■ ■ · ·
· · · · · ■ ■ ■ ·
· · · · · · ■ ■ ■
"""

from limelight.core.masks.base import And, Lowered, LoweredMask, Mask, Not, Or, lower_mask, positions
from limelight.core.masks.data import Dense, Documents, Padding, Spans
from limelight.core.masks.layouts import Blocks, RandomBlocks
from limelight.core.masks.positional import Causal, First, Prefix, Window
from limelight.core.masks.sparse import Dilated, Global, GlobalKeys, GlobalQueries, Strided

__all__ = [
    "And",
    "Blocks",
    "Causal",
    "Dense",
    "Dilated",
    "Documents",
    "First",
    "Global",
    "GlobalKeys",
    "GlobalQueries",
    "Lowered",
    "LoweredMask",
    "Mask",
    "Not",
    "Or",
    "Padding",
    "Prefix",
    "RandomBlocks",
    "Spans",
    "Strided",
    "Window",
    "lower_mask",
    "positions",
]
