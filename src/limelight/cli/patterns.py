"""``limelight patterns``: attention patterns side by side."""

from __future__ import annotations

import click


@click.command("patterns", short_help="Draw attention patterns, with what each costs.")
@click.argument("n", type=click.IntRange(1, 64), default=12)
def command(n: int) -> None:
    """Draw the usual attention patterns for N tokens (12 unless given), and what each costs."""
    import limelight as ll

    click.echo(str(ll.patterns(n)))
