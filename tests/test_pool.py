"""The threads: safe after fork and side by side, asleep when idle, with the GIL released."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import limelight as ll
from conftest import generator
from limelight import backends


def work(n: int = 301) -> tuple[torch.Tensor, ...]:
    g = generator(n)
    return tuple(torch.randn(1, 4, n, 32, generator=g) for _ in range(3))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # which is the point
def test_works_after_fork(two_threads: None) -> None:
    q, k, v = work()
    want = ll.attention(q, k, v)  # the pool has its threads now
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            ok = (ll.attention(q, k, v).numpy() == want.numpy()).all()  # torch's own threads do not survive
            os._exit(0 if ok else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert torch.equal(ll.attention(q, k, v), want)


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's threads are looked for on Linux alone")
@pytest.mark.skipif("tsan" in os.environ.get("LD_PRELOAD", ""), reason="the race detector cannot see into OpenMP")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_shares_the_threads_of_torch_but_not_in_a_forked_child(two_threads: None) -> None:
    """No thread is started beside those that a matrix product has, except in a child, which has none of them."""
    x = torch.randn(301, 301)
    x @ x
    threads = len(os.listdir("/proc/self/task"))
    q, k, v = work()
    ll.attention(q, k, v)
    assert backends.shares_threads()
    assert len(os.listdir("/proc/self/task")) == threads
    pid = os.fork()
    if pid == 0:
        shared = backends.shares_threads()
        ll.attention(q, k, v)
        os._exit(0 if not shared and len(os.listdir("/proc/self/task")) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_calls_side_by_side_agree(two_threads: None) -> None:
    problems = [work(n) for n in (101, 257, 301, 403)] * 8
    wants = [ll.attention(*p) for p in problems]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(3):
            results = list(pool.map(lambda p: ll.attention(*p), problems))
            assert all(torch.equal(a, b) for a, b in zip(results, wants, strict=True))


def test_the_gil_is_released() -> None:
    """Another thread runs during a call. One call may be too short for it on a busy machine, hence several."""
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    ticks, done = [], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for _ in range(20):
            start = time.perf_counter()
            ll.attention(q, k, v)
            end = time.perf_counter()
            if sum(start < t < end for t in ticks) >= 3:  # with the GIL held, at most one before and one after
                return
    finally:
        done.set()
        thread.join()
    pytest.fail(f"no call let another thread run, the last one for {end - start:.3f} s")


def test_idle_threads_sleep() -> None:
    code = """
import torch, limelight as ll, time, resource
torch.set_num_threads(2)
x = torch.randn(1, 4, 512, 64)
ll.attention(x, x, x)
time.sleep(0.2)  # the last spins end
before = time.process_time()
time.sleep(1.0)
print(time.process_time() - before)
"""
    used = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert used < 0.1, f"{used} s of CPU in a second of doing nothing, where one spinning thread takes 1 s"


def test_no_second_openmp_runtime() -> None:
    code = """
import torch, limelight as ll
x = torch.randn(1, 4, 64, 8)
before = {l.split()[-1] for l in open('/proc/self/maps') if 'omp' in l.rsplit('/', 1)[-1]}
ll.attention(x, x, x)
after = {l.split()[-1] for l in open('/proc/self/maps') if 'omp' in l.rsplit('/', 1)[-1]}
assert after == before, after - before
"""
    subprocess.run([sys.executable, "-c", code], check=True)
