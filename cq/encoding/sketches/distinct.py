"""Distinct counts by HyperLogLog: the number of different items, in about 4 kB.

DataSketches has two sketches for this. HLL is the one with the simple format: an array with a byte for each of 2**lg_k
registers. It can be checked completely, merges in microseconds, and most databases read it. CPC needs two thirds of its
bytes for the same error, but its compressed format can be checked by decompression only, and merges take longer.

Written sketches are normalised: few items are a sorted list of their hashes ("coupons"), and many an array of type
HLL_8 whose estimate does not depend on the order of updates. So the bytes depend on the set of items only.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from typing import Any, ClassVar, Final, Self

from cq.encoding.sketches.sketch import ItemCount, library, require, sketches_and_items

LG_K: Final = 12
"""The default size: 4,096 registers, 4,136 bytes, a standard error of 1.6 percent."""
MIN_LG_K: Final = 7
MAX_LG_K: Final = 21
_LIST, _SET, _HLL = range(3)
_PREAMBLE: Final = Struct("<8B")
_HLL_PREAMBLE: Final = Struct("<8BdddII")
_LIST_COUPONS: Final = 8  # a list of this many becomes a set
_SMALLEST_SET: Final = 5  # lg of its hash table
_SLOT_BITS: Final = 26
_MAX_REGISTER: Final = 63
_BIG_ENDIAN, _EMPTY, _COMPACT, _OUT_OF_ORDER = 1, 4, 8, 16
_HLL_8: Final = 2
_LOW: Final = bytes(number & 15 for number in range(256))
_HIGH: Final = bytes(number >> 4 for number in range(256))
_EXCEPTION: Final = 15  # a register of HLL_4 that is stored elsewhere


class Distinct(ItemCount):
    """An estimate of the number of different items.

    Sizes and errors: up to 384 items are counted nearly exactly, in 4 bytes each. More take 4,136 bytes with a standard
    error of 1.6 percent, so that the true number is within 3.2 percent of the estimate in 95 of 100 cases.
    """

    __slots__ = ()
    KIND: ClassVar[str] = "distinct"
    FAMILY: ClassVar[int] = 7
    ITEMS: ClassVar[tuple[type, ...]] = (str, int, float)
    SIZE: ClassVar[int] = LG_K
    PARAMETER: ClassVar[str] = "lg_k"
    SIZES: ClassVar[range] = range(7, 17)

    @property
    def is_empty(self) -> bool:
        return len(self.data) >= _PREAMBLE.size and bool(self.data[5] & _EMPTY)

    @classmethod
    def merge(cls, values: Sequence[Any], size: int) -> Self:
        datasketches = library()
        union = datasketches.hll_union(size)
        sketches, items = sketches_and_items(values, cls)
        for sketch in sketches:
            union.update(sketch._loaded())
        for item in items:
            union.update(item)
        return cls(_of_result(union.get_result(datasketches.HLL_8).serialize_compact()))

    def _loaded(self) -> Any:
        return library().hll_sketch.deserialize(self.normalised())

    @classmethod
    def _normalised(cls, data: bytes) -> bytes:
        _, version, family, lg_k, _, flags, _, mode = _PREAMBLE.unpack_from(data)
        require(family == cls.FAMILY and version == 1, "another format")
        require(MIN_LG_K <= lg_k <= MAX_LG_K, "an lg_k out of its range")
        require(not flags & _BIG_ENDIAN, "big-endian")
        if mode & 3 == _HLL:
            return _written_registers(lg_k, _registers(data, lg_k, mode >> 2 & 3))
        return _written_coupons(lg_k, _coupons(data, mode & 3))


def _of_result(data: bytes) -> bytes:
    """The normalised bytes of a compact result of the package, which needs no check: that would take most of a merge.

    The package keeps exact sums of its registers, too.
    """
    lg_k, mode = data[3], data[7] & 3
    if mode == _HLL:
        *_, low, high, zeros, _ = _HLL_PREAMBLE.unpack_from(data)
        return _hll_head(lg_k, low, high, zeros) + data[_HLL_PREAMBLE.size :]
    begin = _PREAMBLE.size + 4 * (mode == _SET)
    return _written_coupons(lg_k, sorted(unpack_from(f"<{(len(data) - begin) // 4}I", data, begin)))


def _coupons(data: bytes, mode: int) -> list[int]:
    """The sorted coupons of a list or a set: value << 26 | slot. Unused places of an updatable sketch are 0."""
    require(mode in (_LIST, _SET), "an unknown mode")
    if mode == _LIST:
        count, begin = data[6], _PREAMBLE.size
    else:
        (count,) = unpack_from("<I", data, _PREAMBLE.size)
        begin = _PREAMBLE.size + 4
    stored, rest = divmod(len(data) - begin, 4)
    require(not rest, "a part of a coupon")
    coupons = sorted(filter(None, unpack_from(f"<{stored}I", data, begin)))
    require(len(coupons) == count == len(set(coupons)), "another number of coupons than it says")
    require(not coupons or coupons[0] >> _SLOT_BITS > 0, "a coupon without a value")
    return coupons


def _written_coupons(lg_k: int, coupons: list[int]) -> bytes:
    count = len(coupons)
    packed = pack(f"<{count}I", *coupons)
    if count < _LIST_COUPONS:
        flags = _COMPACT if count else _COMPACT | _EMPTY
        return _PREAMBLE.pack(2, 1, Distinct.FAMILY, lg_k, 3, flags, count, _HLL_8 << 2 | _LIST) + packed
    lg_size = _SMALLEST_SET
    while 4 * count > 3 << lg_size:
        lg_size += 1
    require(lg_size <= lg_k - 3, "more coupons than its size allows")
    head = _PREAMBLE.pack(3, 1, Distinct.FAMILY, lg_k, lg_size, _COMPACT, 0, _HLL_8 << 2 | _SET)
    return head + count.to_bytes(4, "little") + packed


def _registers(data: bytes, lg_k: int, kind: int) -> bytes:
    """The registers of an array of HLL_4, HLL_6 or HLL_8, a byte each."""
    count, least = 1 << lg_k, data[6]
    *_, exceptions = _HLL_PREAMBLE.unpack_from(data)
    body = data[_HLL_PREAMBLE.size :]
    require(kind == 0 or (least == 0 and exceptions == 0), "registers that are not counted from 0")
    if kind == 0:
        return _of_hll_4(body, count, least, exceptions)
    require(kind in (1, _HLL_8), "an unknown type of registers")
    require(
        len(body) == (count if kind == _HLL_8 else 3 * count // 4 + 1), "another length than lg_k asks for"
    )
    if kind == _HLL_8:
        return body
    found = bytearray(count)
    for offset in range(4):  # four registers of six bits in three bytes
        low, shift = divmod(6 * offset, 8)
        high = low + 1 if low < 2 else low
        found[offset::4] = bytes(
            (one | other << 8) >> shift & _MAX_REGISTER
            for one, other in zip(body[low:-1:3], body[high:-1:3], strict=True)
        )
    return bytes(found)


def _of_hll_4(body: bytes, count: int, least: int, exceptions: int) -> bytes:
    """Registers of four bits above the least of them; the large ones are listed as value << 26 | slot."""
    size = count // 2
    stored, rest = divmod(len(body) - size, 4)
    require(stored >= 0 and not rest, "another length than lg_k asks for")
    found = bytearray(count)
    found[0::2], found[1::2] = body[:size].translate(_LOW), body[:size].translate(_HIGH)
    listed = [each for each in unpack_from(f"<{stored}I", body, size) if each]
    require(found.count(_EXCEPTION) == len(listed) == exceptions, "another number of exceptions than it says")
    large = {each & (1 << _SLOT_BITS) - 1: each >> _SLOT_BITS for each in listed}
    require(len(large) == exceptions, "two exceptions for one register")
    require(least <= _MAX_REGISTER - _EXCEPTION + 1, "a least register that is too large")
    require(all(slot < count and found[slot] == _EXCEPTION for slot in large), "an exception that is none")
    found = bytearray(number + least for number in found)
    for slot, number in large.items():
        found[slot] = number
    return bytes(found)


def _written_registers(lg_k: int, registers: bytes) -> bytes:
    """An HLL_8 sketch whose sums are computed from its registers, so that they cannot disagree."""
    counts: list[int] = []
    left = len(registers)
    while (
        left and len(counts) <= _MAX_REGISTER
    ):  # most registers are small: do not count the numbers above the largest
        counts.append(registers.count(len(counts)))
        left -= counts[-1]
    require(not left, "a register of more than 63")
    # The sums of 2**-register are exact: below 2**53 multiples of the smallest term.
    low = sum(count * 2.0**-number for number, count in enumerate(counts[:32]))
    high = sum(count * 2.0**-number for number, count in enumerate(counts[32:], 32))
    return _hll_head(lg_k, low, high, counts[0]) + registers


def _hll_head(lg_k: int, low: float, high: float, zeros: int) -> bytes:
    """The preamble of HLL_8: the sums of 2**-register of registers below 32, and of others, and the number of zeros."""
    head = (10, 1, Distinct.FAMILY, lg_k, 0, _COMPACT | _OUT_OF_ORDER, 0, _HLL_8 << 2 | _HLL)
    return _HLL_PREAMBLE.pack(*head, 0.0, low, high, zeros, 0)
