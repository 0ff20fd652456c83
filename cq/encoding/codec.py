"""Encoding of keys and values in CBOR (RFC 8949), with checks of their declared types.

Decoding never executes or unpickles data of a store. The encoded bytes identify a key: 1, True and 1.0 are one key of a
Python dict, but have three encodings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from itertools import chain, repeat
from types import UnionType
from typing import Any, Final, get_args, get_origin

import cbor2

from cq.encoding.bounds import DECODERS, MAX_INT_BYTES, check_collection, check_int
from cq.encoding.cbor import (
    are_short,
    array_head,
    dumps,
    encode_ints,
    encode_sketch,
    encode_strings,
    encode_texts,
    joined,
)
from cq.encoding.sketches import BATCHES, KINDS, Sketch, is_from_tag
from cq.errors import CorruptData, InvalidConfiguration, InvalidData, TooLarge

MAX_KEY_BYTES: Final = 8_000
"""Limit of an encoded key. FoundationDB's limit is 10,000 bytes; cq adds a prefix, and a versionstamp in some keys."""
MAX_VALUE_BYTES: Final = 100_000
"""Limit of an encoded current value: FoundationDB's own."""
MAX_UPDATE_BYTES: Final = 90_000
"""Limit of an encoded update, and of staged updates: they must fit into a value together with a key or an error."""

DELETE: Final[Any] = cbor2.undefined
"""An update of a queue with the combiner `last` that deletes the key."""

MAX_DEPTH: Final = 100
"""Limit of the nesting of lists, dicts, sets and tags."""
MAX_OPERATION_BYTES: Final = 1_000
"""Limit of an operation id."""

_INT64: Final = 1 << 63
_WRAPPING_LISTS: Final = 2  # the most lists around an update or a value where cq stores it
_MAX_PARTS: Final = 1_000_000  # of a value; each part has at least one byte
_PLAIN: Final = frozenset((int, float, bool, str, bytes, Decimal, datetime, type(None)))
# Decoding returns equal values for all values of these.
_LOSSLESS: Final = frozenset((int, float, bool, str, bytes))
_KEY_TYPES: Final[dict[str, type]] = {"str": str, "int": int, "bytes": bytes}
_KINDS: Final = {name: {kind} for name, kind in _KEY_TYPES.items()}
_NUMBERS: Final = frozenset(("int", "float", "bool", "datetime"))
_VALUE_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "int": (int,),
    "float": (float,),
    "decimal": (Decimal,),
    "str": (str,),
    "bytes": (bytes,),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
    "set": (set, frozenset),
    "datetime": (datetime,),
    "any": (),
    **{name: (kind, *kind.ITEMS, *BATCHES) for name, kind in KINDS.items()},
}
_ENCODERS: Final[dict[str, Callable[[Sequence[Any]], list[bytes]]]] = {
    "str": encode_texts,
    "bytes": encode_strings,
    "int": encode_ints,
}


