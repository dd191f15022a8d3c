"""Scalings of the frequencies of rotary positions, for texts that are longer than those in training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


def check_above_zero(where: str, **values: float) -> None:
    """Raise ``ValueError`` for a value that is not above 0."""
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{where}: {name} = {value} must be above 0")


@dataclass(frozen=True)
class Plain:
    """Rotary frequencies ``base^(-2i/width)`` without scaling; base of the other scalings."""

    def rates(self, rates: Tensor) -> Tensor:
        """Return the frequencies that are used, from the unscaled ``rates (width / 2,)``."""
        return rates

    @property
    def size(self) -> float:
        """Factor of the rotated vectors."""
        return 1.0


@dataclass(frozen=True)
class Interpolated(Plain):
    """Linear interpolation: positions divided by ``factor``, the length of texts by that in training."""

    factor: float

    def __post_init__(self) -> None:
        check_above_zero("Interpolated", factor=self.factor)

    def rates(self, rates: Tensor) -> Tensor:
        return rates / self.factor


@dataclass(frozen=True)
class Llama3(Plain):
    """LLaMA 3.1: low frequencies are divided by ``factor``, high ones kept, those between interpolated smoothly.

    Args:
        factor: how much longer texts may be than in training.
        low: frequencies of fewer full turns over ``trained`` positions are divided.
        high: frequencies of more turns are kept.
        trained: the number of positions in training.

    """

    factor: float
    low: float
    high: float
    trained: int

    def __post_init__(self) -> None:
        check_above_zero("Llama3", factor=self.factor, low=self.low, trained=self.trained)
        if self.low >= self.high:
            raise ValueError(f"Llama3: low = {self.low} must be below high = {self.high}")

    def rates(self, rates: Tensor) -> Tensor:
        turns = self.trained * rates / (2 * math.pi)  # full turns over the positions in training
        share = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return (1 - share) * rates / self.factor + share * rates


@dataclass(frozen=True)
class Yarn(Plain):
    """YaRN: a ramp over the features from kept (``fast`` turns in training) to interpolated (``slow`` turns).

    Args:
        factor: how much longer texts may be than in training.
        trained: the number of positions in training.
        base: that of ``Rotary``.
        fast: features with at least so many full turns over ``trained`` positions are kept.
        slow: features with at most so many turns are divided by ``factor``.
        truncate: round the ends of the ramp outwards to whole features.
        attention: factor of the rotated vectors; ``0.1 · log(factor) + 1`` unless given.
        sizes: ``mscale`` and ``mscale_all_dim`` of DeepSeek's configurations, which change that factor.

    """

    factor: float
    trained: int
    base: float
    fast: float = 32.0
    slow: float = 1.0
    truncate: bool = True
    attention: float | None = None
    sizes: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_above_zero("Yarn", factor=self.factor, trained=self.trained, fast=self.fast, slow=self.slow)
        if not self.base > 1:
            raise ValueError(f"Yarn: base = {self.base} must be above 1")

    def rates(self, rates: Tensor) -> Tensor:
        width = 2 * len(rates)

        def dimension(turns: float) -> float:
            return width * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = dimension(self.fast), dimension(self.slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        ramp = (torch.arange(len(rates), dtype=rates.dtype) - low) / ((high - low) or 0.001)
        share = 1 - ramp.clamp(0, 1)
        return rates / self.factor * (1 - share) + rates * share

    @property
    def size(self) -> float:
        if self.attention is not None:
            return self.attention
        above, below = (0.1 * x * math.log(max(self.factor, 1.0)) + 1.0 for x in self.sizes or (1.0, 0.0))
        return above / below
