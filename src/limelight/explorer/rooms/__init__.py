"""The rooms of the page: a module each, with the questions that the room asks."""

from __future__ import annotations

from types import ModuleType

from limelight.explorer.questions import Question
from limelight.explorer.rooms import heads, map, steps, text, translate, what_if

ROOMS: tuple[ModuleType, ...] = (heads, map, text, steps, translate, what_if)
QUESTIONS: dict[str, Question] = {q.name: q for room in ROOMS for q in room.QUESTIONS}
