"""Muon against PyTorch's own and against the singular value decomposition."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conftest import generator
from limelight.translate.muon import Muon, orthogonal
from limelight.translate.team import Team


@pytest.mark.parametrize(("m", "n"), [(13, 7), (7, 13), (11, 11)])
def test_singular_values_come_near_1_and_singular_vectors_stay(m: int, n: int) -> None:
    x = torch.randn(3, m, n, generator=generator(m, n), dtype=torch.float64)
    u, _, vt = torch.linalg.svd(x, full_matrices=False)
    given = torch.linspace(0.05, 1, min(m, n), dtype=torch.float64)  # a random square matrix may have one near 0
    inside = u.mT @ orthogonal(u * given @ vt) @ vt.mT
    values = inside.diagonal(dim1=-2, dim2=-1)
    assert values.min() > 0.3
    assert values.max() < 1.3
    torch.testing.assert_close(inside, torch.diag_embed(values), rtol=0, atol=1e-12)


def test_a_gradient_of_zeros_changes_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(1, 5, 3)), torch.zeros(1, 5, 3))


def test_steps_are_those_of_pytorch() -> None:
    """PyTorch computes in bfloat16, whose rounding is the tolerance; the third step shows the momentum too."""
    g = generator(1)
    shapes = [(7, 13), (13, 7), (7, 13)]
    ours, theirs = ([nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2))
    first = Muon(ours, 0.01, team=Team())
    second = torch.optim.Muon(theirs, 0.01, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=g)
            b.grad = a.grad.clone()
        first.step()
        second.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0.03 * float(b.detach().abs().max()))
