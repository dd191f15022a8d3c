"""limelight: attention for PyTorch that you can see through."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limelight.biases import ALiBi, DenseBias, Relative
    from limelight.flow import rollout
    from limelight.functional import attention, backend_for, weights
    from limelight.masks import Causal, Dense, Documents, First, Padding, Prefix, Window
    from limelight.matrix import Weights
    from limelight.problem import SlowPathWarning
    from limelight.reference import trace

# Names are imported when they are first used, so that `limelight --help` need not import torch.
_HOME = {
    "attention": "functional",
    "weights": "functional",
    "backend_for": "functional",
    "Weights": "matrix",
    "trace": "reference",
    "rollout": "flow",
    "Causal": "masks",
    "Window": "masks",
    "Padding": "masks",
    "Documents": "masks",
    "Prefix": "masks",
    "First": "masks",
    "Dense": "masks",
    "ALiBi": "biases",
    "Relative": "biases",
    "DenseBias": "biases",
    "SlowPathWarning": "problem",
}

__all__ = [
    "ALiBi",
    "Causal",
    "Dense",
    "DenseBias",
    "Documents",
    "First",
    "Padding",
    "Prefix",
    "Relative",
    "SlowPathWarning",
    "Weights",
    "Window",
    "attention",
    "backend_for",
    "rollout",
    "trace",
    "weights",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    value = getattr(import_module(f"limelight.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
