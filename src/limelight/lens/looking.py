"""``limelight look``: a reading on a terminal, as JSON and as a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from limelight import lens
from limelight.lens.calls import Call
from limelight.lens.heads import Heads
from limelight.lens.reading import Link, Reading
from limelight.viz.heatmaps import short
from limelight.viz.tables import messages_console, wide_console

_LONG = 1024  # tokens, from which on there is a progress bar
_TOLD = "strongest links, without those to itself, its neighbours, the first token and separators"


def look(
    reading: Reading,
    layer: int | None,
    head: int | None,
    top: int,
    temperature: float | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Prints the heads, the strongest links and one head; writes the page."""
    messages = messages_console()
    if reading.left_out:
        read = len(reading.tokens["encoder"])
        messages.print(f"The model has positions for {read} tokens; {reading.left_out} are left out.", style="yellow")
    everything = reading if temperature is None else reading.changed(temperature=temperature)
    seen = everything.only(layer)
    explicit = head is not None
    call, head = seen.most_telling(head)
    progress = _progress(messages, max(map(len, reading.tokens.values())))
    report = seen.heads(progress("heads"))
    if explicit:
        links = seen.links(call, head, top, trivial=True)
    else:
        links = [link for c in seen.record.log for h in range(c.shape[1]) for link in seen.links(c, h, top)]
        links = sorted(links, key=lambda link: -link.weight)[:top]
    rows = Heads(row for row in report if layer is None or row["layer"] == layer)
    try:  # neither is lost where the other fails
        if html:
            opens = next(n for n, other in enumerate(everything.record.log) if other is call), head
            lens.save_page(everything, html, opens=opens, progress=progress("page"))
            messages.print(f"{html} has every layer and head.")
    finally:
        if as_json:
            print(json.dumps(_as_dict(seen, rows, links, call, head), ensure_ascii=False))
        else:
            title = f"strongest links of {call.name}, head {head}" if explicit else _TOLD
            _draw(seen, rows, links_table(title, seen, links), call, head)


def _draw(seen: Reading, rows: Heads, links: Table, call: Call, head: int) -> None:
    console = wide_console()
    if seen.wrote:
        console.print(f"{seen.model} writes: {seen.wrote}")
        console.print()
    console.print(rows)
    console.print(links)
    queries, keys = seen.names(call)
    console.print(f"{call.name}, layer {call.layer}", style="bold")
    call.weights.show(queries, keys, head=head, on=console)


def _progress(console: Console, tokens: int) -> Callable[[str], Callable[[Iterable[Any]], Any]]:
    """A bar for long texts, on a terminal."""

    def named(what: str) -> Callable[[Iterable[Any]], Any]:
        if tokens < _LONG or not console.is_terminal:
            return iter
        return lambda items: track(list(items), description=what, console=console, transient=True)

    return named


def links_table(title: str, reading: Reading, links: list[Link]) -> Table:
    """A table of links."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    for name in ("weight", "layer", "head"):
        table.add_column(name, justify="right")
    for name in ("from", "to", "attention"):
        table.add_column(name)
    for link in links:
        queries, keys = reading.names(link.call)
        places = f"{short(queries[link.query])} ({link.query})", f"{short(keys[link.key])} ({link.key})"
        kind = f"{link.call.stack} {link.call.kind}"
        table.add_row(f"{link.weight:.3f}", str(link.call.layer), str(link.head), *places, kind)
    return table


def _as_dict(reading: Reading, report: Heads, links: list[Link], call: Call, head: int) -> dict[str, Any]:
    def link_of(link: Link) -> dict[str, Any]:
        queries, keys = reading.names(link.call)
        where = {"module": link.call.name, "layer": link.call.layer, "head": link.head}
        tokens = {"from": queries[link.query], "to": keys[link.key]}
        return {**where, "query": link.query, "key": link.key, **tokens, "weight": link.weight}

    _, _, N, M = call.shape
    small = N * M <= 2**16
    with torch.no_grad():
        matrix = call.weights[0, head] if small else call.weights.pool(min(N, 256), min(M, 256))[0, head]
    stacks = {c.stack for c in reading.record.log}
    stacks |= {stack for c in reading.record.log if c.kind == "cross" for stack in ("encoder", "written")}
    return {
        "model": reading.model,
        **({"wrote": reading.wrote} if reading.wrote else {}),
        "tokens": {stack: tokens for stack, tokens in reading.tokens.items() if stack in stacks},
        "heads": report,
        "links": [link_of(link) for link in links],
        "drawn": {
            "module": call.name,
            "layer": call.layer,
            "head": head,
            "pooled": not small,
            "weights": matrix.tolist(),
        },
    }