@dataclass(frozen=True, slots=True)
class KeyType:
    """The declared type of a queue's keys: one of str, int, bytes, or a tuple of these.

    >>> print(KeyType.parse((str, int)))
    (str, int)
    """

    parts: tuple[str, ...]
    is_tuple: bool

    @classmethod
    def parse(cls, spec: object) -> KeyType:
        """From `str`, `"str"`, `(str, int)` or `"(str, int)"`; raises `InvalidConfiguration`."""
        if isinstance(spec, KeyType):
            return spec
        if isinstance(spec, str) and spec.startswith("(") and spec.endswith(")"):
            spec = tuple(part.strip() for part in spec[1:-1].split(",") if part.strip())
        names = tuple(_type_name(part) for part in (spec if isinstance(spec, tuple) else (spec,)))
        if not names or any(name not in _KEY_TYPES for name in names):
            raise InvalidConfiguration(
                f"expected a key type of str, int, bytes or a tuple of them such as (str, int), got: {brief(spec)}"
            )
        return cls(names, isinstance(spec, tuple))

    def __str__(self) -> str:
        return f"({', '.join(self.parts)})" if self.is_tuple else self.parts[0]

    @property
    def plain(self) -> type | None:
        """The Python type of all its keys; None for tuples."""
        return None if self.is_tuple else _KEY_TYPES[self.parts[0]]

    def encoder(self) -> Callable[[Any], bytes]:
        """A function from a key of this type to its bytes; it raises `InvalidData` or `TooLarge`."""
        if self.is_tuple:
            return self._encode_tuple
        expected = _KEY_TYPES[self.parts[0]]

        def encode(key: Any) -> bytes:
            if type(key) is not expected:
                raise InvalidData(f"expected a key of type {self}, got: {shown(key)}")
            return _encoded_key(key)

        return encode

    def encode_all(self, keys: Sequence[Any]) -> list[bytes]:
        """The keys in bytes, with the errors of `encoder`; faster than one call for each key."""
        columns = self._columns(keys)
        if columns is not None:
            try:
                encoded = self._encode_columns(columns)
                # Keys this short exceed neither the limit of a key, nor that of an int in it.
                if max(map(len, encoded)) <= MAX_INT_BYTES:
                    return encoded
            except Exception:  # noqa: BLE001, S110 - the loop below finds the key, for the message
                pass
        return list(map(self.encoder(), keys))

    def _columns(self, keys: Sequence[Any]) -> list[Sequence[Any]] | None:
        """The parts of keys, a column each; None unless all keys, at least one, are of this type."""
        columns: list[Sequence[Any]] = [keys]
        if self.is_tuple:
            if set(map(type, keys)) != {tuple} or set(map(len, keys)) != {len(self.parts)}:
                return None
            columns = list(zip(*keys, strict=True))
        for name, column in zip(self.parts, columns, strict=True):
            if set(map(type, column)) != _KINDS[name]:
                return None
        return columns

    def _encode_tuple(self, key: Any) -> bytes:
        fits = type(key) is tuple and len(key) == len(self.parts)
        if not fits or any(
            type(part) is not _KEY_TYPES[name] for part, name in zip(key, self.parts, strict=True)
        ):
            raise InvalidData(f"expected a key of type {self}, got: {shown(key)}")
        return _encoded_key(key)

    def decode(self, encoded: bytes) -> Any:
        """The key in these bytes; raises `CorruptData` if they are not a key of this type."""
        try:
            return self.decode_all([encoded])[0]
        except CorruptData:
            raise CorruptData(f"stored bytes are not a key of type {self}: {encoded[:40]!r}") from None

    def decode_all(self, encoded: Sequence[bytes]) -> list[Any]:
        """The keys in these bytes; raises `CorruptData`."""
        # That each is one item is seen below.
        keys: list[Any] = decode(joined(encoded))
        if self.is_tuple:
            keys = list(map(tuple, keys)) if set(map(type, keys)) == {list} else keys
        # Another type, or another encoding of the same key, would be a second entry of one key.
        columns = self._columns(keys)
        if columns is None or self._encode_columns(columns) != list(encoded):
            raise CorruptData(f"stored bytes are not keys of type {self}")
        return keys

    def _encode_columns(self, columns: Sequence[Sequence[Any]]) -> list[bytes]:
        """The keys with these parts in CBOR, without a check of limits."""
        if not self.is_tuple:
            return _ENCODERS[self.parts[0]](columns[0])
        encoded = [_ENCODERS[name](column) for name, column in zip(self.parts, columns, strict=True)]
        return list(map(b"".join, zip(repeat(array_head(len(self.parts))), *encoded)))


@dataclass(frozen=True, slots=True)
class ValueType:
    """The declared type of a queue's updates and values.

    One of int, float, decimal, str, bytes, bool, list, dict, set, datetime, or any: every value that CBOR can carry
    (tuples are decoded as lists). Or the kind of a sketch: updates are items, batches of items or sketches of this
    kind, and values are sketches.
    """

    name: str

    @classmethod
    def parse(cls, spec: object) -> ValueType:
        """From `int`, `"int"`, `Decimal`, `"any"`, `object` ...; raises `InvalidConfiguration`."""
        if isinstance(spec, ValueType):
            return spec
        name = {"object": "any", "frozenset": "set"}.get(_type_name(spec).lower(), _type_name(spec).lower())
        if name not in _VALUE_TYPES:
            raise InvalidConfiguration(
                f"expected a value type of {', '.join(_VALUE_TYPES)}, got: {brief(spec)}"
            )
        return cls(name)

    def __str__(self) -> str:
        return self.name

    @property
    def types(self) -> tuple[type, ...]:
        """The Python types of values; empty for `any`."""
        return _VALUE_TYPES[self.name]

    @property
    def sketch(self) -> type[Sketch] | None:
        """The class of the values if they are sketches."""
        return KINDS.get(self.name)

    @property
    def grows(self) -> bool:
        """Whether a value can be much larger than one update. False for numbers, although huge ints can grow."""
        return self.name not in _NUMBERS

    @property
    def is_mutable(self) -> bool:
        """Whether a value can be changed in place; sketches cannot."""
        return self.name in ("list", "dict", "set", "any")

    def check(self, value: object) -> None:
        """Raises `InvalidData` unless the value is of this type."""
        if value is None or value is DELETE or (self.types and type(value) not in self.types):
            raise InvalidData(f"expected a value of type {self}, got: {shown(value)}")
        if (sketch := self.sketch) is not None:
            sketch.check_update(value)


