"""The room What if: the output of the model with heads off, other temperatures, and pairs knocked out."""

from __future__ import annotations

from typing import Any

from limelight.explorer.questions import SLOW, Answer, Arguments, RefusedError, question, wholes
from limelight.explorer.subject import Subject
from limelight.lens.edits import Edit, Knockout, Off, Rectangle, Temperature

_MOST = 4096  # changes of each kind, at most
_HOTTEST = 100.0


@question("what_if", SLOW)
def what_if(subject: Subject, arguments: Arguments) -> Answer:
    """Run the model as it is, and with some changes, and return both outputs.

    ``off`` lists pairs of a call and a head; ``temperatures`` a call, a head and a number; ``knockouts`` a call, a head
    and a rectangle: first and last query, first and last key. A head of −1 stands for all heads of the call.
    """
    if subject.replay is None:
        raise RefusedError("this page has weights and no model; limelight explore TEXT --model FOLDER has one")
    edits = _edits(subject, arguments)
    with subject.running:
        before = subject.memory.get(("what-if", "before"), lambda: subject.replay.run({}))  # type: ignore[union-attr]
        try:
            after = subject.replay.run(edits) if edits else before
        except ValueError as error:
            raise RefusedError(str(error)) from None
    return Answer({"before": before, "after": after, "edits": {name: repr(edit) for name, edit in edits.items()}})


def _edits(subject: Subject, arguments: Arguments) -> dict[int | str, Edit]:
    """Return the edits of each layer that the arguments describe; a head that is off gets no other edit."""
    found: dict[int | str, Edit] = {}
    off: dict[int, set[int]] = {}

    def add(call: int, edit: Edit) -> None:
        name = subject.matrices[call].call.name
        found[name] = found[name] + edit if name in found else edit

    def on(call: int, head: int) -> list[int]:
        """Return the heads that are chosen and not off."""
        every = range(subject.matrices[call].H) if head < 0 else [head]
        return [h for h in every if h not in off.get(call, ())]

    for item in _listed(arguments, "off"):
        call, head = _place(subject, "off", item, 2)[:2]
        off.setdefault(call, set()).update(range(subject.matrices[call].H) if head < 0 else [head])
    for call, heads in off.items():
        add(call, Off(sorted(heads)))
    temperatures: dict[int, dict[int, float]] = {}
    for item in _listed(arguments, "temperatures"):
        call, head = _place(subject, "temperatures", item[:2] if isinstance(item, list) else item, 2)
        t = Arguments({"temperature": item[2] if len(item) == 3 else None}).number("temperature", 0.01, _HOTTEST)
        temperatures.setdefault(call, {}).update(dict.fromkeys(on(call, head), t))
    for call, each in temperatures.items():
        if each:
            add(call, Temperature(list(each.values()), heads=list(each)))
    for item in _listed(arguments, "knockouts"):
        call, head, *box = _place(subject, "knockouts", item, 6)
        if heads_on := on(call, head):
            rectangle = Rectangle(range(box[0], box[1] + 1), range(box[2], box[3] + 1))
            add(call, Knockout(rectangle, heads=heads_on))
    return found


def _listed(arguments: Arguments, name: str) -> list[Any]:
    return arguments.items(name, _MOST) if arguments.has(name) and arguments._given[name] != [] else []


def _place(subject: Subject, name: str, item: Any, count: int) -> list[int]:
    """Return a call, a head and, for six numbers, a rectangle inside the call's matrix."""
    calls = len(subject.matrices)
    (call,) = wholes(name, item[:1] if isinstance(item, list) else item, [(0, calls - 1)])
    matrix = subject.matrices[call]
    bounds = [(0, calls - 1), (-1, matrix.H - 1)]
    if count == 6:
        bounds += [(0, matrix.N - 1)] * 2 + [(0, matrix.M - 1)] * 2
    return wholes(name, item, bounds)


QUESTIONS = (what_if,)
