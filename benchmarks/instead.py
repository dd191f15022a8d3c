"""The figures of the README's table "instead of …", each measured beside what it replaces, in one run on one thread.

    python benchmarks/instead.py               # every row
    python benchmarks/instead.py mask cache    # only these rows

The rows come from the benchmarks that have more cases of the same kind: ``limelight bench``, lens.py and questions.py.
Needs transformers (`pip install '.[test]'`); the row "bertviz" also needs `pip install bertviz`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import lens
import limelight as ll
import questions
from limelight.cli._bench.cases import all_cases
from limelight.cli._bench.machine import busy, cpu_name
from limelight.cli._bench.measuring import run

PROMPT, TOKENS = 4096, 256  # of the row on caches


def attentions() -> str:
    """Measure a report on every head of BERT, watched and from ``output_attentions=True``."""
    mine, theirs = lens.alone("limelight"), lens.alone("eager")
    memory = theirs["bytes"] / mine["bytes"]
    return (
        f"output_attentions, 6 layers of BERT, {lens.LENGTH:,} tokens: {mine['seconds']:.1f} s and "
        f"{mine['bytes'] / 1e6:.0f} MB against {theirs['seconds']:.1f} s and {theirs['bytes'] / 1e6:.0f} MB: "
        f"{theirs['seconds'] / mine['seconds']:.1f} times as fast, in 1/{memory:.0f} of the memory"
    )


def case(name: str) -> Callable[[], str]:
    """Measure a case of ``limelight bench``."""

    def measure() -> str:
        (chosen,) = (c for c in all_cases() if c.name == name)
        found = run(chosen, 1, 0.3, with_peers=False)
        mine, theirs = (found["milliseconds"][who] for who in ("limelight", "SDPA"))
        return f"{name}: {mine:.2f} ms against {theirs:.2f} of SDPA: {found['ratio']:.1f} times as fast"

    return measure


def statistics() -> str:
    """Measure six statistics against the dense matrix and torch's reductions."""
    with torch.inference_mode():
        found = questions.beside_the_usual_way(4096, 0.3)
    memory = questions.peak_memory(32768)
    return (
        f"{questions.ASKED} at n = 4,096: {found['limelight']:.0f} ms against {found['usual way']:.0f}: "
        f"{found['ratio']:.1f} times as fast; at n = 32,768: {memory['megabytes']:.0f} MB instead of "
        f"{memory['matrix'] / 1e3:.0f} GB"
    )


def cache() -> str:
    """Measure the attention of 256 new tokens after 4,096, with a cache and with keys that are joined at every step."""
    g = torch.Generator().manual_seed(0)
    prompt, steps = ([torch.randn(1, 8, n, 128, generator=g) for _ in range(2)] for n in (PROMPT, TOKENS))
    q = torch.randn(1, 32, TOKENS, 128, generator=g)

    def step(x: list[Tensor], i: int) -> tuple[Tensor, Tensor]:
        return x[0][:, :, i : i + 1], x[1][:, :, i : i + 1]

    def joined() -> list[Tensor]:
        (k, v), out = prompt, []
        for i in range(TOKENS):
            k, v = (torch.cat([old, new], 2) for old, new in zip((k, v), step(steps, i), strict=True))
            out.append(scaled_dot_product_attention(q[:, :, i : i + 1], k, v, enable_gqa=True))
        return out

    def cached() -> list[Tensor]:
        slot, out = ll.KVCache()[0], []
        slot.extend(*prompt)
        for i in range(TOKENS):
            k, v = slot.extend(*step(steps, i))
            out.append(ll.attention(q[:, :, i : i + 1], k, v))
        return out

    def seconds(way: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        way()
        return time.perf_counter() - begin

    with torch.inference_mode():
        torch.testing.assert_close(cached(), joined(), atol=1e-5, rtol=1e-4)
        mine, theirs = (min(seconds(way) for _ in range(3)) / TOKENS * 1e3 for way in (cached, joined))
    return (
        f"a step of 32 heads over 8 after {PROMPT:,} to {PROMPT + TOKENS:,} tokens: {mine:.2f} ms against {theirs:.2f} "
        f"of torch.cat and SDPA: {theirs / mine:.1f} times as fast"
    )


def bertviz(n: int = 512) -> str:
    """Compare the pages with all heads of six layers of BERT."""
    from bertviz import head_view

    model, ids = lens.bert(), torch.randint(1000, 30000, (1, n), generator=torch.Generator().manual_seed(1))
    tokens = [f"token{i}" for i in range(n)]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        theirs = len(head_view(model(ids, output_attentions=True).attentions, tokens, html_action="return").data)
        with ll.watch(model) as record:
            model(ids)
        page = Path(folder) / "page.html"
        ll.lens.save_page(record, page, tokens)
        mine = page.stat().st_size
    return (
        f"a page with all heads of 6 layers of BERT over {n} tokens: {mine / 1e6:.1f} MB against {theirs / 1e6:.0f} of "
        f"BertViz: {theirs / mine:.0f} times smaller"
    )


ROWS: dict[str, Callable[[], str]] = {
    "attentions": attentions,
    "mask": case("window 128, n=8192"),
    "dropout": case("training: dropout 0.1, n=2048"),
    "heads": case("decode 32/8, 4096 keys, width 128"),
    "statistics": statistics,
    "cache": cache,
    "bertviz": bertviz,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=ROWS, default=list(ROWS))
    rows = parser.parse_args().rows
    console = Console(width=200, highlight=False)
    console.print(f"one thread of {cpu_name()}, torch {torch.__version__}")
    if warning := busy():
        console.print(f"warning: {warning}")
    for row in rows:
        torch.set_num_threads(1)
        console.print(f"{row}: {ROWS[row]()}")


if __name__ == "__main__":
    main()
