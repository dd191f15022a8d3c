"""Checkpoints as they are published: ``config.json`` and safetensors, read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from limelight.backends import move_to_large_pages
from limelight.models import bert, bloom, gpt2, llama, marian, neox, t5, vit
from limelight.models.mapping import Link

# An architecture builds a module from a configuration and links its parameters to the tensors of a checkpoint. Of the
# other tensors, COPIES repeat what is known, and OTHERS are not used here and only handed on when a model is saved.
ARCHITECTURES: dict[str, ModuleType] = {
    name: module for module in (bert, bloom, gpt2, llama, marian, neox, t5, vit) for name in module.TYPES
}
_WEIGHTS, _INDEX, _CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"


def load(folder: str | Path, dtype: torch.dtype | None = None) -> nn.Module:
    """The model in a folder, ready to be used (``eval``).

    The folder holds ``config.json`` and ``model.safetensors`` (or its shards), as they are published for transformers.
    Known are the original Transformer (Marian's checkpoints), BERT, GPT-2, LLaMA, Mistral, GPT-NeoX, BLOOM, T5 and ViT.

    Args:
        folder: where it is.
        dtype: of the parameters; that of the checkpoint unless given.

    Returns:
        A module that is called as ``model(ids)``, ``model(ids, mask=ll.Padding(lengths))``, ``model(source, target)``
        (encoder-decoders) or ``model(pixels)`` (ViT), and returns logits where the checkpoint has a language-model
        head and the last hidden states otherwise. ``model.config`` is its configuration.

    """
    folder = Path(folder)
    config = _read_json(folder / _CONFIG, folder)
    architecture = _architecture(config, folder)
    tensors = _plain_names(_read_weights(folder), architecture.PREFIX)
    config = _completed(config, folder, tensors, architecture)
    model: nn.Module = architecture.build(config)
    used = _fill(model, architecture.links(config), tensors, folder)
    rest = {n: x for n, x in tensors.items() if n not in used and not re.fullmatch(architecture.COPIES, n)}
    extra = sorted(name for name in rest if not re.fullmatch(architecture.OTHERS, name))
    if extra:
        raise ValueError(f"{folder}: nothing in this architecture takes {_listed(extra, 'tensor')} of the checkpoint")
    kind = dtype or next((x.dtype for x in tensors.values() if x.is_floating_point()), torch.float32)
    model.to(kind)
    model.config, model.others = dict(config), rest  # type: ignore[assignment]
    move_to_large_pages(model.parameters())
    return model.eval()


_WITH_HEADS = {
    "bert": "BertForMaskedLM",
    "bloom": "BloomForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "llama": "LlamaForCausalLM",
    "marian": "MarianMTModel",
    "mistral": "MistralForCausalLM",
    "mt5": "MT5ForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
}
_HEADS = ("lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight", "cls.predictions.bias")


def _completed(
    config: dict[str, Any], folder: Path, tensors: Mapping[str, Tensor], architecture: ModuleType
) -> dict[str, Any]:
    """The configuration with what it leaves to the tensors and to ``generation_config.json``."""
    config = dict(config)
    kind = config["model_type"]
    heads = [name for name in _HEADS if name in tensors]
    if isinstance(config.get("architectures"), str):
        config["architectures"] = [config["architectures"]]
    if not config.get("architectures") and kind in _WITH_HEADS:
        usual = kind not in ("bert", "llama", "mistral", "gpt_neox")
        config["architectures"] = [_WITH_HEADS[kind]] if heads or usual else []
    table = tensors.get(architecture.TABLE)
    for name in heads:
        if table is not None and tensors[name].shape == table.shape and not torch.equal(tensors[name], table):
            if kind == "bert":
                raise ValueError(
                    f"{folder}: {name} differs from the embedding's table, and only a tied head is supported"
                )
            config["tie_word_embeddings"] = False
    beside = folder / "generation_config.json"
    if beside.is_file():
        more = _read_json(beside, folder)
        for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id"):
            if config.get(name) is None and more.get(name) is not None:
                config[name] = more[name]
    return config


def save(model: nn.Module, folder: str | Path) -> None:
    """Writes what ``load`` reads, in the same format, which transformers loads too."""
    config = getattr(model, "config", None)
    if not isinstance(config, Mapping) or config.get("model_type") not in ARCHITECTURES:
        raise ValueError("save: the model has no config of a known architecture; build it with models.build(config)")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    architecture = ARCHITECTURES[config["model_type"]]
    named = dict(model.named_parameters())
    tensors = {name: x.detach() for name, x in getattr(model, "others", {}).items()}
    for link in architecture.links(config):
        tensors[link.theirs] = link.join(*(named[name].detach() for name in link.ours))
    heads = ("lm_head.", "cls.", "embed_out.", "final_logits_bias", "classifier.")
    prefix = architecture.PREFIX if _prefixed(config) else ""
    tensors = {name if name.startswith(heads) else prefix + name: x.contiguous() for name, x in tensors.items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    kind = str(next(iter(named.values())).dtype).removeprefix("torch.")
    text = json.dumps({**config, "dtype": kind}, indent=2, ensure_ascii=False, sort_keys=True)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")


def build(config: Any) -> nn.Module:
    """A model of a known architecture with new parameters, small enough to learn from (``initializer_range``)."""
    if hasattr(config, "to_dict"):  # a configuration of transformers
        config = config.to_dict()
    model: nn.Module = _architecture(config, Path("config")).build(config)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=config.get("initializer_range") or 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    model.config, model.others = dict(config), {}  # type: ignore[assignment]
    return model


def _prefixed(config: Mapping[str, Any]) -> bool:
    """Whether the names have the prefix of the architecture: those of a bare model have not."""
    names = config.get("architectures") or []
    return not any(name.endswith("Model") and not name.endswith(("LMHeadModel", "MTModel")) for name in names)


def _read_json(file: Path, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no {file.name}; give the folder of a checkpoint")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds a {type(found).__name__}, not an object")
    return found


def _architecture(config: Mapping[str, Any], folder: Path) -> ModuleType:
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"{folder}: model_type {kind!r} is unknown; there are {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[str(kind)]


def _read_weights(folder: Path) -> dict[str, Tensor]:
    files = [folder / _WEIGHTS]
    if not files[0].is_file() and (folder / _INDEX).is_file():
        shards = _read_json(folder / _INDEX, folder).get("weight_map", {})
        files = [folder / name for name in sorted(set(shards.values()))]
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            pickled = any(folder.glob("*.bin"))
            hint = "; pickled weights are not read, convert them to safetensors" if pickled else ""
            raise FileNotFoundError(f"{folder} has no {file.name}{hint}")
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is damaged or no safetensors file: {error}") from None
    return tensors


def _plain_names(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Without the prefix of the architecture, and with today's names for the parameters of norms."""

    def plain(name: str) -> str:
        name = name.removeprefix(prefix)
        return re.sub(r"\bgamma$", "weight", re.sub(r"\bbeta$", "bias", name))

    return {plain(name): x for name, x in tensors.items()}


def _fill(model: nn.Module, links: Iterable[Link], tensors: Mapping[str, Tensor], folder: Path) -> set[str]:
    """Copies their tensors into our parameters; returns the names of those that were used."""
    ours = dict(model.named_parameters())
    filled, used, missing = set(), set(), []
    for link in links:
        if link.theirs not in tensors:
            missing.append(link.theirs)
            continue
        used.add(link.theirs)
        x = tensors[link.theirs]
        try:
            parts = link.split(x)
            fit = len(parts) == len(link.ours)
            fit = fit and all(ours[n].shape == part.shape for n, part in zip(link.ours, parts, strict=True))
        except (RuntimeError, IndexError):
            fit = False
        if not fit:
            shapes = " and ".join(str(tuple(ours[n].shape)) for n in link.ours)
            raise ValueError(f"{folder}: {link.theirs} has shape {tuple(x.shape)}; config.json makes it {shapes} here")
        with torch.no_grad():
            for name, part in zip(link.ours, parts, strict=True):
                ours[name].copy_(part)
                filled.add(name)
    if missing:
        raise ValueError(f"{folder}: the checkpoint lacks {_listed(missing, 'tensor')}")
    assert filled == set(ours), f"parameters without a link: {sorted(set(ours) - filled)}"
    return used


def _listed(names: list[str], what: str) -> str:
    shown = ", ".join(names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"the {what}{'s' if len(names) > 1 else ''} {shown}{more}"
