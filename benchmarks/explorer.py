"""The speed of the explorer: a browser looks at a model that has read 32,768 tokens, and at 12 × 12 heads of 512.

    python benchmarks/explorer.py           # writes benchmarks/explorer.json
    python benchmarks/explorer.py --quick   # 4,096 tokens

Needs Chromium, playwright and psutil (`pip install '.[test]' psutil`). Times of frames are those of scripts; how many
frames a second there are depends on the machine's graphics too.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table

import limelight as ll
from limelight.explorer import Explorer
from limelight.explorer.subject import Subject

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 384}
LLAMA |= {"num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1024}
# Times every callback of a frame, from before the page's own scripts.
FRAMES = """
window.frames_seen = [];
const original = requestAnimationFrame;
window.requestAnimationFrame = (f) => original((now) => {
  const begin = performance.now();
  f(now);
  const last = window.frames_seen.at(-1), took = performance.now() - begin;
  if (last?.[0] === now) last[1] += took; // all callbacks of a frame are given the same time
  else window.frames_seen.push([now, took]);
});
"""
# Zooms in, drags, zooms out and in again: an event a frame, by the page's own listeners.
MOVING = """async () => {
  const canvas = document.querySelector(".plot > canvas"), box = canvas.getBoundingClientRect();
  const x = box.left + 0.5 * box.width, y = box.top + 0.7 * box.height;
  const send = (Type, kind, n, more) =>
    canvas.dispatchEvent(new Type(kind, { clientX: x - 5 * n, clientY: y - 3 * n, cancelable: true, ...more }));
  const wheel = (deltaY) => send(WheelEvent, "wheel", 0, { deltaY });
  const pointer = (kind, n) => send(PointerEvent, kind, n, { pointerId: 1, button: 0 });
  canvas.setPointerCapture = () => {};
  const steps = [];
  for (let n = 0; n < 60; n++) steps.push(() => wheel(-48));
  steps.push(() => pointer("pointerdown", 0));
  for (let n = 1; n <= 60; n++) steps.push(() => pointer("pointermove", n));
  steps.push(() => pointer("pointerup", 61));
  for (let n = 0; n < 60; n++) steps.push(() => wheel(48));
  for (let n = 0; n < 30; n++) steps.push(() => wheel(-48));
  window.frames_seen.length = 0;
  await new Promise((done) => {
    const step = () => {
      const next = steps.shift();
      if (!next) return done();
      next();
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
  return window.frames_seen;
}"""


def read(tokens: int) -> Subject:
    """A model of six layers with random weights, which has read random tokens."""
    torch.manual_seed(0)
    model = ll.models.build({**LLAMA, "max_position_embeddings": tokens}).eval()
    ids = torch.randint(0, 1000, (1, tokens))
    with torch.no_grad(), ll.watch(model, limit=8.0) as record:
        model(ids, last=True)
    return Subject.of(record, [f"▁w{i}" for i in ids[0].tolist()], "LLaMA, random")


def seconds(f: Callable[[], Any], times: int = 3) -> float:
    """The best of some times."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        f()
        found.append(time.perf_counter() - begin)
    return min(found)


def one_head(subject: Subject) -> float:
    """Seconds of one head's forward pass."""
    A = subject.matrices[0].call.weights.select(0, 0)
    p = A._problem  # type: ignore[attr-defined]
    v = torch.randn_like(p.k)
    with torch.no_grad():
        return seconds(lambda: ll.attention(p.q, p.k, v, mask=ll.Causal()))


@contextmanager
def browser(url: str) -> Iterator[Page]:
    """A page that is open at an address."""
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        sys.exit("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.add_init_script(FRAMES)
        page.goto(url)
        page.wait_for_selector("main.room")
        yield page
        chromium.close()


def p95(values: list[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def whole_view(page: Page, head: int) -> float:
    """Seconds from opening a head, of which nothing is known, to its whole view on the screen."""
    code = """(head) => new Promise((done) => {
        const app = document.querySelector(".limelight").explorer, begin = performance.now();
        app.go({ room: "map", call: 0, head }, true);
        const look = () => {
            const [plot] = app.open.shown ?? [];
            const ready = plot?.layer.head === head && plot.inView(plot.level).every((at) => plot.layer.tile(...at));
            ready ? done((performance.now() - begin) / 1000) : setTimeout(look, 5);
        };
        look();
    })"""
    found: float = page.evaluate(code, head)
    return found


def moving(page: Page) -> dict[str, float]:
    """Milliseconds of scripts a frame, and frames a second, while a view moves and its tiles arrive."""
    page.wait_for_timeout(500)
    frames = page.evaluate(MOVING)
    spent = [took for _, took in frames]
    elapsed = (frames[-1][0] - frames[0][0]) / 1000
    return {
        "frame_p95_ms": p95(spent),
        "frame_median_ms": statistics.median(spent),
        "frames_s": (len(frames) - 1) / elapsed,
    }


def tiles(page: Page, tokens: int) -> dict[str, float]:
    """Milliseconds of tiles at full resolution, each asked for by itself."""
    code = """async ([row, col]) => {
        const app = document.querySelector(".limelight").explorer, begin = performance.now();
        await app.source.ask("tiles", { call: 0, head: 1, tiles: [[0, row, col]] });
        return performance.now() - begin;
    }"""
    last = tokens // 256 - 1
    spots = [(last - n % 7, (n * 37) % (last - 7)) for n in range(60)]
    found = [page.evaluate(code, list(spot)) for spot in spots]
    return {"tile_p95_ms": p95(found), "tile_median_ms": statistics.median(found)}


def page_bytes(page: Page) -> float:
    """Megabytes of the page's process beyond those of an empty one: JavaScript's heap and array buffers."""
    page.evaluate("window.gc?.()")
    talk = page.context.new_cdp_session(page)
    talk.send("Performance.enable")
    metrics = {m["name"]: m["value"] for m in talk.send("Performance.getMetrics")["metrics"]}
    buffers = page.evaluate("performance.memory?.usedJSHeapSize ?? 0")
    return max(metrics["JSHeapUsedSize"], buffers) / 1e6


def renderer_bytes() -> float:
    """Megabytes of the largest renderer process of this program's browser."""
    children = psutil.Process().children(recursive=True)
    renderers = [p for p in children if "--type=renderer" in " ".join(p.cmdline())]
    return max((p.memory_info().rss for p in renderers), default=0) / 1e6


def long_text(subject: Subject) -> dict[str, Any]:
    """Figures of a model that has read a long text."""
    tokens = subject.matrices[0].N
    head = one_head(subject)
    gc.collect()
    before = psutil.Process().memory_info().rss
    with Explorer(subject) as served, browser(served.url) as page:
        page.wait_for_timeout(1000)
        view = whole_view(page, 1)
        found = {"tokens": tokens, "head_s": head, "view_s": view, "view_over_head": view / head}
        found |= moving(page)
        found |= tiles(page, tokens)
        found["server_mb"] = (psutil.Process().memory_info().rss - before) / 1e6
        found["page_heap_mb"] = page_bytes(page)
        found["page_process_mb"] = renderer_bytes()
    return found


def many_heads() -> dict[str, Any]:
    """Seconds from opening the page of 12 × 12 heads of 512 tokens to all thumbnails on the screen."""
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    record = ll.lens.Record()
    for layer in range(12):
        q, k = (torch.randn(1, 12, 512, 64, generator=g) for _ in range(2))
        A = ll.weights(q, k, mask=ll.Causal())
        record.add(ll.lens.Call(f"layers.{layer}", "self", "decoder", "prefill", A, A.shape))
    with Explorer(Subject.of(record, [f"▁w{n}" for n in range(512)])) as served, browser(served.url) as page:
        page.goto("about:blank")
        begin = time.perf_counter()
        page.goto(served.url)
        page.wait_for_selector(".thumb.drawn")
        first = time.perf_counter() - begin
        page.locator(".thumb.drawn").nth(143).wait_for()
        return {"first_thumbnail_s": first, "usable_s": time.perf_counter() - begin}


LIMITS = {
    "view_over_head": 3,
    "frame_p95_ms": 8,
    "tile_p95_ms": 60,
    "server_mb": 500,
    "page_process_mb": 300,
    "usable_s": 2,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    found = {**long_text(read(4096 if quick else 32768)), **many_heads()}
    table = Table("figure", "measured", "to reach")
    for name, value in found.items():
        limit = f"≤ {LIMITS[name]}" if name in LIMITS else "≥ 50" if name == "frames_s" else ""
        table.add_row(name, f"{value:.4g}", limit)
    Console().print(table)
    if not quick:
        text = json.dumps({"threads": torch.get_num_threads(), **found}, indent=2)
        Path(__file__).with_suffix(".json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
