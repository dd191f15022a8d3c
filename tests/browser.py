"""A Chromium for the tests of the explorer: any that is found, driven by playwright."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from limelight.explorer import Explorer

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


# Resolves when the page has come to rest; a machine may be slow, so time alone says nothing.
AT_REST = """async () => {
  const end = performance.now() + 60000;
  for (let still = 0; still < 3; ) {
    await new Promise((go) => requestAnimationFrame(() => setTimeout(go, 25)));
    still = document.querySelector(".limelight")?.explorer?.isIdle ? still + 1 : 0;
    if (performance.now() > end) throw new Error("the page does not come to rest");
  }
}"""


def missing(what: str) -> Any:
    """Fail in CI; elsewhere skip, and say how to get what is missing."""
    return pytest.fail(what) if os.environ.get("LIMELIGHT_CI") else pytest.skip(what)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        missing("no Chromium: install one, such as Debian's (apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright is missing: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(OPTIONS))
        yield browser
        browser.close()


class Tab:
    """A page of the browser, which remembers what it complained of and what it asked for."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # a machine may be busy
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, url: str, view: str = "") -> Any:
        """Go to an address, then to a view of it, and wait until it is drawn."""
        self.page.goto(url)
        self.page.wait_for_selector("main.room")
        if view:
            self.page.goto(self.page.url.partition("#")[0] + view)
            self.page.reload()
            self.page.wait_for_selector("main.room")
        self.quiet()
        return self.page

    def quiet(self) -> None:
        """Wait until nothing is asked, waited for or drawn, three times in a row."""
        self.page.evaluate(AT_REST)

    def pixels(self) -> np.ndarray:
        """Take a screenshot as an array."""
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")).astype(int)

    def at(self, query: float, key: float, plot: int = 0) -> tuple[int, int]:
        """The position of the middle of a weight on the screen."""
        code = """([n, i, j]) => {
            const plot = document.querySelector(".limelight").explorer.open.shown[n];
            const box = plot.canvas.getBoundingClientRect();
            const [x, y] = plot.toScreen(i, j);
            return [x + box.left, y + box.top];
        }"""
        x, y = self.page.evaluate(code, [plot, query, key])
        return int(x), int(y)


# A notebook's model of a widget: messages go to Python, and answers come back with their bytes as the host has them.
MODEL = """async ([source, kind]) => {
    const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
    const as = { views: (x) => new DataView(bytes(x)), "array buffers": bytes };
    let told = null;
    const model = {
        on: (_, f) => { told = f; }, off: () => {},
        send: async (message) => {
            if (message.drop) return;
            const [back, buffers] = await answer(message);
            told(back, kind === "lost" ? undefined : buffers.map(as[kind]));
        },
    };
    window.end = module.default.render({ model, el: document.getElementById("cell") });
}"""


def open_widget(one: Tab, subject: Any, folder: Path, body: str = "", buffers: str = "views") -> Any:
    """Open a notebook's widget in a page whose body has some attributes; return its Python side.

    ``buffers`` is how the bytes of a message reach the page: as views, as array buffers, or not at all.
    """
    from limelight.explorer.widget import ExplorerWidget

    widget, sent = ExplorerWidget(subject), SimpleQueue[tuple[Any, list[str]]]()

    def send(message: Any, buffers: Any = None) -> None:
        sent.put((message, [base64.b64encode(x).decode() for x in buffers or ()]))

    def answer(message: dict[str, Any]) -> list[Any]:
        widget._on_message(None, message, [])
        return list(sent.get(timeout=60))

    widget.send = send
    one.page.expose_function("answer", answer)
    (folder / "style.css").write_text(ExplorerWidget._css, encoding="utf-8")
    (folder / "cell.html").write_text(f"<link rel=stylesheet href=style.css><body {body}><div id=cell></div>")
    one.page.goto((folder / "cell.html").as_uri())
    one.page.evaluate(MODEL, [ExplorerWidget._esm, buffers])
    one.page.wait_for_selector("main.room")
    one.quiet()
    return widget


NewTab = Callable[..., Tab]


@pytest.fixture
def tab(chromium: Any) -> Iterator[NewTab]:
    """Opens pages; at the end none of them may have complained, or asked for anything elsewhere."""
    tabs: list[Tab] = []

    def new(**options: Any) -> Tab:
        tabs.append(Tab(chromium, **options))
        return tabs[-1]

    yield new
    for one in tabs:
        one.context.close()
        away = [url for url in one.requests if not url.startswith(("http://127.0.0.1:", "file:", "data:", "blob:"))]
        assert (one.messages, away) == ([], []), f"{one.messages} {away}"


@pytest.fixture(scope="session")
def short_page() -> Iterator[Explorer]:
    """Serve two layers of three heads over 41 tokens, and a translator."""
    from browser_pages import RECORD, N, words
    from limelight import translate
    from limelight.explorer import explore

    with explore(RECORD, words(N), title="short") as page:
        page.subject.translator = translate.load()
        yield page


@pytest.fixture(scope="session")
def long_page() -> Iterator[Explorer]:
    """Serve one layer of two heads over 1,303 tokens, which no screen shows without pooling."""
    from browser_pages import LONG, watched, words
    from limelight.explorer import explore

    with explore(watched(1, 2, LONG), words(LONG), title="long") as page:
        yield page


@pytest.fixture(scope="session")
def reading_page() -> Iterator[Explorer]:
    """Serve the translator with its model, so that the page reads texts that a visitor writes."""
    from limelight import translate
    from limelight.explorer import Explorer
    from limelight.explorer.subject import Subject
    from limelight.lens.reading import read

    subject = Subject.of(read(translate.shipped(), "The cat is sleeping."))
    subject.translator = translate.load()
    with Explorer(subject) as page:
        yield page


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, from npm."""
    home = Path(os.environ.get("LIMELIGHT_AXE", tmp_path_factory.mktemp("axe")))
    file = home / "node_modules/axe-core/axe.min.js"
    if not file.is_file():
        if shutil.which("npm") is None:
            missing("npm is missing, which brings axe-core: install node")
        install = ["npm", "install", "--no-save", "--silent", "--prefix", str(home), "axe-core@4"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            missing(f"npm cannot install axe-core: {done.stderr}")
    return file.read_text(encoding="utf-8")


RAMPS = {
    "light": [(255, 255, 255), (253, 222, 200), (244, 153, 117), (204, 68, 90), (120, 28, 109), (33, 12, 58)],
    "dark": [(26, 25, 31), (72, 25, 96), (160, 45, 110), (231, 93, 74), (254, 178, 96), (253, 246, 190)],
}


def colour(x: float, high: float, kind: str = "sqrt", theme: str = "light") -> np.ndarray:
    """The colour that a weight must have."""
    share = min(1.0, x / high)
    t = {
        "linear": share,
        "sqrt": share**0.5,
        "log": max(0.0, 1 + np.log10(max(share, 1e-30)) / 4),  # four decades
    }[kind]
    stops = np.array(RAMPS[theme])
    return np.array([np.interp(t, np.linspace(0, 1, len(stops)), stops[:, c]) for c in range(3)])
