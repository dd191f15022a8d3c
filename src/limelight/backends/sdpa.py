"""PyTorch's own attention, where it is known to be faster: on matrix units, which the kernels do not use."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from limelight.core.masks import Causal
from limelight.core.problem import Problem
from limelight.core.torch_modes import is_traced

_NEVER = (torch.float32, torch.float64)  # types that no matrix unit computes
_FEWEST_ROWS = 16  # fewer do not fill a matrix unit: reading K and V is the cost, as in decoding


@cache
def matrix_units() -> dict[torch.dtype, str]:
    """Name the matrix unit that this machine has for a type; types without one are missing."""
    capabilities: Any = getattr(torch.cpu, "get_capabilities", dict)()
    units = {torch.bfloat16: "amx_bf16", torch.float16: "amx_fp16"}
    return {dtype: "AMX" for dtype, flag in units.items() if capabilities.get(flag)}


def reason(p: Problem, v: Tensor) -> str | None:
    """Say why PyTorch's kernel is the faster one for a call, or return None where it is not or cannot compute it."""
    if p.q.dtype in _NEVER or is_traced():  # in a trace the compiler would have to look into the machine
        return None
    units = matrix_units()
    if p.q.dtype not in units or not _expressible(p, v):
        return None
    name = str(p.q.dtype).removeprefix("torch.")
    return f"PyTorch's kernel computes {name} on this CPU's matrix units ({units[p.q.dtype]})"


def _expressible(p: Problem, v: Tensor) -> bool:
    sizes = p.sizes
    # Its causal mask is aligned at the start, ours at the end.
    mask = p.mask is None or (p.mask.__class__ is Causal and sizes.N == sizes.M)
    plain = p.bias is None and p.sink is None and p.softcap is None and p.temperature.__class__ is float
    alike = v.dtype is p.q.dtype and v.shape[3] == sizes.D and sizes.N >= _FEWEST_ROWS and 0 not in sizes
    return mask and plain and float(p.temperature) == 1.0 and alike and p.on_cpu


def attention(p: Problem, v: Tensor) -> Tensor:
    """Compute the output ``(B, H, N, Dv)``, differentiably."""
    return torch.nn.functional.scaled_dot_product_attention(
        p.q,
        p.k,
        v,
        is_causal=p.mask is not None,
        scale=p.scale,
        enable_gqa=p.sizes.Hq != p.sizes.Hkv,
    )
