"""The room Heads in a real browser: thumbnails and the enlarged head are the matrix, by mouse and keyboard."""

from __future__ import annotations

import numpy as np
import pytest

from browser import NewTab, colour
from browser_pages import DENSE, N, focused, near, tab_to, watched, words
from limelight.explorer import Explorer, explore

pytestmark = pytest.mark.slow


def test_heads(short_page: Explorer, tab: NewTab) -> None:
    one = tab()
    page = one.open(short_page.url, "#heads?call=1&head=2")
    page.locator(".thumb.drawn").nth(5).wait_for()
    assert page.locator(".thumb.drawn").count() == 6
    report = [row for call in range(2) for row in short_page.subject.report(call)]
    page.get_by_label("Sort by").select_option("entropy")
    one.quiet()
    names = page.eval_on_selector_all(".thumb", "x => x.map((b) => [b.call, b.head])")
    order = sorted(range(6), key=lambda n: -report[n]["entropy"])
    assert names == [[n // 3, n % 3] for n in order]
    label = report[0]["label"]
    page.locator(".wall .chip", has_text=label).first.click()
    one.quiet()
    assert page.locator(".thumb").count() == sum(row["label"] == label for row in report)
    page.locator(".thumb").first.focus()
    page.keyboard.press("Enter")
    chosen = page.inner_text(".chosen-head .name")
    assert label in chosen
    page.get_by_role("button", name="Map", exact=True).click()
    page.wait_for_selector("main.map")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_thumbnails_and_the_enlarged_head_are_the_matrix(short_page: Explorer, tab: NewTab, theme: str) -> None:
    one = tab(color_scheme=theme)
    page = one.open(short_page.url, "#heads?call=1&head=2")
    page.locator(".thumb.drawn").nth(5).wait_for()
    code = """(n) => {
        const canvas = document.querySelectorAll(".thumb canvas")[n], pen = canvas.getContext("2d");
        return [canvas.width, canvas.height, [...pen.getImageData(0, 0, canvas.width, canvas.height).data]];
    }"""
    for n, truth in enumerate(x for call in DENSE for x in call):
        wide, high, data = page.evaluate(code, n)
        assert (wide, high) == (N, N)
        image = np.array(data).reshape(N, N, 4)
        for i, j in ((0, 0), (40, 3), (23, 23), (31, 7)):
            near(image[i, j, :3], colour(truth[i, j], truth.max(), theme=theme))
        assert image[4, 30, 3] == 0, "what is masked is transparent"
    code = """([i, j]) => {
        const { plot } = document.querySelector(".limelight").explorer.open, box = plot.canvas.getBoundingClientRect();
        const [x, y] = plot.toScreen(i, j);
        return [x + box.left, y + box.top];
    }"""
    image, truth = one.pixels(), DENSE[1][2]
    for i, j in ((40, 3), (23, 23), (31, 7)):
        x, y = (int(v) for v in page.evaluate(code, [i + 0.5, j + 0.5]))
        near(image[y, x], colour(truth[i, j], truth.max(), theme=theme))


def test_heads_by_keyboard_alone(short_page: Explorer, tab: NewTab) -> None:
    one = tab()
    page = one.open(short_page.url, "#heads?call=0&head=0")
    page.locator(".thumb.drawn").nth(5).wait_for()
    tab_to(page, "Layer 0, head 0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert focused(page).startswith("Layer 1, head 1")
    page.keyboard.press("Enter")
    one.quiet()
    assert "Layer 1, head 1" in page.inner_text(".chosen-head .name")
    tab_to(page, "Map")
    page.keyboard.press("Enter")
    page.wait_for_selector("main.map")
    assert "call=1" in page.url


@pytest.mark.parametrize(("layers", "heads"), [(12, 12), (30, 9)])
def test_many_heads_are_comfortable(tab: NewTab, layers: int, heads: int) -> None:
    with explore(watched(layers, heads, 64), words(64)) as served:
        page = tab()
        page.open(served.url, "#heads")
        page.page.locator(".thumb").last.scroll_into_view_if_needed()
        page.page.locator(".thumb").last.click()
        box = page.page.locator(".chosen-head .plot").bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 900
        assert f"Layer {layers - 1}, head {heads - 1}" in page.page.inner_text(".chosen-head .name")
        assert page.page.locator(".thumb").first.bounding_box()["width"] >= 32
        page.quiet()  # nothing is asked for after the server has ended
