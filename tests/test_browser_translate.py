"""The rooms Translate and What if in a real browser, against the same done in Python."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import limelight as ll
from browser import NewTab
from browser_pages import tab_to
from limelight.explorer import Explorer
from limelight.lens import edits
from limelight.lens.edits import Rectangle

pytestmark = pytest.mark.slow


def test_translate(short_page: Explorer, tab: NewTab) -> None:
    page = tab().open(short_page.url, "#translate")
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


def test_steps_and_translate_by_keyboard_alone(short_page: Explorer, tab: NewTab) -> None:
    one = tab()
    page = one.open(short_page.url, "#steps")
    tab_to(page, "x, dog, 1")
    page.keyboard.press("Control+A")
    page.keyboard.type("2.5")
    one.quiet()
    assert "numbers=2.5" in page.url
    tab_to(page, "W_Q, 1, 1")
    assert "a learned number" in page.inner_text(".explained")
    page = one.open(short_page.url, "#translate")
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


def test_what_if(reading_page: Explorer, tab: NewTab) -> None:
    """Every change of the room changes what the model makes of the text as the same edit made in Python does."""
    one = tab()
    subject = reading_page.subject
    (call,) = (m.number for m in subject.matrices if m.call.name == "decoder.blocks.1.cross")
    assert subject.replay is not None
    page = one.open(reading_page.url, f"#what-if?call={call}&head=3")

    def changed(edit: Any) -> None:
        """The page shows what the edit does next to what there was."""
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
