"""The kernels: checks what they assume of memory and hands over addresses and strides.

This is the only file that passes an address. Everything that an address points to is held by a local name until the
call returns, and the kernels keep nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.backends import no_kernels
from limelight.backends.gradients import (
    Gradients,
    Normalisers,
    Term,
    Wanted,
    sink_gradient,
    sum_terms,
    sum_to,
    temperature_gradient,
)
from limelight.backends.int8 import Int8Rows
from limelight.backends.statistic import Statistic
from limelight.core.checks import SlowPathWarning
from limelight.core.masks import LoweredMask, lower_mask
from limelight.core.problem import LoweredSpec, Problem, Sizes, compute_dtype
from limelight.core.tracing import is_eager

try:
    import limelight.backends._native as _native
except ModuleNotFoundError:
    import limelight.backends.no_kernels as _native  # type: ignore[no-redef]

built = _native is not no_kernels
isa = _native.isa
available_isas = _native.available_isas
set_isa = _native.set_isa
peak_flops = _native.peak_flops
read_bandwidth = _native.read_bandwidth

_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_make_problem = _native.Problem
_forward = _native.forward
_threads = torch.get_num_threads
_empty_like = torch.empty_like
_grad_enabled = torch.is_grad_enabled


class Place(NamedTuple):
    """The place of a problem in a larger matrix of which it is a part.

    Its queries stand ``shift`` keys further to the right than at the end of its keys; dropout counts queries and keys
    from ``first_query`` and ``first_key``. Offsets by distance are those of the part as it is.
    """

    shift: int = 0
    first_query: int = 0
    first_key: int = 0


WHOLE = Place()


def attention(p: Problem, v: Tensor) -> Tensor:
    """Compute the output of a plain call: no gradient, no dropout, no normalisers.

    Most calls are this one, and with few keys the Python around the kernels is most of their cost.
    """
    q, k = p.q, p.k
    B, Hq, _, N, M, D = p.sizes
    if p.bias is not None or p.sink is not None or not (B and Hq and N and M):
        return forward(q, k, v, p.lower(), p.sizes)
    q_strides, k_strides, v_strides = q.stride(), k.stride(), v.stride()
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    in_place = q_strides[3] == k_strides[3] == v_strides[3] == 1 and q_data and k_data and v_data
    if not in_place or q.is_neg() or k.is_neg() or v.is_neg():
        return forward(q, k, v, p.lower(), p.sizes)
    dtype, value_dtype, width = q.dtype, v.dtype, v.shape[3]
    out = _empty_like(q) if dtype is value_dtype and width == D else empty_output(q, v)
    out_strides = out.stride()
    if out_strides[3] != 1:
        out = empty_output(q, v)
        out_strides = out.stride()
    mask = None if p.mask is None else lower_mask(p.mask, N, M)
    _forward(
        _make_problem(
            sizes=p.sizes,
            value_width=width,
            type=_TYPES[dtype],
            value_type=_TYPES[value_dtype],
            q=q_data,
            q_strides=q_strides,
            k=k_data,
            k_strides=k_strides,
            v=v_data,
            v_strides=v_strides,
            out=out.data_ptr(),
            out_strides=out_strides,
            scaling=(p.scale, p.softcap or 0.0, float(p.temperature)),
            mask=None if mask is None else mask.prepared or _prepare_mask(mask, p.sizes),
        ),
        _threads(),
    )
    return out


def forward(q: Tensor, k: Tensor, v: Tensor, lowered: LoweredSpec, sizes: Sizes) -> Tensor:
    """Compute the output."""
    return _run_forward(q, k, v, lowered, sizes, None, None)


def forward_with_normalisers(
    q: Tensor, k: Tensor, v: Tensor, lowered: LoweredSpec, sizes: Sizes, *, place: Place = WHOLE
) -> tuple[Tensor, Normalisers]:
    """Compute the output and the normalisers of each row."""
    normalisers = Normalisers.empty(sizes, compute_dtype(q))
    return _run_forward(q, k, v, lowered, sizes, *normalisers, place), normalisers


def _run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lowered: LoweredSpec,
    sizes: Sizes,
    lse: Tensor | None,
    scaled: Tensor | None,
    place: Place = WHOLE,
) -> Tensor:
    q, k, v = readable("q", q), readable("k", k), readable("v", v)
    out = empty_output(q, v)
    if not (sizes.B and sizes.Hq and sizes.N and sizes.M):
        if lse is not None:
            lse.fill_(-torch.inf)
        if scaled is not None:
            scaled[0], scaled[1] = 0.0, 1.0
        return out.zero_()
    operands = _Operands(lowered, q, sizes)
    _forward(operands.problem(q, k, v, out, lse=lse, scaled=scaled, place=place), _threads())
    return out


def forward_int8(q: Tensor, k: Int8Rows, v: Int8Rows, lowered: LoweredSpec, sizes: Sizes) -> Tensor:
    """Compute the output, in the type of ``q``, from bytes that are read where they lie."""
    q = readable("q", q)
    out = torch.empty((sizes.B, sizes.Hq, sizes.N, v.values.shape[3]), dtype=q.dtype)
    for x in (k, v):
        assert x.values.stride(3) == 1
        assert x.scale.stride(2) == 1
    operands = _Operands(lowered, q, sizes)
    problem = operands.problem(q, k.values, v.values, out)
    problem.read_int8(
        k_scale=k.scale.data_ptr(),
        k_scale_strides=k.scale.stride()[:2],
        v_scale=v.scale.data_ptr(),
        v_scale_strides=v.scale.stride()[:2],
    )
    _forward(problem, _threads())
    return out


def statistics(
    q: Tensor,
    k: Tensor,
    lowered: LoweredSpec,
    sizes: Sizes,
    asked: Sequence[Statistic],
    known: Normalisers | None,
) -> tuple[list[Any], Normalisers]:
    """Compute statistics, and the normalisers of each row on the way unless they are known. No size is 0."""
    outputs, normalisers = statistics_outputs(q, k, lowered, sizes, asked, known)
    return [x.result(out, sizes) for x, out in zip(asked, outputs, strict=True)], normalisers


def statistics_outputs(
    q: Tensor,
    k: Tensor,
    lowered: LoweredSpec,
    sizes: Sizes,
    asked: Sequence[Statistic],
    known: Normalisers | None,
    place: Place = WHOLE,
) -> tuple[list[list[Tensor]], Normalisers]:
    """Return what the kernels write for each statistic, which ``Statistic.result`` makes the result of."""
    q, k = readable("q", q), readable("k", k)
    dtype = compute_dtype(q)
    normalisers = Normalisers.empty(sizes, dtype) if known is None else Normalisers(*(x.contiguous() for x in known))
    operands = _Operands(lowered, q, sizes)
    problem = operands.problem(
        q, k, k[..., :0], q[..., :0], lse=normalisers.lse, scaled=normalisers.scaled, place=place
    )
    outputs = [statistic.outputs(sizes, dtype) for statistic in asked]
    masks = [None if x.mask is None else lower_mask(x.mask, sizes.N, sizes.M) for x in asked]
    tensors = [None if x.operand is None else readable("u", x.operand) for x in asked]
    requests = [
        _request(statistic, out, mask, u, sizes)
        for statistic, out, mask, u in zip(asked, outputs, masks, tensors, strict=True)
    ]
    windows = {x.window for x in asked if x.window is not None}
    assert len(windows) <= 1, "statistics of one pass look at one window"
    window = windows.pop() if windows else None
    corners = (0, sizes.N, 0, sizes.M)
    if window is not None:
        corners = (window.query_begin, window.query_end, window.key_begin, window.key_end)
    _native.statistics(problem, requests, known=known is not None, window=corners, threads=_threads())
    return outputs, normalisers


def _request(
    statistic: Statistic, outputs: list[Tensor], mask: LoweredMask | None, rows: Tensor | None, sizes: Sizes
) -> _native.Request:
    allowed = None if mask is None else mask.prepared or _prepare_mask(mask, sizes)
    if rows is None:
        return _native.Request(
            name=statistic.kernel,
            outputs=[x.data_ptr() for x in outputs],
            numbers=statistic.numbers(),
            mask=allowed,
        )
    return _native.Request(
        name=statistic.kernel,
        outputs=[x.data_ptr() for x in outputs],
        numbers=statistic.numbers(),
        rows=rows.data_ptr(),
        rows_type=_TYPES[rows.dtype],
        rows_strides=rows.stride(),
    )


def backward(
    dout: Tensor | None,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    out: Tensor | None,
    normalisers: Normalisers,
    lowered: LoweredSpec,
    wanted: Wanted,
    terms: Sequence[Term] = (),
    *,
    place: Place = WHOLE,
    into: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Gradients:
    """Compute the gradients of a call from those of its output, of its log-sum-exp and of statistics of its weights.

    Without ``dout``, values and output have no part in it, and there is no gradient of values. Those of q, k and v have
    the types of these, unless they are added to sums in the accumulation dtype, ``into``.
    """
    has_values = dout is not None
    if dout is None or v is None or out is None:
        dout, v, out = q[..., :0], k[..., :0], q[..., :0]
    q, k, v, out = readable("q", q), readable("k", k), readable("v", v), readable("out", out)
    # The gradient of a sum is an expanded number, which the user cannot have made contiguous: copied without a warning.
    dout = readable("dout", dout, warn=False)
    B, Hq, N, D = q.shape
    _, Hkv, M, _ = k.shape
    sizes = Sizes(B, Hq, Hkv, N, M, D)
    dtype = compute_dtype(q)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    dq, dk, dv = into or (zeros_like(q, dtype), zeros_like(k, dtype), zeros_like(v, dtype))
    assert dq.stride(3) == dk.stride(3) == 1
    slopes = zeros(Hq) if wanted.slopes else None
    offsets = zeros(Hq, N + M - 1) if wanted.offsets else None
    bias = None
    if wanted.bias:
        assert lowered.bias is not None
        bias = zeros(*(1,) * (4 - lowered.bias.ndim), *lowered.bias.shape)
    delta = zeros(B, Hq, N) if wanted.sink or wanted.temperature else None
    d_temperature = zeros(B, Hq, N) if wanted.temperature else None
    normalisers = Normalisers(*(x.contiguous() for x in normalisers))
    known = sum_terms(terms, normalisers, lowered)
    if known is not None:
        dlse = -known if dlse is None else dlse - known
    dlse = None if dlse is None else dlse.to(dtype).contiguous()
    if B and Hq and N and M:
        operands = _Operands(lowered, q, sizes)
        problem = operands.problem(q, k, v, out, scaled=normalisers.scaled, place=place)
        coefficients = [x.statistic.output_gradient(x.gradient, sizes).to(dtype).contiguous() for x in terms]
        masks = [None if x.statistic.mask is None else lower_mask(x.statistic.mask, N, M) for x in terms]
        requests = [
            _native.Request(
                name=x.statistic.kernel,
                outputs=[coefficient.data_ptr()],
                numbers=x.statistic.gradient_numbers(sizes),
                mask=None if mask is None else mask.prepared or _prepare_mask(mask, sizes),
            )
            for x, coefficient, mask in zip(terms, coefficients, masks, strict=True)
        ]
        gradients = _native.Gradients(
            problem,
            dout_type=_TYPES[dout.dtype],
            dout=dout.data_ptr(),
            dout_strides=dout.stride(),
            dq=dq.data_ptr(),
            dq_strides=dq.stride(),
            dk=dk.data_ptr(),
            dk_strides=dk.stride(),
            dv=dv.data_ptr(),
            dv_strides=dv.stride(),
            dlse=_address(dlse),
            bias=None if bias is None else _grid(bias, sizes),
            offsets=_address(offsets),
            slopes=_address(slopes),
            d_temperature=_address(d_temperature),
            delta=_address(delta),
            terms=requests,
        )
        _native.backward(problem, gradients, _threads())
    return Gradients(
        q=dq if into else dq.to(q.dtype),
        k=dk if into else dk.to(k.dtype),
        v=None if not has_values else dv if into else dv.to(v.dtype),
        slopes=None if slopes is None else sum_to(slopes, lowered.slopes),
        offsets=None if offsets is None else sum_to(offsets, lowered.offsets),
        bias=None if bias is None else sum_to(bias, lowered.bias),
        sink=sink_gradient(normalisers, delta, lowered) if wanted.sink else None,
        temperature=temperature_gradient(normalisers, delta, d_temperature, lowered) if wanted.temperature else None,
    )


_FEW_ROWS = 8  # of x; with more, torch's matrix product is as fast


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias``; for a few rows of ``x`` the kernels read the weight at the machine's full speed.

    For more rows, and where a gradient may be wanted, it is torch's own.
    """
    return linears(x, ((weight, bias),))[0]


