"""The output of ``limelight translate``: a translation and its alignment, on a terminal, as JSON and as a page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from limelight.lens import strict_json
from limelight.lens.alignment import Alignment, align
from limelight.lens.reading import Reading
from limelight.translate.translator import Sentence, Translation, Translator
from limelight.viz.characters import Picture
from limelight.viz.heatmaps import put
from limelight.viz.tables import messages_console, wide_console
from limelight.viz.text import printable

_SHOWN = 4  # sentences whose alignment is drawn
_TOGETHER = 256  # lines of a file that are translated together, so that batches have sentences of similar length


def reading_of(sentence: Sentence) -> Reading:
    """Return the attention of the translation of a sentence, with the tokens of both languages."""
    written = sentence.tokens
    tokens = {"encoder": sentence.source_tokens, "decoder": ["<pad>", *written[:-1]], "written": written}
    plain = {stack: [_without_marker(t) for t in names] for stack, names in tokens.items()}
    return Reading(f"{sentence.source} → {sentence.text}", plain, sentence.record)


def _without_marker(token: str) -> str:
    return token.removeprefix("▁") or "▁"


def alignment_of(sentence: Sentence) -> Alignment:
    """Return the alignment between the words of a sentence and those of its translation."""
    return align(sentence.record, sentence.tokens, sentence.source_tokens)


def show(translation: Translation, top: int, html: str | None, as_json: bool, save_page: Callable[..., None]) -> None:
    """Print the translation, and the source words that each word was written from; write the page."""
    messages = messages_console()
    for note in translation.notes:
        messages.print(printable(f"note: {note}"), style="yellow")
    aligned = [alignment_of(sentence) for sentence in translation.sentences]
    try:  # a page that cannot be written does not keep the rest from being printed
        if html and aligned:
            readings = [reading_of(sentence) for sentence in translation.sentences]
            call = next(n for n, other in enumerate(readings[0].record.log) if other is aligned[0].call)
            save_page(readings, html, opens=(call, aligned[0].head))
            messages.print(printable(f"{html} has every layer and head."))
        elif html:
            messages.print(printable(f"note: nothing was translated, so {html} was not written"), style="yellow")
    finally:
        if as_json:
            print(strict_json.dumps(_as_dict(translation, aligned, top)))
        else:
            _draw(translation.text, aligned, top, messages)


def _draw(text: str, aligned: list[Alignment], top: int, messages: Console) -> None:
    console = wide_console()
    print(printable(text))
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
        return {
            "source": sentence.source,
            "text": sentence.text,
            "source_tokens": sentence.source_tokens,
            "tokens": sentence.tokens,
            "scores": sentence.scores,
            "doubtful": sentence.doubtful,
            "alignment": {
                "module": one.call.name,
                "layer": one.call.layer,
                "head": one.head,
                "written": one.written,
                "read": one.read,
                "weights": one.weights.tolist(),
            },
            "links": [
                {"from": one.written[i], "to": one.read[j], "query": i, "key": j, "weight": weight}
                for i, j, weight in one.links(top)
            ],
        }

    sentences = [of_sentence(*both) for both in zip(translation.sentences, aligned, strict=True)]
    return {"text": translation.text, "sentences": sentences, "notes": translation.notes}


def translate_lines(translator: Translator, text: str, beams: int) -> None:
    """Print a line of translation for each line; notes and progress go to the standard error.

    Every part is printed as soon as it is translated, so that an interruption loses nothing of it.
    """
    messages = messages_console()
    lines = text.removesuffix("\n").split("\n") if text else []
    columns = (TextColumn("translating"), BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeRemainingColumn())
    with Progress(
        *columns, console=messages, transient=True, redirect_stdout=False, disable=not messages.is_terminal
    ) as bar:
        task = bar.add_task("", total=len(lines))
        for begin in range(0, len(lines), _TOGETHER):
            part = translator.translate_all(lines[begin : begin + _TOGETHER], beams=beams)
            bar.stop()  # so that the bar and the translations do not overwrite each other
            for number, translation in enumerate(part, begin + 1):
                print(printable(" ".join(translation.text.split("\n"))))
                for note in translation.notes:
                    messages.print(printable(f"line {number}: {note}"), style="yellow")
            sys.stdout.flush()
            bar.start()
            bar.advance(task, len(part))
