"""Shapes and options that the processes of a call must share, compared before anything large is sent."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch

from limelight.parallel.group import Processes

_ROOM = 32  # numbers in a message: the same for calls of all kinds


def agree(
    processes: Processes,
    call: str,
    same: Mapping[str, Any],
    own: Mapping[str, int],
    failed: Exception | None = None,
) -> dict[str, list[int]]:
    """Compare values that must be equal on every process; return the other values of each process, by name.

    ``failed`` is an error in this process's own arguments; all processes raise then, so that none waits in vain.
    """
    names = ["call", *same]
    values = [_as_number(x) for x in (call, *same.values())]
    message = [0 if failed is None else 1, *values, *own.values()]
    assert len(message) <= _ROOM
    message += [0] * (_ROOM - len(message))
    table = processes.gather(torch.tensor(message)).cpu()
    if failed is not None:
        raise failed
    if bool(table[:, 0].any()):
        ranks = table[:, 0].nonzero().flatten().tolist()
        raise RuntimeError(f"{call}: the arguments on {_ranks(ranks)} are wrong; the message is in the output there")
    shown = {"call": call, **same}
    for name, column in zip(names, table[:, 1:].unbind(1), strict=False):
        if bool((column != column[0]).any()):
            raise ValueError(_clash(call, name, column.tolist(), shown[name]))
    first = 1 + len(names)
    return {name: table[:, first + n].tolist() for n, name in enumerate(own)}


def _as_number(x: Any) -> int:
    return x if isinstance(x, int) else zlib.crc32(repr(x).encode())


def _clash(call: str, name: str, values: list[int], here: Any) -> str:
    ranks: dict[int, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    if isinstance(here, int):
        parts = [f"{value} on {_ranks(which)}" for value, which in ranks.items()]
        found = " and ".join(parts)
    else:
        parts = [_ranks(which) for which in ranks.values()]
        found = f"different values on {' and on '.join(parts)} ({here!r} here)"
    return f"{call}: the processes disagree in {name}: {found}; every process must be given the same"


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
