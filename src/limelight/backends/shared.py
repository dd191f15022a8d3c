"""One backward pass for attention and for statistics of its weights.

``y = A @ v`` and ``h = A.entropy()`` are two nodes of autograd's graph, and each could compute its own gradients of
queries and keys from the same weights. Where both take part in one call of ``backward``, the node of the statistic
leaves the gradient of its result with the node of attention instead, whose kernels add it to the gradient of the
weights. No edge joins the two nodes, so either can be differentiated without the other, and in any order.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from limelight.backends.gradients import Term

# The number of the running call of backward, and whether a node will take part in it; a PyTorch that has no such
# functions differentiates everything apart.
_current_pass: Any = getattr(torch._C, "_current_graph_task_id", None)
_will_run: Any = getattr(torch._C, "_will_engine_execute_node", None)


class SharedBackward:
    """The place where gradients of statistics wait for the backward pass of attention with the same weights."""

    __slots__ = ("__weakref__", "_last", "_needs", "_node", "_waiting")

    def __init__(self, needs: Sequence[bool]) -> None:
        self._needs = tuple(needs)  # the inputs of attention that need a gradient, but for the values
        self._node: weakref.ref[Any] | None = None  # weak, so that it does not keep the graph alive
        self._last = -1  # the last pass in which the node has run
        self._waiting: tuple[int, list[Term]] = (-1, [])  # the number of a pass, and the terms to add in it

    def join(self, node: Any) -> None:
        """Name the node of attention."""
        self._node = weakref.ref(node)

    def offer(self, terms: Sequence[Term], needs: Sequence[bool]) -> bool:
        """Leave terms with the node, if it will run later in this backward pass and reaches the same inputs."""
        node = None if self._node is None else self._node()
        if node is None or _current_pass is None or _will_run is None or tuple(needs) != self._needs:
            return False
        now = _current_pass()
        if now < 0 or self._last == now or not _will_run(node):
            return False
        if self._waiting[0] != now:
            self._waiting = (now, [])
        self._waiting[1].extend(terms)
        return True

    def take(self) -> list[Term]:
        """Return the terms that statistics have left for this backward pass."""
        now = -1 if _current_pass is None else _current_pass()
        (when, terms), self._waiting, self._last = self._waiting, (-1, []), now
        return terms if when == now else []
