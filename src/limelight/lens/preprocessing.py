"""Pictures as a model takes them: resized, cropped and normalised as ``preprocessor_config.json`` says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limelight.viz.images import Pixels

_FILE = "preprocessor_config.json"
_LARGEST = 4096  # pixels of the longest side that a configuration may ask for
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
# Mean and standard deviation that these models were published with, for folders that do not name them.
_PUBLISHED = {
    "vit": ((0.5,) * 3, (0.5,) * 3),
    "deit": _IMAGENET,
    "dinov2": _IMAGENET,
    "dinov2_with_registers": _IMAGENET,
    "clip": _CLIP,
    "clip_vision_model": _CLIP,
    "blip": _CLIP,
}
_BILINEAR, _BICUBIC = 2, 3  # numbers that Pillow gives to its filters


@dataclass(frozen=True)
class Preprocessing:
    """Steps from a picture to a model's pixels, in the order in which they are taken; None leaves one out.

    Attributes:
        size: height and width, or the length of the shorter side.
        crop: height and width of what is cut out of the middle.
        resample: how Pillow resizes.
        factor: what bytes are multiplied by.
        mean: subtracted from each channel.
        std: divides each channel.

    """

    size: tuple[int, int] | int | None
    crop: tuple[int, int] | None
    resample: int
    factor: float
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def __call__(self, image: Any, channels: int = 3) -> tuple[Tensor, Pixels]:
        """Return the model's pixels ``(1, channels, height, width)``, and the part of the picture that they show."""
        image = image.convert("L" if channels == 1 else "RGB")
        if self.size is not None:
            width, height = image.size
            if isinstance(self.size, int):
                short, long = sorted((width, height))
                other = int(self.size * long / short)
                size = (self.size, other) if width <= height else (other, self.size)
            else:
                size = self.size[1], self.size[0]
            if max(size) > _LARGEST:
                raise ValueError(
                    f"the picture would be resized to {size[0]} × {size[1]}; a side has {_LARGEST} pixels at most"
                )
            image = image.resize(size, self.resample)
        seen = np.array(image)[..., None] if channels == 1 else np.array(image)
        if self.crop is not None:
            seen = _cropped(seen, self.crop)
        x = torch.from_numpy(seen).permute(2, 0, 1)[None].float() * self.factor
        if self.mean is not None and self.std is not None:
            x = (x - _column(self.mean, channels)) / _column(self.std, channels)
        return x, np.ascontiguousarray(np.broadcast_to(seen, (*seen.shape[:2], 3)))


def _column(numbers: tuple[float, ...], channels: int) -> Tensor:
    if len(numbers) not in (1, channels):
        raise ValueError(f"{_FILE} has {len(numbers)} means and deviations for {channels} channels")
    return torch.tensor(numbers)[:, None, None]


def _cropped(x: Pixels, crop: tuple[int, int]) -> Pixels:
    """Cut out the middle; a picture that is smaller gets black edges."""
    lacks = [max(0, wanted - had) for wanted, had in zip(crop, x.shape[:2], strict=True)]
    if any(lacks):
        x = np.pad(x, [(-(-n // 2), n // 2) for n in lacks] + [(0, 0)])
    top, left = ((had - wanted) // 2 for wanted, had in zip(crop, x.shape[:2], strict=True))
    return x[top : top + crop[0], left : left + crop[1]]


def read_preprocessing(folder: Path, kind: str, image_size: tuple[int, int] | None) -> Preprocessing:
    """Return what a folder says about pictures; without the file, what its kind of model was published with."""
    file = folder / _FILE
    if file.is_file():
        try:
            given = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(given, Mapping):
                raise ValueError("it is not an object")
            return _parse(given)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} cannot be used: {error}") from None
    if kind not in _PUBLISHED or image_size is None:
        raise FileNotFoundError(
            f"{folder} has no {_FILE}, which says how pictures are resized and normalised, and there is no usual way "
            f"for a {kind} model; copy the file from where the model was published"
        )
    mean, std = _PUBLISHED[kind]
    resample = _BILINEAR if kind == "vit" else _BICUBIC
    return Preprocessing(size=image_size, crop=None, resample=resample, factor=1 / 255, mean=mean, std=std)


def _parse(given: Mapping[str, Any]) -> Preprocessing:
    if given.get("do_pad"):
        raise ValueError("do_pad is not supported")
    name = str(given.get("image_processor_type") or given.get("feature_extractor_type") or "")
    by_short_side = any(word in name for word in ("CLIP", "BitImage"))
    size = _size(given.get("size", 224), by_short_side) if given.get("do_resize", True) else None
    crop = _size(given.get("crop_size", 224), False) if given.get("do_center_crop", False) else None
    if isinstance(crop, int):
        raise ValueError(f"crop_size = {given['crop_size']} must be a height and a width")
    normalised = given.get("do_normalize", True)
    return Preprocessing(
        size=size,
        crop=crop,
        resample=_whole("resample", given.get("resample", _BILINEAR if "ViT" in name else _BICUBIC), 0, 5),
        factor=_number(given.get("rescale_factor", 1 / 255)) if given.get("do_rescale", True) else 1.0,
        mean=_numbers("image_mean", given.get("image_mean")) if normalised else None,
        std=_numbers("image_std", given.get("image_std")) if normalised else None,
    )


def _size(given: Any, by_short_side: bool) -> tuple[int, int] | int:
    if isinstance(given, Mapping) and "shortest_edge" in given:
        return _whole("shortest_edge", given["shortest_edge"], 1, _LARGEST)
    if isinstance(given, Mapping):
        return _whole("height", given.get("height"), 1, _LARGEST), _whole("width", given.get("width"), 1, _LARGEST)
    if isinstance(given, list) and len(given) == 2:
        return _whole("size", given[0], 1, _LARGEST), _whole("size", given[1], 1, _LARGEST)
    side = _whole("size", given, 1, _LARGEST)
    return side if by_short_side else (side, side)


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} = {value!r} must be a whole number from {least} to {most}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < abs(value) < 1e6:
        raise ValueError(f"{value!r} must be a number other than 0")
    return float(value)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= 4:
        raise ValueError(f"{name} = {values!r} must be a list of numbers, one for each channel")
    return tuple(_number(x) if name == "image_std" else float(x) for x in values)
