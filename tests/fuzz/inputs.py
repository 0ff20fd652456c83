"""What is fed to cq: broken rows, bombs in CBOR, mutations of real bytes, and values of every kind.

`CQ_FUZZ_SECONDS` has each search go on for so long instead of a few examples: `searched` says how.
"""

from __future__ import annotations

import os
import random
import resource
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

import cbor2
from hypothesis import settings
from hypothesis import strategies as st

SECONDS: Final = float(os.environ.get("CQ_FUZZ_SECONDS", "0"))
"""How long each search goes on; 0 for a few examples."""
EXAMPLES: Final = int(os.environ.get("CQ_FUZZ_EXAMPLES", "40"))
"""Of each search by hypothesis."""
CPU_SECONDS: Final = 20.0
"""What no single input may take: far more than the worst of them does, on a busy machine."""
MEMORY_BYTES: Final = 100_000_000
"""What no single input may take at once."""

latest: Final[list[int]] = []
"""The seed of the latest try of `searched`."""

few = settings(max_examples=EXAMPLES)


def _length(major: int, length: int) -> bytes:
    return bytes((major << 5 | 27,)) + struct.pack(">Q", length)


def _bignum(size: int) -> bytes:
    return b"\xc2" + _length(2, size) + b"\xf1" * size


def _laughs(number: int) -> bytes:
    """Lists of ten references to the list before each: 10**number parts, were they followed."""
    lists = [b"\xd8\x1c\x8a" + b"\x00" * 10]
    lists += [b"\xd8\x1c\x8a" + (b"\xd8\x1d" + bytes((at,))) * 10 for at in range(number - 1)]
    return bytes((0x80 + number,)) + b"".join(lists)


