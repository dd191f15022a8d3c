"""The threads that answer questions, in three lanes.

Quick questions cost what a part of a matrix costs, and take one core each: several are asked at a time. Slow ones pass
over a whole matrix or run a model, on all cores. Background questions do the same for parts of the page that are not in
view: on one core each, at the lowest priority.

The interpreter must not end while a thread is inside a kernel: Python would end the thread in the middle of C++ code,
which aborts the process. So the exit waits for questions that are being answered, and drops those that wait.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Barrier, Lock, Thread, get_native_id
from typing import Any
from weakref import WeakSet, finalize

import torch

from limelight.explorer.memory import in_background
from limelight.explorer.questions import BACKGROUND, QUICK, SLOW

COUNTS = {QUICK: 8, SLOW: 2, BACKGROUND: 2}  # questions of a lane that are answered at a time
_starting = Lock()
_every: WeakSet[Workers] = WeakSet()
_threads: WeakSet[Thread] = WeakSet()
Work = Callable[[], Any]
Queue = SimpleQueue[tuple[Future[Any], Work] | None]


class Workers:
    """Threads by lane, which start when they are needed and end with this object, at the latest."""

    def __init__(self) -> None:
        self._lanes: dict[str, Queue] = {}
        self._lock = Lock()
        _every.add(self)
        finalize(self, _end, self._lanes)  # otherwise the exit would wait for workers that were never closed

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
        """Drop waiting questions, and end the threads after the current ones."""
        with self._lock:
            _end(self._lanes)


def wait_for_all(seconds: float | None = None) -> bool:
    """Close all workers and wait for them; return whether they ended within so many seconds."""
    for workers in list(_every):
        workers.close()
    end = None if seconds is None else time.monotonic() + seconds
    for thread in list(_threads):
        thread.join(None if end is None else max(0.0, end - time.monotonic()))
    return not any(thread.is_alive() for thread in _threads)


atexit.register(wait_for_all)


def _end(lanes: dict[str, Queue]) -> None:
    for lane, queue in lanes.items():
        for future in _drained(queue):
            future.cancel()
        for _ in range(COUNTS[lane]):
            queue.put(None)
    lanes.clear()


def _drained(queue: Queue) -> list[Future[Any]]:
    """Take everything out of a queue; return the futures of the jobs."""
    found: list[Future[Any]] = []
    while True:
        try:
            job = queue.get_nowait()
        except Empty:
            return found
        if job is not None:
            found.append(job[0])


def _start(lane: str, queue: Queue) -> None:
    count = COUNTS[lane]
    ready = Barrier(count + 1)
    begin = {QUICK: _take_one_core, SLOW: lambda: None, BACKGROUND: _yield_to_others}[lane]
    with _starting:
        before = torch.get_num_threads()
        for n in range(count):
            thread = Thread(target=_serve, args=(queue, begin, ready), name=f"limelight-{lane}-{n}", daemon=True)
            _threads.add(thread)
            thread.start()
        ready.wait()
        torch.set_num_threads(before)  # the number that later threads start with


def _serve(queue: Queue, begin: Callable[[], None], ready: Barrier) -> None:
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
