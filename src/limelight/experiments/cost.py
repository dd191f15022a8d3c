"""Cost: claims 18 to 21.

Time and memory of attention in streaming passes against the matrix that is stored, generation with a cache against
computing everything again, and the steps between two positions against a recurrent network's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from limelight import models
from limelight.experiments.findings import DIRECTION, REPRODUCED, Finding, Result, exponent, holds
from limelight.experiments.measuring import peak_bytes
from limelight.functional import attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Cost"
HEADS, WIDTH = 4, 64


def run(quick: bool = False, seed: int = 0) -> Result:
    """All of it, measured."""
    lengths = (512, 1024, 2048) if quick else (512, 1024, 2048, 4096)
    flash = [_flash(n) for n in lengths]
    cache = [_cache(n, seed) for n in ((32, 64) if quick else (32, 64, 128))]
    recurrent = [_recurrent(n) for n in (64, 128, 256, 512)]
    findings = [*_of_flash(flash), _of_cache(cache), *_of_recurrence(recurrent)]
    return Result("cost", TITLE, findings, {"flash": flash, "cache": cache, "recurrent": recurrent}, __doc__ or "")


def _best(f: Callable[[], Any], times: int = 5) -> float:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        f()
        found.append(time.perf_counter() - begin)
    return min(found)


def _stored(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's own attention in the naive way, which makes the whole matrix."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def _flash(n: int) -> dict[str, Any]:
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH)
    made = (
        f"from limelight.experiments import cost; q, k, v = torch.randn(3, 1, {HEADS}, {n}, {WIDTH})\n"
        "y = torch.empty_like(q); before = peak(); y = "
    )
    return {
        "tokens": n,
        "streaming seconds": _best(lambda: attention(q, k, v)),
        "stored seconds": _best(lambda: _stored(q, k, v), 3),
        "streaming bytes": max(peak_bytes(made + "limelight.attention(q, k, v); after = peak()"), 1),
        "stored bytes": max(peak_bytes(made + "cost._stored(q, k, v); after = peak()"), 1),
    }


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
            REPRODUCED if 2 <= faster <= 4 else DIRECTION if faster > 1 else "corrected",
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
        "with seconds": _best(lambda: models.generate(model, ids, cache=True, **options), 3),
        "without seconds": _best(lambda: models.generate(model, ids, cache=False, **options), 2),
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


def _recurrent(n: int) -> dict[str, Any]:
    """How many steps lie between the first and the last position, counted in the graph of the gradient."""
    x = torch.randn(1, n, WIDTH, requires_grad=True)
    cell = torch.nn.RNNCell(WIDTH, WIDTH)
    h = torch.zeros(1, WIDTH)
    steps = 0
    for t in range(n):
        h = cell(x[:, t], h)
        steps += 1
    y = attention(x[:, None], x[:, None], x[:, None])[:, 0, -1]
    reached = {}
    for name, out in (("recurrent", h), ("attention", y)):
        (g,) = torch.autograd.grad(out.sum(), x, retain_graph=True)
        reached[name] = float(g[0, 0].norm() / g[0].norm(dim=-1).max())
    with torch.no_grad():
        rnn = torch.nn.RNN(WIDTH, WIDTH, batch_first=True)
        seconds = {
            "recurrent": _best(lambda: rnn(x)),
            "attention": _best(lambda: attention(x[:, None], x[:, None], x[:, None])),
        }
    return {
        **{"tokens": n, "recurrent steps": steps, "attention steps": 1},
        **{f"{name} gradient of the first token": value for name, value in reached.items()},
        **{f"{name} seconds": value for name, value in seconds.items()},
    }


def _of_recurrence(rows: list[dict[str, Any]]) -> list[Finding]:
    sizes = [row["tokens"] for row in rows]
    steps = exponent(sizes, [row["recurrent steps"] for row in rows])
    last = rows[-1]
    reach = [last[f"{name} gradient of the first token"] for name in ("attention", "recurrent")]
    return [
        Finding(
            *(18, "sequential steps and path length: attention O(1), a recurrent network O(n)", [0, 1]),
            *(
                [round(exponent(sizes, [row["attention steps"] for row in rows]), 2), round(steps, 2)],
                holds(abs(steps - 1) < 0.05),
            ),
            "powers of n",
        ),
        Finding(
            *(18, "so the first token still reaches the last: its share of the largest gradient", "attention more"),
            *([round(reach[0], 4), f"{reach[1]:.1e}"], holds(reach[0] > 100 * reach[1])),
            f"attention and a recurrent network, {last['tokens']} tokens",
        ),
    ]


def draw(result: Result) -> Figure:
    """Time and memory against the length."""
    from limelight.experiments.figures import COLOURS, new_figure

    figure, axes = new_figure(1, 3, width=3.6)
    rows = result.data["flash"]
    sizes = [row["tokens"] for row in rows]
    for axis, measure, factor, unit in (
        (axes[0], "seconds", 1e3, "milliseconds"),
        (axes[1], "bytes", 2**-20, "MiB beyond the inputs"),
    ):
        for name, style, colour in (("streaming", "-o", COLOURS[0]), ("stored", "--s", COLOURS[1])):
            axis.plot(sizes, [factor * row[f"{name} {measure}"] for row in rows], style, color=colour, label=name)
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=unit)
        axis.set_xticks(sizes, [str(n) for n in sizes])
        axis.legend()
    axes[0].set_title("time")
    axes[1].set_title("memory")
    cache = result.data["cache"]
    for name, style, colour in (("with", "-o", COLOURS[0]), ("without", "--s", COLOURS[1])):
        axes[2].plot(
            [row["tokens"] for row in cache],
            [row[f"{name} seconds"] for row in cache],
            style,
            color=colour,
            label=f"{name} a cache",
        )
    axes[2].set(xlabel="new tokens", ylabel="seconds", title="generation", ylim=(0, None))
    axes[2].legend()
    return figure
