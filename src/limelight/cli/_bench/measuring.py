"""Times of several contestants in turns, repeated until their ratio is steady."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import limelight as ll
from limelight import backends
from limelight.cli._bench import peers
from limelight.cli._bench.cases import Case
from limelight.cli._bench.machine import Occupancy

Call = Callable[[], object]
STEADY = 0.03  # two rounds whose ratios differ by at most this are enough
MOST_ROUNDS = 5


def best(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Return the best time of each, taken in turns until each has had its share of ``seconds``."""
    times: dict[str, float] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        times[name] = time.perf_counter() - start
    loops = {name: max(1, int(2e-3 / t)) for name, t in times.items()}
    end = time.perf_counter() + seconds * len(calls)
    turns = 0
    while turns < 5 or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(loops[name]):
                call()
            times[name] = min(times[name], (time.perf_counter() - start) / loops[name])
        turns += 1
    return times


def best_when_steady(
    calls: dict[str, Call], seconds: float, ratio: Callable[[dict[str, float]], float], rounds: int = MOST_ROUNDS
) -> tuple[dict[str, float], list[float]]:
    """Return the best times of several rounds and the ratio of each round; the last two agree, unless rounds ran out.

    >>> best_when_steady({"a": lambda: None, "b": lambda: None}, 0.0, lambda times: 1.0)[1]
    [1.0, 1.0]
    """
    times: dict[str, float] = {}
    ratios: list[float] = []
    while len(ratios) < rounds and not is_steady(ratios):
        found = best(calls, seconds)
        times = {name: min(t, times.get(name, t)) for name, t in found.items()}
        ratios.append(ratio(found))
    return times, ratios


def is_steady(ratios: list[float]) -> bool:
    """Return True if the last two ratios agree.

    >>> is_steady([1.5, 1.2, 1.21]), is_steady([1.2]), is_steady([1.0, 1.1])
    (True, False, False)
    """
    return len(ratios) > 1 and abs(ratios[-1] / ratios[-2] - 1) <= STEADY


def contestants(case: Case, threads: int, with_peers: bool) -> tuple[dict[str, Call], dict[str, str]]:
    """Return the calls by name, and why peers are left out.

    What the machine needs at least is among the calls, so that it is measured under the same conditions: as many
    multiply-adds as the case has and, in decoding, reading K and V, which then lie where they do for the others.
    """
    q, k, v = case.inputs()
    options = case.options()
    calls: dict[str, Call] = {
        "limelight": lambda: ll.attention(q, k, v, **options.ours),
        "SDPA": lambda: scaled_dot_product_attention(q, k, v, **options.theirs),
    }
    if case.is_decode:
        calls["reading"] = lambda: backends.read_once(threads, k, v)
    if case.training:
        leaves = [x.requires_grad_() for x in (q, k, v)] + options.learned
        calls = {name: with_backward(call, leaves) for name, call in calls.items()}
    if case.limited:
        calls["multiply-adds"] = lambda: backends.multiply_adds(threads, case.flops(), case.dtype == torch.float64)
    if case.training or not ((case.peers or case.sparse is not None) and with_peers):
        return calls, {}
    others, absent = peers.available(q, k, v, causal=case.causal, threads=threads, sparse=case.sparse)
    return calls | others, absent


def with_backward(call: Call, leaves: list[Tensor]) -> Call:
    """Return a call that also computes the gradients, and returns that of the queries, to compare."""
    dout = torch.randn(leaves[0].shape, generator=torch.Generator().manual_seed(2))
    return lambda: torch.autograd.grad(call(), leaves, dout, allow_unused=True)[0]  # type: ignore[call-overload]


def run(case: Case, threads: int, seconds: float, with_peers: bool) -> dict[str, Any]:
    """Measure all contestants on one case, and the machine's limits around them."""
    torch.set_num_threads(threads)
    with torch.inference_mode(not case.training):  # as in the measurement; else FlexAttention compiles twice
        calls, absent = contestants(case, threads, with_peers)
    size = int(case.bytes())
    bandwidth = backends.read_bandwidth(threads, size)
    occupancy = Occupancy()
    with torch.inference_mode(not case.training):
        error = None
        if "dropout" not in case.name:
            error = (calls["limelight"]() - calls["SDPA"]()).abs().max().item()  # type: ignore[operator]
        times, ratios = best_when_steady(calls, seconds, lambda t: t["SDPA"] / t["limelight"])
    others, steal = occupancy.others()
    bandwidth = max(bandwidth, backends.read_bandwidth(threads, size))
    mine = times["limelight"]
    reading = times.pop("reading", size / bandwidth)
    multiplying = times.pop("multiply-adds", 0.0)
    return {
        "case": case.name,
        "threads": threads,
        "pairs": case.pairs(),
        "dtype": str(case.dtype).removeprefix("torch."),
        "milliseconds": {name: t * 1e3 for name, t in times.items()},
        "ratio": times["SDPA"] / mine,
        "ratios of the rounds": ratios,
        "steady": is_steady(ratios),
        "others' cores": others + steal,
        "goal": case.goal,
        "share": max(multiplying, reading) / mine if case.limited else None,
        "share to reach": case.share,
        "limit": "arithmetic" if multiplying > reading else "reading",
        "GF/s": case.flops() / mine / 1e9,
        "GB/s": size / mine / 1e9,
        "peak GF/s": case.flops() / multiplying / 1e9 if multiplying else None,
        "read GB/s": size / reading / 1e9,
        "difference from SDPA": error,
        "left out": absent,
    }
