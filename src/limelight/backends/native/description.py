"""One call as the kernels take it: tensors, and the lowered options in the form in which they are read."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limelight.backends.native.allowed_keys import allowed_keys, expanded
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
    """A lowered specification as the kernels take it; holds the tensors that they read."""

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
        # Calls with more than 15 keywords take several times as long, so what is absent is not passed.
        others = {} if self._plain and place is WHOLE else self._others(place)
        return _make_problem(
            q,
            k,
            v,
            out,
            scaling=(self._lowered.scale, self._lowered.softcap, self._temperature),
            mask=allowed_keys(self._mask, self._sizes),
            lse=lse,
            normalisers=scaled,
            **others,
        )

    def _others(self, place: Place) -> dict[str, Any]:
        lowered = self._lowered
        return {
            "bias": None if self._bias is None else expanded(self._bias, self._whole),
            "slopes": self._slopes,
            "offsets": self._offsets,
            "sink": self._sink,
            "dropout": lowered.dropout,
            "seed": 0 if lowered.seed is None else int(lowered.seed),
            "place": place,
            "queries": lowered.queries,
            "keys": lowered.keys,
            "whole": lowered.whole or (0, 0),
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
    scaled: Tensor | None,
) -> kernels.Problem | None:
    """Describe a call whose only options are a mask and ``scaling``, which is (scale, softcap, temperature).

    None where a tensor cannot be used where it lies. Tensors and mask must live until the call is over.
    """
    if q.is_neg() or k.is_neg() or v.is_neg():
        return None
    return kernels.plain_problem(q, k, v, out, scaling, allowed_keys(mask, sizes), scaled)


def _by_head(x: Tensor, q: Tensor) -> Tensor:
    x = x.detach().resolve_neg().to(q.device, compute_dtype(q))
    return x.expand(q.shape[1], *x.shape[1:]).contiguous()


def _in_log2_units(offsets: Tensor, temperature: float) -> Tensor:
    """Return offsets in units of ``temperature / log₂e``; a finite offset stays finite."""
    limits = torch.finfo(offsets.dtype)
    scaled = offsets * (1.0 / (math.log(2.0) * temperature))
    return torch.where(offsets.isfinite(), scaled.clamp(limits.min, limits.max), scaled)
