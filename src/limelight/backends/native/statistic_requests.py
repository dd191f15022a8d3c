"""Statistics of the weights, which the kernels compute without the weights themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from limelight.backends.gradients import Normalisers
from limelight.backends.native.allowed_keys import allowed_keys
from limelight.backends.native.description import WHOLE, Operands, Place
from limelight.backends.native.extension import kernels
from limelight.backends.native.memory import readable
from limelight.backends.statistic import Statistic
from limelight.core.masks import LoweredMask, lower_mask
from limelight.core.problem import LoweredSpec, Sizes, compute_dtype


def statistics(
    q: Tensor,
    k: Tensor,
    lowered: LoweredSpec,
    sizes: Sizes,
    asked: Sequence[Statistic],
    known: Normalisers | None,
) -> tuple[list[Any], Normalisers]:
    """Compute statistics, and the normalisers of each row on the way unless they are known; no size may be 0."""
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
    """Return the tensors that the kernels write for each statistic; ``Statistic.result`` turns them into its result."""
    q, k = readable("q", q), readable("k", k)
    dtype = compute_dtype(q)
    normalisers = Normalisers.empty(sizes, dtype) if known is None else Normalisers(*(x.contiguous() for x in known))
    operands = Operands(lowered, q, sizes)
    problem = operands.problem(
        q, k, k[..., :0], q[..., :0], lse=normalisers.lse, scaled=normalisers.scaled, place=place
    )
    outputs = [statistic.outputs(sizes, dtype) for statistic in asked]
    masks = [None if x.mask is None else lower_mask(x.mask, sizes.N, sizes.M) for x in asked]
    tensors = [None if x.operand is None else readable("u", x.operand) for x in asked]
    requests = [
        request(statistic, out, mask, u, sizes)
        for statistic, out, mask, u in zip(asked, outputs, masks, tensors, strict=True)
    ]
    crops = {x.crop for x in asked if x.crop is not None}
    assert len(crops) <= 1, "statistics of one pass look at one crop"
    crop = crops.pop() if crops else None
    corners = (0, sizes.N, 0, sizes.M)
    if crop is not None:
        corners = (crop.query_begin, crop.query_end, crop.key_begin, crop.key_end)
    kernels.statistics(problem, requests, known=known is not None, crop=corners, threads=torch.get_num_threads())
    return outputs, normalisers


def request(
    statistic: Statistic, outputs: list[Tensor], mask: LoweredMask | None, rows: Tensor | None, sizes: Sizes
) -> kernels.Request:
    """Describe a statistic, the tensors that it writes, and the mask and the tensor that it takes."""
    return kernels.Request(
        name=statistic.kernel,
        outputs=outputs,
        numbers=statistic.numbers(),
        mask=allowed_keys(mask, sizes),
        rows=rows,
    )
