"""Plans of a translation: the parts of a text that are translated, and the characters around them that are kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from limelight.translate.results import Sentence, Translation

_SHORT = 3  # words of a text that may be an exclamation, at most
_SHOWN = 60  # characters of a text in a note


@dataclass(frozen=True)
class Part:
    """A sentence to be translated, with the characters before and after it that are kept."""

    before: str
    text: str
    after: str
    stop_added: bool = False  # the user's text has no full stop at its end
    all_caps: bool = False  # the user's text is in capitals
    continues: bool = False  # an earlier part belongs to the same sentence

    @property
    def texts(self) -> list[str]:
        """The texts to translate: the sentence, and for a short one without a mark also with an exclamation mark."""
        if self.stop_added and len(self.text.split()) <= _SHORT:
            return [self.text, f"{self.text[:-1]}!"]
        return [self.text] if self.text else []

    def chosen(self, found: dict[str, Sentence]) -> Sentence:
        """Return the likeliest translation of ``texts``."""
        return max((found[text] for text in self.texts), key=lambda one: one.likelihood)

    def translated(self, found: dict[str, Sentence]) -> str:
        """Return the translation, with the characters that are kept around it."""
        text = self.chosen(found).text if self.text else ""
        text = text.rstrip(".!\u00a0\u202f ") if self.stop_added else text
        first = re.match(r"[^\W\d_]*", text)
        named = first is not None and first[0] in re.findall(r"[^\W\d_]+", self.text)
        text = text[:1].lower() + text[1:] if self.continues and not named else text
        return self.before + (text.upper() if self.all_caps else text) + self.after


@dataclass(frozen=True)
class Plan:
    """The pieces of a text that are to be translated."""

    parts: list[Part]
    notes: list[str]

    def joined(self, found: dict[str, Sentence]) -> Translation:
        """Return the translation of the text."""
        sentences = [part.chosen(found) for part in self.parts if part.text]
        doubtful = [sentence for sentence in sentences if sentence.doubtful]
        doubts = [f"doubtful, is it everyday English? {shown(sentence.source)}" for sentence in doubtful]
        lost = [f"{change}: {shown(sentence.source)}" for sentence in sentences for change in sentence.changes]
        text = "".join(part.translated(found) for part in self.parts)
        return Translation(text, sentences, [*self.notes, *dict.fromkeys([*lost, *doubts])])


def shown(text: str) -> str:
    """Return a text for a note: quoted, shortened, and without control characters."""
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
