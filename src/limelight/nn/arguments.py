"""Checks of the arguments of layers: errors name what clashed and show how the layer is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec

from torch import Tensor, nn

from limelight.core.biases import Bias
from limelight.core.checks import check_count, check_finite, describe
from limelight.core.masks import Mask
from limelight.nn.positions import Positions

P = ParamSpec("P")

ATTENTION = "MultiHeadAttention(32, 4)"
FEED_FORWARD = "FeedForward(32, 128)"
BLOCK = f"Block({ATTENTION}, {FEED_FORWARD})"

# Names that arguments have in other libraries, and their names here.
_NAMES_HERE = {
    **dict.fromkeys(("embed_dim", "d_model", "dim", "hidden_size", "n_embd", "embedding_dim"), "width"),
    **dict.fromkeys(("num_heads", "nhead", "n_heads", "n_head", "num_attention_heads"), "heads"),
    **dict.fromkeys(("num_kv_heads", "n_kv_heads", "num_key_value_heads"), "kv_heads"),
    **dict.fromkeys(("dim_feedforward", "d_ff", "intermediate_size", "ffn_dim"), "hidden"),
    **dict.fromkeys(("num_embeddings", "vocab_size"), "vocabulary"),
    **dict.fromkeys(("kdim", "vdim"), "context_width"),
    "head_dim": "head_width",
    "qkv_bias": "bias",
    "norm_layer": "norm",
    "norm_first": "order",
}


def explain_arguments(example: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorate a constructor so that missing and unknown arguments raise an error that shows an example."""

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        signature = inspect.signature(init)

        @wraps(init)
        def checked(*args: P.args, **kwargs: P.kwargs) -> None:
            problem = _problem(signature, args, kwargs)
            if problem is not None:
                raise TypeError(f"{type(args[0]).__name__}: {problem}; write {example}")
            init(*args, **kwargs)

        return checked

    return decorate


def _problem(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return why a call does not fit a signature, or None."""
    unknown = next((name for name in kwargs if name not in signature.parameters), None)
    if unknown is not None:
        here = _NAMES_HERE.get(unknown)
        named = f", which is called {here!r} here" if here in signature.parameters else ""
        return f"there is no argument {unknown!r}{named}"
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def check_size(who: str, name: str, value: Any, default: int) -> int:
    """Return a whole number of at least 1, or ``default`` if it is None."""
    return default if value is None else check_count(who, name, value, 1)


def check_scale(who: str, scale: Any) -> Any:
    """Return a finite number, or a tensor, which may be a parameter."""
    return scale if isinstance(scale, Tensor) else check_finite(f"{who}: scale", scale)


def check_module(who: str, name: str, value: Any, example: str) -> None:
    """Raise unless a value is a module; the class of a module is not one."""
    if not isinstance(value, nn.Module):
        raise TypeError(f"{who}: {name} must be a layer such as {example}, not {_shown(value)}")


def check_norm_maker(who: str, norm: Any) -> None:
    """Raise unless ``norm`` is a function, or a class, that makes a norm for a width."""
    if isinstance(norm, nn.Module) or not callable(norm):
        raise TypeError(
            f"{who}: norm must make a norm for a width, such as the class nn.LayerNorm itself, not {_shown(norm)}"
        )


def check_norm(who: str, norm: Any) -> None:
    """Raise unless ``norm`` is a module or None."""
    if norm is not None:
        check_module(who, "norm", norm, "nn.LayerNorm(32)")


def check_activation(who: str, activation: Any) -> None:
    """Raise unless ``activation`` is a function of a tensor; the class of an activation is not one."""
    if isinstance(activation, type) or not callable(activation):
        raise TypeError(
            f"{who}: activation must be a function of a tensor such as torch.nn.functional.gelu, not "
            f"{_shown(activation)}"
        )


def check_positions(who: str, positions: Any) -> Positions:
    """Return a position scheme; None is the one that does nothing."""
    if positions is None:
        return Positions()
    if isinstance(positions, Positions):
        return positions
    kind = "the bias " if isinstance(positions, Bias) else ""
    raise TypeError(
        f"{who}: positions must be a scheme of limelight.positions such as Rotary(8) or ALiBi(4), not {kind}"
        f"{_shown(positions)}"
    )


def check_blocks(who: str, blocks: Any) -> list[nn.Module]:
    """Return the blocks of a stack as a list."""
    if not isinstance(blocks, Iterable):
        raise TypeError(
            f"{who}: blocks must be a list such as [{BLOCK} for _ in range(6)], not {_shown(blocks)}; a single block "
            "is a list of one"
        )
    found = list(blocks)
    for n, block in enumerate(found):
        check_module(who, f"blocks[{n}]", block, BLOCK)
    return found


def check_mask(who: str, name: str, mask: Any) -> None:
    """Raise unless ``mask`` is a mask or None."""
    if mask is not None and not isinstance(mask, Mask):
        raise TypeError(f"{who}: {name} must be a mask such as Causal(), not {_shown(mask)}")


def check_sequence(name: str, x: Any, width: int | None = None) -> None:
    """Raise unless ``x`` is a tensor (batch, tokens, width) of this width, if it is known."""
    if not isinstance(x, Tensor) or x.ndim != 3:
        found = tuple(x.shape) if isinstance(x, Tensor) else describe(x)
        raise TypeError(f"{name} must be a tensor (batch, tokens, width), not {found}")
    if width is not None and x.shape[2] != width:
        raise ValueError(f"{name} {tuple(x.shape)} has width {x.shape[2]}, and the layer is made for width {width}")


def check_same_width(who: str, **widths: int | None) -> None:
    """Raise where the widths of two layers, given by name, differ; None is an unknown width."""
    known = [(name, width) for name, width in widths.items() if width is not None]
    for name, width in known[1:]:
        first, expected = known[0]
        if width != expected:
            raise ValueError(f"{who}: {first} has width {expected} and {name} has width {width}; give both the same")


def _shown(value: Any) -> str:
    """Show a short value, and name the kind of any other."""
    if isinstance(value, (int, float, str)) and len(repr(value)) < 40:
        return repr(value)
    return describe(value)
