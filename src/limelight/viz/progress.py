"""Progress of long work: a bar on a terminal, and lines with an estimate where the standard error is a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[str, int, int], None]  # called with what is done, how much of it, and how much there is
T = TypeVar("T")


class Lines:
    """Prints a line every few seconds of long work, and nothing about short work.

    Args:
        console: where the lines go.
        every: seconds between two lines, and before the first.

    """

    def __init__(self, console: Console, every: float = 5.0) -> None:
        self._console, self._every = console, every
        self._what = ""
        self._begin = self._last = time.monotonic()
        self._first = 0  # what was done before the first call took no time here

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` steps are done."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._begin, self._first = what, now, done
        if now - self._last < self._every:
            return
        self._last = now
        speed = (done - self._first) / max(now - self._begin, 1e-9)
        left = f", about {timedelta(seconds=round((total - done) / speed))} left" if speed else ""
        self._console.print(f"{what}: {done:,} of {total:,}{left}")


@contextmanager
def progress(console: Console, begin: str = "") -> Iterator[Advance]:
    """Yield a function that shows progress; ``begin`` is shown on a terminal until it is first called."""
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks = {begin: bar.add_task(begin, total=None, visible=bool(begin))}

        def advance(what: str, done: int, total: int) -> None:
            bar.update(tasks[begin], visible=False)
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield advance


def tracked(items: Sequence[T], what: str, advance: Advance) -> Iterator[T]:
    """Iterate over items and report each that is done.

    >>> list(tracked("ab", "letters", lambda what, done, total: print(what, done, "of", total)))
    letters 0 of 2
    letters 1 of 2
    letters 2 of 2
    ['a', 'b']
    """
    advance(what, 0, len(items))
    for done, item in enumerate(items, 1):
        yield item
        advance(what, done, len(items))
