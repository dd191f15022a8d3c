"""One call as the kernels take it: addresses, strides, and the lowered options in the form in which they are read."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.backends.native.addresses import address, address_or_0, allowed_keys, grid
from limelight.backends.native.extension import TYPES, kernels
from limelight.core.masks import LoweredMask
from limelight.core.problem import LoweredSpec, Sizes, compute_dtype

_make_problem = kernels.Problem


class Place(NamedTuple):
    """The place of a problem in a larger matrix of which it is a part.

    The last query of the part stands ``shift`` keys after its last key. Dropout counts queries and keys from
    ``first_query`` and ``first_key``. Offsets by distance are given for the part alone.
    """

    shift: int = 0
    first_query: int = 0
    first_key: int = 0


WHOLE = Place()


class Operands:
    """A lowered specification as the kernels take it; holds the tensors that their addresses point into."""

    __slots__ = (
        "_bias",
        "_lowered",
        "_mask",
        "_offsets",
        "_plain",
        "_sink",
        "_sizes",
        "_slopes",
        "_temperature",
        "_whole",
    )

    def __init__(self, lowered: LoweredSpec, q: Tensor, sizes: Sizes) -> None:
        self._lowered, self._sizes = lowered, sizes
        self._whole = sizes_of_matrix(lowered, sizes)
        self._temperature = float(lowered.temperature)
        masked = lowered.spans is not None or lowered.mask is not None
        self._mask = LoweredMask(lowered.spans, lowered.mask) if masked else None
        bias = lowered.bias
        if bias is not None:
            bias = bias.detach().resolve_neg().to(q.device)
            bias = bias if bias.dtype in TYPES else bias.to(compute_dtype(q))
        self._bias = bias
        offsets = lowered.offsets
        if offsets is not None:
            assert offsets.shape[1] == self._whole.N + self._whole.M - 1
            offsets = _in_log2_units(_by_head(offsets, q), self._temperature)
        self._offsets = offsets
        self._slopes = None if lowered.slopes is None else _by_head(lowered.slopes, q)
        self._sink = None if lowered.sink is None else _by_head(lowered.sink, q)
        biased = bias is not None or offsets is not None or lowered.slopes is not None or lowered.sink is not None
        self._plain = not biased and not lowered.dropout and not lowered.whole

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
    ) -> kernels.Problem:
        """Describe the call; the tensors must live until it is over."""
        lowered, sizes = self._lowered, self._sizes
        # Calls with more than 15 keywords take several times as long, so what is absent is not passed.
        others = {} if self._plain and place is WHOLE else self._others(place)
        if lse is not None:
            others["lse"] = address(lse)
        return _make_problem(
            sizes=sizes,
            value_width=v.shape[3],
            type=TYPES[q.dtype],
            value_type=TYPES[out.dtype],
            q=address(q),
            q_strides=q.stride(),
            k=address(k),
            k_strides=k.stride(),
            v=address(v),
            v_strides=v.stride(),
            out=address(out),
            out_strides=out.stride(),
            scaling=(lowered.scale, lowered.softcap, self._temperature),
            mask=allowed_keys(self._mask, sizes),
            normalisers=address_or_0(scaled),
            **others,
        )

    def _others(self, place: Place) -> dict[str, Any]:
        lowered = self._lowered
        return {
            "bias": None if self._bias is None else grid(self._bias, self._whole),
            "slopes": address_or_0(self._slopes),
            "offsets": address_or_0(self._offsets),
            "sink": address_or_0(self._sink),
            "dropout": lowered.dropout,
            "seed": 0 if lowered.seed is None else int(lowered.seed),
            "place": place,
            "places": (address_or_0(lowered.queries), address_or_0(lowered.keys), *(lowered.whole or (0, 0))),
        }


def sizes_of_matrix(lowered: LoweredSpec, sizes: Sizes) -> Sizes:
    """Return the sizes of the matrix from which queries and keys are chosen, or those of the problem."""
    return sizes._replace(N=lowered.whole[0], M=lowered.whole[1]) if lowered.whole else sizes


def plain_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sizes: Sizes,
    scaling: tuple[float, float, float],
    mask: LoweredMask | None,
    normalisers: int = 0,
) -> kernels.Problem | None:
    """Describe a call whose only options are a mask and ``scaling``, which is (scale, softcap, temperature).

    Most calls are such (``Problem.is_plain``), and with few keys the Python around the kernels is most of their cost:
    here every tensor is asked once for what is checked and handed over. None where one of them cannot be read where it
    lies. Tensors and mask must live until the call is over.
    """
    q_strides, k_strides, v_strides, out_strides = q.stride(), k.stride(), v.stride(), out.stride()
    q_data, k_data, v_data = address(q), address(k), address(v)
    in_rows = q_strides[3] == k_strides[3] == v_strides[3] == out_strides[3] == 1
    if not (in_rows and q_data and k_data and v_data) or q.is_neg() or k.is_neg() or v.is_neg():
        return None
    return _make_problem(
        sizes=sizes,
        value_width=v.shape[3],
        type=TYPES[q.dtype],
        value_type=TYPES[v.dtype],
        q=q_data,
        q_strides=q_strides,
        k=k_data,
        k_strides=k_strides,
        v=v_data,
        v_strides=v_strides,
        out=address(out),
        out_strides=out_strides,
        scaling=scaling,
        mask=None if mask is None else allowed_keys(mask, sizes),
        normalisers=normalisers,
    )


def _by_head(x: Tensor, q: Tensor) -> Tensor:
    x = x.detach().resolve_neg().to(q.device, compute_dtype(q))
    return x.expand(q.shape[1], *x.shape[1:]).contiguous()


def _in_log2_units(offsets: Tensor, temperature: float) -> Tensor:
    """Return offsets in units of ``temperature / log₂e``; a finite offset stays finite."""
    limits = torch.finfo(offsets.dtype)
    scaled = offsets * (1.0 / (math.log(2.0) * temperature))
    return torch.where(offsets.isfinite(), scaled.clamp(limits.min, limits.max), scaled)
