"""Columns of tables: their names and types, and the cells of a row.

A row has one element for each field, such as a key and its value. A key of several parts has one column for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cq.encoding.codec import KeyType, ValueType
from cq.encoding.sketches import KINDS, Sketch

Row = Sequence[Any]
"""The elements of a row, in the order of the fields; None for an absent element."""


class Field(NamedTuple):
    """The name and the declared type of an element of a row."""

    name: str
    type: KeyType | ValueType


class Column(NamedTuple):
    """A column: its name, the name of its type as in `ValueType`, and its cell of a row, None for an absent element.

    A column of a value has a name to follow that of the value's field, and its cell of a value.
    """

    name: str
    type: str
    cell: Callable[[Any], Any]


def _part_of_sketch(name: str, value: Sketch) -> Any:
    return value.columns()[name]


PARTS: Final[dict[str, tuple[Column, ...]]] = {
    kind: tuple(
        Column(name, type_, partial(_part_of_sketch, name)) for name, type_ in sketch.column_types().items()
    )
    for kind, sketch in KINDS.items()
}
"""{name of a value type: the columns of its values}, for values that are objects; all other values have one column.

The part `estimate` of the field `value` is the column `value_estimate`.
"""


def columns(fields: Sequence[Field]) -> list[Column]:
    """The columns of rows with these fields.

    >>> [each.name for each in columns([Field("key", KeyType.parse((str, int))), Field("value", ValueType("int"))])]
    ['key_1', 'key_2', 'value']
    """
    return [column for at, field in enumerate(fields) for column in _columns(at, field)]


def _columns(at: int, field: Field) -> Iterator[Column]:
    for part in _parts(field.type):
        name = f"{field.name}_{part.name}" if part.name else field.name
        yield Column(name, part.type, partial(_cell, at, part.cell))


def _cell(at: int, of_element: Callable[[Any], Any], row: Row) -> Any:
    return None if row[at] is None else of_element(row[at])


def _parts(type_: KeyType | ValueType) -> Sequence[Column]:
    if isinstance(type_, ValueType):
        return PARTS.get(type_.name) or [Column("", type_.name, _whole)]
    if type_.is_tuple:
        return [Column(f"{at + 1}", name, itemgetter(at)) for at, name in enumerate(type_.parts)]
    return [Column("", type_.parts[0], _whole)]


def _whole(element: Any) -> Any:
    return element
