"""Adding files of updates: every line once, in transactions that also hold the position reached."""

from __future__ import annotations

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest

import cq
from cq.errors import InvalidData, QueueNotConfigured
from cq.intake import lines as lines_of_files
from cq.intake.json_lines import add_jsonl
from cq.intake.lines import FilePosition
from cq.store.transact import transact
from cq.testing import drain
from tests.kit.queues import values


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_of_files, "_BATCH_LINES", 3)


@pytest.fixture
def sums(db: Any, name: str) -> str:
    """The name of a queue of sums."""
    cq.configure(db, name)
    return name


def line(key: Any, update: Any) -> bytes:
    return json.dumps({"key": key, "update": update}).encode() + b"\n"


def lines(count: int) -> bytes:
    return b"".join(line(f"key {number % 3}", number) for number in range(1, count + 1))


def add(db: Any, name: str, content: bytes, file: bytes | None = b"file") -> tuple[FilePosition, int]:
    return add_jsonl(db, cq.CombineQueue(name), BytesIO(content), name=file)[:2]


def total(db: Any, name: str) -> int:
    """The sum of all values, once combined: of n lines it is 1 + ... + n."""
    drain(db, name)
    return sum(value for _, value in cq.CombineQueue(name).scan(db))


def test_all_lines_are_added_once(db: Any, sums: str) -> None:
    position, added = add(db, sums, lines(10))

    assert (position.offset, position.lines, added) == (len(lines(10)), 10, 10)
    assert add(db, sums, lines(10)) == (position, 0)
    assert total(db, sums) == 55


def test_later_lines_are_added_by_a_later_run(db: Any, sums: str) -> None:
    assert [add(db, sums, lines(count))[1] for count in (0, 4, 4, 5, 11)] == [0, 4, 0, 1, 6]
    assert total(db, sums) == 66


def test_progress_is_told_after_each_batch(db: Any, sums: str) -> None:
    seen: list[int] = []

    add_jsonl(
        db,
        cq.CombineQueue(sums),
        BytesIO(lines(8)),
        progress=lambda position: seen.append(position.lines),
    )

    assert seen == [3, 6, 8]


def test_each_file_and_each_queue_has_its_own_position(db: Any, name: str) -> None:
    for queue in (name, f"{name}-2"):
        cq.configure(db, queue)
        for file in (b"one", b"two"):
            assert add(db, queue, lines(4), file)[1] == 4

    assert total(db, name) == total(db, f"{name}-2") == 20


def test_a_stream_without_a_name_is_not_remembered(db: Any, sums: str) -> None:
    assert [add(db, sums, lines(4), None)[1] for _ in range(2)] == [4, 4]


@pytest.mark.parametrize(
    "changed", [b"", lines(3), line("other", 1) + lines(10), lines(5).replace(b"2", b"3")]
)
def test_a_file_that_has_changed_is_refused(db: Any, sums: str, changed: bytes) -> None:
    add(db, sums, lines(5))

    with pytest.raises(InvalidData, match="has changed before byte"):
        add(db, sums, changed)

    assert total(db, sums) == 15


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"nothing\n", "expected JSON"),
        (b"\xff\n", "expected JSON"),
        (b"[" * 100_000 + b"\n", "expected JSON"),
        (b"5\n", "expected {"),
        (b'{"key": "a"}\n', "expected {"),
        (b'{"key": "a", "update": 1, "more": 1}\n', "expected {"),
        (line(1, 1), "expected a key of type str"),
        (line("a", "1"), "key 'a': expected a value of type int"),
        (line("a", None), "key 'a': expected a value of type int"),
        (line("a" * 9000, 1), "exceeds the limit"),
        (b'{"key": "a", "update": ' + b"1" * 5000 + b"}\n", "expected JSON"),
    ],
    ids=range(11),
)
def test_a_bad_line_is_named_and_what_stands_before_it_is_added(
    db: Any, sums: str, bad: bytes, said: str
) -> None:
    with pytest.raises(InvalidData, match=r"^line 5: ") as refused:
        add(db, sums, lines(4) + bad + lines(1))

    assert said in str(refused.value)
    assert "b'" not in str(refused.value), "text, not bytes"
    assert str(refused.value).endswith("; the 4 lines before it are committed")
    assert len(str(refused.value)) < 400
    assert add(db, sums, lines(5))[1] == 1, "the line mended, all others added"
    assert total(db, sums) == 15


def test_blank_lines_and_a_missing_newline_are_fine(db: Any, sums: str) -> None:
    assert add(db, sums, b"\n  \n" + lines(2).rstrip())[1] == 2
    assert add(db, sums, b"\n  \n" + lines(3))[1] == 1, "the rest of a line is a blank one"
    assert total(db, sums) == 6


def test_types_are_those_of_the_queue(db: Any, name: str) -> None:
    cq.configure(db, name, key=(str, int), value="decimal", buckets=1)
    exact = "1.000000000000000000000000000001"

    add(db, name, b'{"key": ["a", 1], "update": ' + exact.encode() + b"}\n" + line(["a", 1], "1"))

    found = transact(db, lambda tr: cq.CombineQueue(name).get(tr, ("a", 1), pending=True))
    assert found == Decimal("2.000000000000000000000000000001")


def test_null_deletes_where_the_last_update_counts(db: Any, name: str) -> None:
    cq.configure(db, name, value=str, combiner="last")

    add(db, name, line("a", "here") + line("b", "here") + line("a", None))

    drain(db, name)
    assert values(db, name) == {"b": "here"}


def test_a_queue_must_be_configured(db: Any, name: str) -> None:
    with pytest.raises(QueueNotConfigured):
        add(db, name, lines(1))


def test_two_at_once_do_not_add_a_line_twice(db: Any, sums: str) -> None:
    queue = cq.CombineQueue(sums)

    def meanwhile(position: FilePosition) -> None:
        if position.lines == 3:
            assert add(db, sums, lines(9))[1] == 6

    with pytest.raises(InvalidData, match="another process is adding this file"):
        add_jsonl(db, queue, BytesIO(lines(9)), name=b"file", progress=meanwhile)

    assert total(db, sums) == 45