def linears(x: Tensor, layers: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
    """``x weightᵀ + bias`` for up to three layers ``(weight, bias)``, in one call where the kernels compute it."""
    found = _linears_of_few_rows(x, layers)
    return [torch.nn.functional.linear(x, weight, bias) for weight, bias in layers] if found is None else found


def _linears_of_few_rows(x: Tensor, layers: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor] | None:
    """Return the outputs of linear layers, or None where torch has to compute them."""
    shape, dtype = x.shape, x.dtype
    D = shape[-1]
    rows = x.numel() // D if D else 0
    if rows > _FEW_ROWS or not _computes_tokens(x):
        return None
    grad = _grad_enabled()
    for weight, bias in layers:
        if weight.dtype is not dtype or weight.shape[-1] != D or weight.stride(1) != 1 or not _is_plain(weight):
            return None
        if grad and weight.requires_grad:
            return None
        if bias is None:
            continue
        if bias.dtype is not dtype or bias.shape != weight.shape[:1] or not _is_plain(bias):
            return None
        if grad and bias.requires_grad:
            return None
    x = x.contiguous()
    biases = [None if bias is None else bias.contiguous() for _, bias in layers]
    outs = [x.new_empty((*shape[:-1], weight.shape[0])) for weight, _ in layers]
    parts = [
        (weight.data_ptr(), weight.shape[0], weight.stride(0), _address(bias), out.data_ptr())
        for (weight, _), bias, out in zip(layers, biases, outs, strict=True)
    ]
    _native.linear((rows, D, _TYPES[dtype]), x.data_ptr(), parts, _threads())
    return outs


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor | None:
    """Return ``x / √(mean(x²) + eps) ∘ weight``, or None where torch has to compute it."""
    if not _computes_tokens(x) or not (weight is None or (_computes_tokens(weight) and weight.dtype is x.dtype)):
        return None
    D = x.shape[-1]
    x, weight = x.contiguous(), None if weight is None else weight.contiguous()
    out = _empty_like(x)
    sizes = (x.numel() // D, D, _TYPES[x.dtype])
    _native.rms_norm(sizes, x.data_ptr(), _address(weight), out.data_ptr(), eps, _threads())
    return out


def rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, width: int, interleaved: bool
) -> tuple[Tensor, Tensor] | None:
    """Return q and k ``(B, H, N, D)`` with pairs of features rotated, or None where torch has to compute it.

    ``cos`` and ``sin`` are ``(N, width / 2)`` or ``(B, 1, N, width / 2)``.
    """
    tensors = (q, k, cos, sin)
    if not all(_computes_tokens(x) and x.dtype is q.dtype and x.stride(-1) == 1 for x in tensors):
        return None
    B, _, N, D = q.shape
    if k.shape != (B, k.shape[1], N, D):
        return None
    cos, sin = cos.contiguous(), sin.contiguous()
    outs = empty_output(q, q), empty_output(k, k)
    _native.rotate(
        (B, N, D, width, _TYPES[q.dtype], interleaved),
        (cos.data_ptr(), sin.data_ptr(), 0 if cos.ndim == 2 else cos.stride(0)),
        [
            (x.shape[1], x.data_ptr(), x.stride(), out.data_ptr(), out.stride())
            for x, out in zip((q, k), outs, strict=True)
        ],
        _threads(),
    )
    return outs


def _computes_tokens(x: Tensor) -> bool:
    """Return True where the kernels may read a tensor and no gradient can be wanted."""
    usable = x.dtype in _TYPES and x.numel() > 0 and not (_grad_enabled() and x.requires_grad)
    return usable and built and is_eager() and _is_plain(x)


def move_to_large_pages(tensors: Iterable[Tensor]) -> None:
    """Move tensors that are read again and again, such as a model's weights, to large pages, where the system can."""
    for x in tensors:
        if _is_plain(x) and x.is_contiguous():
            _native.move_to_large_pages(x.data_ptr(), x.numel() * x.itemsize)


def _is_plain(x: Tensor) -> bool:
    """Return True for an ordinary tensor in the CPU's memory."""
    ordinary = x.__class__ in (Tensor, torch.nn.Parameter) and x.is_cpu and x.layout is torch.strided
    return ordinary and not x.is_neg() and bool(x.data_ptr())


def zeros_like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros with the memory layout of ``x``, unless that overlaps itself."""
    zeros = torch.zeros_like(x, dtype=dtype)
    return zeros if zeros.stride(3) == 1 else torch.zeros(x.shape, dtype=dtype)


def readable(name: str, x: Tensor, *, warn: bool = True) -> Tensor:
    """Return ``x``, or a copy with a warning if it cannot be read where it lies."""
    if warn and x.stride(3) != 1 and x.shape[3] > 1:
        warnings.warn(
            f"the last axis of {name} {tuple(x.shape)} is not contiguous, so {name} is copied on every call; "
            "call .contiguous() once instead",
            SlowPathWarning,
            stacklevel=5,
        )
    if x._is_zerotensor():
        x = x.clone()
    if x.numel() and not x.data_ptr():
        raise TypeError(f"{name} {tuple(x.shape)} has no memory to read from (a {type(x).__name__} without values)")
    return x.resolve_neg().contiguous() if x.is_neg() or x.stride(3) != 1 else x


def empty_output(q: Tensor, v: Tensor) -> Tensor:
    """Memory for the output, laid out as ``q`` is, or at least with the heads inside the rows where ``q`` has them."""
    if q.dtype is v.dtype and v.shape[3] == q.shape[3]:
        out = _empty_like(q)
        if out.stride(3) == 1:  # not so for a transposed view, or one that overlaps itself
            return out
        q = q.contiguous()
    B, H, N, _ = q.shape
    if q.stride(1) < q.stride(2):
        return torch.empty((B, N, H, v.shape[3]), dtype=v.dtype, device=v.device).transpose(1, 2)
    return torch.empty((B, H, N, v.shape[3]), dtype=v.dtype, device=v.device)


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _grid(x: Tensor, sizes: Sizes) -> _native.Grid:
    shape = (sizes.B, sizes.Hq, sizes.N, sizes.M)
    return _native.Grid(data=x.data_ptr(), type=_TYPES.get(x.dtype, 0), strides=x.expand(shape).stride())


def _spans(spans: Tensor, sizes: Sizes) -> _native.Spans:
    batch, rows, count, _ = spans.shape
    assert spans.is_contiguous()
    assert batch in (1, sizes.B)
    assert rows == sizes.N
    return _native.Spans(data=spans.data_ptr(), batch_stride=0 if batch == 1 else rows * count * 2, count=count)


def _prepare_mask(mask: LoweredMask, sizes: Sizes) -> _native.AllowedKeys:
    """Make what the kernels take for a mask, which the mask keeps: its tensors live as long as it does."""
    if mask.spans is not None:
        mask.spans = mask.spans.to("cpu", torch.int32).contiguous()
    if mask.dense is not None:
        mask.dense = mask.dense.to("cpu")
    mask.prepared = allowed = _native.AllowedKeys(
        spans=None if mask.spans is None else _spans(mask.spans, sizes),
        dense=None if mask.dense is None else _grid(mask.dense, sizes),
    )
    return allowed


class _Operands:
    """A lowered specification as the kernels take it; holds the tensors that their addresses point into."""

    __slots__ = ("_bias", "_lowered", "_mask", "_offsets", "_sink", "_sizes", "_slopes", "_temperature")

    def __init__(self, lowered: LoweredSpec, q: Tensor, sizes: Sizes) -> None:
        self._lowered, self._sizes = lowered, sizes
        self._temperature = float(lowered.temperature)
        masked = lowered.spans is not None or lowered.mask is not None
        self._mask = LoweredMask(lowered.spans, lowered.mask) if masked else None
        bias = lowered.bias
        if bias is not None:
            bias = bias.detach().resolve_neg().to(q.device)
            bias = bias if bias.dtype in _TYPES else bias.to(compute_dtype(q))
        self._bias = bias
        offsets = lowered.offsets
        if offsets is not None:
            assert offsets.shape[1] == sizes.N + sizes.M - 1
            offsets = _in_log2_units(_by_head(offsets, q), self._temperature)
        self._offsets = offsets
        self._slopes = None if lowered.slopes is None else _by_head(lowered.slopes, q)
        self._sink = None if lowered.sink is None else _by_head(lowered.sink, q)

    def problem(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        *,
        lse: Tensor | None = None,
        scaled: Tensor | None = None,
        place: Place = WHOLE,
    ) -> _native.Problem:
        """Describe the call; the tensors must live until it is over."""
        lowered, sizes = self._lowered, self._sizes
        return _make_problem(
            sizes=sizes,
            value_width=v.shape[3],
            type=_TYPES[q.dtype],
            value_type=_TYPES[out.dtype],
            q=q.data_ptr(),
            q_strides=q.stride(),
            k=k.data_ptr(),
            k_strides=k.stride(),
            v=v.data_ptr(),
            v_strides=v.stride(),
            out=out.data_ptr(),
            out_strides=out.stride(),
            scaling=(lowered.scale, lowered.softcap, self._temperature),
            mask=None if self._mask is None else _prepare_mask(self._mask, sizes),
            lse=_address(lse),
            normalisers=_address(scaled),
            bias=None if self._bias is None else _grid(self._bias, sizes),
            slopes=_address(self._slopes),
            offsets=_address(self._offsets),
            sink=_address(self._sink),
            dropout=lowered.dropout,
            seed=0 if lowered.seed is None else int(lowered.seed),
            place=place,
        )


def _by_head(x: Tensor, q: Tensor) -> Tensor:
    x = x.detach().resolve_neg().to(q.device, compute_dtype(q))
    return x.expand(q.shape[1], *x.shape[1:]).contiguous()


def _in_log2_units(offsets: Tensor, temperature: float) -> Tensor:
    """Offsets in units of ``temperature / log₂e``, in which no finite offset becomes infinite."""
    limits = torch.finfo(offsets.dtype)
    scaled = offsets * (1.0 / (math.log(2.0) * temperature))
    return torch.where(offsets.isfinite(), scaled.clamp(limits.min, limits.max), scaled)
