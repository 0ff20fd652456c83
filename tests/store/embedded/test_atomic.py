"""Atomic operations, against a second implementation byte by byte as the storage server has it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cq.store.embedded import atomic
from cq.store.embedded.keys import MAX_VALUE_BYTES

values = st.one_of(st.none(), st.binary(max_size=12))
operands = st.binary(max_size=12)


def padded(value: bytes | None, length: int) -> list[int]:
    return [*(value or b""), *bytes(length)][:length]


@given(values, operands)
def test_add_carries_and_keeps_the_length_of_the_operand(value: bytes | None, operand: bytes) -> None:
    carry, expected = 0, []
    for left, right in zip(padded(value, len(operand)), operand, strict=True):
        carry += left + right
        expected.append(carry & 255)
        carry >>= 8

    assert atomic.apply(atomic.ADD, value, operand) == bytes(expected)


@given(values, operands)
def test_bitwise_operations_work_byte_by_byte(value: bytes | None, operand: bytes) -> None:
    pairs = list(zip(padded(value, len(operand)), operand, strict=True))

    assert atomic.apply(atomic.OR, value, operand) == bytes(a | b for a, b in pairs)
    assert atomic.apply(atomic.XOR, value, operand) == bytes(a ^ b for a, b in pairs)
    anded = operand if value is None else bytes(a & b for a, b in pairs)
    assert atomic.apply(atomic.AND, value, operand) == anded


@given(values, operands)
def test_max_and_min_compare_little_endian_numbers(value: bytes | None, operand: bytes) -> None:
    stored = bytes(padded(value, len(operand)))
    greater = max(stored[::-1], operand[::-1])[::-1]
    smaller = operand if value is None else min(stored[::-1], operand[::-1])[::-1]

    assert atomic.apply(atomic.MAX, value, operand) == greater
    assert atomic.apply(atomic.MIN, value, operand) == smaller


@given(values, operands)
def test_byte_min_and_byte_max_compare_strings(value: bytes | None, operand: bytes) -> None:
    both = [operand] if value is None else [value, operand]

    assert atomic.apply(atomic.BYTE_MIN, value, operand) == min(both)
    assert atomic.apply(atomic.BYTE_MAX, value, operand) == max(both)


@given(values, operands)
def test_compare_and_clear_removes_equal_values_only(value: bytes | None, operand: bytes) -> None:
    assert atomic.apply(atomic.COMPARE_AND_CLEAR, value, operand) == (None if value == operand else value)


def test_append_if_fits_appends_up_to_the_limit() -> None:
    almost = bytes(MAX_VALUE_BYTES - 1)

    assert atomic.apply(atomic.APPEND_IF_FITS, None, b"ab") == b"ab"
    assert atomic.apply(atomic.APPEND_IF_FITS, almost, b"a") == almost + b"a"
    assert atomic.apply(atomic.APPEND_IF_FITS, almost, b"ab") == almost


operations = st.lists(
    st.tuples(
        st.sampled_from(
            [atomic.ADD, atomic.AND, atomic.OR, atomic.XOR, atomic.MAX, atomic.MIN, atomic.BYTE_MIN]
        ),
        st.binary(min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=6,
)


@given(values, operations)
def test_merged_operations_do_what_they_do_one_after_the_other(
    value: bytes | None, todo: list[tuple[int, bytes]]
) -> None:
    expected = value
    for operation, operand in todo:
        expected = atomic.apply(operation, expected, operand)

    merged: list[atomic.Operation] = [todo[0]]
    for operation, operand in todo[1:]:
        atomic.merge(merged, operation, operand)
    got = value
    for operation, merged_operand in merged:
        got = atomic.apply(operation, got, merged_operand)

    assert got == expected


def test_many_adds_to_one_key_become_one() -> None:
    merged: list[atomic.Operation] = [(atomic.ADD, bytes(8))]
    for _ in range(1000):
        atomic.merge(merged, atomic.ADD, (1).to_bytes(8, "little"))

    assert merged == [(atomic.ADD, (1000).to_bytes(8, "little"))]


def test_a_stamp_replaces_ten_bytes_at_its_offset() -> None:
    param = b"head" + bytes(10) + b"tail" + (4).to_bytes(4, "little")

    assert atomic.stamp(param, b"0123456789") == b"head0123456789tail"
    assert atomic.stamp_offset(param) == 4
    assert atomic.stamp_offset(bytes(9) + bytes(4)) == -1
    assert atomic.stamp_offset(b"abc") == -1
    assert atomic.stamp_offset(bytes(14)[:10] + (-1).to_bytes(4, "little", signed=True)) == -1
