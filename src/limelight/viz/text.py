"""Strings from outside (files, folders, tokens) made safe to print."""

from __future__ import annotations

import re

# ANSI control sequences (CSI …, OSC … terminated by BEL or ST, and two-character escapes), in 7-bit and 8-bit form.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Remove terminal escape sequences, control characters and lone surrogates; keep newlines and tabs.

    >>> printable("\x1b[31mred\x1b[0m \x07and [b]bold[/b]\n")
    'red and [b]bold[/b]\n'
    """
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def one_line(text: str, most: int = 500) -> str:
    r"""Return printable text with its line breaks replaced by spaces, shortened to ``most`` characters.

    >>> one_line("no such file:\n  weights.bin\n")
    'no such file: weights.bin'
    """
    line = " ".join(printable(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
