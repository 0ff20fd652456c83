"""The encoding of scores as bytes that sort as the numbers do: one exact order of int, Decimal and float.

Every float and every int is a decimal fraction with finitely many digits, so decimal digits represent all three types
exactly. A number is written as 0.ddd... x 100^e with digits of base 100, the first of them not 0:

    00                              minus infinity
    01..7F                          a negative number: the bytes of its absolute value, inverted
    80                              zero
    83 e8 | C0+e | FD e8            e below -60, from -60 to 60, above 60; e8 is e in eight bytes
        digit+1 ... 00              the digits, the last of them not 0, and an end that sorts before all digits
    FF                              infinity

So the float 0.1 sorts just above Decimal("0.1"), as it is the larger number; 1, 1.0 and Decimal("1.00") are one
score, and so are 0.0 and -0.0. No encoding is a prefix of another, and two encodings differ at the first byte where
the numbers differ: ranks rely on both.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from typing import Final

from cq.encoding.codec import shown
from cq.errors import InvalidData, TooLarge

Score = int | Decimal | float

SCORE_BYTES: Final = 400
"""The longest encoding: enough for every float, and for numbers of up to 780 significant digits."""

_SHORT: Final = 10**18
_EXPONENT_MAX: Final = 60
_EXPONENT_OFFSET: Final = 1 << 63
_DESCENDING: Final = bytes(range(255, -1, -1))
# The index is two decimal digits, read as hexadecimal.
_DIGITS: Final = bytes(min(10 * (pair >> 4) + (pair & 15) + 1, 255) for pair in range(256))
# Ints: most counts are small, and a change's old score is the previous change's new score.
_REMEMBERED: Final = 10_000
_ZERO: Final = b"\x80"
_INFINITY: Final = b"\xff"


def ascending(score: Score) -> bytes:
    """The score's bytes, in which a higher score sorts later.

    >>> ascending(1234).hex()
    'c20d2300'
    >>> ascending(-0.5).hex()
    '3fccff'

    Raises `InvalidData` for other types than int, Decimal and float, and for NaN, which has no place in any order;
    `TooLarge` for more than 780 significant digits.
    """
    if type(score) is int and -_SHORT < score < _SHORT:
        text = str(abs(score))
        return _ZERO if score == 0 else _signed(score < 0, _magnitude(text.rstrip("0"), len(text)))
    number = exact(score)
    if number.is_infinite():
        return _signed(number < 0, _INFINITY)
    if not number:
        return _ZERO
    digits = "".join(map(str, number.as_tuple().digits))
    return _signed(number < 0, _magnitude(digits.rstrip("0"), number.adjusted() + 1))


def descending(score: Score) -> bytes:
    """The score's bytes, in which a higher score sorts earlier, as in the index. Raises as `ascending` does."""
    return _of_int(score) if type(score) is int else ascending(score).translate(_DESCENDING)


@lru_cache(maxsize=_REMEMBERED)
def _of_int(score: int) -> bytes:
    return ascending(score).translate(_DESCENDING)


def exact(score: object) -> Decimal:
    """The score as a Decimal, with all digits; raises `InvalidData` for other types, and for NaN."""
    if type(score) is float or type(score) is int or isinstance(score, Decimal):
        # Not Decimal(score): an application may have a context that raises for floats.
        number = score if isinstance(score, Decimal) else Decimal.from_float(score)  # noqa: FURB164
        if not number.is_nan():
            return number
    raise InvalidData(f"expected a score to be an int, Decimal or float, and not NaN, got: {shown(score)}")


def _signed(negative: bool, data: bytes) -> bytes:
    return data.translate(_DESCENDING) if negative else data


def _magnitude(digits: str, point: int) -> bytes:
    """The bytes of 0.DIGITS x 10^point, a positive number; the first and the last digit are not 0."""
    if len(digits) > 2 * (SCORE_BYTES - 10):
        raise TooLarge(f"a score of {len(digits):,} significant digits exceeds the limit of 780")
    exponent = -(-point // 2)
    digits = "0" * (point % 2) + digits
    digits += "0" * (len(digits) % 2)
    # Fast conversion: `fromhex` reads two decimal digits as one byte, which the table maps to the digit of base 100.
    return _exponent(exponent) + bytes.fromhex(digits).translate(_DIGITS) + b"\x00"


def _exponent(exponent: int) -> bytes:
    if -_EXPONENT_MAX <= exponent <= _EXPONENT_MAX:
        return bytes((0xC0 + exponent,))
    head = b"\x83" if exponent < 0 else b"\xfd"
    return head + (exponent + _EXPONENT_OFFSET).to_bytes(8, "big")
