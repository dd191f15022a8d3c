"""``limelight translate``: a translation and its alignment, on a terminal, as JSON and as a page."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from limelight.lens.alignment import Alignment, align
from limelight.lens.page import page
from limelight.lens.reading import Reading
from limelight.pictures import Picture, put
from limelight.tables import messages_console, wide_console
from limelight.translate import Sentence, Translation, Translator

_SHOWN = 4  # sentences whose alignment is drawn
_TOGETHER = 256  # lines of a file: sentences of like length are found among them


def reading_of(sentence: Sentence) -> Reading:
    """What the model attended to, with what it wrote beside the cross-attention."""
    written = sentence.tokens
    tokens = {"encoder": sentence.source_tokens, "decoder": ["<pad>", *written[:-1]], "written": written}
    plain = {stack: [_plain(t) for t in names] for stack, names in tokens.items()}
    return Reading(f"{sentence.source} → {sentence.text}", plain, sentence.record)


def _plain(token: str) -> str:
    return token.removeprefix("▁") or "▁"


def alignment_of(sentence: Sentence) -> Alignment:
    """Between the words of a sentence and of its translation."""
    return align(sentence.record, sentence.tokens, sentence.source_tokens)


def show(translation: Translation, top: int, html: str | None, as_json: bool) -> None:
    """Prints the translation, and what it looked at while it wrote every word."""
    messages = messages_console()
    for note in translation.notes:
        messages.print(f"note: {note}", style="yellow")
    aligned = [alignment_of(sentence) for sentence in translation.sentences]
    try:  # neither is lost where the other fails
        if html and aligned:
            readings = [reading_of(sentence) for sentence in translation.sentences]
            if translation.notes:
                noted = "; ".join(f"note: {note}" for note in translation.notes)
                readings[0] = replace(readings[0], model=f"{readings[0].model} ({noted})")
            texts = [(reading, reading.heads()) for reading in readings]
            Path(html).write_text(page(texts, (aligned[0].call, aligned[0].head)), encoding="utf-8")
            messages.print(f"{html} has every layer and head.")
        elif html:
            messages.print(f"note: nothing was translated, so there is no {html}", style="yellow")
    finally:
        if as_json:
            print(json.dumps(_as_dict(translation, aligned, top), ensure_ascii=False))
        else:
            _draw(translation.text, aligned, top, messages)


def _draw(text: str, aligned: list[Alignment], top: int, messages: Console) -> None:
    console = wide_console()
    print(text)
    for one in aligned[:_SHOWN]:
        console.print()
        where = f"cross-attention of layer {one.call.layer}, head {one.head}"
        title = f"each word, and the words that it is written from ({where})"
        put([Picture(title, one.weights, one.written, one.read)], console)
        console.print(_table(one, top))
    if len(aligned) > _SHOWN:
        messages.print(f"{len(aligned) - _SHOWN} more sentences are not drawn; --html and --json have them.")


def _table(one: Alignment, top: int) -> Table:
    table = Table(title="strongest links", title_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    table.add_column("weight", justify="right")
    table.add_column("written")
    table.add_column("looking at")
    for i, j, weight in one.links(top):
        table.add_row(f"{weight:.3f}", one.written[i], one.read[j])
    return table


def _as_dict(translation: Translation, aligned: list[Alignment], top: int) -> dict[str, Any]:
    def of_sentence(sentence: Sentence, one: Alignment) -> dict[str, Any]:
        links = ((one.written[i], one.read[j], i, j, weight) for i, j, weight in one.links(top))
        return {
            "source": sentence.source,
            "text": sentence.text,
            "source_tokens": sentence.source_tokens,
            "tokens": sentence.tokens,
            "scores": sentence.scores,
            "doubtful": sentence.doubtful,
            "changes": sentence.changes,
            "alignment": {
                **{"module": one.call.name, "layer": one.call.layer, "head": one.head},
                **{"written": one.written, "read": one.read, "weights": one.weights.tolist()},
            },
            "links": [dict(zip(("from", "to", "query", "key", "weight"), link, strict=True)) for link in links],
        }

    sentences = [of_sentence(*both) for both in zip(translation.sentences, aligned, strict=True)]
    return {"text": translation.text, "sentences": sentences, "notes": translation.notes}


def translate_lines(translator: Translator, text: str, beams: int) -> None:
    """One line of translation for each line; what there is to say, and the progress, on the standard error.

    What is translated is printed at once, so that nothing of it is lost where the rest is interrupted.
    """
    messages = messages_console()
    lines = text.removesuffix("\n").split("\n") if text else []
    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeRemainingColumn())
    options: dict[str, Any] = {"transient": True, "redirect_stdout": False, "disable": not messages.is_terminal}
    with Progress(*columns, console=messages, **options) as bar:
        task = bar.add_task("", total=len(lines))
        for begin in range(0, len(lines), _TOGETHER):
            part = translator.translate_all(lines[begin : begin + _TOGETHER], beams=beams)
            bar.stop()  # lest it be in the way on a terminal
            for number, translation in enumerate(part, begin + 1):
                print(" ".join(translation.text.split("\n")))
                for note in translation.notes:
                    messages.print(f"line {number}: {note}", style="yellow")
            sys.stdout.flush()
            bar.start()
            bar.advance(task, len(part))


def translate_typed(translator: Translator, beams: int, top: int, as_json: bool) -> None:
    """Reads a line after the other from a terminal and shows its translation, until Ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (the arrow keys edit the line)
    messages = messages_console()
    messages.print("English, a line at a time; Ctrl-D ends.")
    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            messages.print()
            return
        if line.strip():
            try:
                show(translator(line, beams=beams), top, None, as_json)
            except ValueError as error:  # such as bytes that are no UTF-8
                messages.print(f"note: {error}", style="yellow")
