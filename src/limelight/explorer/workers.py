"""The threads that answer questions, in three lanes.

Quick questions cost what a part of a matrix costs, and take one core each: several are asked at a time. Slow ones pass
over a whole matrix or run a model, on all cores. Those of the background do so without anyone waiting for them: on one
core each, at the lowest priority, so that what is being looked at comes first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Barrier, Lock, Thread, get_native_id
from typing import Any

import torch

from limelight.explorer.memory import in_background
from limelight.explorer.questions import BACKGROUND, QUICK, SLOW

COUNTS = {QUICK: 8, SLOW: 2, BACKGROUND: 2}  # questions of a lane that are answered at a time
_starting = Lock()
Work = Callable[[], Any]


class Workers:
    """Threads by lane, which start when they are needed and do not keep the process from ending."""

    def __init__(self) -> None:
        self._lanes: dict[str, SimpleQueue[tuple[Future[Any], Work] | None]] = {}
        self._lock = Lock()

    def submit(self, lane: str, work: Work) -> Future[Any]:
        """Run ``work()`` in a lane."""
        found: Future[Any] = Future()
        with self._lock:
            if lane not in self._lanes:
                self._lanes[lane] = SimpleQueue()
                _start(lane, self._lanes[lane])
            self._lanes[lane].put((found, work))
        return found

    def close(self) -> None:
        """End the threads, after what they are doing."""
        with self._lock:
            for lane, queue in self._lanes.items():
                for _ in range(COUNTS[lane]):
                    queue.put(None)
            self._lanes.clear()


def _start(lane: str, queue: SimpleQueue[tuple[Future[Any], Work] | None]) -> None:
    count = COUNTS[lane]
    ready = Barrier(count + 1)
    begin = {QUICK: _take_one_core, SLOW: lambda: None, BACKGROUND: _yield_to_others}[lane]
    with _starting:
        before = torch.get_num_threads()
        for n in range(count):
            Thread(target=_serve, args=(queue, begin, ready), name=f"limelight-{lane}-{n}", daemon=True).start()
        ready.wait()
        torch.set_num_threads(before)  # what threads that come later begin with


def _serve(queue: SimpleQueue[tuple[Future[Any], Work] | None], begin: Callable[[], None], ready: Barrier) -> None:
    begin()
    ready.wait()
    while (job := queue.get()) is not None:
        found, work = job
        if found.set_running_or_notify_cancel():
            try:
                found.set_result(work())
            except BaseException as error:
                found.set_exception(error)
        del job, found, work


def _take_one_core() -> None:
    torch.set_num_threads(1)


def _yield_to_others() -> None:
    """Give this thread one core, and the lowest priority where threads have one of their own."""
    _take_one_core()
    in_background()
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, get_native_id(), 19)
