"""The main functions: ``attention`` and ``weights`` check their arguments and hand them to a backend."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

from limelight import backends
from limelight.backends import Backend, Int8Rows
from limelight.core.biases import Bias
from limelight.core.checks import check_dropout, reject_options
from limelight.core.masks import Mask
from limelight.core.problem import AttentionSpec, Problem
from limelight.matrix.base import Weights
from limelight.matrix.lazy import LazyWeights


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | float | None = None,
    temperature: float | Tensor = 1.0,
    dropout: float = 0.0,
    backend: str | None = None,
    **other: NoReturn,
) -> Tensor:
    """``softmax((softcap(scale · q kᵀ) + bias) / temperature) v`` over the keys that ``mask`` allows.

    Args:
        q: queries ``(…, Hq, N, D)``.
        k: keys ``(…, Hkv, M, D)``; ``Hq`` is a multiple of ``Hkv`` (grouped heads).
        v: values ``(…, Hkv, M, Dv)``.
        mask: the keys that a query may attend to, such as ``Causal() & Window(256)``; all where None.
        bias: numbers added to the logits, such as ``ALiBi(Hq)``.
        scale: ``1/√D`` unless given; it may be a tensor with one number that requires grad, as may ``temperature``.
        softcap: ``c`` in ``c · tanh(scores / c)``.
        sink: one extra logit for each head, ``(Hq,)``, which takes weight and gives no value.
        temperature: above 1 flattens the weights, below 1 sharpens them.
        dropout: the share of weights that is set to 0 after the softmax, the others growing by ``1 / (1 - dropout)``;
            reproducible by ``torch.manual_seed``.
        backend: ``"native"`` or ``"portable"``, to force one; chosen by ``backend_for`` otherwise.
        **other: refused, with what to write instead.

    Returns:
        ``(…, Hq, N, Dv)`` in the type of ``v``. A query that may attend to nothing gives zeros.

    >>> import torch, limelight as ll
    >>> q, k, v = torch.randn(2, 8, 5, 16), torch.randn(2, 2, 7, 16), torch.randn(2, 2, 7, 3)
    >>> ll.attention(q, k, v, mask=ll.Causal()).shape
    torch.Size([2, 8, 5, 3])

    """
    if other:
        reject_options("attention()", other, (*AttentionSpec._fields, "dropout", "backend"))
    spec = AttentionSpec(mask, bias, scale, softcap, sink, temperature)
    if backend is None and dropout.__class__ is float and not dropout:
        out = backends.quick_attention(q, k, v, spec)
        if out is not None:
            return out
    sizes = backends.ordinary_sizes(q, k, v)
    p = Problem(q, k, spec, sizes)
    if sizes is None:
        v = p.check_values(v)
    if dropout.__class__ is not float or not 0 <= dropout < 1:
        dropout = check_dropout(dropout)
    return p.with_lead(backends.attention(p, v, dropout, backend))


def attention_int8(
    q: Tensor,
    k: Int8Rows,
    v: Int8Rows,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
) -> Tensor:
    """Compute attention to keys and values of an 8-bit cache, which the kernels read as they are."""
    return backends.attention_int8(q, k, v, AttentionSpec(mask=mask, bias=bias, scale=scale))


def weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | float | None = None,
    temperature: float | Tensor = 1.0,
    **other: NoReturn,
) -> Weights:
    """``softmax((softcap(scale · q kᵀ) + bias) / temperature)`` as an object that is never stored.

    The arguments are those of ``attention``, and ``weights(q, k, …) @ v`` is ``attention(q, k, v, …)``. The ``Weights``
    have the shape ``(…, Hq, N, M)``; nothing is computed before a result is asked for.

    >>> import torch, limelight as ll
    >>> A = ll.weights(torch.randn(4, 100, 8), torch.randn(4, 100, 8), mask=ll.Window(10))
    >>> A.shape
    (4, 100, 100)
    """
    if other:
        reject_options("weights()", other, AttentionSpec._fields)
    return LazyWeights(Problem(q, k, AttentionSpec(mask, bias, scale, softcap, sink, temperature)))


def backend_for(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Backend:
    """Return the ``name`` of the backend that ``attention`` would use, and the ``reason``.

    ``q``, ``k``, ``v`` and the options are those of ``attention``, except ``dropout`` and ``backend``.

    >>> import torch, limelight as ll
    >>> x = torch.randn(1, 2, 3, 4)
    >>> print(ll.backend_for(x, x, x))
    native: float tensors on the CPU
    """
    if unknown := options.keys() - set(AttentionSpec._fields):
        reject_options("backend_for()", unknown, AttentionSpec._fields)
    p = Problem(q, k, AttentionSpec(**options))
    return backends.explain_for_attention(p, p.check_values(v))
