"""A reading of a picture: what the model in a folder attends to in it, and what it writes about it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from limelight import models
from limelight.lens.patches import config_sizes, setting
from limelight.lens.preprocessing import Preprocessing, read_preprocessing
from limelight.lens.reading import Reading, has_own_attention, load_tokenizer
from limelight.lens.record import Record
from limelight.lens.sizes import model_sizes
from limelight.lens.watching import watch
from limelight.matrix.grid import Grid
from limelight.models.checkpoint import ARCHITECTURES, read_config
from limelight.models.tokenizers import readable_tokens
from limelight.viz.images import open_image

_WRITTEN = 64  # tokens of a caption, at most
# Classes of transformers for models that also read or write text.
_LOADERS = {
    "blip": "BlipForConditionalGeneration",
    "clip": "CLIPVisionModel",
    "siglip": "SiglipVisionModel",
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
}


@dataclass(frozen=True)
class PictureReader:
    """A model from a folder that looks at pictures."""

    folder: Path
    model: nn.Module
    preprocessing: Preprocessing
    channels: int

    @staticmethod
    def load(folder: str | Path) -> PictureReader:
        """Load the model in a folder; raises ``ValueError`` if it does not take pictures."""
        folder = Path(folder)
        config = read_config(folder)
        kind = config.get("model_type")
        vision = _vision_config(folder, config)
        if kind == "vit":
            model: nn.Module = models.load(folder)
        else:
            from limelight.lens.hf import loading

            model = loading.load_model(folder, config, loader=_LOADERS.get(str(kind)))
        named = str(setting(vision, "model_type") or kind) if kind == "vision-encoder-decoder" else str(kind)
        preprocessing = read_preprocessing(folder, named, config_sizes(vision)[1])
        return PictureReader(folder, model, preprocessing, int(setting(vision, "num_channels") or 3))

    def read(self, file: str | Path) -> Reading:
        """Run the model on a picture and record what it attends to; a captioner first writes its caption."""
        pixels, seen = self.preprocessing(open_image(file), self.channels)
        model: Any = self.model
        dense = hasattr(model, "base_model_prefix") and has_own_attention(model)
        with torch.no_grad():
            written = self._caption(pixels)
            with watch(model, dense=dense) as record:
                self._run(pixels, written)
        grid = _grid(self.folder, record)
        tokens, wrote = {"encoder": grid.names(), "decoder": grid.names()}, ""
        if written is not None:
            texts, wrote = self._texts(written[0])
            tokens |= {"decoder": texts[:-1], "written": texts[1:]}
        return Reading(
            model=self.folder.resolve().name,
            tokens=tokens,
            record=record,
            wrote=wrote,
            sizes=model_sizes(model, record, len(grid)),
            picture=seen,
        )

    def _caption(self, pixels: Tensor) -> Tensor | None:
        """Return the tokens that a captioner writes, the first of which it is given, or None."""
        model: Any = self.model
        if not any(hasattr(model, name) for name in ("text_decoder", "decoder")):
            return None
        decoder = model.text_decoder if hasattr(model, "text_decoder") else model.decoder
        positions = getattr(decoder.config, "max_position_embeddings", None)
        most = _WRITTEN if positions is None else min(_WRITTEN, positions - 1)
        written: Tensor = model.generate(pixel_values=pixels, max_new_tokens=most)
        return written

    def _run(self, pixels: Tensor, written: Tensor | None) -> None:
        model: Any = self.model
        if not hasattr(model, "main_input_name"):  # limelight's own
            model(pixels)
        elif written is not None:
            ids = "decoder_input_ids" if hasattr(model, "decoder") else "input_ids"
            model(pixel_values=pixels, **{ids: written[:, :-1]})
        else:
            model(pixel_values=pixels, **self._positions(pixels))

    def _positions(self, pixels: Tensor) -> dict[str, bool]:
        """Return the option with which a model fits its positions to a picture of another size."""
        known = config_sizes(getattr(self.model, "config", None))[1]
        other = known is not None and known != tuple(pixels.shape[2:])
        can = "interpolate_pos_encoding" in inspect.signature(self.model.forward).parameters
        return {"interpolate_pos_encoding": True} if other and can else {}

    def _texts(self, ids: Tensor) -> tuple[list[str], str]:
        """Return tokens as text, and the caption; numbers where the folder has no tokenizer."""
        try:
            tokenizer = load_tokenizer(self.folder)
        except FileNotFoundError:
            return [str(i) for i in ids.tolist()], " ".join(map(str, ids.tolist()))
        return readable_tokens(tokenizer, {"written": ids})["written"], tokenizer.decode(ids.tolist())


def _vision_config(folder: Path, config: Mapping[str, Any]) -> Any:
    """Return the configuration of the part that takes pictures; raises ``ValueError`` if there is none."""
    kind = config.get("model_type")
    if kind == "vit":
        return config
    found: Any = None
    if isinstance(kind, str) and kind not in ARCHITECTURES:
        from transformers import AutoConfig

        try:
            found = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except Exception:  # transformers raises many kinds; loading says what is wrong
            return config
        found = next((x for part in ("vision_config", "encoder") if (x := getattr(found, part, None))), found)
    if found is None or config_sizes(found)[0] is None:
        raise ValueError(f"{folder} holds a {kind} model, which reads text and no pictures; leave --image out")
    return found


def _grid(folder: Path, record: Record) -> Grid:
    found = next((call.grids[1] for call in record.log if call.grids[1] is not None), None)
    if found is None:
        raise ValueError(f"{folder}: the tokens of this model are not the patches of one grid, so they have no picture")
    return found
