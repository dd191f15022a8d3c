"""Position schemes: the public names of ``limelight.nn.positions`` and ``limelight.nn.rotary_scaling``."""

from limelight.nn.positions import (
    T5,
    XL,
    ALiBi,
    Learned,
    Positions,
    Rotary,
    Sinusoidal,
    shift,
    sinusoids,
    steps_from,
)
from limelight.nn.rotary_scaling import Interpolated, Llama3, Plain, Yarn

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
