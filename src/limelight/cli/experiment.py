"""``limelight experiment``: checks what texts say about attention."""

from __future__ import annotations

import click


@click.command("experiment", short_help="Check what texts say about attention.")
@click.argument("name", required=False)
@click.option("--out", type=click.Path(file_okay=False), help="A folder for figures (PNG, SVG) and data (CSV, JSON).")
@click.option("--quick", is_flag=True, help="Fewer seeds and shorter texts.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(name: str | None, out: str | None, quick: bool, seed: int) -> None:
    """Check what texts say about attention: NAME is an experiment, or "all". Without a name they are listed."""
    from limelight.experiments import EXPERIMENTS, terminal

    if name is None:
        terminal.list_experiments()
        return
    if name not in EXPERIMENTS and name != "all":
        raise click.UsageError(f"there is no experiment {name!r}; there are {', '.join(EXPERIMENTS)} and all")
    terminal.run_and_show(name, out, quick, seed)
