"""HTML for notebooks: the numbers, the pixels, and nothing that a page would obey."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from limelight.viz.notebook import mask_html, matrix_html, table_html


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


def test_masks() -> None:
    allowed = np.tril(np.ones((5, 7), bool), 2)
    image = pixels(mask_html(allowed, "Causal()"))[..., 3]
    assert ((image == 255) == allowed).all()
    assert "5 queries × 7 keys" in mask_html(allowed)


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
