"""The explorer in a real browser: what is drawn is the matrix, by mouse, touch and keyboard, in every room."""

from __future__ import annotations

import csv
import io
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import limelight as ll
from browser import Tab, colour, open_widget
from limelight.explorer import Explorer, explore, save_page
from limelight.explorer.subject import Subject
from limelight.lens import edits
from limelight.lens.edits import Rectangle
from limelight.lens.reading import read
from limelight.lens.text_trace import trace_call
from limelight.translate import shipped

pytestmark = pytest.mark.slow
N, LONG = 41, 1303
New = Callable[..., Tab]


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


@pytest.fixture(scope="module")
def short() -> Iterator[Explorer]:
    with explore(RECORD, words(N), title="short") as page:
        page.subject.translator = ll.translate.load()
        yield page


@pytest.fixture(scope="module")
def reads() -> Iterator[Explorer]:
    """A page whose model is at hand, for texts of one's own."""
    subject = Subject.of(read(shipped(), "The cat is sleeping."))
    subject.translator = ll.translate.load()
    with Explorer(subject) as page:
        yield page


@pytest.fixture(scope="module")
def long() -> Iterator[Explorer]:
    with explore(watched(1, 2, LONG), words(LONG), title="long") as page:
        yield page


def near(found: np.ndarray, expected: np.ndarray, within: float = 3.0) -> None:
    assert np.abs(found - expected).max() <= within, (found, expected)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["linear", "sqrt", "log"])
def test_cells_have_the_colours_of_the_weights(short: Explorer, tab: New, theme: str, kind: str) -> None:
    page = tab(color_scheme=theme)
    page.open(short.url, f"#map?call=1&head=2&scale={kind}")
    image, truth = page.pixels(), DENSE[1][2]
    for i, j in ((0, 0), (7, 3), (23, 23), (40, 11), (40, 40), (31, 2), (12, 9)):
        x, y = page.at(i + 0.5, j + 0.5)
        near(image[y, x], colour(truth[i, j], truth.max(), kind, theme))
    x, y = page.at(4.5, 30.5)
    masked = image[y - 5 : y + 6, x - 5 : x + 6].reshape(-1, 3)
    assert len(np.unique(masked, axis=0)) > 1, "masked cells are hatched"


def test_a_pooled_cell_is_the_mean_or_max(long: Explorer, tab: New) -> None:
    page = tab()
    for reduce in ("mean", "max"):
        page.open(long.url, f"#map?head=1&reduce={reduce}")
        level = page.page.evaluate("document.querySelector('.limelight').explorer.open.shown[0].level")
        assert level == 2
        truth = long.subject.matrices[0].call.weights.dense()[0, 1].double().numpy()
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


def test_zooming_in_ends_at_numbers(long: Explorer, tab: New) -> None:
    page = tab(reduced_motion="reduce")
    page.open(long.url, "#map?head=1")
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
    truth = long.subject.matrices[0].call.weights[0, 1, query, key].item()
    page.page.mouse.move(*page.at(query + 0.5, key + 0.5))
    page.quiet()
    facts = page.page.inner_text(".facts")
    assert f"query {query:,}" in facts
    assert f"{truth:.4f}"[:5] in facts or f"{truth:.3f}" in facts or "e−" in facts


def test_what_is_under_the_pointer(short: Explorer, tab: New) -> None:
    page = tab()
    page.open(short.url, "#map?call=1&head=2")
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


def test_a_difference_and_two_heads(short: Explorer, tab: New) -> None:
    page = tab()
    page.open(short.url, "#map?call=1&head=2&with=0.1&how=difference&cell=40,3")
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
    page.open(short.url, "#map?call=1&head=2&with=0.1")
    image = page.pixels()
    top = max(DENSE[1][2].max(), DENSE[0][1].max())
    for plot, truth in ((0, DENSE[1][2]), (1, DENSE[0][1])):
        x, y = page.at(25.5, 20.5, plot)
        near(image[y, x], colour(truth[25, 20], top))


def test_a_weight_is_told_when_its_tile_comes_late(short: Explorer, tab: New) -> None:
    one, held = tab(), []
    page = one.open(short.url, "#map?call=1&head=2&with=0.1&how=difference&cell=40,3")
    page.route("**/ask/tiles", lambda route: held.append(route))
    page.reload()
    page.get_by_text("rank in its row").wait_for()  # which the server knows without tiles
    assert page.inner_text(".facts dd b") == "…"
    for route in held:
        route.continue_()
    one.quiet()
    said = page.inner_text(".facts dd b").replace("−", "-")
    assert float(said) == pytest.approx((DENSE[1][2] - DENSE[0][1])[40, 3], rel=0.06)


