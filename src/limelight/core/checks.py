"""Checks of arguments, with errors that name what clashed and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

DTYPES = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
_STRIDED = torch.strided


class SlowPathWarning(UserWarning):
    """Says that a call is exact but not computed in the fastest way, and why."""


def describe(value: object) -> str:
    """Name the kind of a value for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__


def check_tensor(name: str, x: Any) -> torch.dtype:
    """Return the dtype of a strided tensor of floats, or raise."""
    if x.__class__ is Tensor or isinstance(x, Tensor):
        dtype: torch.dtype = x.dtype
        if dtype in DTYPES and x.layout is _STRIDED and not x.is_nested:
            return dtype
        raise TypeError(_explain_tensor(name, x))
    raise TypeError(f"{name} must be a torch tensor, not {type(x).__name__}")


def _explain_tensor(name: str, x: Tensor) -> str:
    if x.is_nested:
        return f"{name} is a nested tensor; pad it with torch.nested.to_padded_tensor and mask with Padding(lengths)"
    if x.dtype not in DTYPES:
        return f"{name} is {x.dtype}; attention takes float32, bfloat16, float16 or float64"
    return f"{name} has layout {x.layout}; make it dense with .to_dense()"


def check_device(name: str, x: Tensor, other: str, y: Tensor) -> None:
    """Raise where two tensors lie on different devices."""
    if x.device != y.device:
        raise ValueError(f"{name} is on {x.device} and {other} on {y.device}; move them to one device")


def check_number(name: str, value: Any) -> float:
    """Return a number, or a tensor with one number, as a float."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} is a number of {len(str(abs(value)))} digits, too large for a float") from None
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        if value.requires_grad:
            raise TypeError(f"{name} requires grad, and attention gives it none; pass {name}.detach()")
        return float(value.item())
    if isinstance(value, (np.floating, np.integer)):
        return float(value)
    raise TypeError(f"{name} must be a number, not {describe(value)}")


def check_finite(name: str, value: Any) -> float:
    """Return a finite number."""
    number = check_number(name, value)
    if not -math.inf < number < math.inf:
        raise ValueError(f"{name} = {number} must be finite")
    return number


def check_positive(name: str, value: Any) -> float:
    """Return a finite number above 0."""
    number = check_finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} = {number} must be above 0")
    return number


def check_count(who: str, name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{who}: {name} must be a whole number, not {value!r}")
    if value < least or (most is not None and value > most):
        range_ = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{who}: {name} = {value} must be {range_}")
    return int(value)


def check_dropout(value: Any) -> float:
    """Return a dropout rate: at least 0 and below 1."""
    share = check_number("dropout", value)
    if not 0 <= share < 1:
        raise ValueError(f"dropout = {share} must be at least 0 and below 1: the share of weights that is removed")
    return share


# Options by their names in other attention functions, and what to write instead.
_OTHER_NAMES = {
    "attn_mask": "mask=Dense(tensor) for booleans (True means attend), bias=DenseBias(tensor) for numbers",
    "attention_mask": "mask=Padding(lengths), or mask=Dense(tensor) for booleans (True means attend)",
    "key_padding_mask": "mask=Padding(lengths)",
    "is_causal": "mask=Causal(), which aligns queries and keys at their ends",
    "causal": "mask=Causal(), which aligns queries and keys at their ends",
    "window_size": "mask=Window(left, right)",
    "alibi_slopes": "bias=ALiBi(slopes)",
    "dropout_p": "dropout=…",
    "softmax_scale": "scale=…",
    "logits_soft_cap": "softcap=…",
    "enable_gqa": "nothing: with fewer heads in k than in q, heads are grouped",
    "need_weights": "weights(…), which gives the attention matrix",
    "output_attentions": "weights(…), which gives the attention matrix",
    "return_weights": "weights(…), which gives the attention matrix",
}


def reject_options(who: str, unknown: Iterable[str], known: Iterable[str]) -> NoReturn:
    """Raise for an unknown keyword argument, and say what to write instead."""
    name = next(iter(unknown))
    if name in _OTHER_NAMES:
        raise TypeError(f"{who} has no argument {name!r}: write {_OTHER_NAMES[name]}")
    raise TypeError(f"{who} has no argument {name!r}; there are {', '.join(known)}")


def check_one_number(name: str, value: Tensor) -> Tensor:
    """Return a tensor with one number as a scalar tensor."""
    if value.numel() != 1:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be one number")
    return value.reshape(())
