"""The kernels: checks what they assume of memory and hands over addresses and strides.

This is the only file that passes an address. Everything it points to is held by a local name until the
call returns, and the kernels keep nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import limelight.backends._native as _native
from limelight.backends.statistics import (
    Distance,
    Entropy,
    Mass,
    Pool,
    Profile,
    Question,
    Received,
    Sent,
    Similarity,
    Strongest,
    Top,
)
from limelight.core.problem import SlowPathWarning, Terms, compute_dtype
from limelight.core.tracing import unusual

_STRIDED = torch.strided
_NOTHING = (None, None, None, 0, 0, 0)  # no spans, mask, bias, slopes, offsets, sink
_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


def quick(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """Attention of ordinary tensors and nothing else, or None where something needs a closer look.

    The same call as below with one look at each tensor: with few keys, looking is most of the cost.
    """
    if unusual() or not (q.__class__ is k.__class__ is v.__class__ is Tensor):
        return None
    shape, key_shape, dtype = q.shape, k.shape, q.dtype
    if len(shape) != 4 or key_shape != v.shape or k.dtype is not dtype or v.dtype is not dtype:
        return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return None
    if q.layout is not _STRIDED or k.layout is not _STRIDED or v.layout is not _STRIDED or dtype not in _TYPES:
        return None
    B, Hq, N, D = shape
    key_B, Hkv, M, key_D = key_shape if len(key_shape) == 4 else (0, 0, 0, 0)
    if key_B != B or key_D != D or not (B and Hkv and N and M and D) or Hq % Hkv or max(N, M) >= 2**31:
        return None
    q_strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if not (q_strides[3] == k_strides[3] == v_strides[3] == 1 and q_data and k_data and v_data):
        return None
    if q.is_neg() or k.is_neg() or v.is_neg() or not (q.is_cpu and k.is_cpu and v.is_cpu):
        return None
    out = torch.empty_like(q)
    out_strides = out.stride()
    if out_strides[3] != 1:
        return None
    type_of_all = _TYPES[dtype]
    _native.forward(
        (
            (B, Hq, Hkv, N, M, D),
            D,
            type_of_all,
            type_of_all,
            q_data,
            q_strides,
            k_data,
            k_strides,
            v_data,
            v_strides,
            out.data_ptr(),
            out_strides,
            0,
            *_NOTHING,
            D**-0.5,
            0.0,
            1.0,
            0.0,
            0,
            None,
            None,
        ),
        torch.get_num_threads(),
    )
    return out


def forward(
    q: Tensor, k: Tensor, v: Tensor, t: Terms, sizes: tuple[int, ...], want_lse: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The output, and what normalises each row, ``(3, B, Hq, N)``, if asked for: the log-sum-exp is the first.

    ``sizes`` are ``(B, Hq, Hkv, N, M, D)``.
    """
    q, k, v = readable("q", q), readable("k", k), readable("v", v)
    B, Hq, _, N, M, _ = sizes
    out = empty_output(q, v)
    lse = torch.empty((3, B, Hq, N), dtype=compute_dtype(q)) if want_lse else None
    if not (B and Hq and N and M):
        return out.zero_(), None if lse is None else lse.fill_(-torch.inf)
    held = _Held(t, q, sizes)
    _native.forward(_problem(sizes, q, k, v, out, lse, held), torch.get_num_threads())
    return out, lse


def _problem(
    sizes: tuple[int, ...], q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, held: _Held
) -> Any:
    """What the kernels take for a problem."""
    return (
        sizes,
        v.shape[3],
        _TYPES[q.dtype],
        _TYPES.get(v.dtype, 0),
        *(q.data_ptr(), q.stride()),
        *(k.data_ptr(), k.stride()),
        *(v.data_ptr(), v.stride()),
        *(out.data_ptr(), out.stride()),
        _address(lse),
        *held.addresses,
        None,
        None,
    )


class Bytes(NamedTuple):
    """Rows of numbers as bytes: ``values · scale``."""

    values: Tensor  # (B, H, M, width), int8
    scale: Tensor  # (B, H, M, 1), float32

    @classmethod
    def of(cls, x: Tensor) -> Bytes:
        """The nearest: the largest of each row becomes 127."""
        scale = x.float().abs().amax(-1, keepdim=True) / 127
        values = x.float() / torch.where(scale == 0, 1.0, scale)
        return cls(values.round().to(torch.int8), scale)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """As floats again."""
        return (self.values.to(torch.float32) * self.scale).to(dtype)


