"""What an attention matrix is made of, checked once: queries, keys and everything that shapes the logits."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from limelight.core.biases import ALiBi, Bias, DenseBias, Offsets
from limelight.core.masks import Dense, Mask, Spans
from limelight.core.tracing import transformed

_STRIDED = torch.strided
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class SlowPathWarning(UserWarning):
    """Says that a call is exact but not computed in the fastest way, and why."""


class Terms(NamedTuple):
    """What the kernels are told beside ``q``, ``k`` and ``v``; None and 0 where absent."""

    spans: Tensor | None  # (batch or 1, N, count, 2), int32: the keys that a query may attend to
    mask: Tensor | None  # boolean, broadcasts to (B, Hq, N, M)
    slopes: Tensor | None  # (Hq or 1,): bias -slope · |distance|
    offsets: Tensor | None  # (Hq or 1, N + M - 1): bias by position - key, from -(N - 1) up
    bias: Tensor | None  # broadcasts to (B, Hq, N, M)
    sink: Tensor | None  # (Hq,)
    temperature: float | Tensor
    scale: float
    softcap: float
    dropout: float
    seed: Tensor | None


def compute_dtype(q: Tensor) -> torch.dtype:
    """In which sums are made."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


class Problem:
    """``A = softmax((softcap(scale · q kᵀ) + bias) / temperature)`` over the keys that ``mask`` allows.

    ``q`` and ``k`` are four-dimensional here; ``lead`` is the shape of the batch axes that they came with, and
    ``sizes`` is ``(B, Hq, Hkv, N, M, D)``.
    """

    __slots__ = (
        "bias",
        "k",
        "lead",
        "mask",
        "on_cpu",
        "q",
        "scale",
        "sink",
        "sizes",
        "softcap",
        "temperature",
    )

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        mask: Mask | None = None,
        bias: Bias | None = None,
        scale: float | Tensor | None = None,
        softcap: float | None = None,
        sink: Tensor | float | None = None,
        temperature: float | Tensor = 1.0,
    ) -> None:
        if torch._C._is_any_autocast_enabled():
            q, k = _autocast(q), _autocast(k)
        dtype = _check_tensor("q", q)
        if _check_tensor("k", k) is not dtype:
            raise TypeError(f"q is {q.dtype} and k is {k.dtype}; convert one with .to()")
        if isinstance(scale, Tensor) and (scale.requires_grad or transformed()):
            q, scale = q * _one_number("scale", scale).to(dtype), 1.0
        given = q, k
        shape, key_shape = q.shape, k.shape
        lead = None
        if not len(shape) == len(key_shape) == 4:
            lead = shape[:-3]
            if len(shape) < 3 or len(key_shape) < 3 or lead != key_shape[:-3]:
                raise ValueError(_clash(q, k))
            q, k = batched(q), batched(k)
            shape, key_shape = q.shape, k.shape
        B, Hq, N, D = shape
        key_B, Hkv, M, key_D = key_shape
        if key_B != B or key_D != D or D == 0 or (Hq != Hkv and (Hkv == 0 or Hq % Hkv)):
            raise ValueError(_clash(*given))
        if M >= 2**31 or N >= 2**31:
            raise ValueError(f"{max(M, N)} positions are more than 2³¹ − 1")
        self.on_cpu = q.is_cpu and k.is_cpu
        if not self.on_cpu:
            _check_device("q", q, "k", k)
        self.lead: Sequence[int] = (B,) if lead is None else lead
        self.sizes = (B, Hq, Hkv, N, M, D)
        self.q, self.k = q, k
        self.mask = mask if mask is None else _check_mask(mask, self.sizes)
        self.bias = bias if bias is None else _check_bias(bias, self.sizes)
        self.scale = D**-0.5 if scale is None else _finite("scale", scale)
        self.softcap = softcap if softcap is None else _positive("softcap", softcap)
        self.sink = sink if sink is None else _check_sink(sink, q)
        self.temperature = _check_temperature(temperature)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        _, H, _, N, M, _ = self.sizes
        return (*self.lead, H, N, M)

    @property
    def compute_dtype(self) -> torch.dtype:
        """In which sums are made."""
        return compute_dtype(self.q)

    def lower(self, dropout: float = 0.0, seed: Tensor | None = None) -> Terms:
        """Mask and bias as spans, slopes, offsets and tensors."""
        spans = allowed = slopes = offsets = dense = None
        _, _, _, N, M, _ = self.sizes
        if self.mask is not None:
            spans, allowed = self.mask.lower(N, M)
        if self.bias is not None:
            slopes, offsets, dense = self.bias.lower(N, M, self.compute_dtype)
        softcap = self.softcap or 0.0
        return Terms(
            spans, allowed, slopes, offsets, dense, self.sink, self.temperature, self.scale, softcap, dropout, seed
        )

    def tensors(self) -> list[Tensor]:
        """What the matrix is made of, and a gradient may flow to."""
        found = [x for x in (self.q, self.k, self.sink, self.temperature) if isinstance(x, Tensor)]
        return found if self.bias is None else found + self.bias.tensors()

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient may flow to any of them."""
        return self.q.requires_grad or self.k.requires_grad or any(x.requires_grad for x in self.tensors())

    def check_values(self, v: Tensor) -> Tensor:
        """``v`` as a four-dimensional tensor that fits, or an error."""
        if torch._C._is_any_autocast_enabled():
            v = _autocast(v)
        _check_tensor("v", v)
        shape = v.shape
        _, _, Hkv, _, M, _ = self.sizes
        if len(shape) < 3 or shape[-3] != Hkv or shape[-2] != M or shape[:-3] != self.lead:
            raise ValueError(
                f"v {tuple(v.shape)} does not fit k {(*self.lead, *self.k.shape[1:])}: "
                f"all axes but the last must be {(*self.lead, Hkv, M)}"
            )
        if not (self.on_cpu and v.is_cpu):
            _check_device("v", v, "k", self.k)
        return v if len(shape) == 4 else batched(v)


def raised(q: Tensor, k: Tensor, t: Terms) -> Problem:
    """The problem that lowers to these terms."""
    masks: list[Mask] = [Spans(t.spans)] if t.spans is not None else []
    masks += [Dense(t.mask)] if t.mask is not None else []
    biases: list[Bias] = [ALiBi(t.slopes)] if t.slopes is not None else []
    biases += [Offsets(t.offsets)] if t.offsets is not None else []
    biases += [DenseBias(t.bias)] if t.bias is not None else []
    return Problem(
        q,
        k,
        functools.reduce(operator.and_, masks) if masks else None,
        functools.reduce(operator.add, biases) if biases else None,
        t.scale,
        t.softcap or None,
        t.sink,
        t.temperature,
    )


def batched(x: Tensor) -> Tensor:
    """``(…, H, N, D)`` as ``(B, H, N, D)``."""
    return x[None] if x.ndim == 3 else x.flatten(0, -4) if x.ndim > 4 else x


def _autocast(x: Any) -> Any:
    """``x`` in the type of ``torch.autocast``, as PyTorch's own attention takes it."""
    able = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
    device = x.device.type if able else ""
    return x.to(torch.get_autocast_dtype(device)) if able and torch.is_autocast_enabled(device) else x


