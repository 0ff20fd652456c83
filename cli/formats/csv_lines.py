"""CSV (RFC 4180) in UTF-8: a line with the names of the columns, then one for each row; lines end with a newline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cq.encoding.columns import Column, Row, columns
from cq.encoding.json_values import to_json
from cq.tables.rows import TableRows

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