def test_the_map_by_keyboard_alone(short: Explorer, tab: New) -> None:
    one = tab(reduced_motion="reduce")
    page = one.open(short.url, "#map?call=1&head=0")
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


def test_fingers(short: Explorer, tab: New) -> None:
    page = tab(has_touch=True)
    page.open(short.url, "#map?call=1&head=0")
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


def look_alike(one: Tab, again: Tab) -> None:
    """Two pages show the same, at once or when what comes later is there: statistics, a layer's steps."""
    end = time.monotonic() + 30
    while (np.abs(again.pixels() - one.pixels()).max(-1) > 8).mean() >= 0.002:
        assert time.monotonic() < end, "the address does not restore the view"
        one.page.wait_for_timeout(100)


def test_an_address_restores_its_view(long: Explorer, tab: New) -> None:
    page = tab(reduced_motion="reduce")
    page.open(long.url, "#map?head=1")
    page.page.mouse.move(*page.at(900, 700))
    for _ in range(5):
        page.page.mouse.wheel(0, -240)
    page.quiet()
    page.page.mouse.click(*page.at(901, 700))
    page.page.get_by_role("button", name="log", exact=True).click()
    page.page.mouse.move(3, 3)
    page.page.evaluate("document.activeElement.blur()")
    page.quiet()
    address = page.page.url
    assert {"view=", "cell=", "scale=log", "head=1"} <= {
        p for p in ("view=", "cell=", "scale=log", "head=1") if p in address
    }
    again = tab(reduced_motion="reduce")
    again.open(long.url)
    again.page.goto(address)
    again.page.reload()
    again.quiet()
    look_alike(page, again)


def test_files_of_a_view(short: Explorer, tab: New) -> None:
    page = tab().open(short.url, "#map?call=1&head=2")

    def saved(kind: str) -> bytes:
        page.click(".tools summary")
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        return Path(download.value.path()).read_bytes()

    rows = list(csv.DictReader(io.StringIO(saved("CSV").decode())))
    assert len(rows) == N * (N + 1) // 2
    for row in rows[::97]:
        truth = DENSE[1][2][int(row["query"]), int(row["key"])]
        assert float(row["mean_weight"]) == pytest.approx(truth, rel=1e-4, abs=1e-8)
    assert saved("PNG").startswith(b"\x89PNG")
    drawing = saved("SVG").decode()
    assert drawing.count("<rect") > N * N
    assert "North" in drawing


VIEWS = {
    "heads": "#heads?call=1&head=2&sort=entropy",
    "map": "#map?call=1&head=2&with=0.1&how=difference&scale=log&cell=3,2",
    "text": "#text?call=1&head=2&heads=1.2+1.3&token=3&arcs=1",
    "text of a layer": "#text?call=1&head=2&of=layer&token=3",
    "steps": "#steps?mask=causal&heads=2&temperature=2",
    "steps of a query": "#steps?show=model&call=1&head=2&token=3",
    "steps of a layer": "#steps?show=own&call=1&head=2&own=I+like+tea.",
    "translate": "#translate?text=I+like+tea.",
    "what if": "#what-if?call=1&head=2&off=1.2&hot=1.3.10&cut=1.-1.0.2.1.1",
}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_saved_and_restored(reads: Explorer, tab: New, view: str) -> None:
    one, again = tab(reduced_motion="reduce"), tab(reduced_motion="reduce")
    page = one.open(reads.url, VIEWS[view])
    assert VIEWS[view].partition("?")[0] in page.url
    again.open(reads.url, "#" + page.url.partition("#")[2])
    look_alike(one, again)

    def saved(kind: str) -> bytes:
        page.get_by_text("Save", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        return Path(download.value.path()).read_bytes()

    rows = list(csv.reader(io.StringIO(saved("CSV").decode())))
    assert len(rows) > 2
    assert {len(row) for row in rows} == {len(rows[0])}
    drawing = ElementTree.fromstring(saved("SVG").decode())
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(drawing.iter())) > 10
    image = np.asarray(Image.open(io.BytesIO(saved("PNG"))).convert("RGB"))
    assert min(image.shape[:2]) > 100
    assert len(np.unique(image.reshape(-1, 3)[::37], axis=0)) > 3


