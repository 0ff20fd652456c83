"""What a worker remembers stays within its bytes, whatever becomes of the values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cq.passes.bucket_cache import BucketCache, _size

_entries = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=400)), max_size=3
)


@given(st.lists(st.tuples(_entries, _entries), max_size=30))
def test_it_holds_the_latest_within_its_bytes(steps: list[tuple[dict[bytes, bytes | None], ...]]) -> None:
    cache = BucketCache(max_bytes=1500)
    for values, staged in steps:
        cache.update(b"token", values, staged)

        assert _size(cache.values) + _size(cache.staged) <= cache._bytes <= 1500
        for held, step in ((cache.values, values), (cache.staged, staged)):
            assert all(key not in step or step[key] == value for key, value in held.items())


def test_it_remembers_what_is_not_large() -> None:
    cache = BucketCache()
    cache.update(b"token", {b"a": b"1", b"b": b"x" * 201, b"c": None}, {b"a": b"2"})
    cache.update(b"token", {b"c": b"3"}, {b"a": None})

    assert (cache.values, cache.staged) == ({b"a": b"1", b"c": b"3"}, {b"a": None})
