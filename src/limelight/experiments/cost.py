"""Cost: claims 18 to 20.

Texts say that attention takes O(n² d) time and, where its weights are stored, O(n² h L) memory for h heads and L
layers; that the path between two positions and the number of sequential steps are O(1), against O(n) for a recurrent
network; that flash attention needs O(n) memory instead of O(n²) and is 2 to 4 times as fast as the naive way; and that
a KV cache computes q only for the new token and reuses all earlier k and v. All of it is measured: powers are fitted,
paths are counted in the graph of the gradient of the equation as it is written, and what a cache saves by the tokens
that go through the projections.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import models
from limelight.core import reference
from limelight.experiments.findings import Finding, Result, exponent, holds
from limelight.experiments.measuring import peak_bytes, seconds
from limelight.experiments.naive import stored_attention
from limelight.functional import attention
from limelight.nn import MultiHeadAttention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Cost"
HEADS, WIDTH = 4, 64
WAYS = {"streaming": attention, "stored": stored_attention}


def run(quick: bool = False, seed: int = 0) -> Result:
    """All of it."""
    torch.manual_seed(seed)
    flash = _flash((1024, 2048) if quick else (1024, 2048, 4096))
    cache = [_cache(n) for n in ((32, 64) if quick else (32, 64, 128))]
    recurrent = [_recurrent(n) for n in (64, 128, 256, 512)]
    widths, kept = _widths(), _kept()
    findings = [
        *(_of_time(flash), _of_widths(widths), _of_kept(kept), *_of_recurrence(recurrent)),
        *(*_of_flash(flash), *_of_cache(cache)),
    ]
    data = {"flash": flash, "widths": widths, "kept weights": kept, "recurrent": recurrent, "cache": cache}
    return Result("cost", TITLE, findings, data, __doc__ or "")


def _flash(lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    peaks = {name: peak_bytes(f, lengths, HEADS, WIDTH) for name, f in WAYS.items()}
    rows = []
    for i, n in enumerate(lengths):
        q, k, v = torch.randn(3, 1, HEADS, n, WIDTH)
        times = {f"{name} seconds": seconds(partial(f, q, k, v)) for name, f in WAYS.items()}
        rows.append({"tokens": n, **times, **{f"{name} bytes": peak[i] for name, peak in peaks.items()}})
    return rows


def _power(rows: list[dict[str, Any]], size: str, measure: str) -> float:
    return round(exponent([row[size] for row in rows], [row[measure] for row in rows]), 2)


def _of_time(rows: list[dict[str, Any]]) -> Finding:
    power = _power(rows, "tokens", "streaming seconds")
    note = f"from {rows[0]['tokens']} to {rows[-1]['tokens']} tokens"
    return Finding(
        18, "time grows as n to the power", 2.0, power, holds(abs(power - 2) < 0.25, in_part=power > 1.5), note
    )


def _of_flash(rows: list[dict[str, Any]]) -> list[Finding]:
    faster = [round(row["stored seconds"] / row["streaming seconds"], 1) for row in rows]
    streaming, stored = (_power(rows, "tokens", f"{name} bytes") for name in WAYS)
    right = abs(streaming - 1) < 0.25 and abs(stored - 2) < 0.35
    lengths = ", ".join(str(row["tokens"]) for row in rows)
    return [
        Finding(
            *(19, f"streaming against the naive way, times as fast, n = {lengths}", "2 to 4", faster),
            holds(all(2 <= x <= 4 for x in faster), in_part=min(faster) > 1),
            "on this machine, against PyTorch's own naive attention",
        ),
        Finding(
            *(19, "memory beyond the inputs: powers of n, streaming and naive", [1, 2], [streaming, stored]),
            *(holds(right, in_part=streaming < 1.5 < stored), "with the output"),
        ),
    ]


def _widths() -> list[dict[str, Any]]:
    """The time of one head, by its width."""
    rows = []
    for d in (64, 128, 256, 512):
        q, k, v = torch.randn(3, 1, 1, 1024, d)
        rows.append({"width": d, "seconds": seconds(partial(attention, q, k, v))})
    return rows


def _of_widths(rows: list[dict[str, Any]]) -> Finding:
    power = _power(rows, "width", "seconds")
    note = "from 64 to 512; a part of the work does not depend on d"
    return Finding(
        18, "and as d to the power", 1.0, power, holds(abs(power - 1) < 0.25, in_part=0.5 < power < 1.5), note
    )


def _kept() -> list[dict[str, Any]]:
    """Bytes of n × n tensors that stored attention keeps for its gradient, by tokens, heads and layers."""

    def kept(n: int, h: int, layers: int) -> int:
        found: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            if x.shape[-2:] == (n, n):
                found[x.data_ptr()] = x.nbytes
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            x = torch.randn(1, h, n, 16, requires_grad=True)
            for _ in range(layers):
                x = stored_attention(x, x, x)
        return sum(found.values())

    sizes = {
        "tokens": [(n, 4, 2) for n in (64, 128, 256)],
        "heads": [(128, h, 2) for h in (1, 2, 4)],
        "layers": [(128, 4, m) for m in (1, 2, 4)],
    }
    return [
        {"power of": name, "tokens": n, "heads": h, "layers": m, "bytes": kept(n, h, m)}
        for name, every in sizes.items()
        for n, h, m in every
    ]


def _of_kept(rows: list[dict[str, Any]]) -> Finding:
    names = ("tokens", "heads", "layers")
    powers = [_power([row for row in rows if row["power of"] == name], name, "bytes") for name in names]
    near = all(abs(a - b) < 0.1 for a, b in zip(powers, (2, 1, 1), strict=True))
    note = "what PyTorch's naive attention keeps for its gradient"
    return Finding(18, "memory of stored weights: powers of n, h and L", [2, 1, 1], powers, holds(near), note)


def _recurrent(n: int) -> dict[str, Any]:
    """Operations between the first token and the last output, and the time of a pass."""
    tokens = [torch.randn(1, WIDTH, requires_grad=True) for _ in range(n)]
    cell, h = nn.RNNCell(WIDTH, WIDTH), torch.zeros(1, WIDTH)
    for token in tokens:
        h = cell(token, h)
    x = torch.stack(tokens, 1)[:, None]
    last = {"recurrent": h, "attention": reference.attention(x, x, x)[:, 0, -1]}
    row: dict[str, Any] = {"tokens": n}
    for name, y in last.items():
        row[f"{name} path"], row[f"{name} steps"] = _paths(y, tokens[0])
    with torch.no_grad():
        rnn = nn.RNN(WIDTH, WIDTH, batch_first=True)
        row["recurrent seconds"] = seconds(partial(rnn, x[:, 0]))
        row["attention seconds"] = seconds(partial(attention, x, x, x))
    return row


def _paths(y: Tensor, x: Tensor) -> tuple[int, int]:
    """The shortest and the longest way from y back to the leaf x, in operations on whole matrices."""
    shortest: dict[Any, float] = {}
    longest: dict[Any, float] = {}
    waiting: list[tuple[Any, bool]] = [(y.grad_fn, False)]
    while waiting:  # depth first: an operation is counted once all that it came from is
        node, inputs_known = waiting.pop()
        before = [other for other, _ in node.next_functions if other is not None]
        if not inputs_known and node not in shortest:
            waiting += [(node, True), *((other, False) for other in before)]
        elif inputs_known and getattr(node, "variable", None) is x:
            shortest[node] = longest[node] = 0
        elif inputs_known:
            shortest[node] = 1 + min((shortest[other] for other in before), default=math.inf)
            longest[node] = 1 + max((longest[other] for other in before), default=-math.inf)
    return int(shortest[y.grad_fn]), int(longest[y.grad_fn])


def _of_recurrence(rows: list[dict[str, Any]]) -> list[Finding]:
    findings, last = [], rows[-1]
    for what, measure in (("path between the first and the last position", "path"), ("sequential steps", "steps")):
        powers = [_power(rows, "tokens", f"{name} {measure}") for name in ("attention", "recurrent")]
        counts = f"{last[f'attention {measure}']} and {last[f'recurrent {measure}']} operations on matrices"
        right = abs(powers[0]) < 0.05 and abs(powers[1] - 1) < 0.05
        findings.append(
            Finding(
                *(18, f"{what}: powers of n, attention and a recurrent network", [0, 1], powers, holds(right)),
                f"{counts} for {last['tokens']} tokens, in the graph of the gradient",
            )
        )
    return findings


def _cache(n: int) -> dict[str, Any]:
    """Generation of n tokens with and without a cache: times, tokens, and what goes through the projections."""
    model = models.build(
        {
            **{"model_type": "gpt2", "vocab_size": 256, "n_embd": 128, "n_head": 4, "n_layer": 2, "n_positions": 1024},
            **{"architectures": ["GPT2LMHeadModel"], "initializer_range": 0.2},
        }
    ).eval()
    ids = torch.randint(0, 256, (1, 64))

    def written(cached: bool) -> Tensor:
        return models.generate(model, ids, cache=cached, max_new_tokens=n, stop=[])

    row: dict[str, Any] = {"tokens": n, "same tokens": torch.equal(written(True), written(False))}
    for name, cached in (("with", True), ("without", False)):
        row[f"{name} rows"] = _rows_projected(model, partial(written, cached))[-1]
        row[f"{name} seconds"] = seconds(partial(written, cached), 3)
    return row


def _rows_projected(model: nn.Module, call: Any) -> list[int]:
    """How many tokens the first layer makes queries of, step by step."""
    layer = next(module for module in model.modules() if isinstance(module, MultiHeadAttention))
    rows: list[int] = []
    handle = layer.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[1]))
    try:
        call()
    finally:
        handle.remove()
    return rows


def _of_cache(rows: list[dict[str, Any]]) -> list[Finding]:
    last = rows[-1]
    ratios = [round(row["without seconds"] / row["with seconds"], 1) for row in rows]
    counts, wanted = [last["with rows"], last["without rows"]], [1, 64 + last["tokens"] - 1]
    same = all(row["same tokens"] for row in rows)
    lengths = ", ".join(str(row["tokens"]) for row in rows)
    return [
        Finding(
            *(20, "tokens that q, k and v are computed for in the last step: with a cache, without", wanted, counts),
            *(holds(counts == wanted), f"the {last['tokens']}th token after 64"),
        ),
        Finding(20, "and what is written", "the same", "the same" if same else "not the same", holds(same)),
        Finding(
            *(20, f"so without a cache it takes longer: times, for {lengths} tokens after 64", "above 1", ratios),
            *(holds(min(ratios) > 1, in_part=counts == wanted and same), "of a small model, on this machine"),
        ),
    ]


def draw(result: Result) -> Figure:
    """Time and memory against the length, generation, and the path to the first token."""
    from limelight.experiments.figures import COLOURS, lengths_axis, new_figure

    figure, axes = new_figure(2, 2, width=5.0, height=3.2)
    flash, cache, recurrent = (result.data[name] for name in ("flash", "cache", "recurrent"))
    looks = (("-o", COLOURS[0]), ("--s", COLOURS[1]))
    panels = (
        (axes[0, 0], flash, "{} seconds", ("streaming", "stored"), 1e3, "milliseconds", "Time of attention"),
        (
            axes[0, 1],
            flash,
            "{} bytes",
            ("streaming", "stored"),
            2**-20,
            "MiB beyond the inputs",
            "Memory of attention",
        ),
        (axes[1, 0], cache, "{} seconds", ("with", "without"), 1.0, "seconds", "Generation with and without a cache"),
        (axes[1, 1], recurrent, "{} path", ("attention", "recurrent"), 1.0, "operations", "Way to the first token"),
    )
    for axis, rows, measure, names, factor, unit, title in panels:
        sizes = [row["tokens"] for row in rows]
        for name, (style, colour) in zip(names, looks, strict=True):
            values = [row[measure.format(name)] for row in rows]
            label = f"{name}: n^{exponent(sizes, values):.2f}"
            axis.plot(sizes, [factor * x for x in values], style, color=colour, label=label)
        axis.set(yscale="log", ylabel=unit, title=title)
        lengths_axis(axis, sizes, "new tokens" if rows is cache else "tokens")
        axis.legend()
    return figure