BOMBS: Final[dict[str, bytes]] = {
    "deep lists": b"\x81" * 10_000 + b"\x00",
    "deep endless lists": b"\x9f" * 90_000,
    "deep tags": b"\xc6" * 90_000 + b"\x00",
    "deep sets": b"\xd9\x01\x02\x81" * 20_000 + b"\x00",
    "deep keys": b"\xa1" * 90_000,
    "deep values": b"\xa1\x00" * 40_000 + b"\x00",
    "deep, but not too deep": b"\x81" * 99 + b"\x00",
    "as deep as the decoder goes by itself": b"\x81" * 398 + b"\x00",
    **{f"a list of 2**{power}": _length(4, 1 << power) for power in (30, 32, 40, 62, 63)},
    **{f"a dict of 2**{power}": _length(5, 1 << power) for power in (32, 62, 63)},
    **{f"bytes of 2**{power}": _length(2, 1 << power) for power in (31, 40, 63)},
    **{f"text of 2**{power}": _length(3, 1 << power) for power in (31, 40, 63)},
    "a key of 2**30": b"\xa1" + _length(4, 1 << 30),
    "a piece of 2**40": b"\x5f" + _length(2, 1 << 40),
    "many empty lists": _length(4, 90_000) + b"\x80" * 90_000,
    "many empty sets": _length(4, 20_000) + b"\xd9\x01\x02\x80" * 20_000,
    "a list that holds itself": bytes.fromhex("d81c81d81d00"),
    "a set that holds itself": bytes.fromhex("d81cd9010281d81d00"),
    "a dict that holds itself": bytes.fromhex("d81ca100d81d00"),
    "a reference to nothing": bytes.fromhex("d81d1bffffffffffffffff"),
    "a billion laughs": _laughs(12),
    "a long text, again and again": b"\xd9\x01\x00\x99\x4e\x21\x79\x4e\x20" + b"x" * 20_000 + b"\xd8\x19\x00" * 20_000,
    "a decimal of 10**9 digits": bytes.fromhex("c4821a3b9aca0001"),
    "a decimal of 10**18 digits": bytes.fromhex("c4821b0de0b6b3a763ffff01"),
    "a decimal of 10**9 places": bytes.fromhex("c4823a3b9aca0001"),
    "a decimal beyond decimals": bytes.fromhex("c4821b7fffffffffffffff01"),
    "a decimal of a huge exponent": b"\xc4\x82" + _bignum(255) + b"\x01",
    "a decimal of text": bytes.fromhex("c482613101"),
    "a large decimal": b"\xc4\x82\x00" + _bignum(20_000),
    "a bigfloat of 2**30": bytes.fromhex("c5821a3b9aca0003"),
    "a bigfloat of 2**20": bytes.fromhex("c5821a0010000003"),
    "a bigfloat of 2**-30": bytes.fromhex("c5823a3b9aca0003"),
    "a large int": _bignum(60_000),
    "the largest int": _bignum(4_153),
    "a set of large ints": b"\xd9\x01\x02\x99\x10\x00" + b"".join(
        cbor2.dumps((2**61 - 1) * (2**61 + number)) for number in range(4_096)
    ),
    "a dict of large ints": b"\xb9\x10\x00" + b"".join(
        cbor2.dumps((2**61 - 1) * (2**61 + number)) + b"\x00" for number in range(4_096)
    ),
    "an int that is too short": b"\xc2" + _length(2, 1 << 40) + b"\xff",
    "a large fraction": b"\xd8\x1e\x82" + _bignum(20_000) + _bignum(19_999),
    "a fraction by 0": bytes.fromhex("d81e820100"),
    "a fraction of text": b"\xd8\x1e\x81\x69" + b"1e9999999",
    "a pattern": b"\xd8\x23\x6a" + b"(a+)+(b|c)",
    "a large pattern": b"\xd8\x23\x79\xc3\x50" + b"(a|b)" * 10_000,
    "a deep pattern": b"\xd8\x23\x79\x0f\xa0" + b"(" * 2_000 + b")" * 2_000,
    "a message": b"\xd8\x24\x7a" + struct.pack(">I", 60_000) + b"A: b\n" * 12_000,
    "no address": bytes.fromhex("d9010441ff"),
    "no network": bytes.fromhex("d90105a144c0a800001903e8"),
    "no UUID": bytes.fromhex("d82541ff"),
    "no date": b"\xc0\x63abc",
    "a date in infinity": bytes.fromhex("c1f97c00"),
    "a date of NaN": bytes.fromhex("c1f97e00"),
    "a date in 2**64 s": bytes.fromhex("c11bffffffffffffffff"),
    "a date of a huge int": b"\xc1" + _bignum(255),
    "a date in 2**64 days": bytes.fromhex("d8641bffffffffffffffff"),
    "a set of dicts": bytes.fromhex("d9010281a0"),
    "no set": bytes.fromhex("d9010200"),
    "a key that is a dict": bytes.fromhex("a1a000"),
    "keys of NaN": bytes.fromhex("a2f97e0000f97e0001"),
    "a key twice": bytes.fromhex("a200000001"),
    "NaN with a payload": bytes.fromhex("fb7ff8dead0000beef"),
    "a signalling NaN": bytes.fromhex("fb7ff0000000000001"),
    "undefined": bytes.fromhex("f7"),
    "a simple value": bytes.fromhex("f820"),
    "an unknown tag": b"\xdb" + b"\xff" * 8 + b"\x00",
    "an unknown tag for a key": b"\xa1\xdb" + b"\xff" * 8 + b"\x80\x00",
    "a break": b"\xff",
    "half a dict": bytes.fromhex("bf00ff"),
    "nothing": b"",
    "more than one": b"\x00\x00",
    "no UTF-8": b"\x62\xff\xff",
    "a surrogate": b"\x63\xed\xa0\x80",
}  # fmt: skip

_zones = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
_odd: Final[list[Any]] = [
    -(2**64), 2**64, "\ud800", "\x00", Decimal("1E+1000000000"), Decimal("1E-1000000000"), Decimal("sNaN"),
    Decimal("-Infinity"), Decimal("1E+999999999999999999"), Fraction(1, 3), date(1, 1, 1), UUID(int=7), complex(1, 2),
    cbor2.undefined, cbor2.CBORSimpleValue(7), cbor2.CBORTag(28, [1]), cbor2.CBORTag(29, 0), 10**5_000,
    cbor2.CBORTag(4, [10**9, 1]), cbor2.CBORTag(35, "(a+)+"), cbor2.CBORTag(10**9, "x"), float("nan"), -0.0,
    range(3), range(10**12), object(), int, len, bytearray(b"x"), memoryview(b"x"), {1, 2}, frozenset({("a",)}),
]  # fmt: skip
_leaves: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.decimals(),
    st.datetimes(timezones=st.one_of(st.none(), st.just(UTC), _zones)),
    st.integers(0, len(_odd) - 1).map(lambda at: _odd[at]),
)
values: Final[st.SearchStrategy[Any]] = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(), st.booleans()), inner, max_size=4),
    ),
    max_leaves=8,
)
"""Whatever an application might give as a key, an update or a setting."""


