"""Proof of hardness: sanitizers, random problems, forks and threads, and memory, as one table.

``python -m tests.harden`` takes about two hours on two cores, ``--quick`` (which CI runs) a few minutes:

- the tests of exactness, gradients, statistics, masks and caches on kernels built with AddressSanitizer and
  UndefinedBehaviorSanitizer, and again on kernels built with ThreadSanitizer;
- random problems (forward, backward, statistics, bytes, linear) against the dense reference in float64;
- calls from several threads and forked processes at random, which must give the same bits as a single one;
- 10,000 calls, after which the process is no larger than before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))  # where pytest finds conftest and the tests that are called here

SANITIZED = ["exactness", "gradients", "weights", "weights_extremes", "weights_index", "sparse_statistics"]
SANITIZED += ["masks", "cache", "passes", "pool", "decode", "linear", "steps", "bf16_pairs"]
# Promises on precision, memory and idleness are not the sanitizers' business.
LEFT_OUT = "not as_exact_as and not halves and not gradcheck and not gradients_of and not memory and not idle"
LEFT_OUT_OF_QUICK = f"{LEFT_OUT} and not threads_to_the_bit and not test_long and not threads_change_nothing"
SANITIZERS = {
    "ASAN and UBSAN": ("address,undefined", ["libasan.so", "libubsan.so", "libstdc++.so.6"]),
    "TSAN": ("thread", ["libtsan.so"]),
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:halt_on_error=1",  # Python itself leaks at its end
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1:die_after_fork=0",  # torch is not instrumented
}
SHARES = {"forward": 0.4, "backward": 0.25, "statistics": 0.15, "bytes": 0.1, "linear": 0.1}


class Row(NamedTuple):
    """A line of the table."""

    check: str
    count: str
    seconds: float
    failure: str  # empty where it passed


def run(check: str, count: str, command: list[str], **environment: str) -> Row:
    """Run a command and make a row of how it ended."""
    print(f"… {check}", file=sys.stderr, flush=True)
    start = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, cwd=TESTS.parent)
    output = done.stdout + done.stderr
    if not done.returncode and " passed" in done.stdout:
        count = done.stdout.strip().splitlines()[-1].split(" in ")[0].strip("= ")
    return Row(check, count, time.perf_counter() - start, output[-6000:] if done.returncode else "")


def sanitized(name: str, folder: Path, quick: bool) -> Row:
    """Build the kernels with a sanitizer and run the tests on them."""
    from build import build

    kind, libraries = SANITIZERS[name]
    start = time.perf_counter()
    try:
        flags = f"-fsanitize={kind} -fno-omit-frame-pointer -O1"
        path = build(folder, compiler="g++", flags=flags, build_type="Debug")
    except RuntimeError as error:
        return Row(f"{name}: build", "", time.perf_counter() - start, str(error)[-6000:])
    preload = " ".join(_library(x) for x in libraries)
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    pytest += ["-k", LEFT_OUT_OF_QUICK if quick else LEFT_OUT]
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []  # sanitizers want addresses where they expect them
    return run(
        f"{name}: {', '.join(SANITIZED)}",
        "",
        [*fixed, *pytest, *(str(TESTS / f"test_{x}.py") for x in SANITIZED)],
        LD_PRELOAD=preload,
        PYTHONPATH=str(path),
        LIMELIGHT_TEST_SCALE="0.03" if quick else "1",
        OMP_NUM_THREADS="2",
        **OPTIONS,
    )


def _library(name: str) -> str:
    return subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def problems(kind: str, count: int, seed: int) -> None:
    """Compare random problems of a kind with the reference; raise where one differs."""
    import hypothesis
    import torch
    from hypothesis import Phase, given, settings
    from hypothesis import strategies as st

    import conftest
    import test_cache
    import test_exactness
    import test_gradients
    import test_linear
    import test_weights

    every = conftest.problems((torch.float32, torch.bfloat16, torch.float16, torch.float64))
    dtypes, sizes = st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), st.integers(1, 500)
    checks = {
        "forward": (every, lambda p: test_exactness.check(p, "native")),
        "backward": (every, lambda p: test_gradients.check(p, "native")),
        "statistics": (
            st.tuples(every, st.data()),
            lambda x: test_weights.check(x[0], *test_weights.questions(*x)),
        ),
        "bytes": (
            st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), sizes, sizes, sizes, dtypes),
            lambda x: test_cache.test_bytes_are_read_as_they_are(
                (x[0], x[1] * x[2], x[2], min(x[3], 70), x[4] + 10, x[5] % 140 + 1), x[6]
            ),
        ),
        "linear": (
            st.tuples(st.integers(1, 8), st.integers(1, 1500), sizes, dtypes),
            lambda x: test_linear.test_a_few_rows(x[0], x[1], x[2], x[3], ""),
        ),
    }
    strategy, check = checks[kind]

    @hypothesis.seed(seed)
    @settings(max_examples=count, phases=[Phase.generate, Phase.shrink])
    @given(strategy)
    def compare(x: object) -> None:
        check(x)

    compare()


def forks_and_threads(rounds: int, seed: int) -> None:
    """Call attention from random numbers of threads and forked processes; the bits must be those of one call."""
    import random

    import torch

    import limelight as ll

    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    masks = [None, ll.Causal(), ll.Window(40), ll.Causal() & (ll.Window(33) | ll.First(3))]

    def problem() -> tuple[torch.Tensor, ...]:
        n, width = r.choice([1, 5, 61, 257, 701]), r.choice([8, 31, 64])
        batch = r.choice([1, 2])
        return tuple(torch.randn(batch, 4, n, width, generator=g) for _ in range(3))

    def compute(x: tuple[torch.Tensor, ...], mask: ll.masks.Mask | None) -> list[torch.Tensor]:
        leaves = [y.clone().requires_grad_() for y in x]
        out = ll.attention(*leaves, mask=mask)
        A = ll.weights(x[0], x[1], mask=mask)
        return [out.detach(), *torch.autograd.grad(out.sum(), leaves), A.entropy(), A.received()]

    def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
        return all((x.numpy() == y.numpy()).all() for x, y in zip(a, b, strict=True))

    cases = [(problem(), mask) for _ in range(8) for mask in masks]
    torch.set_num_threads(1)
    wanted = [compute(*case) for case in cases]
    for n in range(rounds):
        torch.set_num_threads(r.choice([1, 2, 3, 7]))
        picked = r.choices(range(len(cases)), k=r.randint(2, 12))
        with ThreadPoolExecutor(r.randint(1, 8)) as pool:
            found = list(pool.map(lambda i: compute(*cases[i]), picked))
        assert all(same(a, wanted[i]) for a, i in zip(found, picked, strict=True)), f"threads, round {n}"
        if r.random() < 0.3:
            i = r.randrange(len(cases))
            child = os.fork()
            if child == 0:  # forward only: torch's own backward threads do not survive a fork
                x, mask = cases[i]
                os._exit(0 if (ll.attention(*x, mask=mask).numpy() == wanted[i][0].numpy()).all() else 1)
            assert os.waitpid(child, 0)[1] == 0, f"fork, round {n}"


def flat_memory(calls: int) -> None:
    """Call forward, backward and statistics of several shapes over and over: the process may not grow."""
    import torch

    import limelight as ll

    torch.set_num_threads(2)
    shapes = [(1, 2, 1, 700, 64), (2, 4, 61, 61, 31), (1, 2, 257, 257, 16), (1, 8, 5, 300, 128)]

    def resident() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def call(n: int) -> None:
        B, H, N, M, D = shapes[n % len(shapes)]
        q, k, v = (torch.randn(B, H, size, D, requires_grad=n % 3 == 0) for size in (N, M, M))
        mask = ll.Causal() & (ll.Window(20 + n % 50) | ll.First(n % 5))
        out = ll.attention(q, k, v, mask=mask, bias=ll.ALiBi(H), dropout=0.1 * (n % 2))
        if out.requires_grad:
            out.sum().backward()
        ll.weights(q.detach(), k.detach(), mask=mask).observe(entropy=True, received=True, top=3, pool=(4, 5))

    for n in range(max(500, calls // 10)):
        call(n)
    before = resident()
    for n in range(calls):
        call(n)
    grown = resident() - before
    print(f"grown by {grown:.1f} MB")
    assert grown < 8, f"{calls} calls made the process {grown:.1f} MB larger"


def checks(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Yield a row for each check."""
    quick = arguments.quick
    count = arguments.problems if arguments.problems is not None else 2_000 if quick else 100_000
    this = [sys.executable, "-m", "tests.harden"]
    for n, (kind, share) in enumerate(SHARES.items()):
        part = str(round(count * share))
        yield run(f"random problems: {kind}", part, [*this, "--check", kind, part, str(arguments.seed + n)])
    rounds, calls = ("100", "2000") if quick else ("3000", "10000")
    yield run("forks and threads", f"{rounds} rounds", [*this, "--check", "forks", rounds, str(arguments.seed)])
    yield run("flat memory", f"{calls} calls", [*this, "--check", "memory", calls, str(arguments.seed)])
    for name in SANITIZERS:
        inside = folder / name.split()[0]
        inside.mkdir()
        yield sanitized(name, inside, quick)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.harden", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer of everything, for CI")
    parser.add_argument("--problems", type=int, help="random problems in all; 100,000, or 2,000 with --quick")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", nargs=3, metavar=("NAME", "COUNT", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check:
        name, count, seed = arguments.check[0], int(arguments.check[1]), int(arguments.check[2])
        if name == "forks":
            forks_and_threads(count, seed)
        elif name == "memory":
            flat_memory(count)
        else:
            problems(name, count, seed)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in checks(arguments, Path(folder)):
            rows.append(row)
            if row.failure:
                print(row.failure, file=sys.stderr, flush=True)
    print("| check | count | seconds | result |\n|---|---|--:|---|")
    for row in rows:
        print(f"| {row.check} | {row.count} | {row.seconds:.0f} | {'FAILED' if row.failure else 'passed'} |")
    sys.exit(any(row.failure for row in rows))


if __name__ == "__main__":
    main()
