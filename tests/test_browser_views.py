"""Every room in a real browser: addresses and files of a view, phones, reduced motion and accessibility."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from browser import NewTab
from browser_pages import DENSE, SCREENS, N, check_accessibility, look_alike
from limelight.explorer import Explorer

pytestmark = pytest.mark.slow


def test_an_address_restores_its_view(long_page: Explorer, tab: NewTab) -> None:
    page = tab(reduced_motion="reduce")
    page.open(long_page.url, "#map?head=1")
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
    again.open(long_page.url)
    again.page.goto(address)
    again.page.reload()
    again.quiet()
    look_alike(page, again)


def test_files_of_a_view(short_page: Explorer, tab: NewTab) -> None:
    page = tab().open(short_page.url, "#map?call=1&head=2")

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
def test_every_view_is_saved_and_restored(reading_page: Explorer, tab: NewTab, view: str) -> None:
    one, again = tab(reduced_motion="reduce"), tab(reduced_motion="reduce")
    page = one.open(reading_page.url, VIEWS[view])
    assert VIEWS[view].partition("?")[0] in page.url
    again.open(reading_page.url, "#" + page.url.partition("#")[2])
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


@pytest.mark.parametrize(
    "room", ["heads", "map", "text", "steps", "steps?show=model", "steps?show=own", "translate", "what-if"]
)
def test_nothing_lies_over_anything_on_a_phone(reading_page: Explorer, tab: NewTab, room: str) -> None:
    one = tab(has_touch=True, is_mobile=True)
    one.page.set_viewport_size({"width": 390, "height": 844})
    page = one.open(reading_page.url, f"#{room}{'&' if '?' in room else '?'}cell=3,2&token=3")
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


def test_without_motion_views_change_at_once(long_page: Explorer, tab: NewTab) -> None:
    size = "document.querySelector('.limelight').explorer.open.viewport.s"
    for motion, at_once in (("reduce", True), ("no-preference", False)):
        page = tab(reduced_motion=motion).open(long_page.url, "#map?head=1")
        page.focus(".plot > canvas")
        code = f"""() => {{
            const before = {size};
            document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {{ key: "+", bubbles: true }}));
            return {size} / before;
        }}"""
        assert (page.evaluate(code) == pytest.approx(2)) == at_once


@pytest.mark.parametrize(
    "room", ["heads", "map", "text", "steps", "steps?show=model", "steps?show=own", "translate", "what-if"]
)
@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_rules_of_accessibility(
    reading_page: Explorer, tab: NewTab, axe: str, room: str, screen: dict[str, Any]
) -> None:
    view = f"#{room}{'&' if '?' in room else '?'}call=1&head=2&token=3&cell=3,2"
    check_accessibility(tab, axe, reading_page.url, view, screen)
