"""Norm-based analysis: weights times the norm of the value that each moves (Kobayashi et al., 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from limelight.core.problem import batched


def value_norms(v: Tensor, heads: int, W_O: Tensor | None = None) -> Tensor:
    """Return ``‖v_j‖``, or ``‖v_j W_O‖``, of each key for every query head, ``(B, heads, keys)``."""
    v = batched(v).to(torch.promote_types(v.dtype, torch.float32))
    group, width = heads // v.shape[1], v.shape[3]
    if heads % v.shape[1]:
        raise ValueError(
            f"by_value: v has {v.shape[1]} heads, of which the {heads} heads of the weights are no multiple"
        )
    if W_O is None:
        norms: Tensor = v.norm(dim=-1)
        return norms.repeat_interleave(group, 1)
    if W_O.ndim != 2 or W_O.shape[0] != heads * width:
        raise ValueError(
            f"by_value: W_O {tuple(W_O.shape)} must be (heads · width of v, width) = ({heads * width}, …); "
            "that of an nn.Linear is linear.weight.T"
        )
    # ‖v W‖ = ‖v Rᵀ‖ with Wᵀ = Q R: as narrow as v, however wide the model.
    W = W_O.to(v.dtype).unflatten(0, (heads, width))
    R = torch.linalg.qr(W.mT, mode="r").R  # (heads, width or less, width)
    by_head = [(v[:, h // group] @ R[h].mT).norm(dim=-1) for h in range(heads)]
    return torch.stack(by_head, 1)
