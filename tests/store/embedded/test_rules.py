"""Rules of FoundationDB's read-your-writes client, each as a short script of two transactions A and B.

A step is a line: who, what, and arguments; `->` says what comes of it (an error is its number).
"""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from cq.store.embedded import Database, FDBError, KeySelector, Transaction

RULES = {
    "a versionstamped value is unreadable, and the failed read fails the commit": """
        A stamp_value a
        A get a -> 1036
        A commit -> 1036
    """,
    "a clear makes it readable again": """
        A stamp_value a
        A clear a
        A get a -> None
        A commit
    """,
    "a set does not": """
        A stamp_value a
        A set a 1
        A get a -> 1036
    """,
    "keys beside the place of a stamped key are readable": """
        A stamp_key k
        A get j -> None
        A get l -> None
        A get k -> None
        A get k0 -> 1036
    """,
    "a range that stops before the unreadable is read": """
        B set a 1
        B commit
        A stamp_key k
        A range a c 0 -> a
        A range a z 1 -> a
        A range a z 2 -> 1036
    """,
    "a selector that does not reach the unreadable is resolved": """
        B set a 1
        B commit
        A stamp_key k
        A first a 0 -> a
        A first a 1 -> 1036
    """,
    "backwards too": """
        B set m 1
        B commit
        A stamp_key k
        A last z 0 -> m
        A last z 1 -> 1036
    """,
    "a key set within the unreadable stays unreadable": """
        A stamp_key k
        A set k0 1
        A get k0 -> 1036
    """,
    "also one that is set after a read has looked at it": """
        A stamp_key k
        A get j -> None
        A set k0 1
        A get k0 -> 1036
    """,
    "a range cleared over the unreadable is readable": """
        A stamp_key k
        A clear_range a z
        A range a z 0 ->
        A commit
    """,
    "the next write without conflict is the next one only": """
        A get a -> None
        B no_conflict
        B set a 1
        B commit
        A set z 1
        A commit
    """,
    "and the one after it conflicts": """
        A get b -> None
        B no_conflict
        B set a 1
        B set b 1
        B commit
        A set z 1
        A commit -> 1020
    """,
    "a write over a conflicting one keeps the conflict": """
        A get a -> None
        B set a 1
        B no_conflict
        B set a 2
        B commit
        A set z 1
        A commit -> 1020
    """,
    "a clear over a conflicting write keeps the conflict": """
        A get b -> None
        B set b 1
        B no_conflict
        B clear_range a c
        B commit
        A set z 1
        A commit -> 1020
    """,
    "an atomic operation conflicts with readers but not with writers": """
        A version
        B add a 1
        B commit
        A add a 1
        A commit
    """,
    "reading what an atomic operation will make of a key reads the key": """
        A add a 1
        A get a -> 1
        B set a 5
        B commit
        A commit -> 1020
    """,
    "reading what was set reads nothing": """
        A set a 1
        A get a -> 1
        A version
        B set a 5
        B commit
        A commit
    """,
    "a range reads nothing where it was cleared": """
        A clear_range a m
        A range a z 0 ->
        B set b 1
        B commit
        A commit
    """,
    "but does beside it": """
        A clear_range a m
        A range a z 0 ->
        B set n 1
        B commit
        A commit -> 1020
    """,
    "a selector depends on the keys it passed": """
        B set d 1
        B commit
        A first a 0 -> d
        C set c 1
        C commit
        A set z 1
        A commit -> 1020
    """,
    "and not on those beyond": """
        B set d 1
        B commit
        A first a 0 -> d
        C set e 1
        C commit
        A set z 1
        A commit
    """,
    "a key that an operation has cleared counts for a selector but is not found": """
        B set a 1
        B set c 1
        B commit
        A compare_and_clear b x
        A first a 0 -> a
        A first a 2 -> c
        A first a 1 -> c
    """,
    "snapshot reads see own writes unless that is switched off": """
        A set a 1
        A snapshot_get a -> 1
        A no_snapshot_ryw
        A snapshot_get a -> None
        A get a -> 1
    """,
    "without read-your-writes, reads see the snapshot and conflict": """
        A no_ryw
        A set a 1
        A get a -> None
        B set a 2
        B commit
        A commit -> 1020
    """,
    "a write conflict range alone commits and conflicts": """
        A get a -> None
        B write_conflict a b
        B commit
        A set z 1
        A commit -> 1020
    """,
    "an error of a void call comes before all others": """
        A clear_range b a
        A cancel
        A get a -> 2005
        A commit -> 2005
        A reset
        A commit
    """,
}


class Script:
    """Runs the steps of one rule."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.transactions: dict[str, Transaction] = {}

    def run(self, text: str) -> None:
        for line in text.strip().splitlines():
            step, arrow, expected = line.strip().partition("->")
            who, what, *arguments = shlex.split(step)
            tr = self.transactions.setdefault(who, self.db.create_transaction())
            got = self.outcome(tr, what, [argument.encode() for argument in arguments])
            assert got == (expected.strip() if arrow else "None"), line.strip()

    def outcome(self, tr: Transaction, what: str, arguments: list[bytes]) -> str:
        try:
            result = getattr(self, what)(tr, *arguments)
        except FDBError as error:
            return str(error.code)
        return result.decode() if isinstance(result, bytes) else str(result)

    def get(self, tr: Transaction, key: bytes) -> Any:
        return tr.get(key).value

    def snapshot_get(self, tr: Transaction, key: bytes) -> Any:
        return tr.snapshot.get(key).value

    def range(self, tr: Transaction, begin: bytes, end: bytes, limit: bytes) -> Any:
        return b" ".join(row.key for row in tr.get_range(begin, end, int(limit)))

    def first(self, tr: Transaction, key: bytes, offset: bytes) -> Any:
        return tr.get_key(KeySelector.first_greater_or_equal(key) + int(offset)).value

    def last(self, tr: Transaction, key: bytes, offset: bytes) -> Any:
        return tr.get_key(KeySelector.last_less_than(key) - int(offset)).value

    def stamp_value(self, tr: Transaction, key: bytes) -> None:
        tr.set_versionstamped_value(key, bytes(14))

    def stamp_key(self, tr: Transaction, key: bytes) -> None:
        tr.set_versionstamped_key(key + bytes(10) + len(key).to_bytes(4, "little"), b"")

    def version(self, tr: Transaction) -> None:
        tr.get_read_version().wait()

    def no_conflict(self, tr: Transaction) -> None:
        tr.options.set_next_write_no_write_conflict_range()

    def no_ryw(self, tr: Transaction) -> None:
        tr.options.set_read_your_writes_disable()

    def no_snapshot_ryw(self, tr: Transaction) -> None:
        tr.options.set_snapshot_ryw_disable()

    def write_conflict(self, tr: Transaction, begin: bytes, end: bytes) -> None:
        tr.add_write_conflict_range(begin, end)

    def commit(self, tr: Transaction) -> None:
        tr.commit().wait()

    def __getattr__(self, name: str) -> Any:
        return lambda tr, *arguments: getattr(tr, name)(*arguments)


@pytest.mark.parametrize("rule", RULES)
def test_rule(db: Database, rule: str) -> None:
    Script(db).run(RULES[rule])
