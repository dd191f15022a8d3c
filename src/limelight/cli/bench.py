"""``limelight bench``: the speed of attention on this machine, next to PyTorch and the peers that are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from limelight.cli._shared import json_option


def _counts(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[int]:
    """Read ``--threads 1 --threads 2`` and ``--threads 1,2``."""
    words = [word for value in values for word in value.split(",")]
    if not all(word.strip().isdigit() and 0 < int(word) <= 1024 for word in words):
        raise click.BadParameter(f"{', '.join(values)}: give numbers from 1 to 1024, such as --threads 1,2")
    return list(dict.fromkeys(int(word) for word in words))


@click.command("bench", short_help="Measure attention on this machine, next to its peers.")
@click.option("--quick", is_flag=True, help="Fewer repetitions.")
@click.option("--threads", multiple=True, callback=_counts, help="Thread counts, such as 1,2; 1 and all unless given.")
@click.option("--case", default="", help="Only the cases whose name contains this, such as decode or training.")
@click.option("--no-peers", is_flag=True, help="Only limelight and SDPA.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, writable=True),
    help="Write the results to this file as JSON; with --case, renew those that it has.",
)
@json_option
def command(quick: bool, threads: list[int], case: str, no_peers: bool, out: str | None, as_json: bool) -> None:
    """Measure attention on this machine: limelight, SDPA, the peers that are installed, and the machine's own limits.

    A figure is the best of several repetitions, taken in turns, so that a slow moment hits every contestant, and
    repeated until the ratio is steady. Each case is held against the machine's limit: the multiply-add peak where the
    work is arithmetic, the bandwidth of reading that much memory where the work is to read a cache.
    """
    import json

    earlier = _earlier(Path(out)) if case and out is not None and Path(out).is_file() else None
    measured = _measure(quick, threads, case, not no_peers)
    text = json.dumps(measured, indent=1)
    if out is not None:
        kept = measured if earlier is None else _renewed(earlier, measured)
        Path(out).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if as_json:
        click.echo(text)
    else:
        _show(measured)
    if out is not None:
        click.echo(f"wrote {out}", err=True)


def _earlier(file: Path) -> dict[str, Any]:
    """Read what was measured on this CPU before, of which some is to be renewed."""
    import json

    from limelight.cli._bench.machine import cpu_name

    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        cpu = found["cpu"]
        [(r["case"], r["threads"]) for r in found["results"]]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise click.UsageError(f"{file} has no results that could be renewed ({error!r}); give another file") from None
    if cpu != cpu_name():
        raise click.UsageError(f"{file} has the results of {cpu}, and this is {cpu_name()}; give another file")
    return found


def _renewed(earlier: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Put new results in the place of earlier ones of the same case and number of threads, or at the end."""
    new = {(r["case"], r["threads"]): r for r in measured["results"]}
    kept = [new.pop((r["case"], r["threads"]), r) for r in earlier["results"]]
    limits = {name: {**earlier.get(name, {}), **measured[name]} for name in ("peak GF/s", "read GB/s")}
    return {**measured, **limits, "results": kept + list(new.values())}


def _measure(quick: bool, threads: list[int], wanted: str, with_peers: bool) -> dict[str, Any]:
    import torch

    from limelight import backends
    from limelight.backends import no_kernels
    from limelight.cli._bench.cases import all_cases
    from limelight.cli._bench.machine import busy, describe
    from limelight.cli._bench.measuring import run
    from limelight.viz.progress import progress, tracked
    from limelight.viz.tables import messages_console

    if not backends.built:
        raise click.ClickException(f"there is nothing to measure: {no_kernels.MESSAGE}")
    threads = threads or sorted({1, torch.get_num_threads()})
    cases = all_cases()
    chosen = [c for c in cases if wanted in c.name]
    if not chosen:
        names = "; ".join(c.name for c in cases)
        raise click.UsageError(f"no case contains {wanted!r}; there are: {names}")
    warning = busy()
    if warning:
        click.echo(f"warning: {warning}", err=True)
    machine = describe(threads)
    seconds = 0.1 if quick else 1.0
    jobs = [(case, count) for count in threads for case in chosen]
    with progress(messages_console()) as advance:
        results = [run(case, count, seconds, with_peers) for case, count in tracked(jobs, "measuring", advance)]
    return {**machine, "busy": warning, "results": results}


def _show(measured: dict[str, Any]) -> None:
    from rich.console import Console

    from limelight.cli._bench.report import machine_lines, results_table, sparse_table

    console = Console(width=None if Console().is_terminal else 160)
    for line in machine_lines(measured):
        console.print(line, highlight=False)
    results = measured["results"]
    for threads in dict.fromkeys(r["threads"] for r in results):
        console.print(results_table(results, threads))
        patterns = sparse_table(results, threads)
        if patterns is not None:
            console.print(patterns)
    absent = {name: reason for result in results for name, reason in result["left out"].items()}
    for name, reason in absent.items():
        console.print(f"left out: {name}: {reason}", highlight=False, markup=False)
    noisy = [r["case"] for r in results if not r["steady"]]
    if noisy:
        console.print(f"not steady (~): {', '.join(noisy)}", highlight=False)
    others = max(r["others' cores"] for r in results)
    if others > 0.1:
        console.print(f"warning: others used up to {others:.1f} cores during the run; repeat it when they are done")
