"""The command line: one file a command. Nothing here imports torch until a command runs."""

from __future__ import annotations

import click

from limelight.cli import bench, experiment, explore, look, matter, patterns, survey, trace, train, translate
from limelight.cli._shared import CommandGroup

_FIRST = """\b
Try first:
  limelight translate "The cat sat on the mat."
  limelight trace
  limelight explore "The cat is sleeping on the table."
"""


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_FIRST)
@click.version_option(package_name="limelight-attention")
def main() -> None:
    """Attention that you can see through."""


for _command in (
    trace.command,
    look.command,
    matter.command,
    patterns.command,
    explore.command,
    translate.command,
    train.command,
    experiment.command,
    bench.command,
    survey.command,
):
    main.add_command(_command)
