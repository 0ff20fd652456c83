"""Keys and values as JSON and as words on a command line, by their declared types.

int, float, bool, str, list and dict are the same in JSON. Tuples and sets are lists, bytes are strings of base64, and
Decimals and datetimes (ISO 8601) are strings. null as an update is `DELETE`. On a command line, strings have no quotes.

An update of a sketch is an item, a list of items, or {"sketch": the serialised sketch in base64}. On a command line it
is one item: a string, or a number for quantiles. A value is a dict of the numbers that the sketch estimates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from math import isfinite
from typing import Any, Final

from cq.encoding.bounds import set_of
from cq.encoding.codec import DELETE, KeyType, ValueType, brief, shown
from cq.encoding.sketches import KINDS, Sketch
from cq.errors import InvalidData


def _sketch_update(kind: type[Sketch], given: Any) -> Any:
    if isinstance(given, dict):
        (data,) = given.values()
        (name,) = given
        return kind(base64.b64decode(data, validate=True)) if name == _SKETCH else given
    return given


def _decimal(given: Any) -> Decimal:
    try:
        return Decimal(str(given))
    except InvalidOperation:  # its text is a list of classes
        raise ValueError("not a number that a Decimal can hold") from None


def _set(given: Any) -> Any:
    """The set of a list; raises `TypeError`: a text would be a set of its characters, and a dict one of its keys."""
    if not isinstance(given, list):
        raise TypeError("not a list")
    return set_of(list(map(_hashable, given)))


def _hashable(item: Any) -> Any:
    return tuple(map(_hashable, item)) if isinstance(item, list) else item


_SKETCH: Final = "sketch"
_FROM_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "decimal": _decimal,
    "datetime": datetime.fromisoformat,
    "set": _set,
    "float": lambda number: number if isinstance(number, bool) else float(number),
    **{name: partial(_sketch_update, kind) for name, kind in KINDS.items()},
}
_MAX_INT_BITS: Final = 14_000  # fewer than 4,300 digits: Python's `str` and `int` refuse longer ints
_WORDS: Final = ("str", "bytes", "decimal", "datetime", "distinct", "frequent", "theta")


def key_from_json(key_type: KeyType, given: Any) -> Any:
    """The key that a JSON value represents; raises `InvalidData`."""
    if key_type.is_tuple and isinstance(given, list):
        # Parts beyond the type's are kept, so that the check of the key refuses it with a message that shows them all.
        return tuple(
            _from_json(name, part) for name, part in zip(key_type.parts, given, strict=False)
        ) + tuple(given[len(key_type.parts) :])
    return _from_json(key_type.parts[0], given)


def value_from_json(value_type: ValueType, given: Any) -> Any:
    """The update that a JSON value represents; raises `InvalidData`."""
    return DELETE if given is None else _from_json(value_type.name, given)


def parse_word(word: str, wanted: str) -> Any:
    """The value of a word of JSON; raises `InvalidData`, which says that `wanted` was expected."""
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        raise InvalidData(f"expected {wanted}, got: {word[:80]!r}") from None


def key_from_word(key_type: KeyType, word: str) -> Any:
    """The key that a word on a command line represents; raises `InvalidData`."""
    if key_type.is_tuple:
        return key_from_json(key_type, parse_word(word, f"a key of type {key_type}"))
    plain = key_type.parts[0] in _WORDS
    return key_from_json(key_type, word if plain else parse_word(word, f"a key of type {key_type}"))


def value_from_word(value_type: ValueType, word: str) -> Any:
    """The update that a word on a command line represents; raises `InvalidData`."""
    plain = value_type.name in _WORDS
    return value_from_json(value_type, word if plain else parse_word(word, f"a value of type {value_type}"))


def split_word(value_type: ValueType, word: str) -> tuple[str, str]:
    """Key and update of KEY=UPDATE, split at the last '=' that is not base64 padding; raises `InvalidData`.

    >>> split_word(ValueType("int"), "a=b=1")
    ('a=b', '1')
    >>> split_word(ValueType("bytes"), "a=YQ==")
    ('a', 'YQ==')
    """
    end = len(word.rstrip("=")) if value_type.name == "bytes" else len(word)
    place = word.rfind("=", 0, end)
    if place < 0:
        raise InvalidData(f"expected KEY=UPDATE, got: {brief(word)}")
    return word[:place], word[place + 1 :]


def to_json(value: Any) -> Any:
    """A key or a value in a form that `json.dumps` accepts; the inverse of the functions above.

    Keys of dicts become strings; one with the text of another key gets its type: {"1": 2, "1 (int)": 3}. Values without
    a form in JSON become strings, too: other types of CBOR, floats such as NaN, and ints with more digits than Python
    parses.
    """
    match value:
        case int() if value.bit_length() > _MAX_INT_BITS:
            return str(Decimal(value))
        case None | int() | str():  # most keys and values, so the first to be tested
            return value
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
            found = {
                item if isinstance(item, str) else str(to_json(item)): to_json(of)
                for item, of in value.items()
            }
            return found if len(found) == len(value) else _apart(value)
        case float():
            return value if isfinite(value) else str(value)
        case _:
            return _other(value)


def _apart(value: dict[Any, Any]) -> dict[str, Any]:
    """A dict in JSON, for a dict with keys of equal text. Strings keep their text, other keys get their type."""
    found = {item: to_json(of) for item, of in value.items() if isinstance(item, str)}
    for item, of in value.items():
        if not isinstance(item, str):
            text = str(to_json(item))
            while text in found:
                text += f" ({type(item).__name__})"
            found[text] = to_json(of)
    return found


def update_to_json(update: Any) -> Any:
    """An update in a form that `json.dumps` accepts; the inverse of `value_from_json`, for sketches too."""
    if isinstance(update, Sketch):
        return {_SKETCH: base64.b64encode(update.data).decode()}
    return to_json(update)


def _other(value: object) -> Any:
    if isinstance(value, Sketch):
        with suppress(InvalidData):  # a damaged one must not keep a command from printing the others
            return to_json(value.figures())
        return repr(value)
    try:
        return str(value)
    except ValueError:  # for example a fraction of ints with too many digits
        return shown(value)


def _from_json(name: str, given: Any) -> Any:
    convert = _FROM_JSON.get(name)
    if convert is None:
        return given
    try:
        return convert(given)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidData(f"expected JSON of a {name}, got: {shown(given)} ({str(error)[:80]})") from None
