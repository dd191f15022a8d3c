"""Maps of a prompt: where on the picture each of its words is attended to, as a running sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from limelight.lens.diffusion import LatentGrids
from limelight.lens.hf.arguments import is_diffusers_model
from limelight.lens.layers import Layer
from limelight.lens.record import Values
from limelight.lens.recorder import Recorder
from limelight.lens.watching import layer_filter, watch_with
from limelight.lens.word_maps import WordMaps, by_word
from limelight.matrix.base import Weights
from limelight.matrix.grid import Grid

_MOST = 2**22  # weights in memory at a time


@contextmanager
def prompt_maps(model: nn.Module, *, layers: Iterable[int | str] | None = None) -> Iterator[PromptMaps]:
    """Sum up where a diffusion model attends to the words of its prompt, in memory that does not grow with the steps.

    Inside the ``with`` block every attention call from the picture to the prompt is added to one map for each token:
    cross-attention, and of joint attention the part from patches to text. Nothing else is kept.

    Args:
        model: ``pipe.unet`` or ``pipe.transformer`` of a pipeline of diffusers.
        layers: numbers of layers, or patterns of module names such as ``"up_blocks.*"``; all unless given.

    ::

        with ll.lens.prompt_maps(pipe.unet) as maps:
            image = pipe("a cat on a mat").images[0]
        tokens = pipe.tokenizer.convert_ids_to_tokens(pipe.tokenizer("a cat on a mat").input_ids)
        maps.words(tokens).show(image, on="figure")

    """
    if not isinstance(model, nn.Module) or not is_diffusers_model(model):
        raise TypeError(f"prompt_maps: give a model of diffusers, such as pipe.unet, not {type(model).__name__}")
    maps = PromptMaps()
    recorder = _PromptRecorder(model, layer_filter(model, layers), maps)
    with watch_with(model, recorder):
        yield maps


class PromptMaps:
    """A running sum of what the patches of a picture attend to in a prompt, over steps, layers and resolutions.

    Attributes:
        sum: ``(batch, tokens, rows, cols)``: the weights of each patch on each token of the prompt, the mean over
            heads, at the resolution of the latents; None before the first call.
        calls: the number of attention calls in the sum.

    """

    def __init__(self) -> None:
        self.sum: Tensor | None = None
        self.calls = 0

    def add(self, A: Weights, rows: slice, cols: slice, grid: Grid, size: tuple[int, int]) -> None:
        """Add the weights from the patches of a picture, ``A[…, rows, :]``, to the tokens of a prompt, ``A[…, cols]``.

        ``grid`` is how the patches lie; the map is resized to ``size``, rows and columns.
        """
        found = torch.cat([_mean_of_heads(A, b, rows, cols) for b in range(A.shape[0])])  # (B, patches, tokens)
        maps = found.mT.unflatten(-1, (grid.rows, grid.cols))
        if (grid.rows, grid.cols) != size:
            maps = torch.nn.functional.interpolate(maps, size, mode="bilinear", align_corners=False)
        if self.sum is None:
            self.sum = torch.zeros_like(maps)
        if self.sum.shape != maps.shape:
            raise ValueError(
                f"prompt_maps: a call has maps {tuple(maps.shape)} and the sum {tuple(self.sum.shape)}; use one block "
                "for each batch, prompt length and size of picture"
            )
        self.sum += maps
        self.calls += 1

    def words(self, tokens: Sequence[str], batch: int = -1) -> WordMaps:
        """Return the map of each word of the prompt, the mean weight over all calls, summed over the word's pieces.

        Args:
            tokens: the tokens of the prompt as the model was given them, special ones included; padding may be left
                out.
            batch: the batch element; the last unless given, which with guidance is one with the prompt.

        """
        if self.sum is None:
            raise ValueError(
                "prompt_maps: no attention from a picture to a prompt was seen; run the pipeline in the block"
            )
        if len(tokens) > self.sum.shape[1]:
            raise ValueError(f"prompt_maps: {len(tokens)} tokens, and the model was given {self.sum.shape[1]}")
        return by_word(tokens, self.sum[batch] / self.calls)

    def __repr__(self) -> str:
        shape = None if self.sum is None else tuple(self.sum.shape)
        return f"PromptMaps({self.calls} calls, sum {shape})"


def _mean_of_heads(A: Weights, batch: int, rows: slice, cols: slice) -> Tensor:
    """Return a part of a batch element's matrix, the mean over heads, ``(1, rows, cols)``."""
    H = A.shape[1]
    step = max(1, _MOST // (H * (cols.stop - cols.start)))
    parts = [
        A[batch, :, first : min(first + step, rows.stop), cols].float().mean(0)
        for first in range(rows.start, rows.stop, step)
    ]
    return torch.cat(parts)[None]


class _PromptRecorder(Recorder):
    """A recorder that adds the attention from the picture to the prompt to a sum, and keeps nothing else."""

    def __init__(self, model: nn.Module, is_wanted: Callable[[Layer], bool], maps: PromptMaps) -> None:
        super().__init__(model, is_wanted=is_wanted)
        self.maps = maps

    def add(self, module: nn.Module, found: Weights, layer: Layer | None = None, values: Values | None = None) -> None:
        """Add one attention call of a module to the sum."""
        layer = self._begin(module, found.shape)[0] if layer is None else layer
        places, (queries, keys) = self.pictures, self.grids(module, found.shape)
        if not isinstance(places, LatentGrids) or queries is None or places.finest is None or not self.is_wanted(layer):
            return
        T, M = places.text, found.shape[-1]
        if keys is None and self._kind(module) == "cross" and M == T:
            text = slice(0, T)
        elif keys is not None and keys.special:  # text and picture in one sequence
            text = slice(0, T) if keys.before else slice(M - T, M)
        else:
            return
        with torch.no_grad():
            self.maps.add(found, queries.patches, text, queries, places.finest)
