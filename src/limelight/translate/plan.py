"""Plans of a translation: the parts of a text that are translated, and what stands around them and is not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from limelight.translate.results import Sentence, Translation

_SHORT = 3  # words of a text that may be a greeting
_SHOWN = 60  # characters of a text in a note


@dataclass(frozen=True)
class Part:
    """A sentence to be translated, with what stands around it and is not."""

    before: str
    text: str
    after: str
    bare: bool = False  # the full stop at the end of the text is not its own
    loud: bool = False  # it was in capitals
    small: bool = False  # it goes on after a part of the same sentence

    @property
    def texts(self) -> list[str]:
        """The sentence as it may be translated: a greeting without its mark may want an exclamation mark."""
        if self.bare and len(self.text.split()) <= _SHORT:
            return [self.text, f"{self.text[:-1]}!"]
        return [self.text] if self.text else []

    def chosen(self, found: dict[str, Sentence]) -> Sentence:
        """The translation that the model finds likelier."""
        return max((found[text] for text in self.texts), key=lambda one: one.likelihood)

    def translated(self, found: dict[str, Sentence]) -> str:
        """With what stands around it."""
        text = self.chosen(found).text if self.text else ""
        text = text.rstrip(".!\u00a0\u202f ") if self.bare else text
        first = re.match(r"[^\W\d_]*", text)
        named = first is not None and first[0] in re.findall(r"[^\W\d_]+", self.text)
        text = text[:1].lower() + text[1:] if self.small and not named else text
        return self.before + (text.upper() if self.loud else text) + self.after


@dataclass(frozen=True)
class Plan:
    """The pieces of a text that are to be translated."""

    parts: list[Part]
    notes: list[str]

    def joined(self, found: dict[str, Sentence]) -> Translation:
        """Return the translation of the text."""
        sentences = [part.chosen(found) for part in self.parts if part.text]
        doubts = [f"doubtful, is it everyday English? {shown(s.source)}" for s in sentences if s.doubtful]
        lost = [f"{change}: {shown(s.source)}" for s in sentences for change in s.changes]
        text = "".join(part.translated(found) for part in self.parts)
        return Translation(text, sentences, [*self.notes, *dict.fromkeys([*lost, *doubts])])


def shown(text: str) -> str:
    """For a note: in quotation marks, short, and with no character that a terminal would obey."""
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
