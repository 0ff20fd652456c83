"""The engine of all checks: reads a live queue in pieces, retries, counts, and returns the differences.

Pieces are bounded in rows and bytes; a piece whose transaction fails, or would write too much, is tried again with
fewer rows. A `Check` yields the differences of one subject. Most checks are walks over a range of keys; `every_row`
makes one walk of the checks of all rows of a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from cq.admin.configure import rebuild_observer
from cq.combiners import Combiner
from cq.config.queue import QueueConfig
from cq.errors import CorruptConfiguration
from cq.keys import QueueKeys, after, prefix_end
from cq.store.api import COMMIT_UNKNOWN_RESULT, WANT_ALL, Database, error_code
from cq.verify.layout import UNKNOWN, part_of
from cq.verify.piece import Difference, Found, Piece, RowCheck, RowVisitor

T = TypeVar("T")
Place = TypeVar("Place")

ROWS: Final = 2_000
BYTES: Final = 200_000
"""Rows and bytes of a piece, at most."""


class Verification:
    """One verification of a queue; run it once.

    Args:
        db: a database of either store.
        name: the queue.
        checks: {name: check}, in the order in which they run.
        repair: whether to repair what can be derived.
        combiner: the queue's combiner, if it is not one of cq's: it decides which values are empty.

    Attributes:
        progress: called with the verification after each piece.
        rows, size: rows and bytes of a piece, at most.
        began: the read version of the first piece; None before it.
        checked: number of keys checked.
        found: number of differences.
        totals: further totals of checks, by name, for programs.
        notes: the checks that were skipped, and why.
        part: name of the current check, for display.
    """

    def __init__(
        self,
        db: Database,
        name: str,
        checks: Mapping[str, Check],
        *,
        repair: bool = False,
        combiner: Combiner | None = None,
    ) -> None:
        self.db = db
        self.name = name
        self.keys = QueueKeys(name)
        self.repair = repair
        self.combiner = combiner
        self.progress: Callable[[Verification], object] = lambda verification: None
        self.rows, self.size = ROWS, BYTES
        self.began: int | None = None
        self.checked = 0
        self.found = 0
        self.totals: dict[str, Any] = {}
        self.notes: list[str] = []
        self.part = "configuration"
        self._checks = checks
        self._share = 1.0
        self._rebuilds: set[str] = set()

    def run(self) -> Iterator[Difference]:
        """Return the differences as they are found; with `repair`, after the repair is committed.

        Raises `QueueNotConfigured`, `CodeMismatch` for a queue that a newer version of cq has configured, and the
        store's `FDBError` if a retry cannot help.
        """
        for difference in self._all():
            self.found += 1
            yield difference

    def note(self, what: str) -> None:
        """Add the note of a skipped check, once."""
        if what not in self.notes:
            self.notes.append(what)

    def config(self) -> QueueConfig:
        """Return the queue's configuration as it is stored now."""
        return self.piece(lambda piece: piece.config)[0]

    def walk(self, begin: bytes, end: bytes, visit: RowVisitor) -> Iterator[Difference]:
        """Check all rows of a range, piece by piece. `Found.rest` is the rest of a key after `begin`."""

        def page(piece: Piece, place: bytes) -> bytes | None:
            rows, most = self.share(self.rows), self.share(self.size)
            size = 0
            for row in piece.snapshot.get_range(place, end, limit=rows, streaming_mode=WANT_ALL):
                piece.checked += 1
                following = visit(piece, Found(row.key, row.value, row.key[len(begin) :]))
                size += len(row.key) + len(row.value)
                if following is not None:
                    return following if following < end else None
                if size > most or piece.checked == rows:
                    return after(row.key)
            return None

        return self.pages(begin, page)

    def pages(self, begin: Place, check: Callable[[Piece, Place], Place | None]) -> Iterator[Difference]:
        """Check pieces from `begin` on. `check` returns where the next piece begins; None after the last one."""
        place: Place | None = begin
        while place is not None:
            place, differences = self.piece(lambda piece, begin=place: check(piece, begin))  # type: ignore[misc]
            yield from differences

    def piece(self, check: Callable[[Piece], T]) -> tuple[T, list[Difference]]:
        """Run a check in a separate transaction; return its result and the differences.

        If the transaction fails, or its repairs make it too large, run it again over a smaller piece (see `share`).
        """
        uncertain: dict[tuple[str, bytes], Difference] = {}
        tr = self.db.create_transaction()
        while True:
            piece = None
            try:
                piece = Piece(tr, self.name, self.began, self.combiner, self.share)
                result = check(piece)
                if not piece.finish(repair=self.repair) and self._share > 1 / self.rows:
                    # The size of a repair depends on the row, its key, and the buckets that it touches.
                    self._share = max(self._share / 2, 1 / self.rows)
                    tr = self.db.create_transaction()
                    continue
                tr.commit().wait()
            except Exception as error:
                code = error_code(error)
                if code is None:
                    raise
                if code == COMMIT_UNKNOWN_RESULT and piece is not None:
                    # A committed repair removes its difference from the next try.
                    uncertain |= {
                        (each.kind, each.where): each for each in piece.differences if each.repaired
                    }
                    self._rebuilds |= piece.rebuilds
                self._share = max(self._share / 2, 1 / self.rows)
                tr.on_error(code).wait()
            else:
                break
        self.began = piece.began
        self._share = min(1.0, 1.5 * self._share)
        self._rebuilds |= piece.rebuilds
        for each in piece.notes:
            self.note(each)
        self.count(piece.checked)
        return result, list(
            (uncertain | {(each.kind, each.where): each for each in piece.differences}).values()
        )

    def count(self, checked: int) -> None:
        """Count checked keys, and report the progress."""
        self.checked += checked
        self.progress(self)

    def share(self, most: int) -> int:
        """Return how much of `most` the piece may check: less after failed transactions."""
        return max(1, int(self._share * most))

    def _all(self) -> Iterator[Difference]:
        try:
            self.config()  # no other data can be checked without it
            for name, check in self._checks.items():
                self.part = name
                yield from check(self)
            for observer in sorted(self._rebuilds):
                rebuild_observer(self.db, self.name, observer)
        except CorruptConfiguration as error:
            yield Difference("config", self.keys.config, str(error))
            self.note("no other data of the queue can be checked without its configuration")


Check = Callable[[Verification], Iterator[Difference]]
"""Yields the differences of one subject; the repairs of those that it yields are committed."""


def every_row(checks: Mapping[str, Sequence[RowCheck]]) -> Check:
    """Return the check of each row below the queue's prefix, by the checks of its part of the key layout."""

    def visit(piece: Piece, found: Found) -> bytes | None:
        part, rest = part_of(found.rest, checks)
        if part == UNKNOWN:
            piece.report("unknown-key", found.key, "cq writes no key with this beginning")
            return None
        row = Found(found.key, found.value, rest)
        following = [check.run(piece, row) for check in checks[part]]
        return max((each for each in following if each is not None), default=None)

    def check_rows(verification: Verification) -> Iterator[Difference]:
        prefix = verification.keys.prefix
        return verification.walk(prefix, prefix_end(prefix), visit)

    return check_rows
