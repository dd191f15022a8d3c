"""HTML for notebooks: the numbers, the pixels, and nothing that a page would obey."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

import limelight as ll
from limelight.viz.notebook import matrix_html, table_html


def pixels(html: str) -> np.ndarray:
    (source,) = re.findall(r"data:image/png;base64,([^\"]+)", html)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source))))


def test_small_matrices_show_their_numbers() -> None:
    x = np.array([[0.125, -2.0, np.inf], [0.0, -np.inf, 1.0]])
    html = matrix_html(x, ["<a>", "b"], list("cde"), "a & b")
    assert re.findall(r"<td[^>]*>([^<]*)</td>", html) == ["0.12", "−2.00", "∞", "0.00", "−∞", "1.00"]
    assert "&lt;a&gt;" in html
    assert "a &amp; b" in html
    assert "<a>" not in html


def test_large_matrices_are_pictures() -> None:
    x = np.random.default_rng(0).random((31, 47))
    image = pixels(matrix_html(x))
    assert image.shape == (31, 47, 4)
    np.testing.assert_array_equal(image[..., 3], np.round(np.sqrt(x / x.max()) * 255))
    tall = np.zeros((1301, 7))
    tall[1300, 6] = 1.0
    image = pixels(matrix_html(tall))
    assert max(image.shape) <= 512
    assert image[-1, -1, 3] == 255
    assert image[..., 3].astype(int).sum() == 255
    assert len(matrix_html(np.random.default_rng(0).random((4000, 4000)))) < 2**20


def test_signs_have_colours_of_their_own() -> None:
    tints = re.findall(r"background: rgb\((\d+ \d+ \d+) / ([\d.]+)", matrix_html(np.array([[1.0, -1.0, 0.5, -0.25]])))
    colours, alphas = zip(*tints, strict=True)
    assert colours[0] == colours[2] != colours[1] == colours[3]
    assert [float(a) for a in alphas] == [0.6, 0.6, 0.3, 0.15]
    tall = np.zeros((1301, 7))  # several rows share a pixel, which shows the farthest from 0
    tall[0, 0], tall[1, 0], tall[1300, 6] = 0.25, -1.0, 0.25
    image = pixels(matrix_html(tall))
    assert image[0, 0, 3] == 255
    assert image[0, 0, 2] > image[0, 0, 0]
    assert image[-1, -1, 2] < image[-1, -1, 0]


def test_masks() -> None:
    mask = ll.Causal() & (ll.Window(2) | ll.First(1))
    allowed, html = mask.dense(9), mask._repr_html_()
    found = np.zeros((9, 9))
    for x, y, width, opacity in re.findall(
        r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="1" fill-opacity="([\d.]+)', html
    ):
        found[int(y), int(x) : int(x) + int(width)] = float(opacity)
    assert ((found == 0.92) == allowed.numpy()).all()
    assert ((found == 0.08) == ~allowed.numpy()).all()
    assert "9 queries × 9 keys" in html


def test_tables() -> None:
    html = table_html([{"label": "<b>", "x": 0.123456, "y": None}] * 70, title="heads")
    assert html.count("<tr>") == 61
    assert "&lt;b&gt;" in html
    assert "0.123" in html
    assert "10 more rows" in html
    assert "<td" not in table_html([])


@pytest.mark.parametrize(
    ("x", "rows", "message"), [([1.0], None, "not an array of shape"), ([[1.0]], ["a", "b"], "2 names")]
)
def test_what_is_no_matrix(x: object, rows: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matrix_html(x, rows)  # type: ignore[arg-type]


def few_tags(html: str) -> None:
    """Small, without scripts, links or styles of a whole page, so that it shows in light and dark notebooks."""
    assert len(html) < 2**17
    assert not re.findall(r"<(script|style|link|iframe|object)|\son\w+=|javascript:|https?:", html)
    assert "color: #" not in html


def test_weights_show_themselves() -> None:
    torch.manual_seed(0)
    A = ll.weights(torch.randn(3, 5, 8), torch.randn(3, 7, 8), mask=ll.Causal())
    html = A._repr_html_()
    few_tags(html)
    numbers = [float(x) for x in re.findall(r"<td[^>]*>([\d.]+)</td>", html)]
    np.testing.assert_allclose(numbers, A.dense().flatten().numpy(), atol=0.0051)
    large = ll.weights(torch.randn(11, 301, 8), torch.randn(11, 301, 8))._repr_html_()
    few_tags(large)
    assert large.count("<img") == 4
    assert "7 more heads" in large
    huge = ll.weights(torch.randn(1, 2**15, 8), torch.randn(1, 2**15, 8))._repr_html_()
    assert "limelight.explore(A)" in huge
    assert "<img" not in huge
    assert ll.weights(torch.randn(1, 5, 8, device="meta"), torch.randn(1, 5, 8, device="meta"))._repr_html_() is None


def test_records_reports_and_traces_show_themselves() -> None:
    torch.manual_seed(0)
    model = ll.nn.Encoder([ll.nn.Block(ll.nn.MultiHeadAttention(32, 4), ll.nn.FeedForward(32, 64))])
    with ll.watch(model) as record:
        model(torch.randn(1, 11, 32))
    html = record._repr_html_()
    few_tags(html)
    assert "blocks.0.attention" in html
    assert [int(x) for x in re.findall(r'<td style="text-align: right;[^>]*>(\d+)</td>', html)] == [1, 4, 11, 11]
    rows = record.heads()
    few_tags(rows._repr_html_())
    assert rows._repr_html_().count("<tr>") == 5
    assert f"{rows[2]['entropy']:.3g}" in rows._repr_html_()
    q, k, v = torch.randn(3, 2), torch.randn(4, 2), torch.randn(4, 5)
    steps = ll.trace(q, k, v, tokens=(list("abc"), list("<&>'")))
    few_tags(steps._repr_html_())
    assert "&lt;" in steps._repr_html_()
    assert f">{float((q @ k.mT)[1, 2]):.2f}<".replace("-", "−") in steps._repr_html_()


def test_a_translation_shows_itself() -> None:
    found = ll.translate.load()("The cat is sleeping.")
    html = found._repr_html_()
    few_tags(html)
    assert "Le chat dort." in html
    assert re.findall(r"<th[^>]*>(\w+)</th>", html)[:4] == ["The", "cat", "is", "sleeping"]


def test_a_figure_is_shown_once_by_whichever_formatter() -> None:
    A = ll.weights(torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    figure = A.show(on="figure")
    assert figure._repr_png_().startswith(b"\x89PNG")
