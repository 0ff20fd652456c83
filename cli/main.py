"""The command `cq`: its commands, and the handling of errors."""

from __future__ import annotations

import errno
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from cq.cli.bench import command as bench
from cq.cli.demos import command as demos
from cq.cli.operate import config, doctor, health, status, worker
from cq.cli.queues import cells, configure, data, export, feed, manage, set_aside, top, verify
from cq.cli.shared import streams
from cq.cli.shared.options import opened
from cq.cli.shared.output import note, say
from cq.cli.shared.settings import Commands, use_file
from cq.cli.shared.settings_file import InvalidSettings
from cq.distribution import version
from cq.errors import CqError
from cq.store.api import error_code

app = typer.Typer(
    name="cq",
    cls=Commands,
    help="A transactional combine queue: count and combine under contention, on FoundationDB or on one file.",
    epilog="Exit status: 0 done, 1 an error with a one-line message, 2 wrong usage, 3 a key without a value, "
    "4 differences found by `cq verify`, 130 ^C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes and colours only on a terminal; a pipe receives plain text in whole lines.
    rich_markup_mode="markdown" if sys.stdout is not None and sys.stdout.isatty() else None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"cq {version()}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    use_file(ctx)


_SINGLE = configure, status, data, manage, top, worker, health, config, doctor, verify, bench
_GROUPS = set_aside, export, feed, cells, demos
for module in (*_SINGLE, *_GROUPS):
    app.add_typer(module.commands)

# Former names, for scripts.
app.add_typer(set_aside.commands, name="dead", hidden=True)
app.command("config", hidden=True)(config.show_settings)
app.command("exports", hidden=True)(export.show_list)


def main() -> None:
    """Run the command line; errors of cq and of the store end it with one line and exit status 1, 2 for settings."""
    streams.open_missing()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Escape characters that the encoding lacks, instead of failing.
            stream.reconfigure(errors="backslashreplace")
    try:
        with opened:
            _run()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the program that reads the output has ended, such as `head`
        streams.discard()
        sys.exit(1)
    except InvalidSettings as error:
        _fail(str(error), status=2)
    except CqError as error:
        _fail(str(error))
    except OSError as error:
        _fail(_described(error))
    except Exception as error:
        if error_code(error) is None:  # a bug: its traceback is needed
            raise
        _fail(f"the store failed: {error}")


def _run() -> None:
    """Run the command, and flush its output before it ends."""
    try:
        app(prog_name="cq")
    except SystemExit:
        streams.flush()
        raise


def _described(error: OSError) -> str:
    if error.filename:
        return f"{error.strerror}: {error.filename}"
    return "standard output is closed" if error.errno == errno.EBADF else str(error)


def _fail(message: str, *, status: int = 1) -> None:
    note(f"cq: {' '.join(message.split())}")
    streams.discard()
    sys.exit(status)
