"""The one file that takes addresses of tensors.

Everything that an address points to is held by a name of the caller until the call of the kernels returns, and the
kernels keep nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.backends.native.extension import TYPES, kernels
from limelight.core.masks import LoweredMask
from limelight.core.problem import Sizes

address = Tensor.data_ptr  # 0 for a tensor without memory


def address_or_0(x: Tensor | None) -> int:
    """Return the address of a tensor, or 0 for None, which the kernels take as absent."""
    return 0 if x is None else address(x)


def grid(x: Tensor, sizes: Sizes) -> kernels.Grid:
    """Describe a tensor that broadcasts to ``(B, Hq, N, M)``."""
    shape = (sizes.B, sizes.Hq, sizes.N, sizes.M)
    return kernels.Grid(data=address(x), type=TYPES.get(x.dtype, 0), strides=x.expand(shape).stride())


def _spans(spans: Tensor, sizes: Sizes) -> kernels.Spans:
    batch, rows, count, _ = spans.shape
    assert spans.is_contiguous()
    assert batch in (1, sizes.B)
    assert rows == sizes.N
    return kernels.Spans(data=address(spans), batch_stride=0 if batch == 1 else rows * count * 2, count=count)


def allowed_keys(mask: LoweredMask | None, sizes: Sizes) -> kernels.AllowedKeys | None:
    """Describe a mask, which keeps the description: its tensors live as long as it does."""
    if mask is None:
        return None
    if mask.prepared is not None:
        return mask.prepared  # type: ignore[no-any-return]
    if mask.spans is not None:
        mask.spans = mask.spans.to("cpu", torch.int32).contiguous()
    if mask.dense is not None:
        mask.dense = mask.dense.to("cpu")
    mask.prepared = allowed = kernels.AllowedKeys(
        spans=None if mask.spans is None else _spans(mask.spans, sizes),
        dense=None if mask.dense is None else grid(mask.dense, sizes),
    )
    return allowed
