"""The output of ``limelight translate``: a translation and its alignment, on a terminal, as JSON and as a page."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from limelight.lens import strict_json
from limelight.lens.alignment import Alignment, align, words
from limelight.lens.reading import Reading
from limelight.translate.results import Sentence, Translation
from limelight.translate.translator import Translator
from limelight.viz.characters import Picture, without_marker
from limelight.viz.heatmaps import put
from limelight.viz.notebook import matrix_html, text_html
from limelight.viz.progress import Lines
from limelight.viz.tables import messages_console, wide_console
from limelight.viz.text import printable

_SHOWN = 4  # sentences whose alignment is drawn
_TOGETHER = 256  # lines of a file that are translated together, so that batches have sentences of similar length


def reading_of(sentence: Sentence) -> Reading:
    """Return the attention of the translation of a sentence, with the tokens of both languages."""
    written = sentence.tokens
    tokens = {"encoder": sentence.source_tokens, "decoder": ["<pad>", *written[:-1]], "written": written}
    plain = {stack: [without_marker(token) for token in names] for stack, names in tokens.items()}
    return Reading(f"{sentence.source} → {sentence.text}", plain, sentence.record)


def alignment_of(sentence: Sentence) -> Alignment:
    """Return the alignment between the words of a sentence and those of its translation."""
    return align(sentence.record, sentence.tokens, sentence.source_tokens)


def translation_html(translation: Translation) -> str:
    """Return a translation for a notebook: the text, and the words that the words of its first sentences come from."""
    drawn = [text_html(translation.text, "; ".join(translation.notes))]
    for sentence in translation.sentences[:_SHOWN]:
        aligned = alignment_of(sentence)
        title = f"layer {aligned.call.layer}, head {aligned.head}"
        drawn.append(matrix_html(aligned.weights.numpy(), aligned.written, aligned.read, title))
    return "".join(drawn)


def show(
    translation: Translation,
    top: int,
    html: str | None,
    as_json: bool,
    save_page: Callable[..., None],
    own: Translation | None = None,
) -> None:
    """Print the translation, and the source words that each word was written from; write the page.

    ``own`` is the model's own translation, to compare a given one with.
    """
    messages = messages_console()
    for note in translation.notes:
        messages.print(printable(f"note: {note}"), style="yellow")
    aligned = [alignment_of(sentence) for sentence in translation.sentences]
    try:  # a page that cannot be written does not keep the rest from being printed
        if html and aligned:
            readings = [reading_of(sentence) for sentence in translation.sentences]
            if translation.notes:
                noted = "; ".join(f"note: {note}" for note in translation.notes)
                readings[0] = replace(readings[0], model=f"{readings[0].model} ({noted})")
            call = next(n for n, other in enumerate(readings[0].record.log) if other is aligned[0].call)
            save_page(readings, html, opens=(call, aligned[0].head))
            messages.print(printable(f"{html} has every layer and head."))
        elif html:
            messages.print(printable(f"note: nothing was translated, so {html} was not written"), style="yellow")
    finally:
        if as_json:
            print(strict_json.dumps(_as_dict(translation, aligned, top) | ({"own": _scored(own)} if own else {})))
        else:
            if own is not None:
                _compare(translation, own)
            _draw(translation, aligned, top, messages)


def _draw(translation: Translation, aligned: list[Alignment], top: int, messages: Console) -> None:
    console = wide_console()
    print(printable(translation.text))
    for sentence, one in zip(translation.sentences[:_SHOWN], aligned, strict=False):
        console.print()
        if len(aligned) > 1:
            console.print(printable(f"{sentence.source} → {sentence.text}"), style="bold", soft_wrap=True)
        where = f"cross-attention of layer {one.call.layer}, head {one.head}"
        title = f"each word, and the words that it is written from ({where})"
        put([Picture(title, one.weights, one.written, one.read)], console)
        console.print(_table(one, top))
    if len(aligned) > _SHOWN:
        messages.print(f"{len(aligned) - _SHOWN} more sentences are not drawn; --html and --json have them.")


def _compare(given: Translation, own: Translation) -> None:
    """Print how likely the model finds a given translation and its own, and each word of the given one."""
    console = wide_console()
    table = Table(title="how likely the model finds it", title_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    for name in ("log-probability", "tokens", "probability of a token"):
        table.add_column(name, justify="right")
    table.add_column("translation")
    for who, one in (("given", given), ("its own", own)):
        found = _scored(one)
        table.add_row(
            f"{found['score']:.2f}",
            str(len(one.tokens)),
            f"{found['likelihood']:.3f}",
            Text(printable(f"{one.text} ({who})")),
        )
    console.print(table)
    (sentence,) = given.sentences
    likely = Table(title="each word, given those before it", title_justify="left", box=SIMPLE_HEAD)
    likely.pad_edge = False
    likely.add_column("probability", justify="right")
    likely.add_column("word")
    for word, places in words(sentence.tokens):
        likely.add_row(f"{math.exp(sum(sentence.scores[n] for n in places)):.3f}", Text(printable(word)))
    console.print(likely)


def _scored(translation: Translation) -> dict[str, Any]:
    """Return the log-probability of a translation, and the geometric mean of its tokens' probabilities."""
    total = sum(translation.scores)
    return {
        "text": translation.text,
        "score": total,
        "likelihood": math.exp(total / max(1, len(translation.scores))),
    }


def _table(one: Alignment, top: int) -> Table:
    table = Table(title="strongest links", title_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    table.add_column("weight", justify="right")
    table.add_column("written")
    table.add_column("looking at")
    for i, j, weight in one.links(top):
        table.add_row(f"{weight:.3f}", Text(one.written[i]), Text(one.read[j]))
    return table


def _spaced(token: str) -> str:
    """Return a token as text, with a space for ``▁``."""
    return token.replace("▁", " ")


def _as_dict(translation: Translation, aligned: list[Alignment], top: int) -> dict[str, Any]:
    def of_sentence(sentence: Sentence, one: Alignment) -> dict[str, Any]:
        return {
            "source": sentence.source,
            "text": sentence.text,
            "source_tokens": [_spaced(token) for token in sentence.source_tokens],
            "tokens": [_spaced(token) for token in sentence.tokens],
            "scores": sentence.scores,
            "likelihood": sentence.likelihood,
            "doubtful": sentence.doubtful,
            "changes": sentence.changes,
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

    Lines are printed as soon as they are translated, so that an interruption loses none of them.
    """
    messages = messages_console()
    say = Lines(messages)
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
            if not messages.is_terminal:
                say("translating lines", begin + len(part), len(lines))


def translate_typed(
    translator: Translator, beams: int, top: int, as_json: bool, save_page: Callable[..., None]
) -> None:
    """Read one line after the other from a terminal and show its translation, until Ctrl-D."""
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
                show(translator(line, beams=beams), top, None, as_json, save_page)
            except ValueError as error:  # such as bytes that are not UTF-8
                messages.print(f"note: {error}", style="yellow")
