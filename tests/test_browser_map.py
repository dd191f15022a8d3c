"""The room Map in a real browser: what is drawn is the matrix, by mouse, touch and keyboard."""

from __future__ import annotations

import numpy as np
import pytest

from browser import NewTab, colour
from browser_pages import DENSE, LONG, near
from limelight.explorer import Explorer

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["linear", "sqrt", "log"])
def test_cells_have_the_colours_of_the_weights(short_page: Explorer, tab: NewTab, theme: str, kind: str) -> None:
    page = tab(color_scheme=theme)
    page.open(short_page.url, f"#map?call=1&head=2&scale={kind}")
    image, truth = page.pixels(), DENSE[1][2]
    for i, j in ((0, 0), (7, 3), (23, 23), (40, 11), (40, 40), (31, 2), (12, 9)):
        x, y = page.at(i + 0.5, j + 0.5)
        near(image[y, x], colour(truth[i, j], truth.max(), kind, theme))
    x, y = page.at(4.5, 30.5)
    masked = image[y - 5 : y + 6, x - 5 : x + 6].reshape(-1, 3)
    assert len(np.unique(masked, axis=0)) > 1, "masked cells are hatched"


def test_a_pooled_cell_is_the_mean_or_max(long_page: Explorer, tab: NewTab) -> None:
    page = tab()
    for reduce in ("mean", "max"):
        page.open(long_page.url, f"#map?head=1&reduce={reduce}")
        level = page.page.evaluate("document.querySelector('.limelight').explorer.open.shown[0].level")
        assert level == 2
        truth = long_page.subject.matrices[0].call.weights.dense()[0, 1].double().numpy()
        whole = np.full((1304, 1304), np.nan)
        whole[:LONG, :LONG] = truth
        blocks = whole.reshape(326, 4, 326, 4)
        cells = np.nanmean(blocks, (1, 3)) if reduce == "mean" else np.nanmax(blocks, (1, 3))
        image, exact = page.pixels(), 0
        places = np.random.default_rng(0).integers(1, 324, (150, 2))
        places = np.sort(places, 1)[:, ::-1]  # key ≤ query
        for i, j in places.tolist():
            x, y = page.at(4 * i + 2, 4 * j + 2)
            far = [
                np.abs(image[y, x] - colour(cells[i + a, j + b], cells.max())).max()
                for a, b in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))
            ]
            exact += far[0] <= 4
            assert min(far) <= 4  # a cell has less than two pixels, so that a neighbour may be drawn there
        assert exact > 75


def test_zooming_in_ends_at_numbers(long_page: Explorer, tab: NewTab) -> None:
    page = tab(reduced_motion="reduce")
    page.open(long_page.url, "#map?head=1")
    x, y = page.at(1000, 300)
    page.page.mouse.move(x, y)
    for _ in range(24):
        page.page.mouse.wheel(0, -240)
    page.page.locator(".status", has_text="one weight").wait_for()
    page.quiet()
    assert "one weight" in page.page.inner_text(".status")
    state = page.page.evaluate(
        "(({x, y, s}) => ({x, y, s}))(document.querySelector('.limelight').explorer.open.viewport)"
    )
    assert state["s"] == 96
    query, key = int(state["y"]) + 2, int(state["x"]) + 2
    truth = long_page.subject.matrices[0].call.weights[0, 1, query, key].item()
    page.page.mouse.move(*page.at(query + 0.5, key + 0.5))
    page.quiet()
    facts = page.page.inner_text(".facts")
    assert f"query {query:,}" in facts
    assert f"{truth:.4f}"[:5] in facts or f"{truth:.3f}" in facts or "e−" in facts


def test_what_is_under_the_pointer(short_page: Explorer, tab: NewTab) -> None:
    page = tab()
    page.open(short_page.url, "#map?call=1&head=2")
    page.page.mouse.move(*page.at(30.5, 17.5))
    page.quiet()
    row = DENSE[1][2][30]
    facts = page.page.inner_text(".facts").replace("\n", " ")
    assert "query 30 “w30”" in facts
    assert "key 17 “s”" in facts
    assert f"rank in its row {(row > row[17]).sum() + 1} of 31" in facts
    entropy = -(row[row > 0] * np.log(row[row > 0])).sum()
    assert f"{entropy:.2f} nats" in facts
    listed = page.page.eval_on_selector_all(
        ".readout section:nth-of-type(1) li small", "x => x.map((s) => +s.textContent)"
    )
    assert listed == np.argsort(-row, kind="stable")[: len(listed)].tolist()


