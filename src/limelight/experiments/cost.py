"""Growth of time, memory, paths and steps with the length: claim 18."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limelight import attention, trace
from limelight.experiments.findings import Finding, Result, exponent, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.measuring import Ratio, judge_ratio, operations, time_ratio
from limelight.experiments.stored import stored_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Cost",
    equation="operations = 4 n² d;  stored weights = n² h L;  path = O(1), an RNN's O(n)",
    method=(
        "The operations of the equation as it is written are counted for growing lengths and widths, and the bytes of "
        "n × n tensors that PyTorch keeps for the gradient, for growing lengths, heads and layers. Paths and steps are "
        "counted in the graph of the gradient, from the last output back to the first token. The time of limelight's "
        "attention is measured as a ratio: twice the length against the length, and twice the width against the width."
    ),
    code="""\
import torch, limelight as ll
from torch.utils.flop_counter import FlopCounterMode
for n in (64, 128, 256):
    q, k, v = torch.randn(3, 1, 4, n, 32)
    with FlopCounterMode(display=False) as counter:
        ll.trace(q, k, v)
    print(n, counter.get_total_flops())  # four times as many for twice the tokens
""",
)
HEADS, WIDTH = 4, 64


def run(quick: bool = False, seed: int = 0) -> Result:
    """Count operations, bytes and paths, and measure ratios of times."""
    torch.manual_seed(seed)
    by_length = [{"tokens": n, "operations": _operations(n, WIDTH)} for n in (64, 128, 256, 512)]
    by_width = [{"width": d, "operations": _operations(128, d)} for d in (32, 64, 128, 256)]
    kept = _kept()
    paths = [_paths(n) for n in ((32, 64, 128) if quick else (64, 128, 256, 512))]
    n = 1024 if quick else 2048
    longer = time_ratio(_call(2 * n, WIDTH), _call(n, WIDTH))
    wider = time_ratio(_call(1024, 256), _call(1024, 128))
    findings = [
        _counted(by_length, by_width),
        _timed(f"time: {2 * n} against {n} tokens, as a power of n", longer, 2.0, 0.25),
        _timed("time: width 256 against 128, as a power of d", wider, 1.0, 0.3),
        _judge_kept(kept),
        *_judge_paths(paths),
    ]
    last = paths[-1]
    takeaway = (
        f"Twice the tokens are {by_length[1]['operations'] / by_length[0]['operations']:.2g} times the operations; "
        f"the way from the last output to the first of {last['tokens']} tokens is {last['attention path']} operations "
        f"in attention and {last['recurrent path']} in a recurrent network."
    )
    data = {"operations by length": by_length, "operations by width": by_width, "kept weights": kept, "paths": paths}
    return Result("cost", takeaway, findings, data)


def _call(n: int, d: int) -> Any:
    q, k, v = torch.randn(3, 1, HEADS if d == WIDTH else 1, n, d)
    return partial(attention, q, k, v)


def _operations(n: int, d: int) -> int:
    q, k, v = torch.randn(3, 1, 1, n, d)
    return operations(lambda: trace(q, k, v))


def _power(rows: Sequence[dict[str, Any]], size: str, measure: str) -> float:
    return round(exponent([row[size] for row in rows], [row[measure] for row in rows]), 2)


def _counted(by_length: list[dict[str, Any]], by_width: list[dict[str, Any]]) -> Finding:
    powers = [_power(by_length, "tokens", "operations"), _power(by_width, "width", "operations")]
    exact = all(row["operations"] == 4 * row["tokens"] ** 2 * WIDTH for row in by_length)
    return Finding(
        claim=18,
        what="counted operations: powers of n and d",
        theirs=[2, 1],
        measured=powers,
        verdict=holds(powers == [2, 1] and exact),
        note="4 n² d of one head: q kᵀ and weights times v, a multiplication and an addition each",
    )


def _timed(what: str, ratio: Ratio, power: float, within: float) -> Finding:
    low, high = 2 ** (power - within), 2 ** (power + within)
    return Finding(
        claim=18,
        what=what,
        theirs=power,
        measured=round(ratio.power, 2),
        verdict=judge_ratio(ratio, low, high, same_way=abs(ratio.power - power) < 0.5),
        note=f"times as long: {ratio}, {ratio.rounds} rounds in turns; reproduced within {within:g}",
    )


def _kept() -> list[dict[str, Any]]:
    """Count the bytes of n × n tensors that stored attention keeps for its gradient, by tokens, heads and layers."""
    sizes = {
        "tokens": [(n, 4, 2) for n in (64, 128, 256)],
        "heads": [(128, h, 2) for h in (1, 2, 4)],
        "layers": [(128, 4, layers) for layers in (1, 2, 4)],
    }
    return [
        {"varied": name, "tokens": n, "heads": heads, "layers": layers, "bytes": _kept_bytes(n, heads, layers)}
        for name, every in sizes.items()
        for n, heads, layers in every
    ]


def _kept_bytes(n: int, h: int, layers: int) -> int:
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


def _judge_kept(rows: list[dict[str, Any]]) -> Finding:
    names = ("tokens", "heads", "layers")
    powers = [_power([row for row in rows if row["varied"] == name], name, "bytes") for name in names]
    near = all(abs(a - b) < 0.1 for a, b in zip(powers, (2, 1, 1), strict=True))
    note = "what PyTorch's stored attention keeps for its gradient"
    return Finding(18, "bytes of stored weights: powers of n, h and L", [2, 1, 1], powers, holds(near), note)


def _paths(n: int) -> dict[str, Any]:
    """Count the operations between the first token and the last output, in attention and in a recurrent network."""
    tokens = [torch.randn(1, WIDTH, requires_grad=True) for _ in range(n)]
    cell, h = nn.RNNCell(WIDTH, WIDTH), torch.zeros(1, WIDTH)
    for token in tokens:
        h = cell(token, h)
    x = torch.stack(tokens, 1)[:, None]
    output = trace(x, x, x).output
    assert output is not None
    row: dict[str, Any] = {"tokens": n}
    for name, y in (("recurrent", h), ("attention", output[:, 0, -1])):
        row[f"{name} path"], row[f"{name} steps"] = shortest_and_longest_path(y, tokens[0])
    return row


def shortest_and_longest_path(y: Tensor, x: Tensor) -> tuple[int, int]:
    """Count the fewest and the most operations on the way from y back to the leaf x, in the graph of the gradient."""
    shortest: dict[Any, float] = {}
    longest: dict[Any, float] = {}
    waiting: list[tuple[Any, bool]] = [(y.grad_fn, False)]
    while waiting:  # depth first: an operation is counted once all of its inputs are
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


def _judge_paths(rows: list[dict[str, Any]]) -> list[Finding]:
    findings, last = [], rows[-1]
    for what, measure in (("path between the first and the last position", "path"), ("sequential steps", "steps")):
        powers = [_power(rows, "tokens", f"{name} {measure}") for name in ("attention", "recurrent")]
        findings.append(
            Finding(
                claim=18,
                what=f"{what}: powers of n, attention and a recurrent network",
                theirs=[0, 1],
                measured=powers,
                verdict=holds(abs(powers[0]) < 0.05 and abs(powers[1] - 1) < 0.05),
                note=(
                    f"{last[f'attention {measure}']} and {last[f'recurrent {measure}']} operations on matrices for "
                    f"{last['tokens']} tokens, in the graph of the gradient"
                ),
            )
        )
    return findings


def draw(result: Result) -> Figure:
    """Draw the operations, and the way to the first token, against the length."""
    from limelight.experiments.figures import lengths_axis, new_figure, series

    figure, (upper, lower) = new_figure(2, 1, height=2.7)
    rows, paths = result.data["operations by length"], result.data["paths"]
    sizes = [row["tokens"] for row in rows]
    series(upper, sizes, [row["operations"] / 1e6 for row in rows], 0, "4 n² d")
    upper.set(yscale="log", ylabel="million operations", title=f"Counted operations, width {WIDTH}")
    lengths_axis(upper, sizes, "tokens")
    sizes = [row["tokens"] for row in paths]
    for n, name in enumerate(("attention", "recurrent")):
        series(lower, sizes, [row[f"{name} path"] for row in paths], n, name)
    lower.set(yscale="log", ylabel="operations", title="Way from the last output to the first token")
    lengths_axis(lower, sizes, "tokens")
    lower.legend(loc="center right")
    return figure
