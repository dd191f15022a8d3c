"""Reading configurations: what is asked of them, and what is not supported, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limelight.nn.positions import Interpolated, Llama3, Plain, Rotary, Yarn

Config = Mapping[str, Any]
_WITH_HEAD = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForPreTraining", "ForConditionalGeneration", "MTModel")


_ROPE_NEEDS = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def has_head(config: Config) -> bool:
    """Whether the checkpoint has a language-model head, by the name of its architecture."""
    names = config.get("architectures") or []
    return any(name.endswith(_WITH_HEAD) for name in names)


def need(config: Config, *names: str) -> list[Any]:
    """Entries that must be there."""
    missing = [n for n in names if config.get(n) is None]
    if missing:
        raise ValueError(f"config.json ({config.get('model_type')}) lacks {', '.join(missing)}")
    return [config[n] for n in names]


def refuse(config: Config, **usual: Any) -> None:
    """Entries that are supported at their usual value only."""
    for name, value in usual.items():
        if config.get(name, value) != value:
            raise ValueError(f"config.json: {name} = {config[name]!r} is not supported, only {value!r}")


def rotary(config: Config, head_width: int, partial: bool = False) -> Rotary:
    """Rotary positions, as configurations describe them in the older and in the newer way; of a part if ``partial``."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"config.json: rope_parameters = {found!r} must be an object")
    rope: dict[str, Any] = dict(found)
    for name in _ROPE_NEEDS.get(rope.get("rope_type") or rope.get("type") or "default", ()):
        if rope.get(name) is None:
            raise ValueError(f"config.json: rope_parameters of this type lack {name}")
    base = rope.get("rope_theta") or config.get("rope_theta") or config.get("rotary_emb_base") or 10000.0
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or config.get("rotary_pct") or 1.0
    width = int(head_width * share) if partial else head_width
    return Rotary(width, float(base), scaling=_scaling(rope, config, float(base)))


def _scaling(rope: Mapping[str, Any], config: Config, base: float) -> Plain:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    trained = rope.get("original_max_position_embeddings") or config.get("max_position_embeddings")
    if kind == "default":
        return Plain()
    if kind == "linear":
        return Interpolated(float(rope["factor"]))
    if kind == "llama3":
        return Llama3(rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], int(trained or 0))
    if kind == "yarn":
        return Yarn(
            float(rope["factor"]),
            int(trained or 0),
            base,
            rope.get("beta_fast") or 32.0,
            rope.get("beta_slow") or 1.0,
            rope.get("truncate", True),
            rope.get("attention_factor"),
            (rope["mscale"], rope["mscale_all_dim"]) if rope.get("mscale") and rope.get("mscale_all_dim") else None,
        )
    raise ValueError(f"config.json: rope_type = {kind!r} is not supported; there are default, linear, llama3 and yarn")
