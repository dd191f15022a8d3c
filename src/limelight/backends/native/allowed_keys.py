"""The keys that queries may attend to, as the kernels take them."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.backends.native.extension import kernels
from limelight.core.masks import LoweredMask
from limelight.core.problem import Sizes


def expanded(x: Tensor, sizes: Sizes) -> Tensor:
    """View a tensor that broadcasts to ``(B, Hq, N, M)`` in that shape."""
    return x.expand(sizes.B, sizes.Hq, sizes.N, sizes.M)


def allowed_keys(mask: LoweredMask | None, sizes: Sizes) -> kernels.AllowedKeys | None:
    """Describe a mask, which keeps the description: its tensors live as long as it does."""
    if mask is None:
        return None
    if mask.prepared is not None:
        return mask.prepared  # type: ignore[no-any-return]
    if mask.spans is not None:
        mask.spans = mask.spans.to("cpu", torch.int32).contiguous()
        assert mask.spans.shape[0] in (1, sizes.B)
        assert mask.spans.shape[1] == sizes.N
    if mask.dense is not None:
        mask.dense = mask.dense.to("cpu")
    mask.prepared = allowed = kernels.AllowedKeys(
        spans=mask.spans, dense=None if mask.dense is None else expanded(mask.dense, sizes)
    )
    return allowed
