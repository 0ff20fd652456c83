"""Printing of rows in the format that `--format` chooses, on standard output or into a file.

A command with `RowsOptions` calls

    target = options.target()                       # before it reads: refuses options that do not fit together
    print_rows(TableRows(fields, pages), target)    # from cq.tables.rows; a page is a list of rows

CSV is that of RFC 4180 in UTF-8: a line with the names of the columns, then one for each row; lines end with a newline.
Parquet is written with pyarrow, a row group for each page.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import Any, Final, NamedTuple

import typer

from cq.cli.shared.exit_status import NO_VALUE
from cq.cli.shared.options import AppOptions, Options, option, option_set
from cq.cli.shared.output import is_read, json_text, note, print_bytes, print_line, quantity
from cq.encoding.columns import Column, Row, columns
from cq.encoding.json_values import to_json
from cq.tables.arrow import batches, require_pyarrow, schema
from cq.tables.rows import TableRows


class Format(StrEnum):
    """A format of rows other than text."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    SPREADSHEET = "spreadsheet"


class RowsTarget(NamedTuple):
    """Where to print rows: the format, None for text, and the path of a file, None for standard output."""

    format: Format | None
    path: str | None


@option_set
class RowsOptions(Options):
    """The options of a command that prints rows."""

    format_name: Format | None = option(
        "FORMAT",
        "Print csv, jsonl (the lines of --json), parquet, or spreadsheet (csv in which no text runs as a formula) "
        "instead of text.",
        "--format",
    )
    output: str | None = option(
        "FILE", "With --format: write to this file, which appears when it is complete; - is standard output."
    )

    def target(self) -> RowsTarget:
        """The target that these options choose; called before the command reads.

        Raises `typer.BadParameter` if the options do not fit together or a terminal would get Parquet, and
        `MissingPackage` if Parquet needs a package.
        """
        chosen = self.format_name or (Format.JSONL if self.json else None)
        path = None if self.output == "-" else self.output
        if self.json and chosen is not Format.JSONL:
            raise typer.BadParameter(f"--json prints lines of JSON: give it, or --format {chosen}")
        if path is not None and chosen is None:
            raise typer.BadParameter(
                "--output needs the format of the file: add --format csv, jsonl, parquet or spreadsheet"
            )
        if chosen is Format.PARQUET:
            if path is None and sys.stdout.isatty():
                raise typer.BadParameter(
                    "a terminal cannot show Parquet: add --output FILE, or redirect the output"
                )
            require_pyarrow("pyarrow.parquet")
        return RowsTarget(chosen, path)


@dataclass(frozen=True)
class AppRowsOptions(RowsOptions, AppOptions):
    """The options of a command that prints rows, and may need code of the application."""


def print_rows(rows: TableRows, target: RowsTarget) -> None:
    """Print rows page by page; a key or value of several columns has these in CSV and Parquet.

    Ends when the reader of standard output has ended. A file replaces an older one of its name when it is complete.
    """
    if target.path is None and target.format in (None, Format.JSONL):
        _print_lines(rows, json=target.format is not None)
        return
    written = 0

    def counted() -> Iterator[Any]:
        nonlocal written
        for page in rows.pages:
            yield page
            written += len(page)

    parts = _PARTS[target.format or Format.JSONL](TableRows(rows.fields, counted()))
    with nullcontext(print_bytes) if target.path is None else whole_file(target.path) as write:
        for part in parts:
            if target.path is None and not is_read():
                return
            write(part)
    if target.path is not None:
        note(f"wrote {quantity(written, 'row')} to {target.path}")


def _print_lines(rows: TableRows, json: bool) -> None:
    for page in rows.pages:
        for row in page:
            if not is_read():
                return
            print_line(json, **_named(rows, row))


def _jsonl_parts(rows: TableRows) -> Iterator[bytes]:
    """Lines of JSON, a part for each page."""
    for page in rows.pages:
        lines = (json_text({name: to_json(of) for name, of in _named(rows, row).items()}) for row in page)
        yield "".join(f"{line}\n" for line in lines).encode()


def _named(rows: TableRows, row: Any) -> dict[str, Any]:
    return {field.name: element for field, element in zip(rows.fields, row, strict=True)}


# CSV and Parquet


# `json.dumps` makes an encoder for each call with other settings than its own.
_json: Final = json.JSONEncoder(ensure_ascii=False).encode
# The module `csv` of Python 3.11 and 3.12 does not quote a carriage return, which readers take as the end of a line.
_QUOTED: Final = re.compile(r'[",\r\n]|^\s|\s$')
_TEXT: Final = frozenset(("str", "bytes", "datetime"))
_FORMULA: Final = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001 - spreadsheets take the wide forms, too


