"""Shared parts of the commands: options, reading input, and errors in one line."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class CommandGroup(click.Group):
    """A group of commands that also reports errors of the output, such as a full disk, in one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, and flush the standard output while errors can still be reported."""
        try:
            try:
                return super().main(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            _exit_without_output(1)
        except UnicodeEncodeError as error:  # raised by --help, which prints before a command runs
            click.echo(f"Error: {_encoding_error(error)}", err=True)
            sys.exit(1)
        except OSError as error:
            click.echo(f"Error: the output could not be written: {error.strerror}", err=True)
            _exit_without_output(1)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments, with errors in one line."""
        with one_line_errors():
            return super().make_context(*args, **kwargs)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and refuse options in the place of another option's value."""
        name, found, rest = super().resolve_command(ctx, args)
        if found is not None:
            _check_values(found, rest)
        return name, found, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, with errors in one line."""
        with one_line_errors():
            return super().invoke(ctx)


def _check_values(command: click.Command, args: list[str]) -> None:
    """Refuse ``--html --model FOLDER``, which would write a file with the name ``--model``."""
    valued = {
        name
        for option in command.params
        if isinstance(option, click.Option) and not (option.is_flag or option.count)
        for name in option.opts
    }
    for option, value in pairwise(args):
        if option == "--":
            return
        if option in valued and value.startswith("--"):
            raise click.UsageError(f"{option} needs a value, not {value}; write {option}={value} if you mean it")


def _exit_without_output(code: int) -> None:
    """Exit, without the interpreter's second attempt to flush a standard output that cannot be written."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, io.UnsupportedOperation):  # replaced by a test
        sys.exit(code)
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    sys.exit(code)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors of data, files and memory into one line on the standard error and exit code 1."""
    # torch raises RuntimeError where memory does not suffice.
    expected = (ImportError, OSError, TypeError, ValueError, MemoryError, OverflowError, RecursionError, RuntimeError)
    try:
        yield
    except (click.Abort, click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        raise
    except click.ClickException as error:  # may quote an argument with line breaks or escape sequences
        text = error.format_message()
        if (line := _one_line(text)) == text:
            raise
        if isinstance(error, click.UsageError):
            raise click.UsageError(line, ctx=error.ctx) from None
        raise click.ClickException(line) from None
    except UnicodeEncodeError as error:
        raise click.ClickException(_encoding_error(error)) from None
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.ENOSPC) and error.filename is None:
            raise  # errors of the standard output are handled by the group
        raise click.ClickException(_one_line(error)) from None
    except expected as error:
        raise click.ClickException(_one_line(error)) from None


def _encoding_error(error: UnicodeEncodeError) -> str:
    character = error.object[error.start : error.start + 1]
    return f"the output's encoding, {error.encoding}, has no {character!a}; set PYTHONIOENCODING=utf-8"


def _one_line(error: BaseException | str) -> str:
    from limelight.viz.text import one_line

    return one_line(str(error)) or f"{type(error).__name__}, without a message"


def _check_folder(_: click.Context, option: click.Parameter, file: str | None) -> str | None:
    """Refuse a file in a folder that does not exist before anything is computed."""
    if file is not None and not Path(file).resolve().parent.is_dir():
        raise click.BadParameter(f"there is no folder {Path(file).parent}", param=option)
    return file


html_option = click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True),
    callback=_check_folder,
    help="Write a page with every layer and head.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


class _ModelFolder(click.Path):
    """The folder of a model, or the name of one that a package carries."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder."""
        if isinstance(value, str) and not Path(value).is_dir():
            from limelight.models.named import named_folder

            try:
                folder = named_folder(value)
            except ModuleNotFoundError as error:
                self.fail(str(error), param, ctx)
            value = value if folder is None else str(folder)
        return super().convert(value, param, ctx)


def model_option(help: str) -> Callable[[F], F]:
    """Return the option ``--model``."""
    return click.option("--model", type=_ModelFolder(exists=True, file_okay=False), help=help)


def file_option(help: str) -> Callable[[F], F]:
    """Return the option ``--file``, whose value is an open text file."""
    return click.option("--file", type=click.File("r", encoding="utf-8-sig"), help=help)


def standard_input() -> TextIO:
    """Return the standard input as text in UTF-8."""
    found: TextIO = click.open_file("-", encoding="utf-8-sig")  # type: ignore[assignment]
    return found


def read_text(file: TextIO) -> str:
    """Return the contents of a text file."""
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{getattr(file, 'name', 'the input')} is not text in UTF-8: {error}") from None
