"""Position schemes: the public home of what ``limelight.nn.positions`` defines."""

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