def encode(value: object) -> bytes:
    """The value in CBOR; raises `InvalidData` if CBOR cannot carry it."""
    try:
        if type(value) not in _PLAIN:
            _check_nesting(value)
        return dumps(value)
    except InvalidData:
        raise
    except Exception as error:
        # The encoder raises many kinds, RecursionError and UnicodeEncodeError among them.
        why = (
            "give a datetime a time zone, as in 2026-01-31T12:00Z"
            if "naive datetime" in str(error)
            else error
        )
        raise InvalidData(f"expected a value that CBOR can carry, got: {shown(value)} ({why})") from error


_loads: Final = partial(cbor2.loads, semantic_decoders=DECODERS, max_depth=MAX_DEPTH + _WRAPPING_LISTS)


def decode(data: bytes) -> Any:
    """The value of these bytes; raises `CorruptData` if they are not CBOR of the form that `encode` writes."""
    try:
        return _loads(data)
    except Exception as error:  # for foreign bytes, the decoder raises exceptions of many types
        raise CorruptData(f"stored bytes are not CBOR: {data[:40]!r} ({error.__cause__ or error})") from error


def decode_all(many: Sequence[bytes]) -> list[Any]:
    """The value of each of these bytes; raises `CorruptData` if `decode` would for any of them."""
    try:
        if many and many[0] and are_short(many):
            return _loads(joined(many))  # type: ignore[no-any-return]
        return list(map(_loads, many))
    except Exception as error:
        raise CorruptData(f"stored bytes are not CBOR ({error.__cause__ or error})") from error


def decode_list(data: bytes, types: Sequence[type | UnionType], what: str, *, optional: int = 0) -> list[Any]:
    """The list in these bytes, with parts of exactly these types; raises `CorruptData` for any other content.

    The last `optional` parts may be absent. `what` names the content in the message.

    >>> decode_list(encode([1, None]), [int, bytes | None], "a pair")
    [1, None]
    """
    content = decode(data)
    if isinstance(content, list) and len(types) - optional <= len(content) <= len(types):
        kinds = [get_args(each) or (each,) for each in types[: len(content)]]
        if all(type(part) in kind for part, kind in zip(content, kinds, strict=True)):
            return content
    raise CorruptData(f"{what} is not one that cq wrote: {data[:40]!r}")


def is_int64(number: int) -> bool:
    """Whether a number fits into 64 bits, and so into nine bytes of CBOR."""
    return -_INT64 <= number < _INT64


def are_int64(numbers: Sequence[int]) -> bool:
    """Whether all numbers, at least one, fit into 64 bits."""
    return min(numbers) >= -_INT64 and max(numbers) < _INT64


def encode_value(value: object, limit: int = MAX_VALUE_BYTES) -> bytes:
    """A value in CBOR; raises `InvalidData`, or `TooLarge` if it has more than `limit` bytes."""
    if type(value) is int and is_int64(value):  # most values: no check can fail
        return cbor2.dumps(value)
    data = encode_sketch(value) if is_from_tag(value) else encode(value)
    if len(data) > limit:
        raise TooLarge(f"a value of {len(data):,} bytes exceeds the limit of {limit:,}")
    if type(value) is int:
        check_int(value)
    elif type(value) not in _LOSSLESS and not is_from_tag(value):
        _check_decodes(value)
    return data


def encode_values(values: Sequence[Any], limit: int = MAX_VALUE_BYTES) -> list[bytes]:
    """The values in CBOR, with the errors of `encode_value`; faster than one call for each value."""
    if set(map(type, values)) == {int} and are_int64(values):
        return encode_ints(values)
    return [encode_value(value, limit) for value in values]


def stored_copy(value: Any) -> Any:
    """A copy of the value as it would be read from a store, which later changes of the value do not affect."""
    return value if type(value) in _PLAIN else decode(encode(value))