def test_heads(short: Explorer, tab: New) -> None:
    one = tab()
    page = one.open(short.url, "#heads?call=1&head=2")
    page.locator(".thumb.drawn").nth(5).wait_for()
    assert page.locator(".thumb.drawn").count() == 6
    report = [row for call in range(2) for row in short.subject.report(call)]
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
def test_thumbnails_and_the_enlarged_head_are_the_matrix(short: Explorer, tab: New, theme: str) -> None:
    one = tab(color_scheme=theme)
    page = one.open(short.url, "#heads?call=1&head=2")
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


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"))


def tab_to(page: Any, name: str) -> None:
    """Press Tab until what has this name is reached."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if name in focused(page):
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def test_heads_by_keyboard_alone(short: Explorer, tab: New) -> None:
    one = tab()
    page = one.open(short.url, "#heads?call=0&head=0")
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


def test_text_by_keyboard_alone(short: Explorer, tab: New) -> None:
    one = tab()
    page = one.open(short.url, "#text?call=1&head=2&token=30")
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


def test_steps_and_translate_by_keyboard_alone(short: Explorer, tab: New) -> None:
    one = tab()
    page = one.open(short.url, "#steps")
    tab_to(page, "x, dog, 1")
    page.keyboard.press("Control+A")
    page.keyboard.type("2.5")
    one.quiet()
    assert "numbers=2.5" in page.url
    tab_to(page, "W_Q, 1, 1")
    assert "a learned number" in page.inner_text(".explained")
    page = one.open(short.url, "#translate")
    tab_to(page, "English")
    page.keyboard.press("Control+A")
    page.keyboard.type("The cat is sleeping.")
    page.locator(".french", has_text=re.compile("^Le chat dort.$")).wait_for()
    one.quiet()
    tab_to(page, "chat")
    page.keyboard.press("Enter")
    page.locator(".offers li").nth(5).wait_for()
    second = page.locator(".offers li button").nth(1).inner_text()
    tab_to(page, second)
    page.keyboard.press("Enter")
    page.locator(".french", has_not_text=re.compile("^Le chat dort.$")).wait_for()


@pytest.mark.parametrize(
    "room", ["heads", "map", "text", "steps", "steps?show=model", "steps?show=own", "translate", "what-if"]
)
def test_nothing_lies_over_anything_on_a_phone(reads: Explorer, tab: New, room: str) -> None:
    one = tab(has_touch=True, is_mobile=True)
    one.page.set_viewport_size({"width": 390, "height": 844})
    page = one.open(reads.url, f"#{room}{'&' if '?' in room else '?'}cell=3,2&token=3")
    code = """() => {
        const parts = [...document.querySelectorAll("main > *")].filter((x) => x.offsetHeight), found = [];
        const style = (x) => getComputedStyle(x), box = (x) => x.getBoundingClientRect();
        const flowing = parts.filter((x) => style(x).position !== "sticky");
        for (const a of flowing) for (const b of flowing)
            if (box(a).top < box(b).top && box(a).bottom > box(b).top + 1) found.push([a.className, b.className]);
        for (const a of parts)
            if (style(a).overflowY === "visible" && a.scrollHeight > a.clientHeight + 1) found.push(a.className);
        return [found, document.documentElement.scrollWidth - innerWidth];
    }"""
    assert page.evaluate(code) == [[], 0]


def test_without_motion_views_change_at_once(long: Explorer, tab: New) -> None:
    size = "document.querySelector('.limelight').explorer.open.viewport.s"
    for motion, at_once in (("reduce", True), ("no-preference", False)):
        page = tab(reduced_motion=motion).open(long.url, "#map?head=1")
        page.focus(".plot > canvas")
        code = f"""() => {{
            const before = {size};
            document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {{ key: "+", bubbles: true }}));
            return {size} / before;
        }}"""
        assert (page.evaluate(code) == pytest.approx(2)) == at_once


@pytest.mark.parametrize(("layers", "heads"), [(12, 12), (30, 9)])
def test_many_heads_are_comfortable(tab: New, layers: int, heads: int) -> None:
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


def test_text(short: Explorer, tab: New) -> None:
    page = tab()
    page.open(short.url, "#text?call=1&head=2&token=30")
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


def test_heads_over_each_other_and_arcs(short: Explorer, tab: New) -> None:
    page = tab()
    page.open(short.url, "#text?call=1&head=2&token=30")
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
    page.open(short.url, "#text?call=1&head=2&token=30&arcs=1")
    matrix = DENSE[1][2]
    strong = (matrix >= 0.2) & ~np.eye(N, dtype=bool)
    strong[30] = (matrix[30] >= 0.02) & (np.arange(N) != 30)
    assert page.page.locator(".arcs path").count() == strong.sum()


@pytest.mark.parametrize(
    "room", ["heads", "map", "text", "steps", "steps?show=model", "steps?show=own", "translate", "what-if"]
)
@pytest.mark.parametrize(
    "options", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 844}}], ids=str
)
def test_rules_of_accessibility(reads: Explorer, tab: New, axe: str, room: str, options: dict[str, Any]) -> None:
    size = options.pop("viewport", None)
    page = tab(**options)
    if size:
        page.page.set_viewport_size(size)
    page.open(reads.url, f"#{room}{'&' if '?' in room else '?'}call=1&head=2&token=3&cell=3,2")
    assert page.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.page.evaluate(axe)
    found = page.page.evaluate("axe.run()")
    assert [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found["violations"]] == []


def test_steps(short: Explorer, tab: New) -> None:
    one = tab()
    page = one.open(short.url, "#steps")
    cells = page.locator("figure", has_text="output = weights v").locator("td button")
    assert cells.all_inner_texts()[:2] == ["1.275", "2.364"]
    score = page.locator("figure", has_text="scores = q kᵀ").locator("td button").first
    score.hover()
    assert "2.71 = query of “dog” · key of “dog” = −0.10 · 0.90 + 2 · 1.40" in page.inner_text(".explained")
    marked = page.locator("td.term, td.other").all_inner_texts()
    assert marked == ["−0.10", "2", "0.90", "1.40"]
    page.get_by_label("x, dog, 1").fill("2.5")
    page.get_by_label("Mask").select_option("causal mask")
    one.quiet()
    x = torch.tensor([[2.5, 2.0, 3.0], [0.5, 1.0, 1.5], [2.0, 1.0, 0.5]])
    first, second = (
        x @ torch.tensor(w) for w in ([[0.6, -0.2], [0.1, 0.5], [-0.3, 0.4]], [[0.2, 0.3], [-0.4, 0.7], [0.5, -0.1]])
    )
    truth = ll.weights(first[None], second[None], mask=ll.Causal()).dense()[0]
    found = page.locator("figure", has_text="weights = softmax").locator("td button").all_inner_texts()
    assert [float(v) for v in found] == pytest.approx(truth.flatten().tolist(), abs=6e-4)
    assert page.locator("td.infinite").count() == 3
    page.reload()
    page.wait_for_selector("figure td button")
    one.quiet()
    again = page.locator("figure", has_text="weights = softmax").locator("td button").all_inner_texts()
    assert again == found
    page.get_by_label("x, dog, 1").fill("many")
    assert page.get_by_label("x, dog, 1").get_attribute("aria-invalid") == "true"


def test_the_steps_of_a_head(short: Explorer, tab: New) -> None:
    page = tab().open(short.url, "#steps?show=model&call=1&head=2&token=30")
    row = DENSE[1][2][30]
    listed = page.eval_on_selector_all(".query tbody th small", "x => x.map((s) => +s.textContent)")
    assert listed == np.argsort(-row, kind="stable")[:12].tolist()
    page.locator(".query tbody tr").nth(3).hover()
    q = RECORD.log[1].weights._problem.q[0, 2, 30]
    k = RECORD.log[1].weights._problem.k[0, 2, listed[3]]
    assert f"{float(q @ k):.2f}".replace("-", "−") in page.inner_text(".products p")
    assert page.locator(".bars-of i").count() == 8


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_steps_of_a_head_for_ones_own_text(reads: Explorer, tab: New, theme: str) -> None:
    one = tab(color_scheme=theme)
    page = one.open(reads.url, "#steps?show=own&call=1&head=2&own=I+like+tea.")
    name = reads.subject.matrices[1].call.name
    reader = reads.subject.reader
    assert reader is not None
    traced = trace_call(reader, "I like tea.", name)
    assert page.locator(".own-steps canvas").count() == len(traced.steps) + 1  # and the length of each head's part
    truth = reader.read("I like tea.").record[name].dense()[0, 2].numpy()
    code = """([i, j, rows, cols]) => {
        const figure = [...document.querySelectorAll("figure")].find((x) => x.textContent.startsWith("weights"));
        const box = figure.querySelector("canvas").getBoundingClientRect();
        figure.scrollIntoView({ block: "center" });
        const at = figure.querySelector("canvas").getBoundingClientRect();
        return [at.left + (j + 0.12) * box.width / cols, at.top + (i + 0.2) * box.height / rows];
    }"""
    rows, cols = truth.shape
    for i, j in ((0, 0), (rows - 1, 1), (2, cols - 1)):
        x, y = (int(v) for v in page.evaluate(code, [i, j, rows, cols]))
        near(one.pixels()[y, x], colour(truth[i, j], 1.0, theme=theme))
        page.mouse.move(x, y)
        (said,) = re.findall(r"with ([\d.e−]+)", page.inner_text(".explained"))
        assert float(said.replace("−", "-")) == pytest.approx(truth[i, j], rel=0.06)
    page.get_by_label("Your own text").fill("The cat.")
    page.locator(".own-rows span", has_text="cat").first.wait_for()
    assert "own=The+cat" in page.url


def test_translate(short: Explorer, tab: New) -> None:
    page = tab().open(short.url, "#translate")
    page.get_by_label("English").fill("The cat is sleeping.")
    page.locator(".french", has_text=re.compile("^Le chat dort.$")).wait_for()
    aligned = ll.translate.load()("The cat is sleeping.").sentences[0]
    from limelight.translate.display import alignment_of

    truth = alignment_of(aligned).weights
    assert page.locator(".links path").count() == int((truth >= 0.08).sum())
    word = page.locator("button.chip-word").nth(1)
    word.hover()
    assert page.locator(".links path.own").count() == int((truth[1] >= 0.08).sum())
    word.click()
    page.mouse.move(3, 3)
    page.wait_for_timeout(100)  # the lines are drawn anew around what a word offers
    assert page.locator(".lit .links path.own").count() == int((truth[1] >= 0.08).sum())
    offers = page.locator(".offers li")
    assert offers.count() == 6
    offers.nth(1).locator("button").click()
    page.locator(".french", has_not_text=re.compile("^Le chat dort.$")).wait_for()
    assert page.inner_text(".french").startswith("Le ")
    page.get_by_label("English").fill("   ")
    page.locator(".sentence").wait_for(state="detached")


def test_what_if(reads: Explorer, tab: New) -> None:
    """Every change of the room changes what the model makes of the text as the same edit made in Python does."""
    one = tab()
    subject = reads.subject
    (call,) = (m.number for m in subject.matrices if m.call.name == "decoder.blocks.1.cross")
    assert subject.replay is not None
    page = one.open(reads.url, f"#what-if?call={call}&head=3")

    def changed(edit: Any) -> None:
        """What is shown is what the edit does, beside what there was."""
        one.quiet()
        assert subject.replay is not None
        was = subject.replay.run({})
        now = was if edit is None else subject.replay.run({"decoder.blocks.1.cross": edit})
        assert page.inner_text(".outcome .before .french") == was["text"]
        assert page.inner_text(".outcome .after .french") == now["text"]
        cells = page.eval_on_selector_all(
            ".outcome tbody tr", "x => x.map((r) => [1, 2].map((n) => +r.cells[n].textContent))"
        )
        np.testing.assert_allclose([a for a, _ in cells], was["probabilities"], atol=6e-4)
        np.testing.assert_allclose([b for _, b in cells], now["probabilities"], atol=6e-4)
        assert (now["probabilities"] != was["probabilities"]) == (edit is not None)

    changed(None)
    page.locator(".thumb[aria-label^='Layer 1, head 3']").click()  # it is chosen already
    changed(edits.Off([3]))
    page.get_by_role("button", name="Switch on").click()
    changed(None)
    page.get_by_label("Scope").select_option("this head")
    page.get_by_label("Temperature").fill("1.5")
    changed(edits.Temperature([2**1.5], heads=[3]))
    page.get_by_role("button", name="Undo all").click()
    page.locator(".words button").nth(1).click()  # one token is seen by none
    N, M = subject.matrices[call].N, subject.matrices[call].M
    changed(edits.Knockout(Rectangle(range(N), range(1, 2)), heads=[3]))
    page.get_by_role("button", name=re.compile("^Undo: ")).click()
    changed(None)
    corner = """([i, j]) => {
        const { plot } = document.querySelector(".limelight").explorer.open, box = plot.canvas.getBoundingClientRect();
        const [x, y] = plot.toScreen(i, j);
        return [x + box.left, y + box.top];
    }"""
    page.get_by_label("Scope").select_option("all heads of the layer")
    page.mouse.move(*page.evaluate(corner, [1.5, 0.5]))
    page.mouse.down()
    page.mouse.move(*page.evaluate(corner, [2.5, 2.5]), steps=4)
    page.mouse.up()
    edit = edits.Knockout(Rectangle(range(1, 3), range(0, 3)))
    changed(edit)
    assert page.locator(".knocked i").count() == 1
    page.reload()
    page.wait_for_selector("main.what-if")
    changed(edit)  # the address restores it
    assert page.locator(".knocked i").count() == 1
    page.click(".tools summary")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV", exact=True).click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    now = subject.replay.run({"decoder.blocks.1.cross": edit})
    assert rows[0]["changed"] == now["text"]
    np.testing.assert_allclose([float(row["changed"]) for row in rows[1:]], now["probabilities"], atol=1e-6)
    assert M > 3


def test_a_saved_page_from_disk(tab: New, tmp_path: Path) -> None:
    save_page(RECORD, tmp_path / "page.html", words(N), opens=(1, 2))
    page = tab()
    page.page.goto((tmp_path / "page.html").as_uri())
    page.page.wait_for_selector(".thumb.drawn")
    assert "Layer 1, head 2" in page.page.inner_text(".chosen-head .name")
    page.page.get_by_role("link", name="Map").click()
    page.quiet()
    image, truth = page.pixels(), DENSE[1][2]
    for i, j in ((7, 3), (23, 23), (40, 11)):
        x, y = page.at(i + 0.5, j + 0.5)
        near(image[y, x], colour(truth[i, j], truth.max()))
    page.page.mouse.move(*page.at(30.5, 17.5))
    page.quiet()
    assert f"rank in its row\n{(truth[30] > truth[30][17]).sum() + 1} of 31" in page.page.inner_text(".facts").replace(
        "\n\n", "\n"
    )
    page.page.get_by_role("link", name="Text").click()
    page.quiet()
    assert page.page.locator("[role=option]").count() == N


HOSTS = [  # attributes of the body, how bytes come, and the theme that follows
    ('data-jp-theme-light="false"', "views", "dark"),
    ('class="vscode-high-contrast"', "views", "dark"),
    ('class="vscode-light"', "array buffers", "light"),
    ('class="dark dark-theme"', "views", "dark"),
    ("", "lost", "light"),
]


@pytest.mark.parametrize(("body", "buffers", "theme"), HOSTS)
def test_the_widget_of_a_notebook(tab: New, tmp_path: Path, body: str, buffers: str, theme: str) -> None:
    """The widget's own module and its Python side, with messages by way of the test, in several hosts."""
    page = tab()
    widget = open_widget(page, Subject.of(RECORD, words(N)), tmp_path, body, buffers)
    page.page.wait_for_selector(".thumb.drawn")
    page.page.get_by_role("link", name="Map").click()
    page.quiet()
    assert page.page.get_attribute(".limelight", "data-theme") == theme
    opened = page.page.evaluate(
        "(({ call, head }) => [call, head])(document.querySelector('.limelight').explorer.state)"
    )
    image, truth = page.pixels(), DENSE[opened[0]][opened[1]]
    for i, j in ((7, 3), (23, 23), (40, 11)):
        x, y = page.at(i + 0.5, j + 0.5)
        near(image[y, x], colour(truth[i, j], truth.max(), theme=theme))
    assert page.page.locator(".legend .ramp").count() == 1
    page.page.evaluate("addEventListener('keydown', () => { window.heard = true; })")
    page.page.focus(".plot > canvas")
    page.page.keyboard.press("ArrowDown")
    assert page.page.evaluate("window.heard") is None, "the notebook's own shortcuts hear nothing"
    if not body:  # Colab says it on the element above
        page.page.evaluate("document.documentElement.setAttribute('theme', 'dark')")
        page.quiet()
        assert page.page.get_attribute(".limelight", "data-theme") == "dark"
    page.page.evaluate("end()")
    widget.close()


def test_the_command_ends_with_ctrl_c() -> None:
    as_in_a_terminal = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # background jobs ignore it
    )
    command = [
        sys.executable,
        "-c",
        f"{as_in_a_terminal}; from limelight.cli import main; main()",
        "explore",
        "The cat is sleeping.",
        "--no-browser",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            assert "token=" in address
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)  # a second, unless the machine is busy
            assert process.returncode in (0, 130)
            assert "Traceback" not in errors
        finally:
            process.kill()
