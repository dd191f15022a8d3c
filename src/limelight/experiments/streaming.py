"""Streaming against stored attention, in bytes, operations and time: claims 19 and 42."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from limelight import attention
from limelight.experiments.findings import Finding, Result, growth_exponent, holds
from limelight.experiments.lesson import Lesson
from limelight.experiments.measuring import Ratio, judge_ratio, operations, peak_bytes, time_ratio
from limelight.experiments.stored import stored_attention

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LESSON = Lesson(
    title="Streaming",
    equation="m ← max(m, sᵢⱼ),  ℓ ← Σ exp(sᵢⱼ − m),  y ← Σ exp(sᵢⱼ − m) vⱼ, rescaled when m grows",
    method=(
        "Attention that streams over the keys is compared with PyTorch's attention that stores its weights: the "
        "memory beyond the inputs in a process of its own, the counted operations of both, forward and with the "
        "gradient (the streaming one in plain PyTorch, so that they can be counted), and the time as a ratio, "
        "measured in turns on one thread until it is steady."
    ),
    code="""\
import torch, limelight as ll
q, k, v = torch.randn(3, 1, 2, 300, 16)
m, total, y = torch.full((1, 2, 300, 1), -torch.inf), 0.0, 0.0
for some in range(0, 300, 64):                    # 64 keys at a time
    s = q @ k[:, :, some : some + 64].mT / 4
    new = torch.maximum(m, s.amax(-1, keepdim=True))
    p, shrink = (s - new).exp(), (m - new).exp()
    total, y, m = shrink * total + p.sum(-1, keepdim=True), shrink * y + p @ v[:, :, some : some + 64], new
print((y / total - ll.attention(q, k, v)).abs().max())
""",
)
HEADS, WIDTH = 4, 64
LENGTHS = {"streaming": (2048, 4096, 8192), "stored": (1024, 2048, 4096)}  # 8192 stored would take 2 GiB
JUDGED_LENGTH = 2048  # tokens
WAYS: dict[str, Callable[..., Tensor]] = {"streaming": attention, "stored": stored_attention}


def run(quick: bool = False, seed: int = 0) -> Result:
    """Measure memory, count operations, and take ratios of times."""
    torch.manual_seed(seed)
    peaks = {name: peak_bytes(f, LENGTHS[name], HEADS, WIDTH) for name, f in WAYS.items()}
    ratios = {n: _time_ratio(n) for n in (LENGTHS["stored"][:2] if quick else LENGTHS["stored"])}
    memory: list[dict[str, Any]] = [
        {"way": name, "tokens": n, "bytes": peak}
        for name, found in peaks.items()
        for n, peak in zip(LENGTHS[name], found, strict=True)
    ]
    at_4096 = {row["way"]: row["bytes"] for row in memory if row["tokens"] == 4096}
    counted = _counted_operations()
    times = [{"tokens": n, "stored / streaming": x.median, "low": x.low, "high": x.high} for n, x in ratios.items()]
    powers = [growth_exponent(LENGTHS[name], peaks[name]) for name in WAYS]
    findings = [_judge_memory(powers), _judge_speed(ratios), *_judge_trade(counted, at_4096, ratios)]
    takeaway = (
        f"At 4096 tokens streaming needs {at_4096['streaming'] / 2**20:.0f} MiB beyond its inputs where storing needs "
        f"{at_4096['stored'] / 2**20:.0f}, for the same operations forward and "
        f"{counted[1]['streaming'] / counted[1]['stored']:.2f} times as many with the gradient."
    )
    return Result("streaming", takeaway, findings, {"memory": memory, "operations": counted, "times": times})


def _time_ratio(n: int) -> Ratio:
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH)
    return time_ratio(partial(stored_attention, q, k, v), partial(attention, q, k, v))


class RecomputedAttention(torch.autograd.Function):
    """Streaming attention in plain PyTorch, to count its operations: 64 queries at a time, no weight is kept.

    The gradient computes the weights P again from the kept log-sum-exp (Dao et al. 2022, algorithm 4):
    dV = Pᵀ dY,  dS = P ∘ (dY Vᵀ − rowsum(dY ∘ Y)),  dQ = dS K / √d,  dK = dSᵀ Q / √d.
    """

    ROWS = 64

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale, parts = q.shape[-1] ** -0.5, []
        for rows in q.split(RecomputedAttention.ROWS, -2):
            s = scale * rows @ k.mT
            lse = s.logsumexp(-1, keepdim=True)
            parts.append(((s - lse).exp() @ v, lse))
        y, lse = (torch.cat(x, -2) for x in zip(*parts, strict=True))
        ctx.save_for_backward(q, k, v, y, lse)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, y, lse = ctx.saved_tensors
        scale, dq, dk, dv = q.shape[-1] ** -0.5, [], torch.zeros_like(k), torch.zeros_like(v)
        split = (x.split(RecomputedAttention.ROWS, -2) for x in (q, y, lse, dy))
        for q_rows, y_rows, lse_rows, dy_rows in zip(*split, strict=True):
            P = (scale * q_rows @ k.mT - lse_rows).exp()
            dS = P * (dy_rows @ v.mT - (dy_rows * y_rows).sum(-1, keepdim=True))
            dq.append(scale * dS @ k)
            dk += scale * dS.mT @ q_rows
            dv += P.mT @ dy_rows
        return torch.cat(dq, -2), dk, dv


def _counted_operations(n: int = 512) -> list[dict[str, Any]]:
    """Count the operations of both ways, forward and with the gradient."""
    ways: dict[str, Callable[..., Tensor]] = {"streaming": RecomputedAttention.apply, "stored": stored_attention}

    def forward(f: Callable[..., Tensor]) -> None:
        f(*torch.randn(3, 1, 1, n, WIDTH))

    def with_gradient(f: Callable[..., Tensor]) -> None:
        q, k, v = (torch.randn(1, 1, n, WIDTH, requires_grad=True) for _ in range(3))
        f(q, k, v).sum().backward()

    return [
        {"pass": name} | {way: operations(partial(measured, f)) for way, f in ways.items()}
        for name, measured in (("forward", forward), ("with the gradient", with_gradient))
    ]


def _judge_memory(powers: list[float]) -> Finding:
    right = abs(powers[0] - 1) < 0.25 and abs(powers[1] - 2) < 0.35
    return Finding(
        claim=19,
        what="memory beyond the inputs: powers of n, streaming and stored",
        theirs=[1, 2],
        measured=[round(x, 2) for x in powers],
        verdict=holds(right, in_part=powers[0] < 1.5 < powers[1]),
        note="of the part that grows, with the output; in a process of its own",
    )


def _judge_speed(ratios: dict[int, Ratio]) -> Finding:
    """Judge the factor at one length, by the texts' range widened by a quarter: it depends on the machine."""
    low, high = 2.0 / 1.25, 4.0 * 1.25
    judged = ratios[JUDGED_LENGTH]
    return Finding(
        claim=19,
        what=f"stored against streaming, times as long, n = {', '.join(map(str, ratios))}",
        theirs="2 to 4",
        measured=[round(x.median, 1) for x in ratios.values()],
        verdict=judge_ratio(judged, low, high, same_way=judged.low > 1),
        note=(
            f"quartiles {', '.join(f'{x.low:.1f} to {x.high:.1f}' for x in ratios.values())}; on one thread of this "
            f"machine; the factor grows with n; judged at n = {JUDGED_LENGTH} alone: reproduced where the quartiles "
            f"meet {low:g} to {high:g}, which is 2 to 4 widened by a quarter"
        ),
    )