def is_same(left: object, right: object) -> bool:
    """Whether two values with different encodings are equal except for the order of their sets and dicts."""
    # Plain values with different encodings are different, even if Python considers them equal: 0.0 and -0.0.
    if type(left) is not type(right) or type(left) in _PLAIN:
        return False
    try:
        return bool(left == right) and dumps(left, canonical=True) == dumps(right, canonical=True)
    except Exception:  # noqa: BLE001 - values that cannot be compared, or have no canonical order, count as different
        return False


def _check_nesting(value: object) -> None:
    """Raises `InvalidData` or `TooLarge` for a value that the encoder cannot handle, because it has no bounds.

    Deep nesting would crash the process. A value that contains itself, or one list many times, would fill the memory.
    """
    level = [value]
    parts = 0
    for _ in range(MAX_DEPTH + _WRAPPING_LISTS + 1):
        # Lists are told first: to tell instances of abstract classes takes longer than all else here.
        parts += sum(len(each) for each in level if isinstance(each, (list, tuple, Collection)))
        if parts > _MAX_PARTS:
            raise TooLarge(f"a value of more than {_MAX_PARTS:,} parts is too large")
        for each in level:
            if not isinstance(each, (list, tuple)):
                check_collection(each)
        level = [part for each in level for part in _parts(each) if type(part) not in _PLAIN]
        if not level:
            return
    raise InvalidData(
        f"expected a value of at most {MAX_DEPTH} levels that CBOR can carry, got a {type(value).__name__} of more"
    )


def _parts(value: object) -> Iterable[Any]:
    """The parts of a collection or of a tagged value."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return chain(value.keys(), value.values())
    if isinstance(value, cbor2.CBORTag):
        return (value.value,)
    if isinstance(value, memoryview):  # of a binary column, from some drivers of databases
        raise InvalidData("CBOR would carry a memoryview as a list of ints: give bytes(...) of it")
    if isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray):
        return value
    return ()


def _check_decodes(value: object) -> None:
    """Raises `InvalidData` for a value that does not survive CBOR, such as some time zones and special decimals."""
    wrapped = value  # in as many lists as stored values are, since the decoder limits the depth
    for _ in range(_WRAPPING_LISTS):
        wrapped = [wrapped]
    try:
        found = _loads(encode(wrapped))
    except InvalidData:
        raise
    except Exception as error:  # noqa: BLE001 - as for `decode`
        reason = error.__cause__ or error
        raise InvalidData(f"expected a value that CBOR gives back, got: {shown(value)} ({reason})") from None
    for _ in range(_WRAPPING_LISTS):
        (found,) = found
    if type(value) in _PLAIN and type(found) is not type(value):
        raise InvalidData(f"expected a value that CBOR gives back, got: {shown(value)}")


def encode_operation(once: object) -> bytes:
    """An operation id as bytes; raises `InvalidData` unless it is a str or bytes of 1 to 1,000 bytes."""
    operation = once.encode("utf-8", "surrogatepass") if isinstance(once, str) else once
    if not isinstance(operation, bytes) or not 0 < len(operation) <= MAX_OPERATION_BYTES:
        raise InvalidData(f"expected an operation id of 1 to 1,000 bytes (str or bytes), got: {shown(once)}")
    return operation


def _encoded_key(key: object) -> bytes:
    data = encode(key)
    if len(data) > MAX_KEY_BYTES:
        raise TooLarge(f"a key of {len(data):,} bytes exceeds the limit of {MAX_KEY_BYTES:,}: {shown(key)}")
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, int):
            check_int(part)
    return data


def _type_name(spec: object) -> str:
    spec = get_origin(spec) or spec  # set[str] is a set
    if isinstance(spec, type):
        return spec.__name__
    return spec.strip() if isinstance(spec, str) else brief(spec)


def shown(value: object) -> str:
    """A short text of any value, with its type, for an error message."""
    if value is DELETE:
        return "a deletion (DELETE, or null in JSON), which only the combiner 'last' takes"
    return f"{brief(value)} ({type(value).__name__})"


def brief(value: object) -> str:
    """A short text of any value, for an error message."""
    try:
        if type(value) not in _PLAIN:
            _check_nesting(value)
        text = repr(value)
    except Exception:  # noqa: BLE001 - ints of over 4,300 digits, failing __repr__s, and too deep nesting
        text = "a value that cannot be shown"
    return text if len(text) <= 80 else text[:77] + "..."
