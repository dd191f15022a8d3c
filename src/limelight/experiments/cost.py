"""Cost: claims 18 to 20.

Time and memory of attention in streaming passes against the matrix that is stored, generation with a cache against
computing everything again, and the steps between two positions against a recurrent network's.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from limelight import models
from limelight.experiments.findings import CORRECTED, DIRECTION, REPRODUCED, Finding, Result, exponent, holds
from limelight.experiments.measuring import peak_bytes, seconds
from limelight.functional import attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Cost"
HEADS, WIDTH = 4, 64


def run(quick: bool = False, seed: int = 0) -> Result:
    """All of it, measured."""
    lengths = (512, 1024, 2048) if quick else (512, 1024, 2048, 4096)
    flash = _flash(lengths)
    cache = [_cache(n, seed) for n in ((32, 64) if quick else (32, 64, 128))]
    recurrent = [_recurrent(n) for n in (64, 128, 256, 512)]
    widths, kept = _widths(), _kept()
    findings = [*_of_flash(flash), _of_widths(widths), *_of_kept(kept), *_of_recurrence(recurrent), _of_cache(cache)]
    data = {"flash": flash, "widths": widths, "kept weights": kept, "cache": cache, "recurrent": recurrent}
    return Result("cost", TITLE, findings, data, __doc__ or "")


def _stored(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's own attention in the naive way, which makes the whole matrix."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _flash(lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    ways = {"streaming": attention, "stored": _stored}
    peaks = {name: peak_bytes(f, lengths, HEADS, WIDTH) for name, f in ways.items()}
    rows = []
    for i, n in enumerate(lengths):
        q, k, v = torch.randn(3, 1, HEADS, n, WIDTH)
        times = {f"{name} seconds": seconds(partial(f, q, k, v), 3) for name, f in ways.items()}
        rows.append({"tokens": n, **times, **{f"{name} bytes": peak[i] for name, peak in peaks.items()}})
    return rows


def _of_flash(rows: list[dict[str, Any]]) -> list[Finding]:
    sizes = [row["tokens"] for row in rows]
    last = rows[-1]
    time_power = exponent(sizes, [row["streaming seconds"] for row in rows])
    stored = exponent(sizes[-2:], [row["stored bytes"] for row in rows[-2:]])
    faster = last["stored seconds"] / last["streaming seconds"]
    share = last["streaming bytes"] / last["stored bytes"]
    return [
        Finding(18, "time grows as n to the power", 2.0, round(time_power, 2), holds(abs(time_power - 2) < 0.25)),
        Finding(
            18,
            "memory of stored weights grows as n to the power",
            2.0,
            round(stored, 2),
            holds(abs(stored - 2) < 0.35),
            "the two longest texts",
        ),
        Finding(
            *(19, "streaming is faster than the stored matrix, times", "2 to 4", round(faster, 1)),
            REPRODUCED if 2 <= faster <= 4 else DIRECTION if faster > 1 else CORRECTED,
            f"n = {last['tokens']}, against the naive attention of PyTorch on this machine",
        ),
        Finding(
            *(
                19,
                "its memory beyond the inputs, as a share of the stored matrix's",
                "n instead of n²",
                round(share, 4),
            ),
            *(holds(share < 0.1), f"n = {last['tokens']}"),
        ),
    ]


def _cache(n: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = models.build(
        {
            **{"model_type": "gpt2", "vocab_size": 256, "n_embd": 128, "n_head": 4, "n_layer": 2, "n_positions": 1024},
            **{"architectures": ["GPT2LMHeadModel"], "initializer_range": 0.2},
        }
    ).eval()
    ids = torch.randint(0, 256, (1, 64))
    options: dict[str, Any] = {"max_new_tokens": n, "stop": []}
    both = {
        name: models.generate(model, ids, cache=cache, **options)
        for name, cache in (("with", True), ("without", False))
    }
    return {
        "tokens": n,
        "with seconds": seconds(lambda: models.generate(model, ids, cache=True, **options), 3),
        "without seconds": seconds(lambda: models.generate(model, ids, cache=False, **options), 2),
        "same tokens": bool(torch.equal(both["with"], both["without"])),
    }


def _of_cache(rows: list[dict[str, Any]]) -> Finding:
    ratios = [round(row["without seconds"] / row["with seconds"], 1) for row in rows]
    same = all(row["same tokens"] for row in rows)
    return Finding(
        *(20, "without a cache everything is computed again: how many times as long", "above 1, and growing", ratios),
        holds(same and min(ratios) > 1.2 and ratios[-1] > ratios[0]),
        f"{', '.join(str(row['tokens']) for row in rows)} tokens after 64; the tokens are the same",
    )


def _widths() -> list[dict[str, Any]]:
    """The time of one head, by its width."""
    rows = []
    for d in (64, 128, 256, 512):
        q, k, v = torch.randn(3, 1, 1, 1024, d)
        rows.append({"width": d, "seconds": seconds(partial(attention, q, k, v))})
    return rows


def _of_widths(rows: list[dict[str, Any]]) -> Finding:
    power = exponent([row["width"] for row in rows], [row["seconds"] for row in rows])
    return Finding(18, "and as d to the power", 1.0, round(power, 2), holds(abs(power - 1) < 0.25))


def _kept() -> list[dict[str, Any]]:
    """Bytes of n × n tensors that stored attention keeps for its gradient, by tokens, heads and layers."""

    def kept(n: int, h: int, layers: int) -> int:
        found: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            if x.shape[-2:] == (n, n):
                found[x.data_ptr()] = x.nbytes
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            x = torch.randn(1, h, n, 16, requires_grad=True)
            for _ in range(layers):
                x = _stored(x, x, x)
        return sum(found.values())

    sizes = [(n, 4, 2) for n in (64, 128, 256)] + [(128, h, 2) for h in (1, 2, 4)] + [(128, 4, m) for m in (1, 2, 4)]
    of = ["n"] * 3 + ["h"] * 3 + ["L"] * 3
    return [
        {"power of": name, "tokens": n, "heads": h, "layers": m, "bytes": kept(n, h, m)}
        for name, (n, h, m) in zip(of, sizes, strict=True)
    ]


def _of_kept(rows: list[dict[str, Any]]) -> list[Finding]:
    powers = []
    for name, size in (("n", "tokens"), ("h", "heads"), ("L", "layers")):
        mine = [row for row in rows if row["power of"] == name]
        powers.append(round(exponent([row[size] for row in mine], [row["bytes"] for row in mine]), 2))
    near = all(abs(a - b) < 0.1 for a, b in zip(powers, (2, 1, 1), strict=True))
    note = "what PyTorch's naive attention keeps for its gradient"
    return [
        Finding(18, "memory of stored weights: powers of n, heads and layers", [2, 1, 1], powers, holds(near), note)
    ]


def _recurrent(n: int) -> dict[str, Any]:
    """Operations between the first token and the last output, in the gradient's graph, and what passes along it."""
    tokens = [torch.randn(1, WIDTH, requires_grad=True) for _ in range(n)]
    cell, h = torch.nn.RNNCell(WIDTH, WIDTH), torch.zeros(1, WIDTH)
    for token in tokens:
        h = cell(token, h)
    x = torch.stack(tokens, 1)[:, None]
    last = {"recurrent": h, "attention": attention(x, x, x)[:, 0, -1]}
    row: dict[str, Any] = {"tokens": n}
    for name, y in last.items():
        row[f"{name} path"], row[f"{name} steps"] = _paths(y, tokens[0])
        gradients = torch.cat(torch.autograd.grad(y.sum(), tokens)).norm(dim=-1)
        row[f"{name} gradient of the first token"] = float(gradients[0] / gradients.max())
    with torch.no_grad():
        rnn = torch.nn.RNN(WIDTH, WIDTH, batch_first=True)
        row["recurrent seconds"] = seconds(lambda: rnn(x[:, 0]))
        row["attention seconds"] = seconds(lambda: attention(x, x, x))
    return row


