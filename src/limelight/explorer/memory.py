"""A bounded cache of computed results that never computes one twice at the same time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock, local
from typing import Any

_thread = local()


def in_background() -> None:
    """Mark this thread as a background thread: others do not wait for its results."""
    _thread.background = True


class Memory:
    """A cache of arrays that several threads share; the least recently used is dropped first.

    >>> memory = Memory(limit=100)
    >>> memory.get("a", lambda: b"12345"), memory.get("a", lambda: b"other")
    (b'12345', b'12345')
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self.held = 0
        self._found: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._under_way: dict[Hashable, tuple[Future[Any], bool]] = {}  # being made; True by the background
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key, or make it; a second thread that asks for it waits for the first.

        A value that a background thread is making is made again for others, because such a thread may be slow.
        """
        background = getattr(_thread, "background", False)
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key][0]
            waiting, patient = self._under_way.get(key, (None, False))
            if waiting is None or (patient and not background):
                waiting = None
                mine: Future[Any] = Future()
                self._under_way[key] = mine, background
        if waiting is not None:
            return waiting.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                self._forget(key, mine)
            mine.set_exception(error)
            raise
        with self._lock:
            if key not in self._found:
                self._keep(key, value)
            self._forget(key, mine)
        mine.set_result(value)
        return value

    def _forget(self, key: Hashable, mine: Future[Any]) -> None:
        if self._under_way.get(key, (None, False))[0] is mine:  # another may have taken its place
            del self._under_way[key]

    def _keep(self, key: Hashable, value: Any) -> None:
        size = _bytes(value)
        self._found[key] = value, size
        self.held += size
        while self.held > self.limit and len(self._found) > 1:
            _, (_, freed) = self._found.popitem(last=False)
            self.held -= freed


def _bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes, value)) + 8 * len(value)
    return int(getattr(value, "nbytes", 64))
