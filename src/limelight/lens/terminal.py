"""The output of ``limelight look``: a reading on a terminal, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from limelight.lens import picture_terminal as pictures
from limelight.lens import reading as readings
from limelight.lens import strict_json
from limelight.lens.heads_table import Heads
from limelight.lens.reading import Link, Reading
from limelight.lens.record import Call
from limelight.lens.sizes import MEANINGS
from limelight.lens.word import print_word, word_as_dicts
from limelight.viz.characters import short
from limelight.viz.progress import Advance, progress, tracked
from limelight.viz.tables import messages_console, wide_console
from limelight.viz.text import printable

_ROWS = 24  # heads that are shown unless all are asked for
_LINKS_TITLE = "strongest links, without those to itself, its neighbours, the first token and separators"
_DENSE_JSON = 2**16  # weights of a head that are written to JSON as they are; larger matrices are pooled


def read_with_progress(folder: str | Path, text: str) -> Reading:
    """Read a text with the model in a folder, with progress and the remaining time on the standard error."""
    with progress(messages_console(), "loading") as advance:
        return readings.read(folder, text, progress=advance)


def look(
    reading: Reading,
    layer: int | None,
    head: int | None,
    word: str | None,
    top: int,
    temperature: float | None,
    html: str | None,
    as_json: bool,
    save_page: Callable[..., None],
    patch: tuple[int, int] | None = None,
    every_head: bool = False,
) -> None:
    """Print the report on heads, the strongest links and a heatmap of one head, or one word; write the page.

    Of a picture, the heat of one patch (of the class token unless given) is drawn over it, and that of each word.
    """
    messages = messages_console()
    if reading.left_out:
        read = len(reading.tokens["encoder"])
        messages.print(f"The model has positions for {read} tokens; {reading.left_out} are left out.", style="yellow")
    if reading.picture is not None:
        pictures.check_patch(reading, patch)
    everything = reading if temperature is None else reading.changed(temperature=temperature)
    selected = everything.only(layer)
    if word is not None and not as_json and not html:
        return _draw_word(selected, word, head)
    explicit = head is not None
    seen = selected if selected.picture is None else pictures.on_the_picture(selected)
    with progress(messages) as advance:
        call, head = seen.most_telling(head, _tracking("links", advance))
        report = selected.heads(_tracking("heads", advance))
    links = selected.links(call, head, top, trivial=True) if explicit else _strongest_links(selected, top)
    rows = Heads(row for row in report if layer is None or row["layer"] == layer)
    try:  # a page that cannot be written does not keep the rest from being printed
        if html:
            _write_page(everything, html, call, head, save_page, messages)
    finally:
        if as_json:
            print(strict_json.dumps(_as_dict(selected, rows, links, call, head, patch, word)))
        elif word is not None:
            _draw_word(selected, word, head if explicit else None)
        else:
            title = f"strongest links of {call.name}, head {head}" if explicit else _LINKS_TITLE
            shown = rows if every_head or len(rows) <= _ROWS else rows.telling(_ROWS)
            _draw(selected, shown, len(rows), _links_table(title, selected, links), call, head, patch)


def _write_page(
    reading: Reading, file: str, call: Call, head: int, save_page: Callable[..., None], messages: Console
) -> None:
    """Write the page of all layers and heads, which opens at one of them."""
    opens = next(n for n, other in enumerate(reading.record.log) if other.name == call.name)
    with progress(messages) as advance:
        save_page(reading, file, opens=(opens, head), progress=_tracking("page", advance))
    messages.print(printable(f"{file} has every layer and head."))


def _strongest_links(reading: Reading, top: int) -> list[Link]:
    """Return the strongest links of all heads."""
    heads = ((call, head) for call in reading.record.log for head in range(call.shape[1]))
    every = (link for call, head in heads for link in reading.links(call, head, top))
    return sorted(every, key=lambda link: -link.weight)[:top]


def _draw_word(reading: Reading, word: str, head: int | None) -> None:
    """Print where on the picture a caption's word looks, or what a word of a text attends to."""
    if reading.picture is not None:
        return pictures.draw_words(reading, wide_console(), word)
    return print_word(reading, word, wide_console(), head)


def _draw(
    reading: Reading,
    rows: Heads,
    heads: int,
    links: Table,
    call: Call,
    head: int,
    patch: tuple[int, int] | None = None,
) -> None:
    console = wide_console()
    if reading.wrote:
        console.print(printable(f"{reading.model} writes: {reading.wrote}"))
        console.print()
    _print_sizes(reading, console)
    console.print()
    console.print(rows)
    if len(rows) < heads:
        console.print(f"the {len(rows)} most telling of {heads} heads; --all shows every head")
        console.print()
    console.print(links)
    if reading.picture is not None:
        return pictures.draw(reading, call, head, patch, console)
    queries, keys = reading.names(call)
    console.print(f"{call.name}, layer {call.layer}", style="bold")
    call.weights.show(queries, keys, head=head, on=console)


def _print_sizes(reading: Reading, console: Console) -> None:
    """Print the model's sizes with what each means."""
    meanings = MEANINGS if reading.picture is None else {**MEANINGS, "n": pictures.described(reading)}
    for name, size in reading.sizes.items():
        console.print(f"{name:>8} = {size:<6} {meanings[name]}")


def _tracking(what: str, advance: Advance) -> Callable[[Sequence[Any]], Iterator[Any]]:
    """Return a function that iterates over items and reports each."""
    return lambda items: tracked(items, what, advance)


def _links_table(title: str, reading: Reading, links: list[Link]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    for name in ("weight", "layer", "head"):
        table.add_column(name, justify="right")
    for name in ("from", "to", "attention"):
        table.add_column(name)
    for link in links:
        queries, keys = reading.names(link.call)
        table.add_row(
            f"{link.weight:.3f}",
            str(link.call.layer),
            str(link.head),
            f"{short(queries[link.query])} ({link.query})",
            f"{short(keys[link.key])} ({link.key})",
            f"{link.call.stack} {link.call.kind}",
        )
    return table


def _as_dict(
    reading: Reading,
    report: Heads,
    links: list[Link],
    call: Call,
    head: int,
    patch: tuple[int, int] | None,
    word: str | None,
) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    _, _, N, M = call.shape
    small = N * M <= _DENSE_JSON
    with torch.no_grad():
        matrix = call.weights[0, head] if small else call.weights.pool(min(N, 256), min(M, 256))[0, head]
    stacks = {other.stack for other in reading.record.log}
    if any(other.kind == "cross" for other in reading.record.log):
        stacks |= {"encoder", "written"}
    found = {
        "model": reading.model,
        **({"wrote": reading.wrote} if reading.wrote else {}),
        "sizes": reading.sizes,
        "tokens": {stack: tokens for stack, tokens in reading.tokens.items() if stack in stacks},
        "heads": report,
        "links": [_link_as_dict(reading, link) for link in links],
        "drawn": {
            "module": call.name,
            "layer": call.layer,
            "head": head,
            "pooled": not small,
            "weights": matrix.tolist(),
        },
    }
    if reading.picture is not None:
        found |= pictures.as_dict(reading, call, head, patch)
    elif word is not None:
        found["word"] = word_as_dicts(reading, word)
    return found


def _link_as_dict(reading: Reading, link: Link) -> dict[str, Any]:
    queries, keys = reading.names(link.call)
    return {
        "module": link.call.name,
        "layer": link.call.layer,
        "head": link.head,
        "query": link.query,
        "key": link.key,
        "from": queries[link.query],
        "to": keys[link.key],
        "weight": link.weight,
    }
