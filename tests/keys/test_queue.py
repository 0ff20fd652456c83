"""The keyspace: what goes in comes out, and sorts as the design needs it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq import keys
from cq.encoding import hashing
from cq.errors import CorruptData, InvalidConfiguration
from cq.keys import QueueKeys

STAMP = b"\x00\x01\x02\x03\x04\x05\x06\x07\x00\x09"


def complete(template: bytes) -> bytes:
    """The key that `set_versionstamped_key` makes of its argument."""
    offset = int.from_bytes(template[-4:], "little")
    return template[:offset] + STAMP + template[offset + 10 : -4]


@given(st.binary(), st.integers(1, 4096))
def test_a_bucket_is_the_contiguous_range_of_hashes_its_bounds_say(encoded: bytes, buckets: int) -> None:
    bucket = hashing.bucket_of(encoded, buckets)
    first, end = hashing.bucket_bounds(buckets, bucket)

    assert 0 <= bucket < buckets
    assert first <= hashing.key_hash(encoded) < end


@pytest.mark.parametrize("buckets", [1, 2, 3, 16, 1000, 4096])
def test_buckets_cover_all_hashes_without_gap_or_overlap(buckets: int) -> None:
    bounds = [hashing.bucket_bounds(buckets, bucket) for bucket in range(buckets)]

    assert bounds[0][0] == 0
    assert bounds[-1][1] == 1 << 32
    assert all(left[1] == right[0] for left, right in itertools.pairwise(bounds))


@given(st.binary(min_size=1, max_size=50), st.integers(1, 50))
def test_staged_keys_lie_in_their_buckets_range(encoded: bytes, buckets: int) -> None:
    queue = QueueKeys("words")
    begin, end = queue.all_staged.of_bucket(buckets, hashing.bucket_of(encoded, buckets))

    assert begin <= queue.staged(encoded) < end
    assert queue.encoded_key(queue.staged(encoded)) == encoded
    assert queue.encoded_key(queue.value(encoded)) == encoded


@given(st.integers(1, 9), st.integers(0, 4095), st.integers(0, 2**64 - 1))
def test_rows_lie_in_their_buckets_range_and_no_other(generation: int, bucket: int, counter: int) -> None:
    queue = QueueKeys("words")
    row = complete(queue.new_row(generation, bucket, counter))
    begin, end = queue.rows(generation, bucket)

    assert begin <= row < end
    assert not queue.rows(generation, bucket + 1)[0] <= row
    assert queue.versionstamp_of_row(row) == STAMP
    assert queue.all_rows()[0] <= row < queue.all_rows()[1]


@given(st.binary(min_size=1, max_size=1000))
def test_markers_of_one_operation_lie_in_its_range(operation: bytes) -> None:
    queue = QueueKeys("words")
    marker = complete(queue.new_marker(operation))
    begin, end = queue.markers(operation)

    assert begin <= marker < end
    assert queue.parse_marker(marker) == (operation, STAMP)
    assert not queue.markers(operation + b"x")[0] <= marker < queue.markers(operation + b"x")[1]


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_what_is_set_aside_can_be_parsed(encoded: bytes, piece: int) -> None:
    queue = QueueKeys("words")
    key = complete(queue.new_aside(encoded, piece))

    assert queue.parse_aside(key) == (encoded, STAMP, piece)
    assert queue.aside()[0] <= key < queue.aside()[1]


def test_the_kinds_of_keys_of_a_queue_do_not_overlap() -> None:
    queue = QueueKeys("words")
    ranges = [
        queue.all_rows(), queue.notifications(), queue.markers(), queue.values(), queue.aside(), queue.documents(),
        queue.all_staged(), queue.document_part(b"d", 0), (queue.config, keys.after(queue.config)),
        (queue.flags, keys.after(queue.flags)), (queue.state(1, 0), queue.state(1, 9)),
        queue.attempts(1, 0), queue.all_observer_data(), (queue.observer_current("a"), queue.observer_current("b")),
        (queue.load(b"f"), queue.load(b"g")), queue.emitters(),
    ]  # fmt: skip

    ordered = sorted(ranges)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(ordered))


def test_a_queue_whose_name_begins_like_anothers_shares_no_range() -> None:
    assert not QueueKeys("word").prefix.startswith(QueueKeys("words").prefix)
    assert not QueueKeys("words").prefix.startswith(QueueKeys("word").prefix)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "é", "x" * 101, "a\n", None, 7])
def test_a_bad_queue_name_is_refused_with_its_value(name: object) -> None:
    with pytest.raises(InvalidConfiguration, match="expected a queue name"):
        keys.check_name(name)


def test_queue_entries_name_their_queues() -> None:
    assert keys.queue_of_entry(keys.queue_entry("page.views-2")) == "page.views-2"


def test_a_foreign_key_among_values_is_named() -> None:
    with pytest.raises(CorruptData, match="not written by cq"):
        QueueKeys("words").encoded_key(b"cq/q/words/d\x00")
