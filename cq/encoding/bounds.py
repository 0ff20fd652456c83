"""Bounds on the cost of reading, comparing and combining a value.

All queues share the workers, so the cost of a value must not exceed what its size suggests. Arithmetic of long ints
takes time quadratic in their length, and fractions take more. Sets and dicts take quadratic time if many of their
members have the same hash. Except for str and bytes, an attacker can predict hashes: CPython's hash of an int is its
remainder modulo 2**61 - 1, and the hash of a UUID, a Decimal or a tuple follows from such remainders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from datetime import date, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation, Overflow
from types import NoneType
from typing import Any, Final, NoReturn

from cq.encoding.sketches import TAG, from_tag
from cq.errors import InvalidData, TooLarge

MAX_INT_BYTES: Final = 4_153
"""Limit of an int, and of the digits of a Decimal as an int: about 10,000 decimal digits."""
MAX_MEMBER_INT_BYTES: Final = 8
"""Limit of an int in a set or in a key of a dict. At most a few ints of this size share a hash."""
MAX_COLLISIONS: Final = 32
"""Number of members of a set, or keys of a dict, that may have the same hash."""
# Hashes of str, bytes and dates are seeded, so they are unpredictable. Few ints of up to 8 bytes, or floats, share one.
_HARMLESS: Final = frozenset((str, bytes, int, float, bool, NoneType, datetime, date))


def check_int(number: int) -> None:
    """Raises `TooLarge` for an int of more than 10,000 digits."""
    if max(number, ~number).bit_length() > 8 * MAX_INT_BYTES:
        raise TooLarge("an int of more than 10,000 digits is too large")


def check_members(members: Collection[Any]) -> None:
    """Raises `InvalidData` if too many members of a set, or keys of a dict, have the same hash."""
    if set(map(type, members)) <= _HARMLESS or len(members) - len(set(map(hash, members))) < MAX_COLLISIONS:
        return
    _check_collisions(members)


def check_merged(collections: Iterable[Collection[Any]]) -> None:
    """Check the members of several sets or dicts together, as `check_members` does, before they are merged."""
    collections = list(collections)
    kinds: set[type] = set()
    kinds.update(*(map(type, members) for members in collections))
    if not kinds <= _HARMLESS:
        _check_collisions(member for members in collections for member in members)


def _check_collisions(members: Iterable[Any]) -> None:
    """Raises `InvalidData` if more than `MAX_COLLISIONS` different members have the same hash."""
    alike: defaultdict[int, list[Any]] = defaultdict(list)
    for member in members:
        known = alike[hash(member)]
        if member not in known:
            known.append(member)
            if len(known) > MAX_COLLISIONS:
                raise InvalidData(
                    f"more than {MAX_COLLISIONS} different members of a set, or keys of a dict, have the same hash"
                )


def set_of(members: Collection[Any]) -> set[Any]:
    """The set of these members; raises `InvalidData` before too many of them with the same hash are compared."""
    if set(map(type, members)) != {str}:  # those of strings are seeded
        _check_collisions(members)
    return set(members)


def check_collection(value: object) -> None:
    """Check a set, or the keys of a dict, as `check_members` does; ignore values of other types."""
    if isinstance(value, Set | Mapping):
        check_members(value)


# Tags in CBOR


def _reject(content: Any, is_member: bool) -> NoReturn:
    raise ValueError("cq writes no such tag")


def _positive(content: Any, is_member: bool) -> int:
    limit = MAX_MEMBER_INT_BYTES if is_member else MAX_INT_BYTES
    if type(content) is not bytes:
        raise ValueError("a large int is not in bytes")
    if len(content) > limit:
        where = " in a set or in a key of a dict" if is_member else ""
        raise ValueError(f"an int of more than {limit:,} bytes{where}")
    return int.from_bytes(content, "big")


def _negative(content: Any, is_member: bool) -> int:
    return -1 - _positive(content, is_member)


def _decimal(content: Any, is_member: bool) -> Decimal:
    """A decimal fraction. With cbor2's own decoder of this tag, all digits would count as members of a set."""
    exponent, digits = content
    if type(exponent) is not int or type(digits) is not int:
        raise ValueError("the exponent or the digits of a decimal are not an int")
    return _EXACT.scaleb(Decimal(digits), exponent)


_EXACT: Final = Context(20_000, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation, Inexact, Overflow])


# References to earlier items (25, 29) can expand a few bytes to a huge value, or make a value that contains itself.
# The parsers of regular expressions (35) and MIME messages (36) are not made for untrusted text. Arithmetic of
# bigfloats (5) and fractions (30) has no bounds.
DECODERS: Final[Mapping[int, Callable[[Any, bool], Any]]] = {
    2: _positive,
    3: _negative,
    4: _decimal,
    TAG: from_tag,
    **dict.fromkeys((5, 25, 29, 30, 35, 36), _reject),
}
"""Decoders of these tags for `cbor2.loads`. The second argument: whether the item is in a set or in a key of a dict."""
