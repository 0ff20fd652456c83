"""The encoding of a queue's keys as bytes that sort as the keys do: it orders keys of equal score.

Strings sort by code points, bytes by their bytes, ints by their value, tuples by their parts. The last part of a
key is written unchanged; earlier parts of type str or bytes end with 00 01, and a 00 inside becomes 00 FF.
"""

from __future__ import annotations

from typing import Any, Final

from cq.encoding.codec import KeyType
from cq.errors import CorruptData

_NUL: Final = b"\x00"
_ESCAPED: Final = b"\x00\xff"
_END: Final = b"\x00\x01"
_SIGN: Final = 0x8000
_INVERTED: Final = bytes(range(255, -1, -1))


def to_sort_key(key_type: KeyType, key: Any) -> bytes:
    """The bytes of a key of this type.

    >>> to_sort_key(KeyType.parse((str, int)), ("a", 3))
    b'a\\x00\\x01\\x80\\x01\\x03'
    """
    if not key_type.is_tuple:
        return _last(key)
    return b"".join(map(_part, key[:-1])) + _last(key[-1])


def from_sort_key(key_type: KeyType, data: bytes) -> Any:
    """The inverse of `to_sort_key`; raises `CorruptData`."""
    parts: list[Any] = []
    rest = data
    try:
        for name in key_type.parts[:-1]:
            part, rest = _take(name, rest)
            parts.append(part)
        name = key_type.parts[-1]
        parts.append(_from_int(rest)[0] if name == "int" else _typed(name, rest))
    except (ValueError, IndexError) as error:
        raise CorruptData(f"not a sort key of type {key_type}: {data[:40]!r}") from error
    return tuple(parts) if key_type.is_tuple else parts[0]


def _last(part: Any) -> bytes:
    return _int(part) if isinstance(part, int) else _plain(part)


def _part(part: Any) -> bytes:
    if isinstance(part, int):
        return _int(part)
    return _plain(part).replace(_NUL, _ESCAPED) + _END


def _take(name: str, data: bytes) -> tuple[Any, bytes]:
    if name == "int":
        return _from_int(data)
    end = data.index(_END)  # the first one is the end, since a 00 inside is followed by FF
    return _typed(name, data[:end].replace(_ESCAPED, _NUL)), data[end + len(_END) :]


def _plain(part: str | bytes) -> bytes:
    return part.encode() if isinstance(part, str) else part


def _typed(name: str, data: bytes) -> str | bytes:
    return data.decode() if name == "str" else data


def _int(number: int) -> bytes:
    """Sign and length in two bytes, then the absolute value; negative ones inverted."""
    body = abs(number).to_bytes((number.bit_length() + 7) // 8, "big")
    if number < 0:
        return (_SIGN - 1 - len(body)).to_bytes(2, "big") + body.translate(_INVERTED)
    return (_SIGN + len(body)).to_bytes(2, "big") + body


def _from_int(data: bytes) -> tuple[int, bytes]:
    head = int.from_bytes(data[:2], "big")
    length = head - _SIGN if head >= _SIGN else _SIGN - 1 - head
    body, rest = data[2 : 2 + length], data[2 + length :]
    if len(data) < 2 or len(body) < length:
        raise ValueError("too short")
    if head >= _SIGN:
        return int.from_bytes(body, "big"), rest
    return -int.from_bytes(body.translate(_INVERTED), "big"), rest
