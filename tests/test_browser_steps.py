"""The room Steps in a real browser: the worked example, the steps of a query and of a head for any text."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import limelight as ll
from browser import NewTab, colour
from browser_pages import DENSE, RECORD, near
from limelight.explorer import Explorer
from limelight.lens.text_trace import trace_call

pytestmark = pytest.mark.slow


def test_steps(short_page: Explorer, tab: NewTab) -> None:
    one = tab()
    page = one.open(short_page.url, "#steps")
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


def test_the_steps_of_a_head(short_page: Explorer, tab: NewTab) -> None:
    page = tab().open(short_page.url, "#steps?show=model&call=1&head=2&token=30")
    row = DENSE[1][2][30]
    listed = page.eval_on_selector_all(".query tbody th small", "x => x.map((s) => +s.textContent)")
    assert listed == np.argsort(-row, kind="stable")[:12].tolist()
    page.locator(".query tbody tr").nth(3).hover()
    q = RECORD.log[1].weights._problem.q[0, 2, 30]
    k = RECORD.log[1].weights._problem.k[0, 2, listed[3]]
    assert f"{float(q @ k):.2f}".replace("-", "−") in page.inner_text(".products p")
    assert page.locator(".bars-of i").count() == 8


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_steps_of_a_head_for_ones_own_text(reading_page: Explorer, tab: NewTab, theme: str) -> None:
    one = tab(color_scheme=theme)
    page = one.open(reading_page.url, "#steps?show=own&call=1&head=2&own=I+like+tea.")
    name = reading_page.subject.matrices[1].call.name
    reader = reading_page.subject.reader
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
