"""The cost of each statistic, compared with limelight's own forward pass and with the dense matrix.

    python benchmarks/questions.py            # writes benchmarks/questions.json
    python benchmarks/questions.py --quick    # fewer repetitions

One thread, 8 heads of width 64, float32. "times forward" is the time of a question, with nothing known before, over
that of `attention` on the same inputs; for gradients, the time of a question and its gradient over that of `attention`
and its gradient. The usual way is the dense matrix in torch, then the same reductions. Memory is the peak of a process,
beyond what it held before and the results.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import limelight as ll
from limelight import backends
from limelight.cli._bench.measuring import best

H, D = 8, 64
ALL: dict[str, Any] = {
    "entropy": True,
    "received": True,
    "top": 8,
    "mass": ll.First(1),
    "distance": True,
    "pool": (256, 256),
}
ASKED = "entropy, received, top 8, mass, distance, pool 256 × 256"


def inputs(n: int, heads: int = H) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, D, generator=g) for _ in range(3))
    return q, k, v


def questions(n: int) -> list[tuple[str, Callable[[ll.Weights], object], float]]:
    """Each with the multiple of the forward's time to stay below."""
    u = torch.randn(1, H, n, D, generator=torch.Generator().manual_seed(1))
    rows: list[tuple[str, Callable[[ll.Weights], object]]] = [
        ("logsumexp()", lambda A: A.logsumexp()),
        ("entropy()", lambda A: A.entropy()),
        ("distance()", lambda A: A.distance()),
        ("mass(First(1))", lambda A: A.mass(ll.First(1))),
        ("mass(Window(8))", lambda A: A.mass(ll.Window(8))),
        ("mass(Causal())", lambda A: A.mass(ll.Causal())),
        ("top(1)", lambda A: A.top(1)),
        ("top(8)", lambda A: A.top(8)),
        ("top(32)", lambda A: A.top(32)),
    ]
    columns: list[tuple[str, Callable[[ll.Weights], object]]] = [
        ("received()", lambda A: A.received()),
        ("profile(64)", lambda A: A.profile(64)),
        (f"profile({n})", lambda A: A.profile(n)),
        ("pool(256, 256)", lambda A: A.pool(256, 256)),
        ('pool(256, 256, "max")', lambda A: A.pool(256, 256, "max")),
        ("A.T @ u, width 64", lambda A: A.T @ u),
    ]
    together = ("observe: " + ASKED, lambda A: A.observe(**ALL), 3.0)
    return [(*x, 1.3) for x in rows] + [(*x, 1.8) for x in columns] + [together]


def beside_the_forward(n: int, seconds: float) -> list[dict[str, Any]]:
    """Every question at one length, and the comparison of 12 heads."""
    q, k, v = inputs(n)
    results = []
    for name, ask, goal in track(questions(n), "questions", console=Console(stderr=True)):
        times = best(
            {"forward": lambda: ll.attention(q, k, v), "question": lambda ask=ask: ask(ll.weights(q, k))}, seconds
        )
        results.append({"question": name, "n": n, **_row(times, goal)})
    q, k, v = inputs(n, 12)
    times = best({"forward": lambda: ll.attention(q, k, v), "question": lambda: ll.weights(q, k).similarity()}, seconds)
    results.append({"question": "similarity(), 12 heads", "n": n, **_row(times, 4.0)})
    return results


DIFFERENTIABLE: dict[str, dict[str, Any]] = {
    "entropy()": {"entropy": True},
    "mass(First(1))": {"mass": ll.First(1)},
    "mass(Causal())": {"mass": ll.Causal()},
    "distance()": {"distance": True},
    "received()": {"received": True},
    "profile(64)": {"profile": 64},
    "profile(2048)": {"profile": 2048},
    "pool(256, 256)": {"pool": (256, 256)},
    "observe: entropy, mass, distance, received, profile 2048, pool 256 × 256": {
        "entropy": True,
        "mass": ll.First(1),
        "distance": True,
        "received": True,
        "profile": 2048,
        "pool": (256, 256),
    },
}


def gradients(n: int, seconds: float, **options: Any) -> list[dict[str, Any]]:
    """Every question with its gradient, and a training step with a penalty on the entropy beside one without."""
    q, k, v = (x.requires_grad_() for x in inputs(n))
    dout = torch.randn(v.shape, generator=torch.Generator().manual_seed(1))

    def attend() -> object:
        return torch.autograd.grad(ll.attention(q, k, v, **options), (q, k, v), dout)

    def ask(asked: dict[str, Any]) -> object:
        seen = ll.weights(q, k, **options).observe(**asked)
        answers = [getattr(seen, name) for name in asked]
        return torch.autograd.grad(answers, (q, k), [x.detach() for x in answers])

    def step(penalty: bool) -> object:
        A = ll.weights(q, k, **options)
        y = A @ v
        results, ahead = ([y, A.entropy()], [dout, torch.ones(q.shape[:3])]) if penalty else ([y], [dout])
        return torch.autograd.grad(results, (q, k, v), ahead)

    found = []
    kind = ", ".join(f"{name} {value!r}" for name, value in options.items())
    for name, asked in track(DIFFERENTIABLE.items(), "gradients", console=Console(stderr=True)):
        times = best({"forward": attend, "question": lambda asked=asked: ask(asked)}, seconds)
        found.append({"question": name, "options": kind, "n": n, **_row(times, 1.5)})
    times = best({"forward": lambda: step(False), "question": lambda: step(True)}, seconds)
    name = "training step with A @ v and A.entropy(), over one with A @ v"
    return [*found, {"question": name, "options": kind, "n": n, **_row(times, 1.25)}]


