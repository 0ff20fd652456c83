"""CSV (RFC 4180) in UTF-8: a line with the names of the columns, then one for each row; lines end with a newline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from cq.encoding.columns import columns
from cq.encoding.json_values import to_json
from cq.tables.rows import TableRows

# `json.dumps` makes an encoder for each call with other settings than its own.
_json: Final = json.JSONEncoder(ensure_ascii=False).encode
# The module `csv` of Python 3.11 and 3.12 does not quote a carriage return, which readers take as the end of a line.
_QUOTED: Final = re.compile(r'[",\r\n]|^\s|\s$')


def csv_parts(rows: TableRows) -> Iterator[bytes]:
    """The line of names, then the lines of each page.

    Lists, dicts, sets and values of the type any are JSON. Other cells are as on the command line; None is an empty
    cell, an empty text is `""`.
    """
    made = columns(rows.fields)
    head = _line(each.name for each in made)
    for page in rows.pages:
        # With the first page, so that an error of its read leaves the output empty.
        yield head + b"".join(_line(_cell(each.type, each.cell(row)) for each in made) for row in page)
        head = b""
    if head:
        yield head


def _line(cells: Iterable[str | None]) -> bytes:
    return (",".join("" if cell is None else _quoted(cell) for cell in cells) + "\n").encode()


def _quoted(text: str) -> str:
    return text if text and not _QUOTED.search(text) else '"' + text.replace('"', '""') + '"'


def _cell(type_: str, value: Any) -> str | None:
    if value is None:
        return None
    plain = to_json(value)
    return plain if isinstance(plain, str) and type_ != "any" else _json(plain)
