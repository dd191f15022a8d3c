"""Diffusion: the attention of diffusers' models, computed and recorded.

Every attention processor of diffusers ends in a call of SDPA or in a softmax. limelight intercepts these two, so that
processors and models stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from limelight.lens.eager import intercept_attention
from limelight.lens.patches import Grids, PictureGrids
from limelight.lens.recorder import Recorder
from limelight.matrix.grid import Grid

_LATENTS = ("sample", "hidden_states")


@contextmanager
def intercept_diffusion(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Compute and record the attention of a model of diffusers inside a ``with`` block."""
    _refuse_slices(model)
    recorder.pictures = grids = LatentGrids(model)
    with grids.reading_text_values(), intercept_attention(model, recorder, computes=True):
        yield


def _refuse_slices(model: nn.Module) -> None:
    """Raise ``ValueError`` for sliced attention, whose pieces of a matrix are not attention matrices."""
    for name, module in model.named_modules():
        if "Sliced" in type(getattr(module, "processor", None)).__name__:
            raise ValueError(f"watch: {name} computes attention in slices; call disable_attention_slicing() first")


class LatentGrids(PictureGrids):
    """Finds the grids of the attention calls of a diffusion model.

    The sizes of the picture are those of the latents that the model is given: of a UNet at every resolution, of a
    transformer in patches. In joint attention (SD3, Flux) the text's tokens stand before or after the picture's;
    comparing the values of a call with those that were projected from the text tells which.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.text = 0  # tokens of the prompt
        self.size: tuple[int, int] | None = None  # rows and columns of the picture, before any patch is made
        self.text_first: bool | None = None  # in joint attention: the text stands before the picture
        self._text_values: dict[nn.Module, Tensor] = {}
        self._joint: set[nn.Module] = set()

    @contextmanager
    def reading_text_values(self) -> Iterator[None]:
        """Keep the values that attention modules project from the text, inside a ``with`` block."""
        with ExitStack() as stack:
            stack.callback(self._text_values.clear)
            for module in self._model.modules():
                for name, part in (("add_v_proj", None), ("to_added_qkv", 3)):
                    if isinstance(child := getattr(module, name, None), nn.Module):
                        stack.callback(child.register_forward_hook(self._hook(module, part)).remove)
            yield

    def _hook(self, module: nn.Module, parts: int | None) -> Callable[..., None]:
        def keep(_: nn.Module, __: Any, out: Tensor) -> None:
            self._text_values[module] = (out if parts is None else out.chunk(parts, -1)[-1]).detach()

        return keep

    def notice(self, module: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Keep the sizes of the latents and of the text, from the arguments of the model's forward call."""
        if module is not self._model:
            return
        text = arguments.get("encoder_hidden_states")
        self.text = text.shape[1] if isinstance(text, Tensor) and text.ndim == 3 else 0
        self.size = _picture_size(arguments)

    def joins_text(self, module: nn.Module, v: Tensor) -> bool:
        """Return whether the values ``(B, H, keys, width)`` of a call include the text's; remember on which side."""
        text = self._text_values.pop(module, None)
        if text is None:
            return False
        joined, T = v.transpose(1, 2).flatten(2), text.shape[1]
        for first, part in ((True, joined[:, :T]), (False, joined[:, -T:])):
            if part.shape == text.shape and torch.equal(part, text.to(part)):
                self.text, self.text_first = T, first
                self._joint.add(module)
                return True
        return False

    def of(self, module: nn.Module, name: str, kind: str, shape: tuple[int, ...]) -> Grids:
        """Return the grids of the queries and of the keys of a call; None for those that are not a picture."""
        N, M = shape[-2:]
        return self._side(N), None if kind == "cross" and module not in self._joint else self._side(M)

    def _side(self, n: int) -> Grid | None:
        """Return the grid of so many tokens: the picture alone, or with the text before or after it."""
        if (size := self._resolution(n)) is not None:
            return Grid(*size)
        if self.text_first is None or (size := self._resolution(n - self.text)) is None:
            return None
        names = tuple(f"text {i}" for i in range(self.text))
        return Grid(*size, before=names) if self.text_first else Grid(*size, after=names)

    @property
    def finest(self) -> tuple[int, int] | None:
        """Rows and columns of the picture where it has the most patches."""
        if self.size is None:
            return None
        patch = getattr(getattr(self._model, "config", None), "patch_size", None)
        patch = patch if isinstance(patch, int) else 1
        return self.size[0] // patch, self.size[1] // patch

    def _resolution(self, n: int) -> tuple[int, int] | None:
        """Return rows and columns of the picture in so many patches; a UNet halves them from block to block."""
        if self.finest is None or n <= 0:
            return None
        rows, cols = self.finest
        while rows * cols > n and hasattr(self._model, "down_blocks"):
            rows, cols = -(-rows // 2), -(-cols // 2)
        return (rows, cols) if rows * cols == n else None


def _picture_size(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return rows and columns of the latents, from their shape or (Flux) from the places of their tokens."""
    latents = next((x for name in _LATENTS if isinstance(x := arguments.get(name), Tensor)), None)
    if latents is not None and latents.ndim == 4:
        return int(latents.shape[2]), int(latents.shape[3])
    places = arguments.get("img_ids")
    if latents is None or latents.ndim != 3 or not isinstance(places, Tensor):
        return None
    rows, cols = (int(x) + 1 for x in places.reshape(-1, places.shape[-1]).amax(0)[-2:])
    return (rows, cols) if rows * cols == latents.shape[1] else None