def forward_bytes(q: Tensor, k: Bytes, v: Bytes, t: Terms, sizes: tuple[int, ...]) -> Tensor:
    """The output, in the type of ``q``; the bytes are read where they lie."""
    q = readable("q", q)
    B, Hq, _, N, _, _ = sizes
    out = torch.empty((B, Hq, N, v.values.shape[3]), dtype=q.dtype)
    held = _Held(t, q, sizes)

    def scales(x: Bytes) -> tuple[int, int, int]:
        assert x.values.stride(3) == 1
        assert x.scale.stride(2) == 1
        return x.scale.data_ptr(), x.scale.stride(0), x.scale.stride(1)

    *problem, _, _ = _problem(sizes, q, k.values, v.values, out, None, held)
    problem[3] = problem[2]  # values are bytes, and the output has the type of the queries
    _native.forward((*problem, scales(k), scales(v)), torch.get_num_threads())
    return out


def ask(
    q: Tensor, k: Tensor, t: Terms, sizes: tuple[int, ...], questions: Sequence[Question], lse: Tensor | None
) -> tuple[list[Any], Tensor]:
    """The answers, and what normalises each row, ``(3, B, Hq, N)``, which is found on the way unless it is given.

    The first of the three is the log-sum-exp; the others are what the kernels make the weights from. At most one
    question of a kind, and no size is 0.
    """
    q, k = readable("q", q), readable("k", k)
    B, H, _, N, M, _ = sizes
    number = compute_dtype(q)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=number)

    answers: dict[type[Question], Any] = {}
    mass_spans = mass_mask = None
    u: Tensor | None = None
    sent: Tensor | None = None
    strongest, radius, pooled = 0, 0, Pool(0, 0)
    for question in questions:
        match question:
            case Entropy() | Distance():
                answers[type(question)] = zeros(B, H, N)
            case Mass(mask):
                answers[Mass] = zeros(B, H, N)
                mass_spans, mass_mask = mask.lower(N, M)
            case Strongest(strongest):
                answers[Strongest] = Top(zeros(B, H, N, strongest), torch.zeros(B, H, N, strongest, dtype=torch.long))
            case Received():
                answers[Received] = zeros(B, H, M)
            case Profile(radius):
                answers[Profile] = zeros(B, H, N + M - 1)
            case Sent(sending):
                u = readable("u", sending)
                answers[Sent] = sent = zeros(B, H, M, u.shape[3])
            case Pool(rows, cols):
                pooled = question
                answers[Pool] = zeros(B, H, rows, cols)
            case Similarity():
                answers[Similarity] = zeros(B, H, H)
            case _:
                raise TypeError(f"the kernels do not know the question {question!r}")
    assert len(answers) == len(questions)

    def at(kind: type[Question]) -> int:
        return _address(answers.get(kind))

    known = lse is not None
    lse = torch.empty((3, B, H, N), dtype=number) if lse is None else lse.contiguous()
    held = _Held(t, q, sizes)
    mass_spans, mass_keys = _keys(mass_spans, q, sizes)
    mass_mask = None if mass_mask is None else mass_mask.to(q.device)
    top = answers.get(Strongest)
    nowhere = (0, 0, 0, 0)
    _native.ask(
        _problem(sizes, q, k, k[..., :0], q[..., :0], lse, held),
        (
            *(known, u is None or bool(u.isfinite().all())),
            *(at(Entropy), at(Distance), at(Mass)),
            *(mass_keys, None if mass_mask is None else _grid(mass_mask, (B, H, N, M))),
            *(0 if top is None else top.values.data_ptr(), 0 if top is None else top.indices.data_ptr(), strongest),
            *(at(Received), at(Profile), radius),
            *(0 if u is None else _TYPES[u.dtype], _address(u), nowhere if u is None else u.stride()),
            *(_address(sent), nowhere if sent is None else sent.stride(), 0 if u is None else u.shape[3]),
            *(at(Pool), pooled.rows, pooled.cols, pooled.reduce == "max"),
            at(Similarity),
        ),
        torch.get_num_threads(),
    )
    if Profile in answers:
        answers[Profile] = Profile(radius).from_diagonals(answers[Profile], N, M)
    if Similarity in answers:
        answers[Similarity] = Similarity.cosines(answers[Similarity])
    return [answers[type(question)] for question in questions], lse


def settle(tensors: Iterable[Tensor]) -> None:
    """Moves tensors that are read again and again, such as a model's weights, to large pages, where the system can."""
    for x in tensors:
        if _plain(x) and x.is_contiguous():
            _native.move_to_large_pages(x.data_ptr(), x.numel() * x.itemsize)


