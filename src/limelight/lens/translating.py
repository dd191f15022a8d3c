"""``limelight translate``: a translation and its alignment, on a terminal, as JSON and as a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from limelight.lens.looking import links_table
from limelight.lens.page import page
from limelight.lens.reading import Link, Reading
from limelight.record import Call
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


def alignment(reading: Reading, layer: int | None = None, head: int | None = None) -> tuple[Call, int]:
    """The head of the cross-attention with the strongest links between words."""
    return reading.only(layer, kind="cross").most_telling(head)


def show(translation: Translation, top: int, html: str | None, as_json: bool) -> None:
    """Prints the translation, and what it looked at while it wrote every word."""
    messages = messages_console()
    for note in translation.notes:
        messages.print(f"note: {note}", style="yellow")
    readings = [reading_of(sentence) for sentence in translation.sentences]
    if as_json:
        print(json.dumps(_as_dict(translation, readings, top), ensure_ascii=False))
    else:
        _draw(translation.text, readings, top, messages)
    if html and readings:
        texts = [(reading, reading.heads()) for reading in readings]
        Path(html).write_text(page(texts, alignment(readings[0])), encoding="utf-8")
        messages.print(f"{html} has every layer and head.")
    elif html:
        messages.print(f"note: nothing was translated, so there is no {html}", style="yellow")


def _draw(text: str, readings: list[Reading], top: int, messages: Console) -> None:
    console = wide_console()
    print(text)
    for reading in readings[:_SHOWN]:
        call, head = alignment(reading)
        console.print()
        console.print(f"{call.name}: each word looks at the words that it is written from", style="bold")
        call.weights.show(*reading.names(call), head=head, on=console)
        console.print(links_table("strongest links", reading, reading.links(call, head, top)))
    if len(readings) > _SHOWN:
        messages.print(f"{len(readings) - _SHOWN} more sentences are not drawn; --html and --json have them.")


def _as_dict(translation: Translation, readings: list[Reading], top: int) -> dict[str, Any]:
    def of_sentence(sentence: Sentence, reading: Reading) -> dict[str, Any]:
        call, head = alignment(reading)
        with torch.no_grad():
            weights = call.weights[0, head].tolist()
        return {
            "source": sentence.source,
            "text": sentence.text,
            "source_tokens": sentence.source_tokens,
            "tokens": sentence.tokens,
            "scores": sentence.scores,
            "doubtful": sentence.doubtful,
            "alignment": {"module": call.name, "layer": call.layer, "head": head, "weights": weights},
            "links": [_link(reading, link) for link in reading.links(call, head, top)],
        }

    sentences = [of_sentence(*both) for both in zip(translation.sentences, readings, strict=True)]
    return {"text": translation.text, "sentences": sentences, "notes": translation.notes}


def _link(reading: Reading, link: Link) -> dict[str, Any]:
    written, source = reading.names(link.call)
    return {
        "from": written[link.query],
        "to": source[link.key],
        "query": link.query,
        "key": link.key,
        "weight": link.weight,
    }


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
