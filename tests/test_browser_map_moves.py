"""The room Map in a real browser: moves by mouse, trackpad and minimap, the range of colours, the strips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll
from browser import NewTab, Tab
from limelight.explorer import Explorer, explore

pytestmark = pytest.mark.slow
N = 613
STRIP = np.array([213, 138, 99])  # --strip of the style sheet


@pytest.fixture(scope="module")
def page() -> Iterator[Explorer]:
    q, k = (2 * torch.randn(1, 1, N, 8, generator=torch.Generator().manual_seed(n)) for n in range(2))
    with explore(ll.weights(q, k, mask=ll.Causal())) as served:
        yield served


def view(one: Tab) -> Any:
    return one.page.evaluate(
        "(({ x, y, s, width, height }) => ({ x, y, s, width, height }))"
        "(document.querySelector('.limelight').explorer.open.viewport)"
    )


def test_mouse_trackpad_and_minimap_move_the_view(page: Explorer, tab: NewTab) -> None:
    one = tab(reduced_motion="reduce")
    shown = one.open(page.url, "#map?view=300,200,5")
    begin = view(one)
    assert (begin["y"], begin["x"]) == pytest.approx((300, 200), abs=0.01)
    at = one.at(320, 240)
    shown.mouse.move(*at)
    shown.mouse.down()
    shown.mouse.move(at[0] + 40, at[1] + 30, steps=5)
    shown.mouse.up()
    now = view(one)
    assert now["x"] == pytest.approx(200 - 40 / begin["s"], abs=9 / begin["s"])  # less what tells it from a click
    assert now["y"] == pytest.approx(300 - 30 / begin["s"], abs=9 / begin["s"])
    shown.mouse.wheel(12, 16)  # two fingers on a trackpad
    panned = view(one)
    assert (panned["x"], panned["y"]) == pytest.approx((now["x"] + 12 / now["s"], now["y"] + 16 / now["s"]))
    shown.keyboard.down("Control")  # a pinch
    shown.mouse.wheel(0, -50)
    shown.keyboard.up("Control")
    assert view(one)["s"] == pytest.approx(panned["s"] * np.exp(0.5))
    one.quiet()
    now, small, frame = view(one), *(shown.locator(x).bounding_box() for x in (".minimap", ".minimap i"))
    for corner, start, size, side in (("x", "x", "width", "width"), ("y", "y", "height", "height")):
        inner = small[side] - 2  # without the border
        assert frame[corner] - small[corner] - 1 == pytest.approx(inner * now[start] / N, abs=1)
        assert frame[side] == pytest.approx(max(5, inner * now[size] / now["s"] / N), abs=1)
    shown.mouse.click(small["x"] + 0.3 * small["width"], small["y"] + 0.75 * small["height"])
    one.quiet()
    now = view(one)
    assert now["x"] + now["width"] / now["s"] / 2 == pytest.approx(0.3 * N, abs=0.02 * N)
    assert now["y"] + now["height"] / now["s"] / 2 == pytest.approx(0.75 * N, abs=0.02 * N)


def test_colours_are_fitted_or_locked(page: Explorer, tab: NewTab) -> None:
    one = tab(reduced_motion="reduce")
    weights = page.subject.matrices[0].call.weights.dense()[0, 0]
    top = {"lock": float(weights.max()), "fit": float(weights[600:, 3:13].max())}
    for how in ("lock", "fit"):
        shown = one.open(page.url, "#map?view=600,3,40" + (f"&high={top['lock']:.4g}" if how == "lock" else ""))
        v = view(one)
        rows = weights[int(v["y"]) : int(np.ceil(v["y"] + v["height"] / v["s"]))]
        part = rows[:, int(v["x"]) : int(np.ceil(v["x"] + v["width"] / v["s"]))]
        high = top["lock"] if how == "lock" else float(part.max())
        told = shown.locator(".ticks span").last.inner_text().replace("−", "-")
        assert float(told) == pytest.approx(high, rel=0.06)
        pressed = shown.locator("[aria-label='Range of colours'] [aria-pressed=true]").inner_text()
        assert pressed == how


def test_strips_are_entropy_and_received_attention(tab: NewTab) -> None:
    n = 19
    q, k = (torch.randn(1, 1, n, 8, generator=torch.Generator().manual_seed(s)) for s in range(2))
    A = ll.weights(q, k, mask=ll.Causal())
    dense = A.dense()[0, 0].double().numpy()
    entropy = -(dense * np.log(np.where(dense > 0, dense, 1))).sum(1)
    received = dense.sum(0)
    with explore(A) as served:
        one = tab()
        one.open(served.url, "#map")
        is_strip = np.abs(one.pixels() - STRIP).max(-1) <= 2
        right, bottom = one.at(0, n)[0], one.at(n, 0)[1]
        along = [is_strip[one.at(i + 0.5, 0)[1], right:].sum() for i in range(n)]
        below = [is_strip[bottom : bottom + 33, one.at(0, j + 0.5)[0]].sum() for j in range(n)]
    np.testing.assert_allclose(along, 32 * entropy / entropy.max(), atol=1.6)
    np.testing.assert_allclose(below, 26 * received / received.max(), atol=1.6)
