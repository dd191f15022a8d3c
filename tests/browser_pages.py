"""Records that the pages of the browser tests show, their dense weights, and checks that several rooms share."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

import limelight as ll
from browser import NewTab, Tab

N, LONG = 41, 1303


class Layers(torch.nn.Module):
    """Attention layers that all read the same input."""

    def __init__(self, layers: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = 8 * heads
        self.layers = torch.nn.ModuleList(ll.nn.MultiHeadAttention(width, heads) for _ in range(layers))
        self.mask = ll.Causal() if causal else None
        with torch.no_grad():
            for p in self.parameters():
                p *= 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(layer(x, mask=self.mask) for layer in self.layers)


def watched(layers: int, heads: int, n: int, batch: int = 1) -> ll.lens.Record:
    model = Layers(layers, heads)
    with torch.no_grad(), ll.watch(model) as record:
        model(torch.randn(batch, n, 8 * heads))
    return record


def words(n: int) -> list[str]:
    names = ["▁the", "▁North", "▁Wind", "s", ",", "▁and", "▁Sun"]
    return [names[k % 7] if k % 5 else f"▁w{k}" for k in range(n)]


RECORD = watched(2, 3, N)
DENSE = [call.weights.dense()[0].numpy() for call in RECORD.log]


def near(found: np.ndarray, expected: np.ndarray, within: float = 3.0) -> None:
    assert np.abs(found - expected).max() <= within, (found, expected)


def look_alike(one: Tab, again: Tab) -> None:
    """Two pages show the same, at once or when what comes later is there: statistics, a layer's steps."""
    end = time.monotonic() + 30
    while (np.abs(again.pixels() - one.pixels()).max(-1) > 8).mean() >= 0.002:
        assert time.monotonic() < end, "the address does not restore the view"
        one.page.wait_for_timeout(100)


SCREENS: list[dict[str, Any]] = [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 844}}]


def check_accessibility(tab: NewTab, axe: str, url: str, view: str, screen: dict[str, Any]) -> None:
    """Open a view on one of ``SCREENS``, where it may not be too wide, and check the rules of axe-core."""
    one = tab(**{name: x for name, x in screen.items() if name != "viewport"})
    if "viewport" in screen:
        one.page.set_viewport_size(screen["viewport"])
    one.open(url, view)
    assert one.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    one.page.evaluate(axe)
    found = one.page.evaluate("axe.run()")
    assert [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found["violations"]] == []


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"))


def tab_to(page: Any, name: str) -> None:
    """Press Tab until what has this name is reached."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if name in focused(page):
            return
    raise AssertionError(f"Tab does not reach {name!r}")
