"""The page outside its server, in a real browser: saved to a file, and as the widget of a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser import NewTab, colour, open_widget
from browser_pages import DENSE, RECORD, N, near, words
from limelight.explorer import save_page
from limelight.explorer.subject import Subject

pytestmark = pytest.mark.slow


def test_a_saved_page_from_disk(tab: NewTab, tmp_path: Path) -> None:
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
def test_the_widget_of_a_notebook(tab: NewTab, tmp_path: Path, body: str, buffers: str, theme: str) -> None:
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
