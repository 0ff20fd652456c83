"""Printing of rows in the format that `--format` chooses, on standard output or into a file.

A command with `RowsOptions` calls

    target = options.target()                       # before it reads: refuses options that do not fit together
    print_rows(TableRows(fields, pages), target)    # from cq.tables.rows; a page is a list of rows
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import typer

from cq.cli.formats.csv_lines import csv_parts, spreadsheet_parts
from cq.cli.formats.parquet import parquet_parts
from cq.cli.formats.whole_file import whole_file
from cq.cli.shared.options import AppOptions, Options, option, option_set
from cq.cli.shared.output import is_read, json_text, note, print_bytes, print_line, quantity
from cq.encoding.json_values import to_json
from cq.tables.arrow import require_pyarrow
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


_PARTS: Final[dict[Format, Callable[[TableRows], Iterable[bytes]]]] = {
    Format.CSV: csv_parts,
    Format.JSONL: _jsonl_parts,
    Format.PARQUET: parquet_parts,
    Format.SPREADSHEET: spreadsheet_parts,
}
