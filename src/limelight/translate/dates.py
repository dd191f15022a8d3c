"""Dates, such as the 10th of May, May 10, 1998 and 5/10/1998: how French writes them, and which a translation lost."""

from __future__ import annotations

import re

from limelight.translate.french import MONTHS

_MONTH, _DAY = "|".join(MONTHS), r"\d{1,2}"
_ENDING = "(?:st|nd|rd|th)?"
DATE = re.compile(
    rf"\b(?:(?:[Tt]he )?(?P<day>{_DAY}){_ENDING}(?: of)? (?P<month>{_MONTH})"
    rf"|(?P<month_first>{_MONTH}) (?:the )?(?P<day_last>{_DAY}){_ENDING})(?:,? (?P<year>\d{{4}}))?(?![\w:])"
    r"|(?<![\d/])(?P<digits>\d{1,4}/\d{1,2}/\d{2,4})(?![\d/])"  # the day or the month may come first: kept as it is
)
# What stands before a date in French: an article, a day of the week, or the beginning of the text.
_BEFORE = r"(?:^|[,;:(«] ?|\b(?:le|du|au|\w+di) )"


def in_french(date: re.Match[str]) -> str:
    """Write a date that ``DATE`` found as French does.

    >>> in_french(DATE.search("It was the 1st of May, 1998."))
    'le 1er mai 1998'
    """
    if date["digits"]:
        return f"le {date['digits']}"
    day, month = _day_and_month(date)
    return f"le {'1er' if day == '1' else day} {MONTHS[month]}" + (f" {date['year']}" if date["year"] else "")


def lost(source: str, target: str) -> list[str]:
    """Describe the dates that a translation does not write as dates.

    >>> lost("It is the 10th of May.", "C'est la maman de 10 mai.")
    ['the date 10th of May is missing']
    >>> lost("It is the 10th of May, a Friday.", "C'est le 10 mai, un vendredi.")
    []
    """
    found = []
    for date in DATE.finditer(source):
        if not re.search(_BEFORE + _pattern(date), target, re.IGNORECASE):
            found.append(f"the date {re.sub('^[Tt]he ', '', date[0])} is missing")
    return found


def _pattern(date: re.Match[str]) -> str:
    """Return what a translation may write for a date, after an article or a day of the week."""
    if date["digits"]:
        return rf"{date['digits']}(?![\d/])"
    day, month = _day_and_month(date)
    return rf"{'(?:1(?:er)?|premier)' if day == '1' else day} {MONTHS[month]}\b"


def contracted(text: str) -> str:
    """Return a French text in which a date follows ``de`` and ``à`` as it must.

    >>> contracted("de le 3 mai à le 5 mai, puis du le 7 mai")
    'du 3 mai au 5 mai, puis du 7 mai'
    """
    text = re.sub(r"\b([Dd])(?:e|u) le (?=\d)", r"\1u ", text)
    return re.sub(r"\b(?:à|au) le (?=\d)", "au ", re.sub(r"\b(?:À|Au) le (?=\d)", "Au ", text))


def _day_and_month(date: re.Match[str]) -> tuple[str, str]:
    return str(int(date["day"] or date["day_last"])), date["month"] or date["month_first"]
