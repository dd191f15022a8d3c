"""Position schemes: the public names of ``limelight.nn.positions``."""

from limelight.nn.positions import (
    T5,
    XL,
    ALiBi,
    Interpolated,
    Learned,
    Llama3,
    Plain,
    Positions,
    Rotary,
    Sinusoidal,
    Yarn,
    shift,
    sinusoids,
    steps_from,
)

__all__ = [
    "T5",
    "XL",
    "ALiBi",
    "Interpolated",
    "Learned",
    "Llama3",
    "Plain",
    "Positions",
    "Rotary",
    "Sinusoidal",
    "Yarn",
    "shift",
    "sinusoids",
    "steps_from",
]
