"""Grids of models that look at pictures: which tokens are patches, and which are special."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from limelight.matrix.grid import Grid

# Parameters that models put before the patches, in this order, by the last part of their names.
_SPECIAL = {
    "cls_token": "class",
    "class_embedding": "class",
    "class_token": "class",
    "whole": "class",  # limelight's own ViT
    "distillation_token": "distillation",
    "register_tokens": "register",
}
_PIXELS = ("pixel_values", "pixels")
Grids = tuple[Grid | None, Grid | None]  # the grid of a call's queries, and that of its keys


def grid(model: nn.Module, size: int | tuple[int, int] | None = None) -> Grid:
    """Return how a model's tokens lie on a picture: rows and columns of patches, and the special tokens before them.

    Works for limelight's ViT and for the vision transformers of transformers, also inside a larger model: ViT, DeiT
    (class and distillation token), CLIP, BLIP, DINOv2 with registers, VisionEncoderDecoder and others alike.

    Args:
        model: the model.
        size: height and width of the picture in pixels; what the model's configuration says unless given.

    >>> from transformers import ViTConfig, ViTModel
    >>> config = ViTConfig(hidden_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=24, patch_size=8)
    >>> grid(ViTModel(config))
    Grid(rows=3, cols=3, before=('class',), after=())
    >>> len(grid(ViTModel(config), size=(16, 40)))
    11

    """
    patch, known = config_sizes(getattr(model, "config", None))
    size = known if size is None else (size, size) if isinstance(size, int) else size
    if patch is None or size is None:
        raise ValueError(
            f"the configuration of {type(model).__name__} names no {'patch' if patch is None else 'image'}_size; say "
            "how its tokens lie with limelight.lens.Grid(rows, cols, before=('class',))"
        )
    rows, cols = (n // p for n, p in zip(size, patch, strict=True))
    if not rows or not cols:
        raise ValueError(f"a picture of {size[0]} × {size[1]} pixels has no patch of {patch[0]} × {patch[1]}")
    return Grid(rows, cols, tuple(_special_tokens(model)))


def config_sizes(config: Any) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Return the sizes of a patch and of a picture that a configuration names, perhaps in its part for vision."""
    for part in ("vision_config", "encoder"):
        if setting(config, part) is not None:
            config = setting(config, part)
            break
    return _pair(setting(config, "patch_size")), _pair(setting(config, "image_size"))


def setting(config: Any, name: str) -> Any:
    """Return an entry of a configuration, which is a dict or an object, or None."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _pair(given: Any) -> tuple[int, int] | None:
    if isinstance(given, int):
        return given, given
    return (int(given[0]), int(given[1])) if isinstance(given, (list, tuple)) and len(given) == 2 else None


def _special_tokens(model: nn.Module) -> Iterator[str]:
    """Yield the names of the tokens before the patches, by the parameters that they are."""
    found = {_SPECIAL[last]: p for name, p in model.named_parameters() if (last := name.split(".")[-1]) in _SPECIAL}
    for name in dict.fromkeys(_SPECIAL.values()):
        if name == "register" and name in found:
            yield from (f"register {n}" for n in range(found[name].shape[-2]))
        elif name in found:
            yield name


class PictureGrids:
    """Finds the grids of the attention calls of a model, from its configuration and the pixels that it is given."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._size: tuple[int, int] | None = None
        self._grid: Grid | None = None

    def notice(self, module: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Keep the size of the pixels, from the arguments of a module's forward call."""
        pixels = next((x for name in _PIXELS if isinstance(x := arguments.get(name), Tensor) and x.ndim == 4), None)
        if pixels is None or (size := (int(pixels.shape[2]), int(pixels.shape[3]))) == self._size:
            return
        self._size = size
        try:
            self._grid = grid(self._model, size)
        except ValueError:
            self._grid = None

    def joins_text(self, module: nn.Module, v: Tensor) -> bool:
        """Return whether a module's sequence joins a text and a picture."""
        return False

    def of(self, module: nn.Module, name: str, kind: str, shape: tuple[int, ...]) -> Grids:
        """Return the grids of the queries and of the keys of a call; None for those that are not a picture."""
        found, (N, M) = self._grid, shape[-2:]
        if found is None or len(found) != M:
            return None, None
        if kind == "cross":
            return None, found
        reads_text = any(word in name for word in ("text", "decoder"))
        return (found, found) if N == M and not reads_text else (None, None)
