"""Atomic operations, byte for byte as FoundationDB's storage servers apply them.

Numbers are little-endian and unsigned. The result has the length of the operand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from cq.store.embedded.keys import MAX_VALUE_BYTES, STAMP_BYTES

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


_ON_NUMBERS: dict[int, Callable[[int, int], int]] = {
    ADD: operator.add,
    AND: operator.and_,
    OR: operator.or_,
    XOR: operator.xor,
    MAX: max,
    MIN: min,
}
_GIVES_OPERAND_IF_ABSENT = frozenset({AND, MIN, BYTE_MIN, BYTE_MAX})

# Two operations of these kinds can be merged only if their operands have the same length.
_NEEDS_EQUAL_LENGTHS = frozenset({ADD, OR, XOR, MAX, MIN})


def apply(operation: int, value: bytes | None, operand: bytes | None) -> bytes | None:
    """The value after one operation other than a versionstamped one.

    `value` is the stored value; None: the key is absent. Only `COMPARE_AND_CLEAR` returns None, which removes the key.
    """
    if operation == SET or operand is None or (value is None and operation in _GIVES_OPERAND_IF_ABSENT):
        return operand
    if operation == COMPARE_AND_CLEAR:
        return None if value == operand else value
    stored = value or b""
    if operation == BYTE_MIN:
        return min(stored, operand)
    if operation == BYTE_MAX:
        return max(stored, operand)
    if operation == APPEND_IF_FITS:
        return stored + operand if len(stored) + len(operand) <= MAX_VALUE_BYTES else stored
    length = len(operand)  # the stored number is truncated to it, or padded with zeros
    result = _ON_NUMBERS[operation](
        int.from_bytes(stored[:length], "little"), int.from_bytes(operand, "little")
    )
    return (result % (1 << 8 * length)).to_bytes(length, "little")


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
