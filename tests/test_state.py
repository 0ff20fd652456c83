"""What a worker remembers stays within its bytes, whatever becomes of the values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cq.state import Memory, _size


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([b"a", b"b", b"c"]), st.one_of(st.none(), st.binary(max_size=400)), max_size=3
        ),
        max_size=30,
    )
)
def test_it_counts_what_it_holds(steps: list[dict[bytes, bytes | None]]) -> None:
    memory = Memory(max_bytes=900)
    for step in steps:
        memory.take(b"token", step)

        held = sum(_size(key, value) for key, value in memory.values.items())
        assert held == memory._bytes <= 900
        for key, value in memory.values.items():
            assert key not in step or step[key] == value
