"""The backward pass: gradients of attention and of statistics of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
from limelight.backends.native.allowed_keys import allowed_keys, expanded
from limelight.backends.native.description import WHOLE, Operands, Place, plain_problem, sizes_of_matrix
from limelight.backends.native.extension import kernels
from limelight.backends.native.memory import readable, zeros_like
from limelight.core.masks import LoweredMask, lower_mask
from limelight.core.problem import LoweredSpec, Sizes, compute_dtype


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
    the types of these. With ``into`` they are added to sums in the accumulation dtype, and the problem may be a part of
    a larger one whose output and normalisers are given.
    """
    has_values = dout is not None
    if dout is None or v is None or out is None:
        dout, v, out = q[..., :0], k[..., :0], q[..., :0]
    q, k, v, out, dout = _readable(q, k, v, out, dout)
    sizes, dtype = Sizes.of(q, k), compute_dtype(q)
    dq, dk, dv = into or (zeros_like(q, dtype), zeros_like(k, dtype), zeros_like(v, dtype))
    assert dq.stride(3) == dk.stride(3) == 1
    learned = _LearnedSums(lowered, wanted, sizes, dtype) if True in wanted else _NO_SUMS
    normalisers = Normalisers(normalisers.lse.contiguous(), normalisers.scaled.contiguous())
    known = sum_terms(terms, normalisers, lowered) if terms else None
    if known is not None:
        dlse = -known if dlse is None else dlse - known
    dlse = None if dlse is None else dlse.to(dtype).contiguous()
    if 0 not in sizes[:5]:
        operands, described = Operands(lowered, q, sizes), _DescribedTerms(terms, sizes, dtype)
        _run(
            operands.problem(q, k, v, out, scaled=normalisers.scaled, place=place),
            dout,
            dq,
            dk,
            dv,
            dlse=dlse,
            part=into is not None,
            terms=described.requests,
            **learned.described(),
        )
    if into is None:
        dq, dk, dv = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
    return Gradients(dq, dk, dv if has_values else None, *learned.results(normalisers, lowered, wanted))


def row_sums(q: Tensor, k: Tensor, normalisers: Normalisers, lowered: LoweredSpec, terms: Sequence[Term]) -> Tensor:
    """Return ``Σ_j a_ij · d_ij`` over the keys of a part, ``(B, Hq, N)``, where terms give the weights the gradient d.

    Terms whose sums follow from their results have no part in it.
    """
    q, k = readable("q", q), readable("k", k)
    sizes, dtype, none = Sizes.of(q, k), compute_dtype(q), q[..., :0]
    sums = torch.zeros(sizes.B, sizes.Hq, sizes.N, dtype=dtype)
    operands, described = Operands(lowered, q, sizes), _DescribedTerms(terms, sizes, dtype)
    scaled = normalisers.scaled.contiguous()
    problem = operands.problem(q, k, k[..., :0], none, scaled=scaled)
    _run(problem, none, none, none, none, terms=described.requests, part=True, sums=sums)
    return sums


def plain_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    scaled: Tensor,
    sizes: Sizes,
    scaling: tuple[float, float, float],
    mask: LoweredMask | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of q, k and v from that of the output of ``plain_attention``."""
    dout = readable("dout", dout, warn=False)
    problem = plain_problem(q, k, v, out, sizes, scaling, mask, scaled)
    if problem is None:
        q, k, v, out, dout = _readable(q, k, v, out, dout)
        problem = Operands(LoweredSpec.plain(mask, scaling), q, sizes).problem(q, k, v, out, scaled=scaled)
    dtype = compute_dtype(q)
    dq, dk, dv = zeros_like(q, dtype), zeros_like(k, dtype), zeros_like(v, dtype)
    _run(problem, dout, dq, dk, dv)
    return (dq, dk, dv) if q.dtype is v.dtype is dtype else (dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype))


def _readable(q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors as the kernels can read them."""
    q, k, v, out = readable("q", q), readable("k", k), readable("v", v), readable("out", out)
    # The gradient of a sum is an expanded number, which the user cannot have made contiguous: copied without a warning.
    return q, k, v, out, readable("dout", dout, warn=False)