def _paths(y: torch.Tensor, x: torch.Tensor) -> tuple[int, int]:
    """The shortest and the longest way from y back to the leaf x, in operations."""
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
    sizes, last = [row["tokens"] for row in rows], rows[-1]
    findings = []
    for what, measure in (("path between the first and the last position", "path"), ("sequential steps", "steps")):
        powers = [
            round(exponent(sizes, [row[f"{name} {measure}"] for row in rows]), 2) for name in ("attention", "recurrent")
        ]
        counts = f"{last[f'attention {measure}']} and {last[f'recurrent {measure}']} operations"
        right = powers[0] == 0 and abs(powers[1] - 1) < 0.05
        findings.append(
            Finding(
                *(18, f"{what}: powers of n, attention and a recurrent network", [0, 1], powers, holds(right)),
                f"{counts} in the graph of the gradient, for {last['tokens']} tokens",
            )
        )
    reach = [last[f"{name} gradient of the first token"] for name in ("attention", "recurrent")]
    findings.append(
        Finding(
            *(18, "so the first token still reaches the last: its share of the largest gradient", "attention more"),
            *([f"{x:.1e}" for x in reach], holds(reach[0] > 100 * reach[1])),
            f"attention and a recurrent network, {last['tokens']} tokens",
        )
    )
    return findings


def draw(result: Result) -> Figure:
    """Time and memory against the length."""
    from limelight.experiments.figures import COLOURS, lengths_axis, new_figure

    figure, axes = new_figure(1, 3, width=3.6)
    rows = result.data["flash"]
    sizes = [row["tokens"] for row in rows]
    for axis, measure, factor, unit in (
        (axes[0], "seconds", 1e3, "milliseconds"),
        (axes[1], "bytes", 2**-20, "MiB beyond the inputs"),
    ):
        for name, style, colour in (("streaming", "-o", COLOURS[0]), ("stored", "--s", COLOURS[1])):
            axis.plot(sizes, [factor * row[f"{name} {measure}"] for row in rows], style, color=colour, label=name)
        axis.set(yscale="log", ylabel=unit)
        lengths_axis(axis, sizes, "tokens")
        axis.legend()
    axes[0].set_title("Time of attention")
    axes[1].set_title("Memory of attention")
    cache = result.data["cache"]
    for name, style, colour in (("with", "-o", COLOURS[0]), ("without", "--s", COLOURS[1])):
        axes[2].plot(
            [row["tokens"] for row in cache],
            [row[f"{name} seconds"] for row in cache],
            style,
            color=colour,
            label=f"{name} a cache",
        )
    axes[2].set(xlabel="new tokens", ylabel="seconds", title="Generation", ylim=(0, None))
    axes[2].legend()
    return figure
