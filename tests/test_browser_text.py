"""The room Text in a real browser: shades, lists and arcs are the weights of a token."""

from __future__ import annotations

import numpy as np
import pytest

from browser import NewTab, colour
from browser_pages import DENSE, N, near, tab_to
from limelight.explorer import Explorer

pytestmark = pytest.mark.slow


def test_text(short_page: Explorer, tab: NewTab) -> None:
    page = tab()
    page.open(short_page.url, "#text?call=1&head=2&token=30")
    row = DENSE[1][2][30]
    found = page.page.eval_on_selector_all(
        "[role=option]", "x => x.map((o) => [o.n, getComputedStyle(o).backgroundColor, o.className])"
    )
    for n, background, name in found:
        t = (row[n] / row.max()) ** 0.5 if n <= 30 else 0
        if t > 0.05:
            rgb = np.array([float(x) for x in background[4:-1].split(",")])
            near(rgb, colour(row[n], row.max()), 2)
        assert ("masked" in name) == (n > 30)
    page.page.get_by_role("button", name="is seen by").click()
    page.quiet()
    listed = page.page.eval_on_selector_all(".bars small", "x => x.map((s) => +s.textContent)")
    column = DENSE[1][2][:, 30]
    assert listed == np.argsort(-column, kind="stable")[: (column > 0).sum()][:10].tolist()
    page.page.keyboard.press("ArrowLeft")
    page.quiet()
    assert "token=29" in page.page.url
    page.page.get_by_label("What is shown").select_option("rollout")
    page.quiet()
    hat = [0.5 * np.eye(N) + 0.5 * x.mean(0) for x in DENSE]
    rolled = (hat[1] @ hat[0])[:, 29]
    listed = page.page.eval_on_selector_all(".bars small", "x => x.map((s) => +s.textContent)")
    assert listed[:3] == np.argsort(-rolled, kind="stable")[:3].tolist()


def test_heads_over_each_other_and_arcs(short_page: Explorer, tab: NewTab) -> None:
    page = tab()
    page.open(short_page.url, "#text?call=1&head=2&token=30")
    page.page.locator(".side .thumb").nth(1).click(modifiers=["Shift"])
    page.quiet()
    assert page.page.locator(".chosen .chip").count() == 2
    page.page.get_by_label("overlay up to four").check()  # the same by finger
    page.page.locator(".side .thumb").nth(3).click()
    page.quiet()
    assert page.page.locator(".chosen .chip").count() == 3
    page.page.locator(".side .thumb").nth(3).click()
    page.quiet()
    assert page.page.locator(".chosen .chip").count() == 2
    assert page.page.locator(".bars").count() == 2
    assert "gradient" in page.page.eval_on_selector("[role=option]", "x => getComputedStyle(x).backgroundImage")
    page.open(short_page.url, "#text?call=1&head=2&token=30&arcs=1")
    matrix = DENSE[1][2]
    strong = (matrix >= 0.2) & ~np.eye(N, dtype=bool)
    strong[30] = (matrix[30] >= 0.02) & (np.arange(N) != 30)
    assert page.page.locator(".arcs path").count() == strong.sum()


def test_text_by_keyboard_alone(short_page: Explorer, tab: NewTab) -> None:
    one = tab()
    page = one.open(short_page.url, "#text?call=1&head=2&token=30")
    tab_to(page, "w30")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "Home", "ArrowRight", "End", "ArrowLeft"):
        page.keyboard.press(key)
    one.quiet()
    assert "token=39" in page.url
    row = DENSE[1][2][39]
    listed = page.eval_on_selector_all(".bars small", "x => x.map((s) => +s.textContent)")
    assert listed == np.argsort(-row, kind="stable")[: len(listed)].tolist()
    said = page.inner_text("[role=status].unseen")
    assert f"{row.max():.3f}"[:4] in said