def _judge_trade(counted: list[dict[str, Any]], at_4096: dict[str, int], ratios: dict[int, Ratio]) -> list[Finding]:
    more = [round(row["streaming"] / row["stored"], 3) for row in counted]
    less = at_4096["stored"] / at_4096["streaming"]
    faster = max(ratios.values(), key=lambda x: x.low)
    return [
        Finding(
            claim=42,
            what="operations, streaming / stored: forward, with the gradient",
            theirs="above 1",
            measured=more,
            verdict=holds(min(more) > 1.01, in_part=max(more) > 1.01),
            note=(
                f"forward it computes the same; the gradient computes the scores again; memory is {less:.0f} times less"
            ),
        ),
        Finding(
            claim=42,
            what="so it takes longer: time, streaming / stored",
            theirs="above 1",
            measured=round(1 / faster.median, 2),
            verdict=judge_ratio(faster, 0.0, 1.0, same_way=False),
            note=(
                "what is computed again costs less than carrying an n × n matrix to memory and back: nothing is traded"
            ),
        ),
    ]


def draw(result: Result) -> Figure:
    """Draw the memory of both ways against the length."""
    from limelight.experiments.figures import lengths_axis, new_figure, series

    figure, axis = new_figure(height=3.3)
    for n, name in enumerate(WAYS):
        rows = [row for row in result.data["memory"] if row["way"] == name]
        label = f"{name}: n^{growth_exponent(LENGTHS[name], [row['bytes'] for row in rows]):.2f}"
        series(axis, LENGTHS[name], [row["bytes"] / 2**20 for row in rows], n, label)
    axis.set(yscale="log", ylabel="MiB beyond the inputs", title=f"Memory of attention, {HEADS} heads of width {WIDTH}")
    lengths_axis(axis, (1024, 2048, 4096, 8192), "tokens")
    axis.legend(loc="center right")
    return figure
