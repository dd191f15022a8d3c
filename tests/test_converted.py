"""K and V that cannot be read in place, copied once a call or block by block, against the dense reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import limelight as ll
from test_exactness import check
from test_gradients import check as check_gradients


def operands(B: int, Hq: int, Hkv: int, N: int, M: int, D: int, Dv: int, dtype: torch.dtype) -> dict[str, Any]:
    """Queries, keys and values whose rows lie as far apart as those of a model: (B, rows, heads, width), transposed."""

    def rows(heads: int, n: int, width: int) -> Tensor:
        return torch.randn(B, n, heads, width).to(dtype).transpose(1, 2)

    return {"q": rows(Hq, N, D), "k": rows(Hkv, M, D), "v": rows(Hkv, M, Dv)}


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("N", "M", "mask"),
    [
        (61, 1103, None),  # copied once, by three tasks for each head
        (307, 1103, ll.Causal()),
        (61, 1103, ll.Causal() & ll.Window(71)),  # few of the keys are met: copied block by block
        (7, 1103, None),  # decoded as they are
    ],
    ids=repr,
)
def test_numbers_of_every_type_and_layout(N: int, M: int, mask: Any, dtype: torch.dtype, isa: str) -> None:
    p = operands(2, 6, 3, N, M, 232, 176, dtype)  # rows of 3 key heads lie 2,112 bytes apart and more in float32
    check({**p, "mask": mask}, "native")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    check_gradients({**operands(2, 6, 3, 151, 587, 232, 176, dtype), "mask": ll.Causal()}, "native")


def test_copies_that_would_be_too_large() -> None:
    check(operands(1, 4, 4, 53, 16411, 64, 64, torch.bfloat16), "native")  # 34 MB in float32: copied block by block


def test_threads_change_nothing() -> None:
    p = operands(2, 6, 3, 151, 1103, 40, 24, torch.bfloat16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = ll.attention(**p)
        torch.set_num_threads(3)
        assert torch.equal(ll.attention(**p), one)
    finally:
        torch.set_num_threads(before)