def test_a_difference_and_two_heads(short_page: Explorer, tab: NewTab) -> None:
    page = tab()
    page.open(short_page.url, "#map?call=1&head=2&with=0.1&how=difference&cell=40,3")
    difference = DENSE[1][2] - DENSE[0][1]
    said = page.page.inner_text(".facts dd b").replace("−", "-")
    assert float(said) == pytest.approx(difference[40, 3], rel=0.06)
    image, high = page.pixels(), np.abs(difference).max()
    warm = np.unravel_index(difference.argmax(), difference.shape)
    cold = np.unravel_index(difference.argmin(), difference.shape)
    for (i, j), sign in ((warm, 1), (cold, -1)):
        x, y = page.at(i + 0.5, j + 0.5)
        near(
            image[y, x],
            np.array([140, 44, 4] if sign > 0 else [18, 62, 130]) if abs(difference[i, j]) == high else image[y, x],
        )
        assert (image[y, x][0] > image[y, x][2]) == (sign > 0)
    page.open(short_page.url, "#map?call=1&head=2&with=0.1")
    image = page.pixels()
    top = max(DENSE[1][2].max(), DENSE[0][1].max())
    for plot, truth in ((0, DENSE[1][2]), (1, DENSE[0][1])):
        x, y = page.at(25.5, 20.5, plot)
        near(image[y, x], colour(truth[25, 20], top))


def test_a_weight_is_told_when_its_tile_comes_late(short_page: Explorer, tab: NewTab) -> None:
    one, held = tab(), []
    page = one.open(short_page.url, "#map?call=1&head=2&with=0.1&how=difference&cell=40,3")
    page.route("**/ask/tiles", lambda route: held.append(route))
    page.reload()
    page.get_by_text("rank in its row").wait_for()  # which the server knows without tiles
    assert page.inner_text(".facts dd b") == "…"
    for route in held:
        route.continue_()
    one.quiet()
    said = page.inner_text(".facts dd b").replace("−", "-")
    assert float(said) == pytest.approx((DENSE[1][2] - DENSE[0][1])[40, 3], rel=0.06)


def test_the_map_by_keyboard_alone(short_page: Explorer, tab: NewTab) -> None:
    one = tab(reduced_motion="reduce")
    page = one.open(short_page.url, "#map?call=1&head=0")
    page.focus(".plot > canvas")
    for key in ("ArrowDown", "ArrowUp", "ArrowUp", "ArrowLeft", "Shift+ArrowDown"):
        page.keyboard.press(key)
    one.quiet()
    said = page.inner_text("[role=status].unseen")
    cursor = page.evaluate("document.querySelector('.limelight').explorer.open.cursor")
    assert said.startswith(f"query {cursor['query']} ")
    assert f"key {cursor['key']} " in said
    assert "rank" in said or "masked" in said
    times = "(({ s, least }) => s / least)(document.querySelector('.limelight').explorer.open.viewport)"
    page.keyboard.press("+")
    assert page.evaluate(times) == pytest.approx(2)
    page.keyboard.press("0")
    assert page.evaluate(times) == pytest.approx(1)
    page.keyboard.press("]")
    one.quiet()
    assert "head=1" in page.url
    page.keyboard.press("/")
    page.keyboard.type("w35")
    page.keyboard.press("Enter")
    one.quiet()
    assert page.evaluate("document.querySelector('.limelight').explorer.open.cursor.query") == 35
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelector('.limelight').explorer.open.cursor") is None


def test_fingers(short_page: Explorer, tab: NewTab) -> None:
    page = tab(has_touch=True)
    page.open(short_page.url, "#map?call=1&head=0")
    x, y = page.at(20, 20)
    talk = page.context.new_cdp_session(page.page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        given = [{"x": a, "y": b, "id": n} for n, (a, b) in enumerate(points)]
        talk.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": given})

    size = "document.querySelector('.limelight').explorer.open.viewport.s"
    before = page.page.evaluate(size)
    touch("touchStart", (x - 30, y))
    touch("touchStart", (x - 30, y), (x + 30, y))
    for d in (45, 60, 75, 90):
        touch("touchMove", (x - d, y), (x + d, y))
    touch("touchEnd")
    assert page.page.evaluate(size) == pytest.approx(3 * before, rel=0.15)
