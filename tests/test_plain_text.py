"""Foreign text is printable, in one line, and short."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cq.plain_text import MAX_CHARACTERS, describe, escaped, message_of, printable, size


@given(st.text(st.characters()))
def test_it_is_printable_and_short_whatever_it_is_made_of(text: str) -> None:
    assert printable(text).isprintable()
    assert escaped(text).isprintable()
    assert len(printable(text * 100)) <= MAX_CHARACTERS
    if text.isprintable():
        assert printable(text[:MAX_CHARACTERS]) == text[:MAX_CHARACTERS]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00"),
        ("a\nb\r\n\tc\x0b\x0c\x1c\x85", "a\\nb\\r\\n\\tc\\x0b\\x0c\\x1c\\x85"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\u202e\u2066\u200f\ufeff", "\\u202e\\u2066\\u200f\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("\xa0", "\\xa0"),
        ("größer \u65e5\u672c \U0001f600 [red]", "größer \u65e5\u672c \U0001f600 [red]"),
        ("", ""),
    ],
)
def test_only_what_is_not_printable_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == escaped(text) == expected


def test_a_long_text_is_cut_after_it_is_escaped() -> None:
    assert printable("x" * 1_000) == "x" * 1_000
    assert printable("x" * 1_001) == "x" * 997 + "..."
    assert printable("\n" * 1_000) == ("\\n" * 500)[:997] + "..."
    assert escaped("x" * 5_000) == "x" * 5_000


class OfBinding(Exception):
    """As an `FDBError` of FoundationDB's binding."""

    description = b"Database is locked"

    def __str__(self) -> str:
        return f"{self.description!r} (1038)"


def test_the_text_of_a_cluster_s_error_is_no_bytes() -> None:
    assert message_of(OfBinding()) == "Database is locked (1038)"
    assert describe(OfBinding()) == "OfBinding: Database is locked (1038)"
    assert message_of(ValueError("b'x'")) == "b'x'"


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
def test_a_message_that_raises_is_named(kind: type[BaseException]) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise kind

    assert describe(Broken()) == f"Broken: (its message raises {kind.__name__})"


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 bytes"), (999_900_000, "999.9 MB"), (1_500_000_000, "1.5 GB"), (17_592_186_044_416, "17.6 TB")],
)
def test_sizes_are_in_units_that_fit(number: int, shown: str) -> None:
    assert size(number) == shown