def csv_parts(rows: TableRows) -> Iterator[bytes]:
    """The line of names, then the lines of each page.

    Lists, dicts, sets and values of the type any are JSON. Other cells are as on the command line; None is an empty
    cell, an empty text is `""`.
    """
    return _parts(rows, _exact)


def spreadsheet_parts(rows: TableRows) -> Iterator[bytes]:
    """The same for spreadsheets: an apostrophe is before each text that they would run as a formula.

    All text is in quotes, because some spreadsheets separate cells at semicolons, too. Numbers stay as they are.
    """
    return _parts(rows, _safe)


def _parts(rows: TableRows, written: Callable[[str, str], str]) -> Iterator[bytes]:
    made = columns(rows.fields)
    head = _line([each.name for each in made])
    for page in rows.pages:
        # With the first page, so that an error of its read leaves the output empty.
        yield head + b"".join(
            _line(["" if (cell := _cell(each, row)) is None else written(each.type, cell) for each in made])
            for row in page
        )
        head = b""
    if head:
        yield head


def _line(cells: Iterable[str]) -> bytes:
    return (",".join(cells) + "\n").encode()


def _exact(type_: str, text: str) -> str:
    return text if text and not _QUOTED.search(text) else _in_quotes(text)


def _safe(type_: str, text: str) -> str:
    if type_ not in _TEXT:  # JSON has its texts in quotes
        return _exact(type_, text)
    return _in_quotes(f"'{text}" if text.startswith(_FORMULA) else text)


def _in_quotes(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _cell(column: Column, row: Row) -> str | None:
    value = column.cell(row)
    if value is None:
        return None
    plain = to_json(value)
    return plain if isinstance(plain, str) and column.type != "any" else _json(plain)


def parquet_parts(rows: TableRows) -> Iterator[bytes]:
    """The bytes of a Parquet file, a part for each page; raises `MissingPackage` and `NotInColumn`."""
    parquet = require_pyarrow("pyarrow.parquet")
    written = _Written()
    with parquet.ParquetWriter(written, schema(rows.fields)) as writer:
        for batch in batches(rows.fields, rows.pages):
            writer.write_batch(batch)
            yield written.take()
    yield written.take()


class _Written(BytesIO):
    """A file in memory that holds one page at most: `take` removes the bytes written."""

    def take(self) -> bytes:
        """Return and forget the bytes written since the last call."""
        data = self.getvalue()
        self.seek(0)
        self.truncate()
        return data

    def close(self) -> None:
        """Do nothing: pyarrow closes the file before its end is taken."""


_PARTS: Final[dict[Format, Callable[[TableRows], Iterable[bytes]]]] = {
    Format.CSV: csv_parts,
    Format.JSONL: _jsonl_parts,
    Format.PARQUET: parquet_parts,
    Format.SPREADSHEET: spreadsheet_parts,
}


# Files


@contextmanager
def whole_file(path: str, mode: int | None = None) -> Iterator[Callable[[bytes], object]]:
    """A function that writes bytes into a file, which gets its name at the end of the block, if this has no error.

    Until then, a file that has this name stays as it is. A pipe or a device is written directly. Without `mode`, the
    file has the permissions of the former file, or the usual ones. Raises `OSError`.
    """
    former = _mode(path)
    is_file = former is None or stat.S_ISREG(former)
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    written = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(4)}") if is_file else path
    try:
        flags = os.O_WRONLY | (os.O_CREAT | os.O_EXCL if is_file else 0)
        with open(os.open(written, flags, 0o666), "wb") as stream:
            if is_file and (mode is not None or former is not None):
                os.fchmod(stream.fileno(), mode if mode is not None else stat.S_IMODE(former or 0))
            yield stream.write
            stream.flush()
            if is_file:
                os.fsync(stream.fileno())
        if is_file:
            os.replace(written, target)
    except BaseException as error:
        if is_file:
            with suppress(OSError):
                os.unlink(written)
        # The error of a full disk has no name.
        if isinstance(error, OSError) and error.filename in (None, written):
            error.filename = path
        raise


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


# Values


def print_values(pairs: Iterable[tuple[Any, Any]], *, json: bool) -> None:
    """Print a line for each key with its value; raises `typer.Exit` if a key has no value."""
    values = list(pairs)
    for key, value in values:
        print_line(json, key=key, value=value)
    if any(value is None for _, value in values):
        raise typer.Exit(NO_VALUE)
