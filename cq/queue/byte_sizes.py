"""Sizes in bytes as text, such as `500kB` and `1.5GB`."""

from __future__ import annotations

import re
from typing import Final

from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration

MAX_BYTES: Final = (1 << 63) - 1
_UNITS: Final = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_SIZE: Final = re.compile(r"(\d{1,19}(?:\.\d{1,9})?) ?([a-z]*)", re.ASCII | re.IGNORECASE)


def bytes_of(given: object) -> int:
    """The bytes in a size: an int, or text such as `"10MB"` (10,000,000) and `"10 MiB"`; raises `InvalidConfiguration`.

    >>> bytes_of("1.5kB"), bytes_of("2 MiB"), bytes_of("10"), bytes_of(10)
    (1500, 2097152, 10, 10)
    """
    size: object = given
    if isinstance(given, str) and (found := _SIZE.fullmatch(given)):
        unit = _UNITS.get(found[2].lower() or "b")
        size = (
            None
            if unit is None
            else round(float(found[1]) * unit)
            if "." in found[1]
            else int(found[1]) * unit
        )
    if type(size) is not int or not 0 < size <= MAX_BYTES:
        raise InvalidConfiguration(
            f"expected a positive number of bytes, or a size such as 10MB, got: {brief(given)}"
        )
    return size