_FEW = 4  # rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias``; the kernels read the weight at the machine's full speed where ``x`` has few rows.

    For anything else, and where a gradient may be wanted, it is torch's own.
    """
    D = x.shape[-1]
    rows = x.numel() // max(D, 1)
    tensors = (x, weight) if bias is None else (x, weight, bias)
    learns = torch.is_grad_enabled() and any(y.requires_grad for y in tensors)
    if not 0 < rows <= _FEW or learns or unusual() or not all(map(_plain, tensors)) or weight.shape[-1] != D:
        return torch.nn.functional.linear(x, weight, bias)
    if any(y.dtype != x.dtype for y in tensors) or x.dtype not in _TYPES or weight.stride(1) != 1:
        return torch.nn.functional.linear(x, weight, bias)
    x = x.contiguous()
    N = weight.shape[0]
    out = x.new_empty(*x.shape[:-1], N)
    if bias is not None:
        bias = bias.contiguous()
    addresses = x.data_ptr(), weight.data_ptr(), weight.stride(0), _address(bias), out.data_ptr()
    _native.linear(rows, N, D, _TYPES[x.dtype], *addresses, torch.get_num_threads())
    return out


def _plain(x: Tensor) -> bool:
    """Whether there is nothing to know of a tensor but its numbers."""
    return x.__class__ in _ORDINARY and x.is_cpu and x.layout is _STRIDED and not x.is_neg() and not x._is_zerotensor()


_ORDINARY = (Tensor, torch.nn.Parameter)


class Gradients(NamedTuple):
    """Of everything that a gradient may be asked of; None where it was not."""

    q: Tensor
    k: Tensor
    v: Tensor
    slopes: Tensor | None
    offsets: Tensor | None
    bias: Tensor | None
    sink: Tensor | None
    temperature: Tensor | None


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    t: Terms,
    wanted: tuple[bool, bool, bool, bool, bool],
) -> Gradients:
    """The gradients; ``wanted`` says whether those of slopes, offsets, bias, sink and temperature are asked for."""
    q, k, v, out, dout = (readable(n, x) for n, x in zip(_NAMES, (q, k, v, out, dout), strict=True))
    B, Hq, N, D = q.shape
    _, Hkv, M, _ = v.shape
    sizes = (B, Hq, Hkv, N, M, D)
    number = compute_dtype(q)
    wants_slopes, wants_offsets, wants_bias, wants_sink, wants_temperature = wanted

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=number)

    dq, dk, dv = (zeros_as(x, number) for x in (q, k, v))
    slopes = zeros(Hq) if wants_slopes else None
    offsets = zeros(Hq, N + M - 1) if wants_offsets else None
    bias = None
    if wants_bias:
        assert t.bias is not None
        bias = zeros(*(1,) * (4 - t.bias.ndim), *t.bias.shape)
    delta = zeros(B, Hq, N) if wants_sink or wants_temperature else None
    heat = zeros(B, Hq, N) if wants_temperature else None
    dlse = None if dlse is None else dlse.to(number).contiguous()
    lse = lse.contiguous()
    if B and Hq and N and M:
        held = _Held(t, q, sizes)
        _native.backward(
            _problem(sizes, q, k, v, out, lse, held),
            (
                _TYPES[dout.dtype],
                dout.data_ptr(),
                dout.stride(),
                _address(dlse),
                dq.data_ptr(),
                dq.stride(),
                dk.data_ptr(),
                dk.stride(),
                dv.data_ptr(),
                dv.stride(),
                None if bias is None else _grid(bias, (B, Hq, N, M)),
                _address(offsets),
                _address(slopes),
                _address(heat),
                _address(delta),
            ),
            torch.get_num_threads(),
        )
    sink = temperature = None
    if delta is not None:
        sink, temperature = _of_the_softmax(lse, delta, heat, t)
    return Gradients(
        dq.to(q.dtype),
        dk.to(k.dtype),
        dv.to(v.dtype),
        None if slopes is None else _shaped_as(slopes, t.slopes),
        None if offsets is None else _shaped_as(offsets, t.offsets),
        None if bias is None else _shaped_as(bias, t.bias),
        sink if wants_sink else None,
        temperature,
    )


_NAMES = ("q", "k", "v", "out", "dout")


def _of_the_softmax(lse: Tensor, delta: Tensor, heat: Tensor | None, t: Terms) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the sink and of the temperature, summed in one order whatever the threads.

    A sink has the weight ``p = exp(sink / temperature - lse)`` and no value, so that its logit gets ``-p δ``.
    """
    T = float(t.temperature)
    sink = None
    hot = 0.0 if heat is None else float(heat.numpy().sum(dtype="float64"))
    if t.sink is not None:
        x = t.sink.detach().double() / T
        weight = torch.where(lse == -torch.inf, 0.0, torch.exp(x[:, None] - lse.double()))
        dx = -torch.from_numpy((weight * delta.double()).numpy().sum((0, 2)))
        hot += float((dx * x).numpy().sum())
        sink = (dx / T).to(t.sink.dtype)
    temperature = None
    if heat is not None and isinstance(t.temperature, Tensor):
        temperature = torch.full_like(t.temperature, -hot / T)
    return sink, temperature