def _kind(value: object) -> str:
    return f"a {value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__


def _check_tensor(name: str, x: Any) -> torch.dtype:
    if isinstance(x, Tensor):
        dtype = x.dtype
        if dtype not in DTYPES:
            raise TypeError(f"{name} is {dtype}; attention takes float32, bfloat16, float16 or float64")
        if x.layout is not _STRIDED:
            raise TypeError(f"{name} has layout {x.layout}; make it dense with .to_dense()")
        return dtype
    raise TypeError(f"{name} must be a torch tensor, not {type(x).__name__}")


def _check_device(name: str, x: Tensor, other: str, y: Tensor) -> None:
    if x.device != y.device:
        raise ValueError(f"{name} is on {x.device} and {other} on {y.device}; move them to one device")


def _clash(q: Tensor, k: Tensor) -> str:
    a, b = tuple(q.shape), tuple(k.shape)
    if len(a) < 3 or len(b) < 3:
        return f"q {a} and k {b} must both be (…, heads, length, width)"
    if a[:-3] != b[:-3]:
        return f"q {a} and k {b} differ in their batch axes: {a[:-3]} and {b[:-3]}"
    if a[-1] != b[-1]:
        return f"q {a} and k {b} differ in width: {a[-1]} and {b[-1]}"
    if a[-1] == 0:
        return f"q {a} and k {b} have width 0"
    return f"q has {a[-3]} heads and k {b[-3]}; the heads of q must be a multiple of those of k (grouped heads)"


