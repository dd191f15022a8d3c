"""The checked specification of a call: queries, keys, and the options that shape the logits."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from limelight.core.biases import ALiBi, AtPlaces, Bias, DenseBias, Offsets
from limelight.core.checks import (
    check_device,
    check_finite,
    check_number,
    check_one_number,
    check_positive,
    check_tensor,
    describe,
    reject_options,
)
from limelight.core.masks import Dense, LoweredMask, Mask, Spans, lower_mask
from limelight.core.torch_modes import autocast_enabled, is_traced


class AttentionSpec(NamedTuple):
    """The options of a call, as the user gave them: ``A = softmax((softcap(scale · q kᵀ) + bias) / temperature)``."""

    mask: Mask | None = None
    bias: Bias | None = None
    scale: float | Tensor | None = None
    softcap: float | None = None
    sink: Tensor | float | None = None
    temperature: float | Tensor = 1.0


class AttentionOptions(TypedDict, total=False):
    """The options of a call as keyword arguments."""

    mask: Mask | None
    bias: Bias | None
    scale: float | Tensor | None
    softcap: float | None
    sink: Tensor | float | None
    temperature: float | Tensor


def spec_of(who: str, options: AttentionOptions) -> AttentionSpec:
    """Make a specification from keyword arguments; raise for unknown ones."""
    if unknown := options.keys() - set(AttentionSpec._fields):
        reject_options(who, unknown, AttentionSpec._fields)
    return AttentionSpec(**options)


class LoweredSpec(NamedTuple):
    """A specification in the form that backends compute with; None and 0 where absent."""

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
    # Where queries and keys are chosen from a larger matrix: their places in it, (N,) and (M,), and its sizes. Offsets
    # and bias are those of the matrix; spans, mask and slopes are those of the chosen ones in their own order.
    queries: Tensor | None = None
    keys: Tensor | None = None
    whole: Sequence[int] | None = None

    @classmethod
    def plain(cls, mask: LoweredMask | None, scaling: tuple[float, float, float]) -> LoweredSpec:
        """Return the specification of a problem that ``is_plain``, from its mask and its ``scaling``."""
        spans, dense = (None, None) if mask is None else (mask.spans, mask.dense)
        scale, softcap, temperature = scaling
        return cls(spans, dense, None, None, None, None, temperature, scale, softcap, 0.0, None)


class Sizes(NamedTuple):
    """The sizes of a problem: batch, query heads, key heads, queries, keys and width."""

    B: int
    Hq: int
    Hkv: int
    N: int
    M: int
    D: int

    @classmethod
    def of(cls, q: Tensor, k: Tensor) -> Sizes:
        """Return the sizes of queries ``(B, Hq, N, D)`` and keys ``(B, Hkv, M, D)``."""
        (B, Hq, N, D), (_, Hkv, M, _) = q.shape, k.shape
        return cls(B, Hq, Hkv, N, M, D)


def compute_dtype(q: Tensor) -> torch.dtype:
    """Return the accumulation dtype."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


