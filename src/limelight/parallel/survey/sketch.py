"""Sums and histograms of a measure, whose parts add up exactly, however documents are divided among processes.

A histogram has fixed bins, so that histograms of parts add up to that of the whole, to the count. Shares (of weight)
have 1,000 equal bins from 0 to 1; entropies and distances have bins that grow by 1% from 0.01 on. A quantile read from
it is within one bin of the exact one: 0.001 for shares, 1% for the others.
"""

from __future__ import annotations

import numpy as np

BINS = 2000
_SHARE_BINS = 1000
_FIRST, _GROWTH = 0.01, 1.01
UNBOUNDED = ("entropy", "distance")  # measures that are not shares
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def bin_of(values: np.ndarray, share: bool) -> np.ndarray:
    """Return the bin of each value."""
    if share:
        shares: np.ndarray = np.clip(np.floor(values * _SHARE_BINS), 0, _SHARE_BINS - 1).astype(np.int64)
        return shares
    grown = np.log(np.maximum(values, _FIRST) / _FIRST) / np.log(_GROWTH)
    return np.where(values < _FIRST, 0, np.clip(1 + np.floor(grown), 1, BINS - 1)).astype(np.int64)


def middle_of(bins: np.ndarray, share: bool) -> np.ndarray:
    """Return the middle of each bin."""
    if share:
        return (bins + 0.5) / _SHARE_BINS
    return np.where(bins == 0, 0.0, _FIRST * _GROWTH ** (bins - 0.5))


class Sketch:
    """Count, sum, sum of squares, extremes and histogram of every measure of every head.

    Arrays are ``(heads, measures)`` and ``(heads, measures, BINS)``; values that are NaN do not count.
    """

    FIELDS = ("count", "sum", "squares", "least", "most", "histogram")

    def __init__(self, heads: int, measures: tuple[str, ...]) -> None:
        self.measures = measures
        shape = (heads, len(measures))
        self.count = np.zeros(shape, dtype=np.int64)
        self.sum, self.squares = np.zeros(shape), np.zeros(shape)
        self.least, self.most = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.histogram = np.zeros((*shape, BINS), dtype=np.int64)

    def add(self, head: int, measure: str, values: np.ndarray) -> None:
        """Add values of one measure of one head, in order."""
        values = np.asarray(values, dtype=np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            return
        at = head, self.measures.index(measure)
        self.count[at] += len(values)
        self.sum[at] += values.sum()
        self.squares[at] += np.square(values).sum()
        self.least[at], self.most[at] = min(self.least[at], values.min()), max(self.most[at], values.max())
        bins = bin_of(values, measure not in UNBOUNDED)
        self.histogram[at] += np.bincount(bins, minlength=BINS)

    def merge(self, other: Sketch) -> None:
        """Add another sketch."""
        for name in ("count", "sum", "squares", "histogram"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.least, self.most = np.minimum(self.least, other.least), np.maximum(self.most, other.most)

    def summary(self, head: int, measure: str) -> dict[str, float | int | None]:
        """Return mean, spread (the standard deviation), extremes and quantiles."""
        at = head, self.measures.index(measure)
        n = int(self.count[at])
        if not n:
            return {"count": 0}
        mean = float(self.sum[at] / n)
        variance = max(float(self.squares[at] / n) - mean * mean, 0.0)
        found: dict[str, float | int | None] = {"count": n, "mean": mean, "spread": variance**0.5}
        found |= {"least": float(self.least[at]), "most": float(self.most[at])}
        total = np.cumsum(self.histogram[at])
        bins = np.searchsorted(total, [q * n for q in QUANTILES], side="left")
        middles = middle_of(np.minimum(bins, BINS - 1), measure not in UNBOUNDED)
        middles = np.clip(middles, self.least[at], self.most[at])
        return found | {f"q{round(100 * q):02d}": float(x) for q, x in zip(QUANTILES, middles, strict=True)}
