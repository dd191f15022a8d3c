"""The time of finding the heads that matter, and the cost of an edit, in one run.

    python benchmarks/edits.py           # two threads; about a minute
    python benchmarks/edits.py --quick   # fewer repetitions

Importance: all heads of a model of 12 layers × 12 heads (the shape of GPT-2) on 128 tokens, with the logit difference
of the last token as metric, against running the model once for each head. An edited call: some heads of an attention
layer switched off, sharpened or masked, against the same layer watched without edits.

Needs transformers (`pip install '.[test]'`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from rich.console import Console
from rich.table import Table

import limelight as ll
from limelight.lens import Knockout, LogitDifference, Off, Temperature, importance

LAYERS, HEADS, TOKENS = 12, 12, 128
WIDTH = 768


def seconds(f: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin


def gpt2(width: int) -> Any:
    """Build a model with the shape of GPT-2, but for its vocabulary, which the last token alone hardly uses."""
    torch.manual_seed(0)
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=width, vocab_size=1000, bos_token_id=1, eos_token_id=2)).eval()


@torch.no_grad()
def importances(repeats: int, width: int = WIDTH) -> list[tuple[str, float, float]]:
    """Return the seconds of each method, and how many times as fast as one run for each head it is."""
    model, ids = gpt2(width), torch.randint(0, 1000, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    metric = LogitDifference(11, 13)

    def once() -> None:
        model(ids, logits_to_keep=1, use_cache=False)

    once()
    runs, exact, gradient = [], [], []
    for _ in range(repeats):  # in turns, so that a busy moment hits all of them
        runs += [seconds(once) for _ in range(6)]
        exact.append(seconds(lambda: importance(model, ids, metric=metric)))
        gradient += [seconds(lambda: importance(model, ids, metric=metric, method="gradient")) for _ in range(2)]
        runs += [seconds(once) for _ in range(6)]
    every = sorted(runs)[len(runs) // 2] * LAYERS * HEADS
    return [
        ("once for each head", every, 1.0),
        ("exact", min(exact), every / min(exact)),
        ("gradient", min(gradient), every / min(gradient)),
    ]


@torch.no_grad()
def edited_calls(repeats: int) -> list[tuple[str, float, float]]:
    """Return the milliseconds of an attention layer with each edit, and the ratio to the same layer watched."""
    rows = []
    for tokens in (512, 2048):
        layer, x = ll.nn.MultiHeadAttention(768, HEADS), torch.randn(1, tokens, 768)
        edits = {
            "off": Off([1, 5]),
            "temperature": Temperature([0.5, 2.0], heads=[1, 5]),
            "knockout": Knockout(~ll.Window(64), heads=[1, 5]),
        }

        def watched(edits: Any = None, layer: Any = layer, x: Any = x) -> None:
            with ll.watch(layer, edits=edits):
                layer(x, mask=ll.Causal())

        times: dict[str, list[float]] = {name: [] for name in ("watched", *edits)}
        for _ in range(repeats):
            times["watched"].append(seconds(watched))
            for name, edit in edits.items():
                times[name].append(seconds(lambda edit=edit: watched({"*": edit})))  # type: ignore[misc]
        plain = min(times["watched"])
        rows += [(f"{name}, {tokens} tokens", 1000 * min(t), min(t) / plain) for name, t in times.items()]
    return rows


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model whose heads are measured")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    console = Console()
    title = f"importance of {LAYERS} × {HEADS} heads, {TOKENS} tokens, {given.threads} threads"
    table = Table(title=title)
    for name in ("method", "seconds", "times as fast"):
        table.add_column(name, justify="right")
    for name, taken, ratio in importances(1 if given.quick else 3, given.width):
        table.add_row(name, f"{taken:.2f}", f"{ratio:.2f}")
    console.print(table)
    table = Table(title="an edited call")
    for name in ("edit", "ms", "of a watched call"):
        table.add_column(name, justify="right")
    for name, taken, ratio in edited_calls(5 if given.quick else 30):
        table.add_row(name, f"{taken:.2f}", f"{ratio:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