def _shaped_as(x: Tensor, like: Tensor | None) -> Tensor:
    """A gradient in the shape of what it belongs to, summed over the heads where that has one for all."""
    assert like is not None
    if x.ndim < 4 and like.shape[0] == 1 and x.shape[0] != 1:
        x = torch.from_numpy(x.numpy().sum(0, keepdims=True))
    return x.reshape(like.shape).to(like.dtype)


def zeros_as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros that lie as ``x`` lies, unless that overlaps itself."""
    zeros = torch.zeros_like(x, dtype=dtype)
    return zeros if zeros.stride(3) == 1 else torch.zeros(x.shape, dtype=dtype)


def readable(name: str, x: Tensor) -> Tensor:
    """``x``, or a copy if it cannot be read where it lies, which is said."""
    expanded = name == "dout"  # such as the gradient of a sum, which nobody made so
    if x.stride(3) != 1 and x.shape[3] > 1 and not expanded:
        warnings.warn(
            f"the last axis of {name} {tuple(x.shape)} is not contiguous, so {name} is copied on every call; "
            "call .contiguous() once instead",
            SlowPathWarning,
            stacklevel=5,
        )
    if x._is_zerotensor():
        x = x.clone()
    if x.numel() and not x.data_ptr():
        raise TypeError(f"{name} {tuple(x.shape)} has no memory to read from (a {type(x).__name__} of unknown numbers)")
    return x.resolve_neg().contiguous() if x.is_neg() or x.stride(3) != 1 else x


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Memory for the output, which lies as ``q`` lies, or at least has its heads inside the rows where ``q`` has."""
    B, H, N, D = q.shape
    if q.dtype == v.dtype and v.shape[3] == D:
        out = torch.empty_like(q)
        if out.stride(3) == 1:  # not like a turned view, or one that overlaps itself
            return out
        q = q.contiguous()
    if q.stride(1) < q.stride(2):
        return torch.empty((B, N, H, v.shape[3]), dtype=v.dtype, device=v.device).transpose(1, 2)
    return torch.empty((B, H, N, v.shape[3]), dtype=v.dtype, device=v.device)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _grid(x: Tensor, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (x.data_ptr(), _TYPES.get(x.dtype, 0), *x.expand(sizes).stride())


def _keys(spans: Tensor | None, q: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor | None, tuple[int, int, int] | None]:
    """Spans as the kernels read them, and what they are told."""
    if spans is None:
        return None, None
    B, _, _, N, _, _ = sizes
    spans = spans.to(q.device, torch.int32).contiguous()
    batch, rows, count, _ = spans.shape
    assert batch in (1, B)
    assert rows == N
    return spans, (spans.data_ptr(), 0 if batch == 1 else N * count * 2, count)


class _Held:
    """Addresses of all terms, and the tensors that they point into."""

    __slots__ = ("addresses", "tensors")
    addresses: tuple[object, ...]

    def __init__(self, t: Terms, q: Tensor, sizes: tuple[int, ...]) -> None:
        spans, mask, slopes, offsets, bias, sink, temperature, scale, softcap, dropout, seed = t
        if spans is mask is slopes is offsets is bias is sink is seed is None:
            self.addresses = (*_NOTHING, scale, softcap, float(temperature), 0.0, 0)
            return
        B, H, _, N, M, _ = sizes
        T = float(temperature)
        spans, keys = _keys(spans, q, sizes)
        if mask is not None:
            mask = mask.to(q.device)
        if bias is not None:
            bias = bias.detach().resolve_neg().to(q.device)
            bias = bias if bias.dtype in _TYPES else bias.to(compute_dtype(q))
        if offsets is not None:
            assert offsets.shape[1] == N + M - 1
            offsets = _in_units(_by_head(offsets, q), T)
        slopes = None if slopes is None else _by_head(slopes, q)
        sink = None if sink is None else _by_head(sink, q)
        self.tensors = (spans, mask, bias, slopes, offsets, sink)
        self.addresses = (
            keys,
            None if mask is None else _grid(mask, (B, H, N, M)),
            None if bias is None else _grid(bias, (B, H, N, M)),
            _address(slopes),
            _address(offsets),
            _address(sink),
            scale,
            softcap,
            T,
            dropout,
            0 if seed is None else int(seed),
        )


def _by_head(x: Tensor, q: Tensor) -> Tensor:
    x = x.detach().resolve_neg().to(q.device, compute_dtype(q))
    return x.expand(q.shape[1], *x.shape[1:]).contiguous()


def _in_units(offsets: Tensor, temperature: float) -> Tensor:
    """In units of ``temperature / log₂e``, in which no finite offset becomes infinite."""
    limits = torch.finfo(offsets.dtype)
    scaled = offsets * (1.0 / (math.log(2.0) * temperature))
    return torch.where(offsets.isfinite(), scaled.clamp(limits.min, limits.max), scaled)
