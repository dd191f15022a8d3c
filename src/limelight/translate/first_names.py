"""Recognises first names that are also English words, such as April, Rose and Will, by their grammar.

>>> read_as_names("Rose met April in April.")
['Rose', 'April']
>>> read_as_names("Will you be there in May?"), read_as_names("January is my sister.")
([], ['January'])
"""

from __future__ import annotations

import re

# Countable nouns, verbs and adjectives: without an article they do not begin a sentence as its subject, but names do.
_COUNTED = (
    "Amber Angel Basil Bill Buck Bud Carol Chase Chip Chuck Clay Cliff Colt Cooper Crystal Daisy Dale Dean Dick "
    "Drew Duke Earl Eve Forest Frank Gene Ginger Glen Grant Guy Harry Hazel Heather Holly Hunter Iris Ivy Jack "
    "Jade Jasmine Jay Jean Jewel Josh Joy Lance Lily Major Marina Mark Mason Max Melody Miles Nick Norm Opal Pat "
    "Patty Pearl Peg Penny Pierce Piper Poppy Prince Queen Ray Reed Rex Rich Rob Robin Rocky Rose Ruby Rusty "
    "Sandy Scarlet Skip Sterling Stew Sue Taylor Tony Victor Viola Violet Wade Warren Will Woody"
)
# Words that begin sentences as a subject, too: April is warm. Hope is not enough.
_UNCOUNTED = (
    "April August Autumn Art Charity Dawn Destiny Faith Grace Harmony Honor Hope January June March May Mercy "
    "Patience Prudence Spring Summer Winter"
)
_AMBIGUOUS = frozenset(_UNCOUNTED.split())
FIRST_NAMES = frozenset(_COUNTED.split()) | _AMBIGUOUS

_WORDS = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|[^\w\s]|\d+")
_DOES = re.compile(
    r"(?:\w{2,}ed|(?!this|his|its)\w{2,}[^s\W]s|is|was|has|had|does|did|doesn't|didn't|isn't|wasn't|hasn't|will|won't|would|can|can't"
    r"|could|couldn't|must|should|ate|became|began|bought|brought|broke|came|caught|chose|drank|drove|fell|felt|found"
    r"|flew|gave|got|grew|heard|hid|hit|kept|knew|laid|left|lost|made|meant|met|paid|put|ran|read|rode|said|sang|sat|saw"
    r"|sent|slept|sold|spent|spoke|stood|stole|swam|taught|thought|told|took|understood|went|woke|won|wore|wrote|and)"
)
_PERSONAL = re.compile(
    r"\b(?:my|your|his|her|our|their|me|you|him|us|them|late|tired|hungry|angry|sick|married)\b(?! favou?rite)"
)
_BEFORE_WORDS = re.compile(
    r"(?:in|into|on|of|by|to|from|until|till|since|last|next|this|that|every|each|early|late|mid|before|after|during"
    r"|between|and|the|a|an|for|around|\d+|,)",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"(?:the|a|an)", re.IGNORECASE)


def read_as_names(text: str) -> list[str]:
    """Return the words with a capital that the sentence uses as first names."""
    words = _WORDS.findall(text)
    found = (word for n, word in enumerate(words) if word in FIRST_NAMES and _is_name(words, n))
    return list(dict.fromkeys(found))


def _is_name(words: list[str], n: int) -> bool:
    """Return whether the word stands where only a name can stand."""
    word, following = words[n], words[n + 1] if n + 1 < len(words) else ""
    before = next((words[m] for m in range(n - 1, -1, -1) if words[m] not in "\"'“«("), "")
    if before and before not in ".!?…":  # inside a sentence, where only names have a capital
        part_of_more = (before[0].isupper() and before != "I") or following[:1].isupper() or following[:1].isdigit()
        as_a_word = _BEFORE_WORDS if word in _AMBIGUOUS else _ARTICLE
        return not part_of_more and following != "first" and not as_a_word.fullmatch(before)
    if not _DOES.fullmatch(following):
        return False
    return word not in _AMBIGUOUS or _PERSONAL.search(" ".join(words[n + 2 : n + 5])) is not None
