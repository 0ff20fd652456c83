"""The command `cq`: its commands, and the handling of errors."""

from __future__ import annotations

import errno
import sys
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from cq.cli.shared import completion, streams
from cq.cli.shared.exit_status import FAILED, status_of
from cq.cli.shared.interrupts import repeat_ignored_interrupts
from cq.cli.shared.options import opened
from cq.cli.shared.output import note, say
from cq.cli.shared.settings import Commands, use_file
from cq.distribution import version
from cq.errors import CqError
from cq.plain_text import message_of
from cq.store.api import error_code

_TEXT: Final = """A transactional combine queue: count and combine under contention, on FoundationDB or on one file.

Exit status: 0 done, 1 an error with a one-line message, 2 wrong usage, 3 a key without a value, 4 differences found
by a check, 5 work left by `cq worker --drain`, 130 ^C.
"""
_WIDEST_TEXT: Final = 100  # longer lines of text are harder to read


def _print_version(ctx: typer.Context, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:  # a shell that completes words must not get it as a candidate
        say(f"cq {version()}")
        raise typer.Exit


def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    use_file(ctx)


def command_line() -> typer.Typer:
    """Build the command line; each command's module is imported when it is used."""
    app = typer.Typer(
        name="cq",
        cls=Commands,
        help=_TEXT,
        epilog="cq demo live\ncq configure words --combiner sum\ncq add words hello=1\ncq worker",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # errors are plain lines; the help has its own colours
        context_settings={"max_content_width": _WIDEST_TEXT},
    )
    app.callback()(_options)
    return app


def main() -> None:
    """Run the command line; errors of cq and of the store end it with one line and `status_of` them."""
    streams.open_missing()
    repeat_ignored_interrupts()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Escape characters that the encoding lacks, instead of failing.
            stream.reconfigure(errors="backslashreplace")
    try:
        with opened:
            _run()
    except KeyboardInterrupt:
        sys.exit(130)
    except CqError as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        _fail(f"{error}{notes}", status=status_of(error))
    except OSError as error:
        _fail(_described(error))
    except Exception as error:
        if error_code(error) is None:  # a bug: its traceback is needed
            raise
        _fail(f"the store failed: {message_of(error)}")


def _run() -> None:
    """Run the command, and flush its output before it ends; a reader that has ended does not change its status."""
    completion.join_words()
    try:
        command_line()(prog_name="cq")
    except SystemExit:
        try:
            streams.flush()
        except BrokenPipeError:
            streams.discard()
        raise


def _described(error: OSError) -> str:
    if error.filename:
        return f"{error.strerror}: {error.filename}"
    return "standard output is closed" if error.errno == errno.EBADF else str(error)


def _fail(message: str, *, status: int = FAILED) -> None:
    note(f"cq: {' '.join(message.split())}")
    streams.discard()
    sys.exit(status)
