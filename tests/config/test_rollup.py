"""Roll-ups as users write them, and as they are stored."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from cq.config.rollup import (
    LEVEL_KEY_BYTES,
    LevelOf,
    RollUp,
    RollUpLevel,
    encoded_level_keys,
    level_key,
    level_key_type,
)
from cq.durations import duration, seconds_of
from cq.encoding.codec import KeyType
from cq.errors import InvalidConfiguration


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("1m:2d,1h:60d,1d:forever", "1m:2d,1h:60d,1d:forever"),
        (" 1d:forever, 60s:48h,1h:60d", "1m:2d,1h:60d,1d:forever"),
        ({"1m": "2d", 3600: timedelta(days=60), "1d": None}, "1m:2d,1h:60d,1d:forever"),
        ("90s:1h30m", "90s:90m"),
        ("1w:4w", "7d:28d"),
        ("none", ""),
        ({}, ""),
        ((), ""),
    ],
)
def test_a_roll_up_is_parsed(given: Any, text: str) -> None:
    assert str(RollUp.parse(given)) == text


@pytest.mark.parametrize(
    "given",
    [
        *("1m", "1m:", ":2d", "1m:2d,", "1m:2x", "-1m:2d", "1m:2d:3d", "m:d", "0s:1d", "1.5s:1d"),
        *("1m:30s", "1m:2d,90s:3d", "1m:2d,1m:3d", "1m:2d,1h:1d", "1m:forever,1h:60d", "1m:101000d"),
        "1s:1d,2s:1d,4s:1d,8s:1d,16s:1d,32s:1d,64s:1d",
        *(1, True, ["1m"], {"1m": 0.5}, {"1m": "ever"}, {None: "1d"}),
        *(RollUp((RollUpLevel(0, None),)), RollUp((RollUpLevel("1m", None),))),  # type: ignore[arg-type]
    ],
)
def test_any_other_roll_up_is_refused(given: Any) -> None:
    with pytest.raises(InvalidConfiguration):
        RollUp.parse(given)


def test_durations_are_read_as_they_are_written() -> None:
    for seconds in (1, 59, 60, 90, 3600, 86_400, 90_000, 604_800):
        assert seconds_of(duration(seconds)) == seconds


@pytest.mark.parametrize("stored", [[], [[], True], [[[60, None]], 1], [[[60]], True], [[[60, 30]], True], 5])
def test_a_stored_roll_up_that_cq_did_not_write_is_refused(stored: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        RollUp.from_stored(stored)


@pytest.mark.parametrize("stored", [[], ["hits"], [1, 60], ["hits", 0], ["hits", True], 5])
def test_a_stored_level_that_cq_did_not_write_is_refused(stored: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        LevelOf.from_stored(stored)


@pytest.mark.parametrize("starts", [[0], [-60], [23], [1 << 39], [60, 1_795_477_260]])
@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        ("str", ["", "a" * 300]),
        ("int", [-1, 1 << 70]),
        ("bytes", [b"", b"\x82"]),
        ((str, int), [("a", 1), ("", -5)]),
        ((int,) * 23, [tuple(range(23)), tuple(range(-23, 0))]),
        ((int,) * 256, [tuple(range(256)), tuple(range(-256, 0))]),
    ],
)
def test_encoded_keys_of_a_level_are_those_of_its_keys(key_type: Any, keys: Any, starts: list[int]) -> None:
    of_queue = KeyType.parse(key_type)
    of_level = level_key_type(of_queue)
    pairs = zip(keys, starts * len(keys) if len(starts) == 1 else starts, strict=True)
    expected = [of_level.encoder()(level_key(key, start)) for key, start in pairs]
    assert encoded_level_keys(of_queue, of_queue.encode_all(keys), starts) == expected


@pytest.mark.parametrize(
    ("key_type", "key"),
    [
        ("str", ""),
        ("bytes", b"a" * 300),
        ((int,) * 22, (0,) * 22),
        ((int,) * 23, (0,) * 23),
        ((int,) * 255, (0,) * 255),
    ],
)
def test_a_key_of_a_level_is_longer_by_a_known_number_of_bytes_at_most(key_type: Any, key: Any) -> None:
    of_queue = KeyType.parse(key_type)
    encoded = of_queue.encode_all([key])
    (of_level,) = encoded_level_keys(of_queue, encoded, [(1 << 63) - 1])
    assert len(encoded[0]) < len(of_level) <= len(encoded[0]) + LEVEL_KEY_BYTES
