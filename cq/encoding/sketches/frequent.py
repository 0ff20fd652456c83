"""The most frequent of many texts, in the format of DataSketches' frequent items sketch.

The sketch keeps counters of at most 3/4 of 2**lg_max_k texts. When there are more, it subtracts the median of the
counters from all of them, drops those that are not above 0, and adds the median to an offset: no true count exceeds its
counter plus the offset (Misra and Gries 1982; Anderson, Bevan, Lang, Liberty, Rhodes and Thaler 2017).

It is computed here and not by the package `datasketches`: that loses the offset and the total of a sketch whose
counters are all dropped at once, such as 193 different texts, so that its bounds are wrong afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, unpack_from
from typing import Any, ClassVar, Final, NamedTuple, Self

from cq.encoding.sketches.sketch import Malformed, Sketch, require, sketches_and_items
from cq.errors import InvalidData

LG_MAX_K: Final = 8
"""The default size: counters of 192 texts, an error of at most 1.1 percent of the total."""
MIN_LG_MAX_K: Final = 3
MAX_LG_MAX_K: Final = 16
MAX_ITEM_BYTES: Final = 256
"""Limit of a text in UTF-8, so that a sketch is never too large to be stored."""
_MAX_TOTAL: Final = 1 << 53
_SHORT: Final = Struct("<6BH")
_LONG: Final = Struct("<6BHIIQQ")
_EMPTY: Final = 5  # both bits: packages for different languages use one or the other
_SHOWN: Final = 10
MAX_BYTES: Final = 90_000
"""Limit of the counters and texts of a sketch, which is below that of a stored value."""
_SAFE_TEXTS: Final = MAX_BYTES // (MAX_ITEM_BYTES + 12)


class FrequentItem(NamedTuple):
    """A frequent text: its estimated count, and the bounds that the true count is within for certain."""

    item: str
    estimate: int
    lower: int
    upper: int


class _Tally(NamedTuple):
    """The content of a sketch: counters by text, the total of all counts, and what was subtracted from each counter."""

    lg_max: int
    counts: Mapping[str, int]
    total: int
    offset: int


class Frequent(Sketch):
    """The most frequent texts with their estimated counts.

    Sizes and errors: up to 192 different texts are counted exactly. With more, an estimate exceeds the true count by at
    most 1.1 percent of the total (`error` has the bound that holds), so every text with a larger share is in `top`.
    A text takes its bytes and 12 more: 9 kB for 192 texts of 36 bytes. A text may have up to 256 bytes.
    """

    __slots__ = ()
    KIND: ClassVar[str] = "frequent"
    FAMILY: ClassVar[int] = 10
    ITEMS: ClassVar[tuple[type, ...]] = (str,)
    SIZE: ClassVar[int] = LG_MAX_K
    PARAMETER: ClassVar[str] = "lg_max_k"
    SIZES: ClassVar[range] = range(3, 12)
    NEEDS_PACKAGE: ClassVar[bool] = False

    @property
    def is_empty(self) -> bool:
        return len(self.data) == _SHORT.size and bool(self.data[5] & _EMPTY)

    @property
    def score(self) -> int:
        return self.total

    @property
    def total(self) -> int:
        """The exact number of all texts, repeated ones included."""
        return self._content().total

    @property
    def error(self) -> int:
        """The largest difference between an estimate and the true count; no missing text has a larger count."""
        return self._content().offset

    def top(self, n: int) -> list[FrequentItem]:
        """The `n` texts with the highest estimates, the highest first, or fewer if the sketch has fewer."""
        if type(n) is not int or n < 0:
            raise InvalidData(f"expected a number of texts of at least 0, got: {n!r:.80}")
        return _top(self._content(), n)

    def figures(self) -> dict[str, Any]:
        content = self._content()
        found = {each.item: each.estimate for each in _top(content, _SHOWN)}
        return {"total": content.total, "error": content.offset, "top": found}

    def columns(self) -> dict[str, Any]:
        content = self._content()
        first = next(iter(_top(content, 1)), FrequentItem("", 0, 0, 0))
        return {"item": first.item, "count": first.estimate, "total": content.total}

    @staticmethod
    def column_types() -> dict[str, str]:
        return {"item": "str", "count": "int", "total": "int"}

    @classmethod
    def check_item(cls, item: object) -> None:
        if type(item) is not str:
            raise InvalidData(f"expected items of {cls.KIND!r} to be texts (str), got: {type(item).__name__}")
        if len(item.encode(errors="replace")) > MAX_ITEM_BYTES:
            raise InvalidData(f"expected items of {cls.KIND!r} to have at most {MAX_ITEM_BYTES} bytes")

    @classmethod
    def merge(cls, values: Sequence[Any], size: int) -> Self:
        counts: dict[str, int] = {}
        total = offset = 0
        most = _most(size)
        sketches, items = sketches_and_items(values, cls)
        for sketch in sketches:
            found = sketch._content()
            total, offset = total + found.total, offset + found.offset
            for item, count in found.counts.items():
                counts[item] = counts.get(item, 0) + count
            offset += _shrink(counts, most)
        for item in items:
            cls.check_item(item)
            counts[item] = counts.get(item, 0) + 1
            total += 1
            if len(counts) > most:
                offset += _shrink(counts, most)
        if len(counts) > _SAFE_TEXTS:
            offset += _cut(counts)
        if total >= _MAX_TOTAL:
            raise InvalidData(f"a total of {total:,} texts is too large")
        return cls(_written(_Tally(size, counts, total, offset)))

    def _content(self) -> _Tally:
        return self._read(_parsed)

    @classmethod
    def _normalised(cls, data: bytes) -> bytes:
        return _written(_parsed(data))


def _most(lg_max: int) -> int:
    """The texts that a sketch can have."""
    return 3 << lg_max >> 2


def _shrink(counts: dict[str, int], most: int) -> int:
    """Subtract the median of the counters until there are not too many; returns what was subtracted."""
    subtracted = 0
    while len(counts) > most:
        subtracted += _subtract_median(counts)
    return subtracted


def _cut(counts: dict[str, int]) -> int:
    """Do as `_shrink` until the counters and texts take at most `MAX_BYTES`."""
    subtracted = 0
    while sum(len(item.encode()) + 12 for item in counts) > MAX_BYTES:
        subtracted += _subtract_median(counts)
    return subtracted


def _subtract_median(counts: dict[str, int]) -> int:
    median = sorted(counts.values())[len(counts) // 2]
    left = {item: count - median for item, count in counts.items() if count > median}
    counts.clear()
    counts.update(left)
    return median


def _top(content: _Tally, n: int) -> list[FrequentItem]:
    found = sorted(content.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:n]
    return [
        FrequentItem(item, count + content.offset, count, count + content.offset) for item, count in found
    ]


def _parsed(data: bytes) -> _Tally:
    """The content of a serialised sketch; raises `Malformed`, `IndexError` or `struct.error` for other bytes."""
    longs, version, family, lg_max, lg_size, flags, _ = _SHORT.unpack_from(data)
    require(family == Frequent.FAMILY and version == 1, "another format")
    require(MIN_LG_MAX_K <= lg_size <= lg_max <= MAX_LG_MAX_K, "a size that is too small or too large")
    if longs & 63 == 1:
        require(bool(flags & _EMPTY) and len(data) == _SHORT.size, "an empty sketch with content")
        return _Tally(lg_max, {}, 0, 0)
    require(longs & 63 == 4 and not flags & _EMPTY, "another format")
    *_, number, _, total, offset = _LONG.unpack_from(data)
    require(number <= _most(lg_max), "more texts than its size allows")
    counts = unpack_from(f"<{number}Q", data, _LONG.size)
    at = _LONG.size + 8 * number
    texts = []
    for _ in range(number):
        (length,) = unpack_from("<I", data, at)
        at += 4 + length
        require(length <= MAX_ITEM_BYTES and at <= len(data), "a text that is too long")
        texts.append(_text(data[at - length : at]))
    require(at == len(data), "bytes after its end")
    require(len(set(texts)) == number, "a text twice")
    require(
        all(counts) and sum(counts) <= total < _MAX_TOTAL and offset <= total, "counts that do not add up"
    )
    return _Tally(lg_max, dict(zip(texts, counts, strict=True)), total, offset)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Malformed("a text that is not UTF-8") from None


def _written(content: _Tally) -> bytes:
    """The serialised sketch, with the most frequent texts first."""
    number = len(content.counts)
    lg_size = MIN_LG_MAX_K
    while _most(lg_size) < number:
        lg_size += 1
    if not content.total:
        return _SHORT.pack(1, 1, Frequent.FAMILY, content.lg_max, lg_size, _EMPTY, 0)
    pairs = sorted(content.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    head = _LONG.pack(
        4, 1, Frequent.FAMILY, content.lg_max, lg_size, 0, 0, number, 0, content.total, content.offset
    )
    texts = [item.encode() for item, _ in pairs]
    body = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    return head + Struct(f"<{number}Q").pack(*(count for _, count in pairs)) + body
