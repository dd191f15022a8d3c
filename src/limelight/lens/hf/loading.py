"""Loads models and tokenizers with transformers: safetensors only, no code from the folder, no missing tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import nn

from limelight.models.checkpoint import list_names
from limelight.viz.text import one_line

# Parameters after the last layer, which no attention depends on: a checkpoint may lack them.
_AFTER_ATTENTION = re.compile(r"(^|\.)(pooler|classifier|score|cls|lm_head|qa_outputs)\.")


def load_model(folder: Path, config: dict[str, Any], predicts: bool = False, loader: str | None = None) -> nn.Module:
    """Load the model in a folder with transformers; raises ``ValueError`` unless its tensors fit ``config.json``.

    With ``predicts`` a decoder comes with the head that predicts the next token, if the folder has one. ``loader`` is
    the name of a class of transformers to load it with, if the usual one does not do.
    """
    kind = config.get("model_type")
    try:
        from limelight.lens.hf import interfaces  # noqa: F401  raises ImportError if transformers is too old
    except ImportError as error:
        raise ImportError(f"{folder} holds a {kind} model; {error}") from None
    import transformers
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        code = "; it asks to run Python code of the folder (auto_map), which limelight never does" * (
            "auto_map" in config
        )
        raise ValueError(f"{folder}: model_type {kind!r} is known neither to limelight nor to transformers{code}")
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        hint = "; pickled weights are not read, convert them to safetensors" if pickled else ""
        raise FileNotFoundError(f"{folder} has no model.safetensors{hint}")
    made_by: Any = AutoModelForSeq2SeqLM if config.get("is_encoder_decoder") else AutoModel
    if predicts and any("CausalLM" in name or "LMHead" in name for name in config.get("architectures") or ()):
        made_by = AutoModelForCausalLM
    made_by = made_by if loader is None else getattr(transformers, loader)
    with _quiet():
        try:
            model, info = made_by.from_pretrained(
                folder,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
        except Exception as error:  # transformers raises many kinds
            raise ValueError(f"{folder}: transformers cannot load it: {one_line(str(error))}") from None
    if made_by is AutoModelForCausalLM and any(_AFTER_ATTENTION.search(name) for name in info["missing_keys"]):
        return load_model(folder, config, loader="AutoModel")  # a new head would predict nothing
    _check_tensors(folder, model, info)
    found: nn.Module = model.eval()
    return found


def _check_tensors(folder: Path, model: Any, info: dict[str, Any]) -> None:
    """Raise ``ValueError`` if tensors that attention depends on are missing, have another shape or are left over."""
    missing = sorted(name for name in info["missing_keys"] if not _AFTER_ATTENTION.search(name))
    mismatched = sorted(str(x[0] if isinstance(x, (tuple, list)) else x) for x in info.get("mismatched_keys", ()))
    unexpected = sorted(_inside(model, info["unexpected_keys"]))
    wrong = [
        f"{what} {list_names(names, 'tensor')}"
        for what, names in (("lacks", missing), ("has other shapes of", mismatched), ("has no use for", unexpected))
        if names
    ]
    if wrong:
        raise ValueError(f"{folder}: the checkpoint does not fit config.json: it {', and it '.join(wrong)}")


def _inside(model: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield the names of tensors that belong inside the parts of the model, such as a layer that it does not have."""
    prefix = f"{model.base_model_prefix}."
    parts = {name for name, _ in getattr(model, "base_model", model).named_children()}
    for name in names:
        if name.removeprefix(prefix).split(".")[0] in parts and not _AFTER_ATTENTION.search(name):
            yield name


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer in a folder that has no ``tokenizer.json``, by converting its other files."""
    try:
        from transformers import AutoTokenizer

        with _quiet():
            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        tokenizer: Tokenizer = loaded.backend_tokenizer
    except Exception as error:  # transformers raises many kinds
        reason = one_line(str(error))
        raise FileNotFoundError(f"{folder} has no tokenizer.json, and its other files do not help: {reason}") from None
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' log and progress bars; what matters of them is raised as an error."""
    import transformers.utils.logging

    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
