"""Checkpoints in their published format, ``config.json`` and safetensors: load, save, build."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from limelight.backends import move_to_large_pages
from limelight.models import bert, big_bird, bloom, gpt2, llama, longformer, marian, neox, t5, transformer_xl, vit
from limelight.models.configs import architectures, shown
from limelight.models.mapping import TensorMap

# An architecture is a module with
#   TYPES          the values of model_type that it stands for;
#   build(config)  returns the model;
#   tensors(config)  maps the tensors of a checkpoint to the model's parameters;
#   PREFIX         the prefix of the names of tensors in checkpoints with a head;
#   TABLE          the name of the embedding's table;
#   COPIES         a pattern of tensors that repeat others, which are ignored;
#   OTHERS         a pattern of tensors that are not used, which are kept so that save() writes them again.
ARCHITECTURES: dict[str, ModuleType] = {
    name: module
    for module in (bert, big_bird, bloom, gpt2, llama, longformer, marian, neox, t5, transformer_xl, vit)
    for name in module.TYPES
}
_WEIGHTS, _INDEX, _CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"

# The class with a language-model head, for configurations that name no class.
_WITH_HEADS = {
    "bert": "BertForMaskedLM",
    "big_bird": "BigBirdForMaskedLM",
    "bloom": "BloomForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_neox": "GPTNeoXForCausalLM",
    "llama": "LlamaForCausalLM",
    "longformer": "LongformerForMaskedLM",
    "marian": "MarianMTModel",
    "mistral": "MistralForCausalLM",
    "mt5": "MT5ForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
}
_HEAD_TENSORS = (
    "lm_head.weight",
    "embed_out.weight",
    "cls.predictions.decoder.weight",
    "cls.predictions.bias",
    "lm_head.bias",
)
_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
# Tensors outside the layers have these names without a prefix; those that a model has no use for are left out.
_OUTPUT_HEADS = ("lm_head.", "cls.", "embed_out.", "final_logits_bias", "classifier.", "qa_outputs.", "score.", "crit.")


def load(folder: str | Path, dtype: torch.dtype | None = None) -> nn.Module:
    """Load the model in a folder, in ``eval`` mode.

    The folder holds ``config.json`` and ``model.safetensors`` (or its shards), as they are published for transformers.
    The architectures are the original Transformer (in Marian's format), BERT, Longformer, BigBird, GPT-2, LLaMA,
    Mistral, GPT-NeoX, BLOOM, T5, Transformer-XL and ViT.

    Args:
        folder: the folder of the checkpoint.
        dtype: dtype of the parameters; that of the checkpoint unless given.

    Returns:
        A module that is called as ``model(ids)``, ``model(ids, mask=ll.Padding(lengths))``, ``model(source, target)``
        (encoder-decoders) or ``model(pixels)`` (ViT). It returns the logits of a language model, of classes
        (``BertForSequenceClassification``, ``BertForTokenClassification``), or the last hidden states where the
        checkpoint has no such head. ``model.config`` is its configuration. Output heads of other kinds are left out,
        with a warning.

    """
    folder = Path(folder)
    config = read_config(folder)
    architecture = _architecture(config, folder)
    tensors = _without_prefix(_read_weights(folder), architecture.PREFIX)
    try:
        config = _completed(config, folder, tensors, architecture)
        # Shapes without memory: a wrong configuration may ask for terabytes.
        with torch.device("meta"), _NoRandomNumbers():
            empty = architecture.build(config)
        maps = architecture.tensors(config)
        _check_shapes(empty, maps, tensors)
        model: nn.Module = architecture.build(config)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    _copy(model, maps, tensors)
    kept = _unused(folder, tensors, {one.theirs for one in maps}, architecture)
    model.to(dtype or next((x.dtype for x in tensors.values() if x.is_floating_point()), torch.float32))
    model.config, model.others = dict(config), kept  # type: ignore[assignment]
    move_to_large_pages(model.parameters())
    return model.eval()


class _NoRandomNumbers(TorchFunctionMode):
    """Skips ``init.normal_``, for which torch takes a second to import its compiler where a tensor has no memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.init.normal_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def save(model: nn.Module, folder: str | Path) -> None:
    """Write a model of ``load`` or ``build`` to a folder, in the format that ``load`` and transformers read."""
    config = getattr(model, "config", None)
    if not isinstance(config, Mapping) or config.get("model_type") not in ARCHITECTURES:
        raise ValueError("save: the model has no config of a known architecture; build it with models.build(config)")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    architecture = ARCHITECTURES[config["model_type"]]
    parameters = dict(model.named_parameters())
    tensors = {name: x.detach() for name, x in getattr(model, "others", {}).items()}
    for one in architecture.tensors(config):
        tensors[one.theirs] = one.join(*(parameters[name].detach() for name in one.ours))
    prefix = architecture.PREFIX if _has_prefix(config) else ""
    tensors = {name if name.startswith(_OUTPUT_HEADS) else prefix + name: x.contiguous() for name, x in tensors.items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
    text = json.dumps({**config, "dtype": dtype}, indent=2, ensure_ascii=False, sort_keys=True)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")


def build(config: Any) -> nn.Module:
    """Build a model of a known architecture with new parameters, normal with ``initializer_range`` (0.02).

    Args:
        config: the contents of a ``config.json`` as a dict, or a configuration of transformers.

    >>> sizes = {"vocab_size": 11, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16}
    >>> build({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes})(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 11])

    """
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


def read_config(folder: Path) -> dict[str, Any]:
    """Return the contents of a folder's ``config.json``."""
    return _read_json(folder / _CONFIG, folder)


def list_names(names: list[str], what: str) -> str:
    """Return a few names as text, such as "the tensors a, b, c, d and 3 more"."""
    listed = ", ".join(names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"the {what}{'s' if len(names) > 1 else ''} {listed}{more}"


def _completed(
    config: dict[str, Any], folder: Path, tensors: Mapping[str, Tensor], architecture: ModuleType
) -> dict[str, Any]:
    """Return the configuration, with entries that it lacks taken from the tensors and ``generation_config.json``."""
    config = {**config, "architectures": architectures(config)}
    kind = config["model_type"]
    for name in _DEPTHS:  # checked before that many layers are built
        if isinstance(depth := config.get(name), int) and depth > len(tensors):
            raise ValueError(f"config.json: {name} = {shown(depth)}, and the checkpoint has {len(tensors)} tensors")
    heads = [name for name in _HEAD_TENSORS if name in tensors]
    if not config["architectures"]:
        config["architectures"] = _guess_class(kind, heads, tensors)
    if "classifier.weight" in tensors and config.get("num_labels") is None:
        config["num_labels"] = len(tensors["classifier.weight"])
    table = tensors.get(architecture.TABLE)
    for name in heads:
        if table is not None and tensors[name].shape == table.shape and not torch.equal(tensors[name], table):
            if kind == "bert":
                raise ValueError(f"{name} differs from the embedding's table, and only a tied head is supported")
            config["tie_word_embeddings"] = False
    generation = folder / "generation_config.json"
    if generation.is_file():
        more = _read_json(generation, folder)
        for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id"):
            if config.get(name) is None and more.get(name) is not None:
                config[name] = more[name]
    return config


def _guess_class(kind: str, heads: list[str], tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the class of a checkpoint whose configuration names none."""
    if kind in ("t5", "mt5") and not any(name.startswith("decoder.block.") for name in tensors):
        return ["T5EncoderModel"]
    always_with_head = kind not in ("bert", "big_bird", "longformer", "llama", "mistral", "gpt_neox")
    return [_WITH_HEADS[kind]] if kind in _WITH_HEADS and (heads or always_with_head) else []


def _has_prefix(config: Mapping[str, Any]) -> bool:
    """Return whether the names of tensors have the architecture's prefix, as those of models with a head have."""
    bare = (name.endswith("Model") and not name.endswith(("LMHeadModel", "MTModel")) for name in architectures(config))
    return not any(bare)


def _read_json(file: Path, folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no {file.name}; give the folder of a checkpoint")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds a {type(found).__name__}, not an object")
    return found


def _architecture(config: Mapping[str, Any], folder: Path) -> ModuleType:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ValueError(f"{folder}: model_type {shown(kind)} is unknown; there are {known}")
    return ARCHITECTURES[kind]


def _read_weights(folder: Path) -> dict[str, Tensor]:
    files = [folder / _WEIGHTS]
    if not files[0].is_file() and (folder / _INDEX).is_file():
        files = [folder / name for name in _shards(folder)]
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not file.is_file():
            pickled = any(folder.glob("*.bin"))
            hint = "; pickled weights are not read, convert them to safetensors" if pickled else ""
            raise FileNotFoundError(f"{folder} has no {file.name}{hint}")
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
            raise ValueError(f"{file} is damaged or not a safetensors file: {error}") from None
    return tensors


def _shards(folder: Path) -> list[str]:
    """Return the names of the files that the index of a checkpoint lists, all of them inside the folder."""
    index = _read_json(folder / _INDEX, folder).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise ValueError(f"{folder / _INDEX}: weight_map must be an object of tensor names and file names")
    names = sorted(set(index.values()))
    for name in names:
        if not name.endswith(".safetensors") or Path(name).name != name or "\\" in name or "\0" in name:
            raise ValueError(f"{folder / _INDEX}: {shown(name)} must be a .safetensors file inside the folder")
    return names


def _without_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors without the architecture's prefix, and with today's names for the parameters of norms."""

    def current(name: str) -> str:
        name = name.removeprefix(prefix)
        return re.sub(r"\bgamma$", "weight", re.sub(r"\bbeta$", "bias", name))

    return {current(name): x for name, x in tensors.items()}


def _check_shapes(model: nn.Module, maps: Iterable[TensorMap], tensors: Mapping[str, Tensor]) -> None:
    """Raise ``ValueError`` if a parameter has no tensor, or one of another shape."""
    ours = dict(model.named_parameters())
    filled: set[str] = set()
    missing = []
    for one in maps:
        filled.update(one.ours)
        if one.theirs not in tensors:
            missing.append(one.theirs)
            continue
        theirs = tensors[one.theirs]
        try:
            parts = one.split(theirs.to("meta"))
            fits = [part.shape for part in parts] == [ours[name].shape for name in one.ours]
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            shapes = " and ".join(str(tuple(ours[name].shape)) for name in one.ours)
            raise ValueError(f"{one.theirs} has shape {tuple(theirs.shape)}; config.json makes it {shapes} here")
    if missing:
        raise ValueError(f"the checkpoint lacks {list_names(missing, 'tensor')}")
    assert filled == set(ours), f"parameters without a tensor: {sorted(set(ours) ^ filled)}"


def _copy(model: nn.Module, maps: Iterable[TensorMap], tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a checkpoint into the parameters of a model."""
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for one in maps:
            for name, part in zip(one.ours, one.split(tensors[one.theirs]), strict=True):
                ours[name].copy_(part)


def _unused(folder: Path, tensors: Mapping[str, Tensor], used: set[str], architecture: ModuleType) -> dict[str, Tensor]:
    """Return the tensors that are kept for ``save``; warn of output heads that are not used.

    Raises ``ValueError`` for a tensor inside the layers that nothing takes, since the results would be wrong.
    """
    rest = {n: x for n, x in tensors.items() if n not in used and not re.fullmatch(architecture.COPIES, n)}
    heads = sorted(n for n in rest if n.startswith(_OUTPUT_HEADS) and not re.fullmatch(architecture.OTHERS, n))
    extra = sorted(n for n in rest if n not in heads and not re.fullmatch(architecture.OTHERS, n))
    if extra:
        raise ValueError(
            f"{folder}: nothing in this architecture takes {list_names(extra, 'tensor')} of the checkpoint"
        )
    if heads:
        warnings.warn(f"{folder}: not used here: {list_names(heads, 'tensor')} of the checkpoint", stacklevel=3)
    return rest