def nested(levels: int, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    """Something so deep."""
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Real bytes with bits turned, pieces cut out, put in or swapped, or a bomb somewhere in them."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(content) + 1)
        match rng.randrange(7):
            case 0 if content:
                content[place % len(content)] ^= 1 << rng.randrange(8)
            case 1 if content:
                content[place % len(content)] = rng.choice(
                    (0x00, 0x5F, 0x7F, 0x9F, 0xBF, 0xC2, 0xC4, 0xD8, 0xF6, 0xF7, 0xFB, 0xFF)
                )
            case 2:
                del content[place:]
            case 3:
                del content[place : place + rng.randrange(1, 9)]
            case 4:
                content[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 5:
                other = rng.randrange(len(content) + 1)
                content[place:place] = content[other : other + 16]
            case _:
                content[place : place + 1] = rng.choice(list(BOMBS.values()))[:90_000]
    return bytes(content[:99_000])


def broken(data: bytes, rng: random.Random) -> bytes:
    """What could be in the place of a real row: random bytes, mutations of it, and other things in CBOR."""
    match rng.randrange(4):
        case 0:
            return rng.randbytes(rng.randrange(64))
        case 1:
            return rng.choice(list(BOMBS.values()))[:99_000]
        case 2:
            return reshaped(data, rng)
        case _:
            return mutated(data, rng)


_OTHERS: Final[list[Any]] = [
    None, True, 0, 1, -1, 2**31, 2**32, 2**63, 2**64, 10**5_000, 10**12, 0.5, float("nan"), float("inf"), "", "x",
    "\x00", b"", b"x", b"\xff" * 20_000, [], [[]], {}, {"a": 1}, {1: {}}, [1] * 50, Decimal("1E+1000000000"),
    Decimal(0), datetime(2020, 1, 1, tzinfo=UTC), {1}, cbor2.undefined, cbor2.CBORTag(10**9, []), nested(90),
    "x" * 50_000,
]  # fmt: skip


def reshaped(data: bytes, rng: random.Random) -> bytes:
    """Valid CBOR like the real row's, with one part of it replaced by something of another type."""
    try:
        content = cbor2.loads(data)
    except Exception:  # noqa: BLE001 - whatever it is
        content = None
    return cbor2.dumps(_replaced(content, rng))


def _replaced(content: Any, rng: random.Random) -> Any:
    other = rng.choice(_OTHERS)
    if isinstance(content, list) and content and rng.random() < 0.8:
        at = rng.randrange(len(content))
        match rng.randrange(5):
            case 0:
                return content[:at]
            case 1:
                return [*content, other]
            case _:
                return [*content[:at], _replaced(content[at], rng), *content[at + 1 :]]
    if isinstance(content, dict) and content and rng.random() < 0.8:
        at = rng.choice(list(content))
        match rng.randrange(5):
            case 0:
                return {key: value for key, value in content.items() if key != at}
            case 1:
                return {**content, "more": other}
            case _:
                return {**content, at: _replaced(content[at], rng)}
    return other


@contextmanager
def bounded() -> Iterator[None]:
    """Fails when what is within takes too long, in CPU time, or too much memory."""
    begun = time.process_time()
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - begun < CPU_SECONDS, "it takes too long"
    assert peak < MEMORY_BYTES, f"it takes {peak:,} bytes"


def searched(seeds: int) -> Iterator[random.Random]:
    """Random numbers for each of so many tries; as many as the time given allows for a longer search.

    A failure shows its seed: `CQ_FUZZ_SEED` begins with that one.
    """
    first = int(os.environ.get("CQ_FUZZ_SEED", "0"))
    end = time.monotonic() + SECONDS
    seed = first
    while seed < first + seeds or time.monotonic() < end:
        latest[:] = [seed]
        yield random.Random(seed)
        seed += 1


def limit_address_space() -> None:
    """For a child process: whatever it is fed, it may not take the machine's memory, nor its time."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
