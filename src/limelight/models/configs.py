"""Reads configurations: checked entries, and errors that name what is missing, wrong or not supported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from limelight.nn.positions import Rotary
from limelight.nn.rotary_scaling import Interpolated, Llama3, Plain, Yarn

Config = Mapping[str, Any]
_LANGUAGE_HEADS = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForPreTraining", "ForConditionalGeneration", "MTModel")
_MAX_SIZE = 2**31 - 1  # largest width, vocabulary or number of positions
_MAX_LAYERS = 4096
_ROPE_NEEDS = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def architectures(config: Config) -> list[str]:
    """Return the names of the classes that the checkpoint was saved from."""
    names = config.get("architectures") or []
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"config.json: architectures = {shown(names)} must be a list of names")
    return names


def has_head(config: Config) -> bool:
    """Return whether the checkpoint has a language-model head, by the names of its classes."""
    return any(name.endswith(_LANGUAGE_HEADS) for name in architectures(config))


def need(config: Config, *names: str) -> list[int]:
    """Return required sizes: whole numbers of at least 1."""
    missing = [n for n in names if config.get(n) is None]
    if missing:
        raise ValueError(f"config.json ({shown(config.get('model_type'))}) lacks {', '.join(missing)}")
    return [_size(n, config[n]) for n in names]


def size(config: Config, name: str, default: int) -> int:
    """Return a size, or ``default`` if it is not there."""
    return default if config.get(name) is None else _size(name, config[name])


def _size(name: str, value: Any) -> int:
    most = _MAX_LAYERS if "layer" in name and "norm" not in name else _MAX_SIZE
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"config.json: {name} = {shown(value)} must be a whole number from 1 to {most}")
    return value


def number(config: Config, name: str, default: float, below: float = math.inf) -> float:
    """Return a number of at least 0 and below ``below``, or ``default`` if it is not there."""
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < below or value == math.inf:
        limit = "" if below == math.inf else f" and below {below:g}"
        raise ValueError(f"config.json: {name} = {shown(value)} must be a number of at least 0{limit}")
    return float(value)


def dropout(config: Config, name: str) -> float:
    """Return a dropout rate, or 0 if it is not there."""
    return number(config, name, 0.0, below=1.0)


def token_id(config: Config, name: str) -> int:
    """Return the id of a token."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_SIZE:
        raise ValueError(f"config.json: {name} = {shown(value)} must be the id of a token")
    return value


def flag(config: Config, name: str, default: bool) -> bool:
    """Return true or false, or ``default`` if it is not there."""
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"config.json: {name} = {shown(value)} must be true or false")
    return default if value is None else value


def word(config: Config, name: str, default: str) -> str:
    """Return a string, or ``default`` if it is not there."""
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"config.json: {name} = {shown(value)} must be a string")
    return default if value is None else value


def shown(value: Any) -> str:
    """Return a value as it is written in a message: its ``repr``, shortened."""
    if isinstance(value, int) and abs(value) >= 10**40:  # Python refuses to print numbers of thousands of digits
        return "a number of more than 40 digits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"


def refuse(config: Config, **supported: Any) -> None:
    """Raise ``ValueError`` for entries that differ from the only value that is supported."""
    for name, value in supported.items():
        if config.get(name, value) != value:
            raise ValueError(f"config.json: {name} = {shown(config[name])} is not supported, only {value!r}")


def rotary(config: Config, head_width: int, partial: bool = False) -> Rotary:
    """Return rotary positions from either way in which configurations describe them.

    ``partial`` rotates only the share of each head that the configuration names.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"config.json: rope_parameters = {shown(found)} must be an object")
    rope: dict[str, Any] = dict(found)
    kind = _rope_type(rope)
    for name in _ROPE_NEEDS.get(kind, ()):
        if rope.get(name) is None:
            raise ValueError(f"config.json: rope_parameters of type {kind} lack {name}")
    base = _first_number(rope, config, names=("rope_theta", "rotary_emb_base"), default=10000.0)
    share = _first_number(rope, config, names=("partial_rotary_factor", "rotary_pct"), default=1.0)
    width = int(head_width * min(share, 1.0)) if partial else head_width
    if base <= 1:
        raise ValueError(f"config.json: rope_theta = {base:g} must be above 1")
    return Rotary(width, base, scaling=_scaling(kind, rope, config, base))


def _rope_type(rope: Config) -> str:
    return word(rope, "rope_type", "") or word(rope, "type", "") or "default"


def _first_number(*configs: Config, names: tuple[str, ...], default: float) -> float:
    """Return the first of some entries that is there and not 0."""
    return next((x for config in configs for name in names if (x := number(config, name, 0.0))), default)


def _scaling(kind: str, rope: Config, config: Config, base: float) -> Plain:
    if kind == "default":
        return Plain()
    if kind not in _ROPE_NEEDS:
        raise ValueError(
            f"config.json: rope_type = {shown(kind)} is not supported; there are default, linear, llama3 and yarn"
        )
    factor = _positive(rope, "factor")
    if kind == "linear":
        return Interpolated(factor)
    known = size(rope, "original_max_position_embeddings", size(config, "max_position_embeddings", 0))
    if not known:
        raise ValueError(f"config.json: rope_parameters of type {kind} need original_max_position_embeddings")
    if kind == "llama3":
        low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
        if low >= high:
            raise ValueError(f"config.json: low_freq_factor = {low:g} must be below high_freq_factor = {high:g}")
        return Llama3(factor=factor, low=low, high=high, trained=known)
    mscale, mscale_all_dim = number(rope, "mscale", 0.0), number(rope, "mscale_all_dim", 0.0)
    return Yarn(
        factor=factor,
        trained=known,
        base=base,
        fast=number(rope, "beta_fast", 0.0) or 32.0,
        slow=number(rope, "beta_slow", 0.0) or 1.0,
        truncate=flag(rope, "truncate", True),
        attention=None if rope.get("attention_factor") is None else number(rope, "attention_factor", 1.0),
        sizes=(mscale, mscale_all_dim) if mscale and mscale_all_dim else None,
    )


def _positive(rope: Config, name: str) -> float:
    value = number(rope, name, 0.0)
    if not value:
        raise ValueError(f"config.json: {name} = {shown(rope.get(name))} must be above 0")
    return value
