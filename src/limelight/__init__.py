"""limelight: attention for PyTorch that you can see through."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limelight import experiments, lens, models, nn, positions, translate
    from limelight.biases import ALiBi, DenseBias, Relative
    from limelight.cache import ByteCache, HeavyHitterCache, KVCache, WindowCache
    from limelight.flow import rollout
    from limelight.functional import attention, backend_for, weights
    from limelight.lens.watching import watch
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
    "watch": "lens.watching",
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
    "KVCache": "cache",
    "WindowCache": "cache",
    "ByteCache": "cache",
    "HeavyHitterCache": "cache",
    "SlowPathWarning": "problem",
}
_PACKAGES = ("experiments", "lens", "models", "nn", "positions", "translate")

__all__ = [
    "ALiBi",
    "ByteCache",
    "Causal",
    "Dense",
    "DenseBias",
    "Documents",
    "First",
    "HeavyHitterCache",
    "KVCache",
    "Padding",
    "Prefix",
    "Relative",
    "SlowPathWarning",
    "Weights",
    "Window",
    "WindowCache",
    "attention",
    "backend_for",
    "experiments",
    "lens",
    "models",
    "nn",
    "positions",
    "rollout",
    "trace",
    "translate",
    "watch",
    "weights",
]


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"limelight.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    value = getattr(import_module(f"limelight.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
