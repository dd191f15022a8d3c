"""What has been computed is kept, up to a limit, and never computed twice at the same time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Any


class Memory:
    """A cache of arrays that several threads share; what was used least recently goes first.

    >>> memory = Memory(limit=100)
    >>> memory.get("a", lambda: b"12345"), memory.get("a", lambda: b"other")
    (b'12345', b'12345')
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit  # bytes
        self.held = 0
        self._found: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._lock = Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, or make it; a second thread that asks for it waits for the first."""
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key][0]
            waiting = self._under_way.get(key)
            if waiting is None:
                mine = self._under_way[key] = Future()
        if waiting is not None:
            return waiting.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            mine.set_exception(error)
            raise
        with self._lock:
            self._keep(key, value)
            del self._under_way[key]
        mine.set_result(value)
        return value

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