def _check_mask(mask: Any, sizes: tuple[int, ...]) -> Mask:
    if isinstance(mask, Mask):
        check_lead(mask, sizes)
        return mask
    hint = ""
    if isinstance(mask, Tensor):
        hint = "; wrap it as Dense(tensor)" if mask.dtype == torch.bool else "; pass bias=DenseBias(tensor)"
    raise TypeError(f"mask must be a limelight mask such as Causal(), not {_kind(mask)}{hint}")


def _check_bias(bias: Any, sizes: tuple[int, ...]) -> Bias:
    if isinstance(bias, Bias):
        check_lead(bias, sizes)
        return bias
    hint = "; wrap it as DenseBias(tensor)" if isinstance(bias, Tensor) else ""
    raise TypeError(f"bias must be a limelight bias such as ALiBi(heads), not {_kind(bias)}{hint}")


def check_lead(value: Mask | Bias, sizes: tuple[int, ...]) -> None:
    """An error where a mask or bias speaks of other batch elements or heads than ``(B, H, …)``."""
    batch, heads = value.lead()
    for have, want, what in ((batch, sizes[0], "batch elements"), (heads, sizes[1], "heads")):
        if have != 1 and have != want:
            raise ValueError(f"{value!r} speaks of {have} {what} and q has {want}; give one for each or one for all")


def _one_number(name: str, value: Tensor) -> Tensor:
    if value.numel() != 1:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be one number")
    return value.reshape(())


def _number(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        if value.requires_grad:
            raise TypeError(f"{name} requires grad, and attention gives it none; pass {name}.detach()")
        return float(value.item())
    if isinstance(value, (np.floating, np.integer)):
        return float(value)
    raise TypeError(f"{name} must be a number, not {_kind(value)}")


def _finite(name: str, value: Any) -> float:
    number = _number(name, value)
    if not -math.inf < number < math.inf:
        raise ValueError(f"{name} = {number} must be finite")
    return number


def _positive(name: str, value: Any) -> float:
    number = _finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} = {number} must be above 0")
    return number


def check_count(who: str, name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number in its range, or an error."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{who}: {name} must be a whole number, not {value!r}")
    if value < least or (most is not None and value > most):
        range_ = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{who}: {name} = {value} must be {range_}")
    return int(value)


def check_dropout(value: Any) -> float:
    """A share that may be dropped, or an error."""
    share = _number("dropout", value)
    if not 0 <= share < 1:
        raise ValueError(f"dropout = {share} must be at least 0 and below 1: the share of weights that is removed")
    return share


def _check_temperature(value: Any) -> float | Tensor:
    if value.__class__ is float and 0 < value < math.inf:
        return value
    if isinstance(value, Tensor) and (value.requires_grad or transformed()):
        number = _one_number("temperature", value)
        if not transformed():  # where values are not known
            _positive("temperature", number.detach())
        return number
    return _positive("temperature", value)


def _check_sink(sink: Any, q: Tensor) -> Tensor:
    heads = q.shape[-3]
    if not isinstance(sink, Tensor):
        return torch.full((heads,), _number("sink", sink), device=q.device)
    if not sink.is_floating_point():
        raise TypeError(f"sink is {sink.dtype}; it must be floats, one logit for each head")
    if sink.shape != (heads,):
        raise ValueError(f"sink has shape {tuple(sink.shape)}; it must be ({heads},), one logit for each head of q")
    _check_device("sink", sink, "q", q)
    return sink
