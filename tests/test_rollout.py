"""Rollout through several layers, against products of dense matrices."""

from __future__ import annotations

import pytest
import torch

import limelight as ll


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("residual", [0.0, 0.3, 1.0])
def test_rollout(lead: tuple[int, ...], residual: float) -> None:
    n = 11
    layers = [
        ll.weights(
            torch.randn(*lead, h, n, 5, dtype=torch.float64),
            torch.randn(*lead, h, n, 5, dtype=torch.float64),
            mask=mask,
        )
        for h, mask in ((4, None), (2, ll.Causal()), (3, ll.Window(2)))
    ]
    want = torch.eye(n, dtype=torch.float64)
    for A in layers:
        want = (residual * torch.eye(n) + (1 - residual) * A.dense().mean(-3)) @ want
    torch.testing.assert_close(ll.rollout(layers, residual=residual), want.expand(*lead, n, n))
    torch.testing.assert_close(ll.rollout(layers, [3, 7], residual=residual), want[..., [3, 7], :].expand(*lead, 2, n))


def test_what_rollout_refuses() -> None:
    A, B = (ll.weights(torch.randn(2, n, 5), torch.randn(2, 7, 5)) for n in (7, 3))
    with pytest.raises(ValueError, match=r"layer 1 is \(2, 3, 7\), and all must be \('heads', 7, 7\)"):
        ll.rollout([A, B])
    with pytest.raises(ValueError, match="at least one layer"):
        ll.rollout([])
    with pytest.raises(ValueError, match=r"residual = 1\.5 must be from 0 to 1"):
        ll.rollout([A], residual=1.5)
    with pytest.raises(ValueError, match="token = 7 must be from -7 to 6"):
        ll.rollout([A], [7])
