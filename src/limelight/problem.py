"""What an attention matrix is made of, checked once: queries, keys and everything that shapes the logits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from limelight.biases import Bias
from limelight.masks import Mask

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Problem:
    """``A = softmax((softcap(scale · q kᵀ) + bias) / temperature)`` over the keys that ``mask`` allows.

    ``q`` and ``k`` are four-dimensional here; ``lead`` is the shape of the batch axes that they came with.
    """

    __slots__ = ("bias", "k", "lead", "mask", "q", "scale", "sink", "softcap", "temperature")

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        mask: Mask | None = None,
        bias: Bias | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sink: Tensor | float | None = None,
        temperature: float | Tensor = 1.0,
    ) -> None:
        _check_pair(q, k)
        self.lead = q.shape[:-3]
        self.q = q if q.ndim == 4 else batched(q)
        self.k = k if k.ndim == 4 else batched(k)
        self.mask = mask
        self.bias = bias
        self.softcap = None if softcap is None else _positive("softcap", softcap)
        self.scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else _finite("scale", scale)
        self.sink = None if sink is None else _check_sink(sink, q)
        self.temperature = 1.0 if temperature is None else temperature
        if temperature != 1.0:
            self.temperature = _check_temperature(temperature)
        if mask is not None and not isinstance(mask, Mask):
            raise TypeError(f"mask must be a limelight mask such as Causal(), not {_kind(mask)}{_mask_hint(mask)}")
        if bias is not None:
            _check_bias(bias, q)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        return (*self.lead, *self.q.shape[1:3], self.k.shape[2])

    @property
    def compute_dtype(self) -> torch.dtype:
        """In which sums are made."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def tensors(self) -> list[Tensor]:
        """All tensors that gradients may flow to."""
        extra = [x for x in (self.sink, self.temperature) if isinstance(x, Tensor)]
        return [self.q, self.k, *extra, *(self.bias.tensors() if self.bias is not None else [])]

    def check_values(self, v: Tensor) -> Tensor:
        """``v`` as a four-dimensional tensor that fits, or an error."""
        _check_tensor("v", v)
        k, lead = self.k, self.lead
        if v.shape[:-1] != (k.shape[:-1] if len(lead) == 1 else (*lead, *k.shape[1:3])):
            keys = (*lead, *k.shape[1:3])
            raise ValueError(
                f"v {tuple(v.shape)} does not fit k {(*keys, k.shape[3])}: all axes but the last must be {keys}"
            )
        if v.device != k.device:
            raise ValueError(f"v is on {v.device} and k on {k.device}; move them to one device")
        return v if v.ndim == 4 else batched(v)


def batched(x: Tensor) -> Tensor:
    """``(…, H, N, D)`` as ``(B, H, N, D)``."""
    return x[None] if x.ndim == 3 else x.flatten(0, -4) if x.ndim > 4 else x


def _kind(value: object) -> str:
    return f"a {value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__


def _mask_hint(mask: object) -> str:
    if isinstance(mask, Tensor):
        return "; wrap it as Dense(tensor)" if mask.dtype == torch.bool else "; pass bias=DenseBias(tensor)"
    return ""


def _check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch tensor, not {type(x).__name__}")
    if x.dtype not in DTYPES:
        raise TypeError(f"{name} is {x.dtype}; attention takes float32, bfloat16, float16 or float64")
    if x.ndim < 3:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be (…, heads, length, width)")
    if x.layout != torch.strided:
        raise TypeError(f"{name} has layout {x.layout}; make it dense with .to_dense()")


def _check_pair(q: Tensor, k: Tensor) -> None:
    _check_tensor("q", q)
    _check_tensor("k", k)
    a, b = q.shape, k.shape
    if q.dtype != k.dtype:
        raise TypeError(f"q is {q.dtype} and k is {k.dtype}; convert one with .to()")
    if q.device != k.device:
        raise ValueError(f"q is on {q.device} and k on {k.device}; move them to one device")
    if a[:-3] != b[:-3]:
        raise ValueError(f"q {tuple(a)} and k {tuple(b)} differ in their batch axes: {tuple(a[:-3])}, {tuple(b[:-3])}")
    if a[-1] != b[-1]:
        raise ValueError(f"q {tuple(a)} and k {tuple(b)} differ in width: {a[-1]} and {b[-1]}")
    if a[-1] == 0:
        raise ValueError(f"q {tuple(a)} and k {tuple(b)} have width 0")
    if a[-3] != b[-3] and (b[-3] == 0 or a[-3] % b[-3]):
        raise ValueError(
            f"q has {a[-3]} heads and k {b[-3]}; the heads of q must be a multiple of those of k (grouped heads)"
        )
    if b[-2] >= 2**31 or a[-2] >= 2**31:
        raise ValueError(f"{max(a[-2], b[-2])} positions are more than 2³¹ − 1")


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = value.item()
        except (AttributeError, ValueError, RuntimeError):
            raise TypeError(f"{name} must be a number, not {_kind(value)}") from None
    return float(value)


def _finite(name: str, value: Any) -> float:
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name} = {number} must be finite")
    return number


def _positive(name: str, value: Any) -> float:
    number = _finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} = {number} must be above 0")
    return number


def _check_temperature(value: Any) -> float | Tensor:
    if isinstance(value, Tensor) and value.requires_grad:
        if value.numel() != 1:
            raise ValueError(f"temperature has shape {tuple(value.shape)}; it must be one number")
        _positive("temperature", value.detach())
        return value
    return _positive("temperature", value)


def _check_sink(sink: Any, q: Tensor) -> Tensor:
    heads = q.shape[-3]
    if not isinstance(sink, Tensor):
        return torch.full((heads,), _number("sink", sink), device=q.device)
    if not sink.is_floating_point():
        raise TypeError(f"sink is {sink.dtype}; it must be floats, one logit for each head")
    if sink.shape != (heads,):
        raise ValueError(f"sink has shape {tuple(sink.shape)}; it must be ({heads},), one logit for each head of q")
    if sink.device != q.device:
        raise ValueError(f"sink is on {sink.device} and q on {q.device}; move them to one device")
    return sink


def _check_bias(bias: Any, q: Tensor) -> None:
    if not isinstance(bias, Bias):
        hint = "; wrap it as DenseBias(tensor)" if isinstance(bias, Tensor) else ""
        raise TypeError(f"bias must be a limelight bias such as ALiBi(heads), not {_kind(bias)}{hint}")
    if bias.heads not in (None, 1, q.shape[-3]):
        raise ValueError(f"{bias!r} speaks of {bias.heads} heads and q has {q.shape[-3]}")
    for t in bias.tensors():
        if t.device != q.device and t.numel() > 1 and t.requires_grad:
            raise ValueError(f"{bias!r} is on {t.device} and q on {q.device}; move them to one device")
