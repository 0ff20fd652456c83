"""Keys and values as JSON and as words on a command line, by their declared types.

int, float, bool, str, list and dict are JSON's own; a tuple is a list, a set a list, bytes are base64, a Decimal and a
datetime (ISO 8601) are strings, and null as an update is `DELETE`. On a command line, what is a string or a number
in JSON is written without quotes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from cq.codec import KeyType, ValueType
from cq.combiners import DELETE
from cq.errors import InvalidData

_FROM_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "decimal": lambda number: Decimal(str(number)),
    "datetime": datetime.fromisoformat,
    "set": lambda items: {tuple(item) if isinstance(item, list) else item for item in items},
    "float": lambda number: float(number) if type(number) in (int, float) else number,
}
_WORDS: Final = ("str", "bytes", "decimal", "datetime")


def key_from_json(key_type: KeyType, given: Any) -> Any:
    """The key that a JSON value stands for; raises `InvalidData`."""
    if key_type.is_tuple and isinstance(given, list):
        return tuple(
            _from_json(name, part) for name, part in zip(key_type.parts, given, strict=False)
        ) + tuple(given[len(key_type.parts) :])
    return _from_json(key_type.parts[0], given)


def value_from_json(value_type: ValueType, given: Any) -> Any:
    """The update that a JSON value stands for; raises `InvalidData`."""
    return DELETE if given is None else _from_json(value_type.name, given)


def key_from_word(key_type: KeyType, word: str) -> Any:
    """The key that a word on a command line stands for; raises `InvalidData`."""
    if key_type.is_tuple:
        return key_from_json(key_type, _parsed(word, key_type))
    return key_from_json(key_type, word if key_type.parts[0] in _WORDS else _parsed(word, key_type))


def value_from_word(value_type: ValueType, word: str) -> Any:
    """The update that a word on a command line stands for; raises `InvalidData`."""
    return value_from_json(value_type, word if value_type.name in _WORDS else _parsed(word, value_type))


def to_json(value: Any) -> Any:
    """What `json.dumps` takes for a key or a value; the inverse of the functions above."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return str(value)
        case datetime():
            return value.isoformat()
        case set() | frozenset():
            return sorted(map(to_json, value), key=lambda item: json.dumps(item, sort_keys=True))
        case list() | tuple():
            return [to_json(item) for item in value]
        case dict():
            return {
                item if isinstance(item, str) else str(to_json(item)): to_json(of)
                for item, of in value.items()
            }
        case _:
            return value


def _from_json(name: str, given: Any) -> Any:
    convert = _FROM_JSON.get(name)
    if convert is None:
        return given
    try:
        return convert(given)
    except (TypeError, ValueError, InvalidOperation) as error:
        raise InvalidData(f"expected JSON of a {name}, got: {given!r} ({error})") from None


def _parsed(word: str, wanted: object) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        raise InvalidData(f"expected a value of type {wanted}, got: {word!r}") from None
