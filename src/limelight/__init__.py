"""limelight: attention for PyTorch that you can see through."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limelight import experiments, lens, models, nn, parallel, positions, translate
    from limelight.core.biases import ALiBi, DenseBias, Relative
    from limelight.core.checks import SlowPathWarning
    from limelight.core.masks import (
        Blocks,
        Causal,
        Dense,
        Dilated,
        Documents,
        First,
        Global,
        Padding,
        Prefix,
        RandomBlocks,
        Strided,
        Window,
    )
    from limelight.core.masks.patterns import patterns
    from limelight.explorer import explore
    from limelight.functional import attention, backend_for, weights
    from limelight.lens.tracing import trace
    from limelight.lens.watching import edit, watch
    from limelight.matrix.base import Weights
    from limelight.matrix.flow import rollout
    from limelight.nn.cache import ByteCache, HeavyHitterCache, KVCache, WindowCache

# Names are imported when they are first used, so that `limelight --help` need not import torch.
_HOME = {
    "attention": "functional",
    "weights": "functional",
    "backend_for": "functional",
    "Weights": "matrix.base",
    "trace": "lens.tracing",
    "rollout": "matrix.flow",
    "watch": "lens.watching",
    "edit": "lens.watching",
    "explore": "explorer",
    "Causal": "core.masks",
    "Window": "core.masks",
    "Padding": "core.masks",
    "Documents": "core.masks",
    "Prefix": "core.masks",
    "First": "core.masks",
    "Dense": "core.masks",
    "Global": "core.masks",
    "Strided": "core.masks",
    "Dilated": "core.masks",
    "RandomBlocks": "core.masks",
    "Blocks": "core.masks",
    "patterns": "core.masks.patterns",
    "ALiBi": "core.biases",
    "Relative": "core.biases",
    "DenseBias": "core.biases",
    "KVCache": "nn.cache",
    "WindowCache": "nn.cache",
    "ByteCache": "nn.cache",
    "HeavyHitterCache": "nn.cache",
    "SlowPathWarning": "core.checks",
}
_PACKAGES = ("experiments", "lens", "models", "nn", "parallel", "positions", "translate")

__all__ = [
    "ALiBi",
    "Blocks",
    "ByteCache",
    "Causal",
    "Dense",
    "DenseBias",
    "Dilated",
    "Documents",
    "First",
    "Global",
    "HeavyHitterCache",
    "KVCache",
    "Padding",
    "Prefix",
    "RandomBlocks",
    "Relative",
    "SlowPathWarning",
    "Strided",
    "Weights",
    "Window",
    "WindowCache",
    "attention",
    "backend_for",
    "edit",
    "experiments",
    "explore",
    "lens",
    "models",
    "nn",
    "parallel",
    "patterns",
    "positions",
    "rollout",
    "trace",
    "translate",
    "watch",
    "weights",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("limelight-attention")
    if name in _PACKAGES:
        return import_module(f"limelight.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    value = getattr(import_module(f"limelight.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
