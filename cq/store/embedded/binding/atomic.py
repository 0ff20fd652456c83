"""Atomic operations, byte for byte as FoundationDB's storage servers apply them.

Each function takes the stored value (None if the key is absent) and the operand, and returns the new value. Only
`compare_and_clear` returns None, which removes the key. Numbers are little-endian and unsigned. The result has the
length of the operand.
"""

from __future__ import annotations

from collections.abc import Callable

from cq.store.embedded.binding.keys import MAX_VALUE_BYTES, STAMP_BYTES

SET = 0
ADD = 2
AND = 6
OR = 7
XOR = 8
APPEND_IF_FITS = 9
MAX = 12
MIN = 13
SET_VERSIONSTAMPED_KEY = 14
SET_VERSIONSTAMPED_VALUE = 15
BYTE_MIN = 16
BYTE_MAX = 17
COMPARE_AND_CLEAR = 20

Operation = tuple[int, bytes | None]
"""A code and its operand; a `SET` of None removes the key."""


def _fit(value: bytes | None, operand: bytes) -> int:
    """The stored value as a number of the operand's length: truncated, or padded with zeros."""
    return int.from_bytes((value or b"")[: len(operand)], "little")


def _bytes(number: int, operand: bytes) -> bytes:
    return number.to_bytes(len(operand), "little")


def _add(value: bytes | None, operand: bytes) -> bytes:
    total = _fit(value, operand) + int.from_bytes(operand, "little")
    return _bytes(total % (1 << 8 * len(operand)), operand)


def _and(value: bytes | None, operand: bytes) -> bytes:
    if value is None:
        return operand
    return _bytes(_fit(value, operand) & int.from_bytes(operand, "little"), operand)


def _or(value: bytes | None, operand: bytes) -> bytes:
    return _bytes(_fit(value, operand) | int.from_bytes(operand, "little"), operand)


def _xor(value: bytes | None, operand: bytes) -> bytes:
    return _bytes(_fit(value, operand) ^ int.from_bytes(operand, "little"), operand)


def _append_if_fits(value: bytes | None, operand: bytes) -> bytes:
    both = (value or b"") + operand
    return both if len(both) <= MAX_VALUE_BYTES else value or b""


def _max(value: bytes | None, operand: bytes) -> bytes:
    return _bytes(max(_fit(value, operand), int.from_bytes(operand, "little")), operand)


def _min(value: bytes | None, operand: bytes) -> bytes:
    if value is None:
        return operand
    return _bytes(min(_fit(value, operand), int.from_bytes(operand, "little")), operand)


def _byte_min(value: bytes | None, operand: bytes) -> bytes:
    return operand if value is None else min(value, operand)


def _byte_max(value: bytes | None, operand: bytes) -> bytes:
    return operand if value is None else max(value, operand)


def _compare_and_clear(value: bytes | None, operand: bytes) -> bytes | None:
    return None if value == operand else value


_FUNCTIONS: dict[int, Callable[[bytes | None, bytes], bytes | None]] = {
    ADD: _add,
    AND: _and,
    OR: _or,
    XOR: _xor,
    APPEND_IF_FITS: _append_if_fits,
    MAX: _max,
    MIN: _min,
    BYTE_MIN: _byte_min,
    BYTE_MAX: _byte_max,
    COMPARE_AND_CLEAR: _compare_and_clear,
}

# Two operations of these kinds can be merged only if their operands have the same length.
_NEEDS_EQUAL_LENGTHS = frozenset({ADD, OR, XOR, MAX, MIN})


def apply(operation: int, value: bytes | None, operand: bytes | None) -> bytes | None:
    """The value after one operation other than a versionstamped one."""
    if operation == SET or operand is None:
        return operand
    return _FUNCTIONS[operation](value, operand)


def merge(operations: list[Operation], operation: int, operand: bytes) -> None:
    """Append an operation to the pending operations of its key, merged with the last one if possible.

    Merging keeps a transaction small that adds to one key a thousand times. FoundationDB's client does the same, with
    one visible effect: two appends become one, which fits as a whole or not at all.
    """
    last, last_operand = operations[-1]
    if last == SET:
        operations[-1] = (SET, apply(operation, last_operand, operand))
    elif (
        last != operation
        or operation == COMPARE_AND_CLEAR  # each one compares with the stored value
        or last_operand is None
        or (operation in _NEEDS_EQUAL_LENGTHS and len(last_operand) != len(operand))
    ):
        operations.append((operation, operand))
    else:
        operations[-1] = (operation, apply(operation, last_operand, operand))


def stamp(param: bytes, versionstamp: bytes) -> bytes:
    """A versionstamped key or value as stored; the last four bytes of `param` are the offset of the stamp."""
    return stamp_at(param, stamp_offset(param), versionstamp)


def stamp_at(param: bytes, start: int, versionstamp: bytes) -> bytes:
    """Same as `stamp`, with the offset of the stamp already known."""
    return param[:start] + versionstamp + param[start + STAMP_BYTES : -4]


def stamp_offset(param: bytes) -> int:
    """The offset of the stamp; -1 if the parameter is too short for it."""
    start = int.from_bytes(param[-4:], "little", signed=True)
    return start if len(param) >= 4 and 0 <= start <= len(param) - 4 - STAMP_BYTES else -1
