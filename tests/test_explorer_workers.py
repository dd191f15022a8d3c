"""Memory and threads of the explorer: nothing is computed twice, and slow questions keep no others waiting."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import limelight as ll
from explorer_cases import ask, random_weights
from limelight.explorer import Explorer, questions
from limelight.explorer.memory import Memory
from limelight.explorer.questions import Answer, Arguments
from limelight.explorer.rooms import QUESTIONS
from limelight.explorer.subject import Subject
from limelight.explorer.workers import COUNTS, Workers


def test_memory_makes_nothing_twice_and_forgets_the_oldest() -> None:
    memory, made_of = Memory(limit=3000), []
    begin = threading.Barrier(8)

    def make() -> np.ndarray:
        made_of.append(1)
        threading.Event().wait(0.05)
        return np.zeros(125)

    def work() -> Any:
        begin.wait()
        return memory.get("a", make)

    with ThreadPoolExecutor(8) as threads:
        found = [f.result() for f in [threads.submit(work) for _ in range(8)]]
    assert len(made_of) == 1
    assert all(x is found[0] for x in found)
    for n in range(4):
        memory.get(n, lambda: np.zeros(125))
    assert memory.held <= 3000
    assert "a" not in memory
    assert 3 in memory
    with pytest.raises(ZeroDivisionError):
        memory.get("b", lambda: 1 // 0)
    assert memory.get("b", lambda: "again") == "again"


def test_nobody_waits_for_the_background() -> None:
    memory, workers, begun, go = Memory(limit=3000), Workers(), threading.Event(), threading.Event()

    def slowly() -> str:
        begun.set()
        go.wait(60)
        return "by the background"

    waiting = workers.submit(questions.BACKGROUND, lambda: memory.get("a", slowly))
    assert begun.wait(60)
    assert memory.get("a", lambda: "at once") == "at once"
    go.set()
    assert waiting.result(60) == "by the background"
    assert memory.get("a", lambda: "again") == "at once"
    workers.close()


def test_a_slow_question_does_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def wait(_: Subject, __: Arguments) -> Answer:
        go.wait(60)
        return Answer({"done": True})

    monkeypatch.setitem(QUESTIONS, "slow", questions.question("slow", questions.SLOW)(wait))
    with (
        Explorer(Subject.of(random_weights(53, 53, mask=ll.Causal()))) as page,
        httpx.Client(trust_env=False, timeout=30) as client,
        ThreadPoolExecutor(64) as threads,
    ):
        address = f"http://127.0.0.1:{page.port}/ask"
        client.get(page.url)
        slow = [threads.submit(client.post, f"{address}/slow", json={}) for _ in range(4)]
        tiles = {"call": 0, "head": 1, "tiles": [[0, 0, 0]]}
        quick = [threads.submit(client.post, f"{address}/tiles", json=tiles) for _ in range(50)]
        found = [f.result(timeout=30) for f in quick]
        assert not any(f.done() for f in slow)
        go.set()
        assert {f.result(timeout=30).status_code for f in slow} == {200}
    assert {f.status_code for f in found} == {200}
    assert len({f.content for f in found}) == 1


def test_lanes() -> None:
    """Passes over whole matrices have all threads, and the background comes last."""
    workers = Workers()
    before = torch.get_num_threads()
    own = {
        lane: workers.submit(lane, lambda: (torch.get_num_threads(), os.getpriority(os.PRIO_PROCESS, 0)))
        for lane in COUNTS
    }
    found = {lane: future.result(30) for lane, future in own.items()}
    assert found[questions.BACKGROUND][0] == found[questions.QUICK][0] == 1
    assert found[questions.SLOW][0] == torch.get_num_threads() == before
    if sys.platform == "linux":
        assert found[questions.BACKGROUND][1] == 19 > found[questions.SLOW][1]
    failing = workers.submit(questions.QUICK, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.result(30)
    workers.close()
    subject = Subject.of(random_weights(2100, 2100))
    thumbnail, tile = ({"call": 0, "head": 1, "count": 1}, {"call": 0, "head": 1, "tiles": [[4, 0, 0]]})
    lane = {
        name: QUESTIONS[name].lane(subject, Arguments(x)) for name, x in (("thumbnails", thumbnail), ("tiles", tile))
    }
    assert lane == {"thumbnails": questions.BACKGROUND, "tiles": questions.SLOW}
    ask(subject, "tiles", **tile)  # one pass, which thumbnails and strips share
    assert QUESTIONS["tiles"].lane(subject, Arguments(tile)) == questions.QUICK
    assert (0, 0, 1, "survey") in subject.memory


def test_the_exit_waits_for_what_is_under_way_and_drops_what_waits() -> None:
    """Python would end threads in the middle of a kernel, which aborts the process."""
    script = """if True:
        import sys, time
        from limelight.explorer.questions import BACKGROUND
        from limelight.explorer.workers import COUNTS, Workers
        workers, begun = Workers(), []
        def work(n):
            begun.append(n)
            time.sleep(1)
            sys.stdout.write(f"done {n}\\n")  # in one piece
        for n in range(COUNTS[BACKGROUND] + 2):
            workers.submit(BACKGROUND, lambda n=n: work(n))
        while len(begun) < COUNTS[BACKGROUND]:
            time.sleep(0.01)
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.split()) == ["0", "1", "done", "done"]


def test_the_exit_does_not_wait_for_workers_that_nobody_closed() -> None:
    script = """if True:
        from limelight.explorer.questions import QUICK
        from limelight.explorer.workers import Workers
        workers = Workers()
        print(workers.submit(QUICK, lambda: 7).result())
        del workers
    """
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "7\n", "")