def _row(times: dict[str, float], goal: float) -> dict[str, Any]:
    return {
        "milliseconds": times["question"] * 1e3,
        "forward": times["forward"] * 1e3,
        "times forward": times["question"] / times["forward"],
        "at most": goal,
    }


def usual_way(q: Tensor, k: Tensor) -> list[Any]:
    """The dense matrix, and what `ALL` asks of it."""
    n = q.shape[2]
    a = torch.softmax(q @ k.mT * D**-0.5, -1)
    away = (torch.arange(n)[:, None] - torch.arange(n)).abs().float()
    return [
        torch.special.entr(a).sum(-1),
        a.sum(-2),
        a.topk(8),
        a[..., :1].sum(-1),
        (a * away).sum(-1),
        torch.nn.functional.adaptive_avg_pool2d(a, (256, 256)),
    ]


def beside_the_usual_way(n: int, seconds: float) -> dict[str, Any]:
    q, k, _ = inputs(n)
    seen = ll.weights(q, k).observe(**ALL)
    entropy, received, _, mass, distance, pool = usual_way(q, k)
    mine = seen.entropy, seen.received, seen.mass, seen.distance, seen.pool
    torch.testing.assert_close(mine, (entropy, received, mass, distance, pool), rtol=1e-4, atol=1e-4)
    times = best({"usual": lambda: usual_way(q, k), "limelight": lambda: ll.weights(q, k).observe(**ALL)}, seconds)
    return {
        "n": n,
        "limelight": times["limelight"] * 1e3,
        "usual way": times["usual"] * 1e3,
        "ratio": times["usual"] / times["limelight"],
        "at least": 4.5,
    }


PEAK = """
import re, sys, torch, limelight as ll
sys.path.insert(0, {here!r})
from questions import ALL, inputs
small, large = inputs(256)[:2], inputs({n})[:2]
ll.weights(*small).observe(**ALL)

def kibibytes(what):  # getrusage would give the parent's peak
    return int(re.search(what + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

before = kibibytes("VmRSS")
seen = ll.weights(*large).observe(**ALL)
after = kibibytes("VmHWM")
found = [seen.entropy, seen.received, *seen.top, seen.mass, seen.distance, seen.pool]
print((after - before) / 1024 - sum(x.numel() * x.itemsize for x in found) / 2**20)
"""


def peak_memory(n: int) -> dict[str, Any]:
    """Memory of observing at a length at which the matrix would not fit."""
    code = PEAK.format(here=str(Path(__file__).parent), n=n)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return {"n": n, "megabytes": float(out), "matrix": H * n * n * 4 / 1e6, "below": 128.0}


def _table(title: str, ratio: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("question", "milliseconds", ratio, "at most"):
        table.add_column(name, justify="left" if name == "question" else "right")
    for r in rows:
        mark = "" if r["times forward"] <= r["at most"] else " ✗"
        question = ", ".join(filter(None, (r["question"], r.get("options"))))
        table.add_row(question, f"{r['milliseconds']:.1f}", f"{r['times forward']:.2f}{mark}", f"{r['at most']}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, shorter lengths")
    parser.add_argument("--only", choices=["gradients"], help="print this table alone and write nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    args = parser.parse_args()
    seconds = 0.3 if args.quick else 2.0
    torch.set_num_threads(1)
    title = "one thread, 8 heads of width 64, n = 2048"
    if args.only:
        rows = [row for options in ({}, {"mask": ll.Causal()}) for row in gradients(2048, seconds, **options)]
        Console(width=160).print(_table(f"with gradients, {title}", "times forward and gradient", rows))
        return
    with torch.inference_mode():
        asked = beside_the_forward(2048, seconds)
        usual = beside_the_usual_way(2048 if args.quick else 4096, seconds)
    differentiated = [row for options in ({}, {"mask": ll.Causal()}) for row in gradients(2048, seconds, **options)]
    memory = peak_memory(8192 if args.quick else 32768)
    console = Console(width=160)
    console.print(_table(title, "times forward", asked))
    console.print(_table(f"with gradients, {title}", "times forward and gradient", differentiated))
    console.print(
        f"observe ({ASKED}) at n = {usual['n']}: {usual['limelight']:.0f} ms, the usual way "
        f"{usual['usual way']:.0f} ms: {usual['ratio']:.2f} times as fast (to reach: {usual['at least']})"
    )
    console.print(
        f"the same at n = {memory['n']}: {memory['megabytes']:.0f} MB beyond inputs and results, "
        f"where the matrix would take {memory['matrix']:.0f} MB (to stay below: {memory['below']:.0f})"
    )
    machine = {"machine": platform.processor() or platform.machine(), "isa": backends.isa(), "torch": torch.__version__}
    args.out.write_text(
        json.dumps(
            {**machine, "questions": asked, "gradients": differentiated, "usual way": usual, "memory": memory}, indent=1
        )
    )
    console.print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
