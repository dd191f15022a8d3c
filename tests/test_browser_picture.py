"""The room Picture in a real browser: what is drawn over the picture is the weights, by mouse and by keyboard."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import limelight as ll
from browser import NewTab, Tab, colour, open_widget
from browser_pages import SCREENS, check_accessibility
from limelight.explorer import Explorer, explore, save_page
from limelight.explorer.subject import Subject
from limelight.lens import Call, Grid, Record
from limelight.matrix.flow import rollout

ROWS, COLS, REGISTERS, WORDS = 5, 7, 2, 6
GRID = Grid(ROWS, COLS, before=("class", *(f"register {n}" for n in range(REGISTERS))))
WRITTEN = ["▁a", "▁gi", "raf", "fe", "▁stands", "</s>"]
FIRST = GRID.patches.start
IMAGE = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)


def captioner() -> Record:
    """A record as of a captioner: two layers over the picture, one over the words, one from words to picture."""
    generator, record = torch.Generator().manual_seed(0), Record()

    def add(name: str, kind: str, stack: str, n: int, m: int, grids: tuple[Any, Any], causal: bool = False) -> None:
        q, k = (3 * torch.randn(1, 3, x, 8, generator=generator) for x in (n, m))
        A = ll.weights(q, k, mask=ll.Causal() if causal else None)
        record.add(Call(name, kind, stack, "prefill", A, A.shape, grids=grids))

    for layer in range(2):
        add(f"encoder.{layer}.attention", "self", "encoder", len(GRID), len(GRID), (GRID, GRID))
    add("decoder.0.attention", "self", "decoder", WORDS, WORDS, (None, None), causal=True)
    add("decoder.0.cross", "cross", "decoder", WORDS, len(GRID), (None, GRID))
    return record


RECORD = captioner()
TOKENS = {"encoder": GRID.names(), "decoder": ["<s>", *WRITTEN[:-1]], "written": WRITTEN}
DENSE = [call.weights.dense()[0] for call in RECORD.log]


@pytest.fixture(scope="module")
def page() -> Iterator[Explorer]:
    with explore(RECORD, TOKENS, image=IMAGE, title="pictures") as served:
        yield served


def heat(one: Tab) -> np.ndarray:
    """The colours in the middle of every patch on the screen, (rows, cols, 3)."""
    box = one.page.locator(".picture-frame").bounding_box()
    pixels = one.pixels()
    ys = box["y"] + 1 + (np.arange(ROWS) + 0.3) * (box["height"] - 2) / ROWS
    xs = box["x"] + 1 + (np.arange(COLS) + 0.3) * (box["width"] - 2) / COLS
    return pixels[ys.astype(int)[:, None], xs.astype(int)[None]]


def expected(weights: torch.Tensor) -> np.ndarray:
    """The colours that the weights of all tokens have on the picture."""
    on_patches = GRID.heat(weights.double()).numpy()
    high = max(on_patches.max(), 3 / on_patches.size)
    return np.array([[colour(x, high, "sqrt", "dark") for x in row] for row in on_patches])


def check(one: Tab, weights: torch.Tensor) -> None:
    one.quiet()
    assert np.abs(heat(one) - expected(weights)).max() <= 4


CHOICES: list[tuple[str, Callable[[], torch.Tensor]]] = [
    ("call=1&head=2", lambda: DENSE[1][2, 0]),  # the class token
    ("call=1&head=2&token=15", lambda: DENSE[1][2, 15]),
    ("call=1&head=2&token=15&side=key", lambda: DENSE[1][2, :, 15]),
    ("call=0&head=1&token=1", lambda: DENSE[0][1, 1]),  # a register
    ("call=0&of=layer&token=9", lambda: DENSE[0].mean(0)[9]),
    ("call=0&of=stack&token=9", lambda: torch.stack([DENSE[0], DENSE[1]]).mean((0, 1))[9]),
    ("call=0&of=rollout&token=9", lambda: rolled([9])[0]),
    ("call=3&head=1&token=1 2 3", lambda: DENSE[3][1, 1:4].sum(0)),  # a word of three pieces
    ("call=3&of=layer&token=0", lambda: DENSE[3].mean(0)[0]),
]


def rolled(tokens: list[int]) -> torch.Tensor:
    """The rollout by hand."""
    whole = torch.eye(len(GRID), dtype=torch.double)
    for layer in DENSE[:2]:
        whole = (0.5 * torch.eye(len(GRID)) + 0.5 * layer.double().mean(0)) @ whole
    return whole[tokens]


def test_rollout_by_hand_is_the_librarys() -> None:
    found = rollout([call.weights for call in RECORD.log[:2]], [9])[0]
    assert torch.allclose(found.double(), rolled([9]), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("address", "truth"), CHOICES, ids=[x for x, _ in CHOICES])
def test_heat_is_the_weights(page: Explorer, tab: NewTab, address: str, truth: Callable[[], torch.Tensor]) -> None:
    one = tab()
    one.open(page.url, f"#picture?view=heat&{address.replace(' ', '%20')}")
    check(one, truth())


@pytest.mark.slow
def test_heat_on_the_picture_is_a_blend(page: Explorer, tab: NewTab) -> None:
    one = tab(color_scheme="dark")
    one.open(page.url, "#picture?call=1&head=2&token=15")
    pen = "document.querySelector('.picture-frame canvas').getContext('2d')"
    code = f"() => Array.from({pen}.getImageData(0, 0, 7, 5).data)"
    found = np.array(one.page.evaluate(code)).reshape(ROWS, COLS, 4)
    weights = GRID.heat(DENSE[1][2, 15].double()).numpy()
    share = np.sqrt(weights / max(weights.max(), 3 / weights.size))
    assert np.abs(found[..., 3] - 255 * (0.15 + 0.75 * share)).max() <= 1.5
    hot = share > 0.5  # pale colours lose digits to their opacity
    assert np.abs(found[..., :3] - expected(DENSE[1][2, 15]))[hot].max() <= 6


@pytest.mark.slow
def test_a_patch_by_mouse_and_keyboard(page: Explorer, tab: NewTab) -> None:
    one = tab()
    view = one.open(page.url, "#picture?view=heat&call=1&head=2")
    assert view.locator("nav a").all_inner_texts()[0] == "Picture"
    box = view.locator(".picture-frame").bounding_box()
    view.mouse.click(box["x"] + 4.5 * box["width"] / COLS, box["y"] + 2.5 * box["height"] / ROWS)
    check(one, DENSE[1][2, FIRST + 2 * COLS + 4])
    assert view.locator(".readout .big").inner_text() == "patch 2, 4"
    view.locator(".picture-frame").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp", "ArrowLeft", "Home"):
        view.keyboard.press(key)
    check(one, DENSE[1][2, FIRST + COLS])
    marked, frame = view.locator(".mark-patch").bounding_box(), view.locator(".picture-frame").bounding_box()
    assert abs(marked["y"] - frame["y"] - frame["height"] / ROWS) < 2
    view.locator(".special button").nth(1).focus()
    view.keyboard.press("ArrowRight")
    view.keyboard.press("Enter")
    check(one, DENSE[1][2, 2])
    assert view.locator(".mark-patch").is_hidden()
    view.get_by_role("button", name="is seen by").click()
    check(one, DENSE[1][2, :, 2])
    best = view.locator(".readout .bars button").first
    top = int(DENSE[1][2, :, 2].argmax())
    assert best.inner_text() == (
        GRID.names()[top] if top < FIRST else "patch {}, {}".format(*divmod(top - FIRST, COLS))
    )


@pytest.mark.slow
def test_words_of_a_caption(page: Explorer, tab: NewTab) -> None:
    one = tab()
    view = one.open(page.url, "#picture?view=heat&call=3&head=1")
    chips = view.locator(".special button")
    assert chips.all_inner_texts() == ["a", "giraffe", "stands"]
    check(one, DENSE[3][1, 0])
    chips.nth(1).click()
    check(one, DENSE[3][1, 1:4].sum(0))
    box = view.locator(".picture-frame").bounding_box()
    view.mouse.click(box["x"] + 0.5 * box["width"] / COLS, box["y"] + 0.5 * box["height"] / ROWS)
    one.quiet()
    column = DENSE[3][1, :, FIRST]
    sums = {"a": column[0], "giraffe": column[1:4].sum(), "stands": column[4]}
    listed = view.locator(".readout .bars button").all_inner_texts()
    assert listed == sorted(sums, key=lambda word: -float(sums[word]))
    assert float(chips.nth(1).get_attribute("title").replace("−", "-")) == pytest.approx(
        float(sums["giraffe"]), rel=0.02
    )
    text = view.locator("nav a", has_text="Text")
    assert text.count() == 1, "a captioner has words as well"


@pytest.mark.slow
def test_a_saved_page_draws_the_same(tab: NewTab, tmp_path: Path) -> None:
    save_page(RECORD, tmp_path / "page.html", TOKENS, image=IMAGE, title="pictures")
    for address, truth in CHOICES:
        one = tab()
        one.open((tmp_path / "page.html").as_uri(), f"#picture?view=heat&{address.replace(' ', '%20')}")
        check(one, truth())


@pytest.mark.slow
def test_a_widget_draws_the_same(tab: NewTab, tmp_path: Path) -> None:
    one = tab()
    widget = open_widget(one, Subject.of(RECORD, TOKENS, "pictures", IMAGE), tmp_path)
    one.page.get_by_role("button", name="heat", exact=True).click()
    check(one, DENSE[0][0, 0])  # the class token of the first head
    one.page.locator(".side .thumb").nth(5).click()
    check(one, DENSE[1][2, 0])
    box = one.page.locator(".picture-frame").bounding_box()
    place = FIRST + 2 * COLS + 3
    one.page.mouse.click(
        box["x"] + 1 + 3.3 * (box["width"] - 2) / COLS, box["y"] + 1 + 2.3 * (box["height"] - 2) / ROWS
    )
    check(one, DENSE[1][2, place])
    one.page.evaluate("end()")
    widget.close()


@pytest.mark.slow
@pytest.mark.parametrize("address", ["call=1&head=2&token=15", "call=3&head=1", "call=2&head=1"])
@pytest.mark.parametrize("screen", SCREENS, ids=str)
def test_rules_of_accessibility(page: Explorer, tab: NewTab, axe: str, address: str, screen: dict[str, Any]) -> None:
    check_accessibility(tab, axe, page.url, f"#picture?{address}", screen)


@pytest.mark.slow
def test_on_a_phone_a_finger_chooses_a_patch(page: Explorer, tab: NewTab) -> None:
    one = tab(has_touch=True, is_mobile=True)
    one.page.set_viewport_size({"width": 390, "height": 844})
    view = one.open(page.url, "#picture?view=heat&call=1&head=2")
    box = view.locator(".picture-frame").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    view.touchscreen.tap(box["x"] + 1.5 * box["width"] / COLS, box["y"] + 0.5 * box["height"] / ROWS)
    one.quiet()
    assert view.locator(".readout .big").inner_text() == "patch 0, 1"


def test_the_page_is_told_about_pictures() -> None:
    about = Subject.of(RECORD, TOKENS, image=IMAGE).about()
    json.dumps(about)
    described = {"rows": ROWS, "cols": COLS, "first": FIRST}
    assert [call["grids"] for call in about["calls"]] == [[described] * 2] * 2 + [[None, None], [None, described]]
    from PIL import Image

    (url,) = about["pictures"]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))), IMAGE)
    written = about["calls"][3]["texts"][0][0]
    assert about["words"] == {written: [("a", [0]), ("giraffe", [1, 2, 3]), ("stands", [4])]}


def test_weights_with_a_picture() -> None:
    A = ll.weights(torch.randn(2, 26, 8), torch.randn(2, 26, 8))
    about = Subject.of(A, image=IMAGE).about()
    assert about["calls"][0]["grids"] == [{"rows": 5, "cols": 5, "first": 1}] * 2
    assert about["texts"][0][:3] == ["[class]", "0,0", "0,1"]
    with pytest.raises(ValueError, match="no queries or keys are known to be patches"):
        Subject.of(A, image=IMAGE, grid=Grid(3, 3))
    with pytest.raises(ValueError, match="3 pictures for 1 batch elements"):
        Subject.of(A, image=[IMAGE] * 3)