def _run(problem: kernels.Problem, dout: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, **others: Any) -> None:
    """Add the gradients of a problem to ``dq``, ``dk`` and ``dv``."""
    gradients = kernels.Gradients(dout, dq, dk, dv, **others)
    kernels.backward(problem, gradients, torch.get_num_threads())


class _DescribedTerms:
    """Statistics whose results have gradients, as the kernels take them; holds the tensors that they read."""

    def __init__(self, terms: Sequence[Term], sizes: Sizes, dtype: torch.dtype) -> None:
        asked = [x.statistic for x in terms]
        self._tensors = [
            [
                (y.to(dtype) if y.is_floating_point() else y).contiguous()
                for y in x.statistic.gradient_tensors(x.gradient, x.result, sizes)
            ]
            for x in terms
        ]
        self._masks = [None if x.mask is None else lower_mask(x.mask, sizes.N, sizes.M) for x in asked]
        self.requests = [
            kernels.Request(
                name=statistic.kernel,
                outputs=tensors,
                numbers=statistic.gradient_numbers(sizes),
                mask=allowed_keys(mask, sizes),
            )
            for statistic, tensors, mask in zip(asked, self._tensors, self._masks, strict=True)
        ]


class _LearnedSums:
    """Memory for the sums of which the gradients of biases, sinks and temperature are made; None where not wanted."""

    bias: Tensor | None = None
    offsets: Tensor | None = None
    slopes: Tensor | None = None
    delta: Tensor | None = None
    d_temperature: Tensor | None = None

    def __init__(self, lowered: LoweredSpec, wanted: Wanted, sizes: Sizes, dtype: torch.dtype) -> None:
        B, Hq, _, N, _, _ = sizes
        self._whole = whole = sizes_of_matrix(lowered, sizes)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype)

        if wanted.slopes:
            self.slopes = zeros(Hq)
        if wanted.offsets:
            self.offsets = zeros(Hq, whole.N + whole.M - 1)
        if wanted.bias:
            assert lowered.bias is not None
            self.bias = zeros(*(1,) * (4 - lowered.bias.ndim), *lowered.bias.shape)
        if wanted.sink or wanted.temperature:
            self.delta = zeros(B, Hq, N)
        if wanted.temperature:
            self.d_temperature = zeros(B, Hq, N)

    def described(self) -> dict[str, Any]:
        """Return them as the kernels take them."""
        return {
            "bias": None if self.bias is None else expanded(self.bias, self._whole),
            "offsets": self.offsets,
            "slopes": self.slopes,
            "d_temperature": self.d_temperature,
            "delta": self.delta,
        }

    def results(self, normalisers: Normalisers, lowered: LoweredSpec, wanted: Wanted) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of ``Wanted``."""
        delta, d_temperature = self.delta, self.d_temperature
        return (
            None if self.slopes is None else sum_to(self.slopes, lowered.slopes),
            None if self.offsets is None else sum_to(self.offsets, lowered.offsets),
            None if self.bias is None else sum_to(self.bias, lowered.bias),
            sink_gradient(normalisers, delta, lowered) if wanted.sink else None,
            temperature_gradient(normalisers, delta, d_temperature, lowered) if wanted.temperature else None,
        )


class _NoSums(_LearnedSums):
    """No gradients but those of q, k and v."""

    def __init__(self) -> None:
        pass

    def described(self) -> dict[str, Any]:
        return {}

    def results(self, normalisers: Normalisers, lowered: LoweredSpec, wanted: Wanted) -> tuple[Tensor | None, ...]:
        return None, None, None, None, None


_NO_SUMS = _NoSums()
