"""What a worker remembers stays within its bytes, whatever becomes of the values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cq.passes.bucket_cache import Memory, _size

_entries = st.dictionaries(
    st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=400)), max_size=3
)


@given(st.lists(st.tuples(_entries, _entries), max_size=30))
def test_it_holds_the_latest_within_its_bytes(steps: list[tuple[dict[bytes, bytes | None], ...]]) -> None:
    memory = Memory(max_bytes=1500)
    for values, staged in steps:
        memory.take(b"token", values, staged)

        assert _size(memory.values) + _size(memory.staged) <= memory._bytes <= 1500
        for held, step in ((memory.values, values), (memory.staged, staged)):
            assert all(key not in step or step[key] == value for key, value in held.items())


def test_it_remembers_what_is_not_large() -> None:
    memory = Memory()
    memory.take(b"token", {b"a": b"1", b"b": b"x" * 201, b"c": None}, {b"a": b"2"})
    memory.take(b"token", {b"c": b"3"}, {b"a": None})

    assert (memory.values, memory.staged) == ({b"a": b"1", b"c": b"3"}, {b"a": None})


def test_it_is_valid_for_its_own_token_alone() -> None:
    memory = Memory()
    assert not memory.knows(b"")
    memory.take(b"token", {}, {})
    assert (memory.knows(b"token"), memory.knows(b"other"), memory.knows(b"")) == (True, False, False)
    memory.forget()
    assert not memory.knows(b"token")