class Problem:
    """``A = softmax((softcap(scale · q kᵀ) + bias) / temperature)`` over the keys that ``mask`` allows.

    ``q (B, Hq, N, D)`` and ``k (B, Hkv, M, D)`` are four-dimensional here and of one ``dtype``; ``lead`` is the shape
    of the batch axes that they came with. A problem that ``is_plain`` has neither bias nor sink, and no size is 0.
    """

    __slots__ = (
        "_lead",
        "_learned",
        "bias",
        "dtype",
        "is_plain",
        "k",
        "mask",
        "on_cpu",
        "q",
        "scale",
        "sink",
        "sizes",
        "softcap",
        "temperature",
    )

    def __init__(self, q: Tensor, k: Tensor, spec: AttentionSpec, sizes: Sizes | None = None) -> None:
        """Check the options and, unless their ``sizes`` say that they are ordinary, the tensors.

        Ordinary tensors have four axes, lie on the CPU, are dense, of one type of floats, and fit each other.
        """
        mask, bias, scale, softcap, sink, temperature = spec
        self._lead: Sequence[int] | None = None  # the batch axes of the user's tensors, unless there is one
        self.on_cpu = True
        if sizes is None:
            q, k, sizes = self._check_tensors(q, k)
        self.dtype = dtype = q.dtype
        if scale is not None and isinstance(scale, Tensor) and (scale.requires_grad or is_traced()):
            q, scale = q * check_one_number("scale", scale).to(dtype), 1.0
        self.q, self.k, self.sizes = q, k, sizes
        B, Hq, _, N, M, D = sizes
        self.mask = mask if mask is None else _check_mask(mask, self.sizes)
        self.bias = bias if bias is None else _check_bias(bias, self.sizes)
        self.scale = D**-0.5 if scale is None else check_finite("scale", scale)
        self.softcap = softcap if softcap is None else check_positive("softcap", softcap)
        self.sink = sink if sink is None else _check_sink(sink, q)
        self.temperature = (
            temperature if temperature.__class__ is float and temperature == 1.0 else _check_temperature(temperature)
        )
        self.is_plain = bias is None and sink is None and B > 0 and Hq > 0 and N > 0 and M > 0
        # Tensors other than q and k to which a gradient may flow.
        self._learned: Sequence[Tensor] = ()
        if bias is not None or sink is not None or self.temperature.__class__ is not float:
            given = [] if self.bias is None else self.bias.tensors()
            self._learned = [*given, *(x for x in (self.sink, self.temperature) if isinstance(x, Tensor))]

    def _check_tensors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Sizes]:
        """Return q and k with four axes, and their sizes, or raise."""
        if autocast_enabled():
            q, k = autocast(q), autocast(k)
        if check_tensor("q", q) is not check_tensor("k", k):
            raise TypeError(f"q is {q.dtype} and k is {k.dtype}; convert one with .to()")
        shape, key_shape = q.shape, k.shape
        if len(shape) != 4 or len(key_shape) != 4:
            if len(shape) < 3 or len(key_shape) < 3 or shape[:-3] != key_shape[:-3]:
                raise ValueError(_explain_clash(shape, key_shape))
            self._lead = shape[:-3]
            q, k = batched(q), batched(k)
        (B, Hq, N, D), (key_B, Hkv, M, key_D) = q.shape, k.shape
        if key_B != B or key_D != D or D == 0 or (Hq != Hkv and (Hkv == 0 or Hq % Hkv)):
            raise ValueError(_explain_clash(shape, key_shape))
        if M >= 2**31 or N >= 2**31:
            raise ValueError(f"{max(M, N)} positions are more than 2³¹ − 1")
        self.on_cpu = q.is_cpu and k.is_cpu
        if not self.on_cpu:
            check_device("q", q, "k", k)
        return q, k, Sizes(B, Hq, Hkv, N, M, D)

    @property
    def lead(self) -> Sequence[int]:
        """The batch axes of the user's tensors."""
        return self.q.shape[:1] if self._lead is None else self._lead

    def with_lead(self, x: Tensor) -> Tensor:
        """View ``(B, …)`` with the batch axes of the user's tensors."""
        return x if self._lead is None else x.reshape(*self._lead, *x.shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        """``(…, heads, queries, keys)``."""
        return (*self.lead, self.sizes.Hq, self.sizes.N, self.sizes.M)

    @property
    def spec(self) -> AttentionSpec:
        """The checked options, with which another problem can be made."""
        return AttentionSpec(self.mask, self.bias, self.scale, self.softcap, self.sink, self.temperature)

    @property
    def compute_dtype(self) -> torch.dtype:
        """The accumulation dtype."""
        return compute_dtype(self.q)

    def lowered_mask(self) -> LoweredMask | None:
        """The mask as spans and a tensor."""
        return None if self.mask is None else lower_mask(self.mask, self.sizes.N, self.sizes.M)

    @property
    def scaling(self) -> tuple[float, float, float]:
        """The scale, the softcap or 0, and the temperature."""
        return self.scale, self.softcap or 0.0, float(self.temperature)

    def lower(self, dropout: float = 0.0, seed: Tensor | None = None) -> LoweredSpec:
        """Return the options as backends take them: the mask as spans, the bias as slopes, offsets and tensors."""
        slopes = offsets = dense = None
        mask = self.lowered_mask()
        if self.bias is not None:
            slopes, offsets, dense = self.bias.lower(self.sizes.N, self.sizes.M, self.compute_dtype)
        return LoweredSpec(
            spans=None if mask is None else mask.spans,
            mask=None if mask is None else mask.dense,
            slopes=slopes,
            offsets=offsets,
            bias=dense,
            sink=self.sink,
            temperature=self.temperature,
            scale=self.scale,
            softcap=self.softcap or 0.0,
            dropout=dropout,
            seed=seed,
        )

    def tensors(self) -> list[Tensor]:
        """The tensors that the matrix is made of and a gradient may flow to."""
        return [self.q, self.k, *self._learned]

    @property
    def requires_grad(self) -> bool:
        """True if a gradient may flow to q, k or a tensor of the options."""
        if self.q.requires_grad or self.k.requires_grad:
            return True
        return any(x.requires_grad for x in self._learned) if self._learned else False

    def check_values(self, v: Tensor) -> Tensor:
        """Return ``v`` as a four-dimensional tensor that fits, or raise."""
        if autocast_enabled():
            v = autocast(v)
        check_tensor("v", v)
        shape = v.shape
        key_shape: Sequence[int] = self.k.shape if self._lead is None else (*self._lead, *self.k.shape[1:])
        if shape != key_shape and (len(shape) < 3 or shape[:-1] != key_shape[:-1]):
            raise ValueError(
                f"v {tuple(shape)} does not fit k {tuple(key_shape)}: "
                f"all axes but the last must be {tuple(key_shape[:-1])}"
            )
        if not (self.on_cpu and v.is_cpu):
            check_device("v", v, "k", self.k)
        return v if len(shape) == 4 else batched(v)


def problem_from_lowered(q: Tensor, k: Tensor, lowered: LoweredSpec) -> Problem:
    """Make the problem that lowers to this specification."""
    masks: list[Mask] = [Spans(lowered.spans)] if lowered.spans is not None else []
    masks += [Dense(lowered.mask)] if lowered.mask is not None else []
    biases: list[Bias] = [Offsets(lowered.offsets)] if lowered.offsets is not None else []
    biases += [DenseBias(lowered.bias)] if lowered.bias is not None else []
    if lowered.queries is not None and lowered.keys is not None and lowered.whole is not None:
        biases = [AtPlaces(x, lowered.queries, lowered.keys, *lowered.whole) for x in biases]
    biases += [ALiBi(lowered.slopes)] if lowered.slopes is not None else []
    spec = AttentionSpec(
        mask=functools.reduce(operator.and_, masks) if masks else None,
        bias=functools.reduce(operator.add, biases) if biases else None,
        scale=lowered.scale,
        softcap=lowered.softcap or None,
        sink=lowered.sink,
        temperature=lowered.temperature,
    )
    return Problem(q, k, spec)


def batched(x: Tensor) -> Tensor:
    """View ``(…, H, N, D)`` as ``(B, H, N, D)``."""
    return x[None] if x.ndim == 3 else x.flatten(0, -4) if x.ndim > 4 else x


def autocast(x: Any) -> Any:
    """Cast a tensor as ``torch.autocast`` casts the arguments of PyTorch's own attention."""
    able = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
    device = x.device.type if able else ""
    return x.to(torch.get_autocast_dtype(device)) if able and torch.is_autocast_enabled(device) else x


def _explain_clash(q: Sequence[int], k: Sequence[int]) -> str:
    a, b = tuple(q), tuple(k)
    if len(a) < 3 or len(b) < 3:
        return f"q {a} and k {b} must both be (…, heads, length, width)"
    if a[:-3] != b[:-3]:
        return f"q {a} and k {b} differ in their batch axes: {a[:-3]} and {b[:-3]}"
    if a[-1] != b[-1]:
        return f"q {a} and k {b} differ in width: {a[-1]} and {b[-1]}"
    if a[-1] == 0:
        return f"q {a} and k {b} have width 0"
    return f"q has {a[-3]} heads and k {b[-3]}; the heads of q must be a multiple of those of k (grouped heads)"


def _check_mask(mask: Any, sizes: Sizes) -> Mask:
    if isinstance(mask, Mask):
        check_batch_and_heads(mask, sizes.B, sizes.Hq)
        if isinstance(mask, Dense) and sizes.B == sizes.N:
            mask.check_not_padding(sizes.B)
        return mask
    hint = ""
    if isinstance(mask, Tensor):
        hint = "; wrap it as Dense(tensor)" if mask.dtype == torch.bool else "; pass bias=DenseBias(tensor)"
    elif isinstance(mask, type) and issubclass(mask, Mask):
        hint = f"; make one with {mask.__name__}(…)"
    raise TypeError(f"mask must be a limelight mask such as Causal(), not {describe(mask)}{hint}")


def _check_bias(bias: Any, sizes: Sizes) -> Bias:
    if isinstance(bias, Bias):
        check_batch_and_heads(bias, sizes.B, sizes.Hq)
        return bias
    hint = "; wrap it as DenseBias(tensor)" if isinstance(bias, Tensor) else ""
    raise TypeError(f"bias must be a limelight bias such as ALiBi(heads), not {describe(bias)}{hint}")


def check_batch_and_heads(value: Mask | Bias, B: int, H: int) -> None:
    """Raise where a mask or bias is made for another number of batch elements or heads."""
    made_for = value.batch_and_heads()
    if made_for == (1, 1):
        return
    for have, want, what in ((made_for[0], B, "batch elements"), (made_for[1], H, "heads")):
        if have != 1 and have != want:
            raise ValueError(f"{value!r} is made for {have} {what} and q has {want}; give one for each, or one for all")


_SHARPEST = 1e-20  # below this, ordinary logits become infinite in float32


def _check_temperature(value: Any) -> float | Tensor:
    if isinstance(value, Tensor) and (value.requires_grad or is_traced()):
        number = check_one_number("temperature", value)
        if not is_traced():  # a traced tensor has no value to check
            _check_sharpness(check_positive("temperature", number.detach()))
        return number
    return _check_sharpness(check_positive("temperature", value))


def _check_sharpness(temperature: float) -> float:
    if temperature < _SHARPEST:
        raise ValueError(
            f"temperature = {temperature} is too small for float32; its limit is the strongest key alone: "
            "use A.top(1), or a temperature such as 1e-6"
        )
    return temperature


def _check_sink(sink: Any, q: Tensor) -> Tensor:
    heads = q.shape[-3]
    if not isinstance(sink, Tensor):
        return torch.full((heads,), check_number("sink", sink), device=q.device)
    if not sink.is_floating_point():
        raise TypeError(f"sink is {sink.dtype}; it must be floats, one logit for each head")
    if sink.shape != (heads,):
        raise ValueError(f"sink has shape {tuple(sink.shape)}; it must be ({heads},), one logit for each head of q")
    check_device("sink", sink, "q", q)
    return sink
