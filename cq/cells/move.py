"""Moving a user from one cell to another: copied in pieces and verified while nobody can write, then switched over.

    1. directory  the move is noted: the target, behind the same cell and epoch e
    2. source     fence `here` e -> `leaving` e+1. Every transaction of the user reads the fence for real, so those
                  still under way fail, and whoever comes later gets `UserMoving`: what is copied stands still
    3. target     fence -> `arriving` e+1; the data are copied a piece at a time, each with the cursor behind it
    4.            both sides are read again, counted and compared
    5. target     fence -> `here` e+1; then in the directory: cell = target, epoch e+1, and the source to be cleared
    6. source     the old data are cleared a piece at a time; the fence stays as `gone` e+1, for good
    7. directory  nothing is left to be done

The directory's record says which of these are to be done, and each step really reads the fence before it writes: any
process can go on at any point, and two that do so at once do each step once. `leaving` in 2 comes before `here` in 5,
so no two cells have the user at any moment. A process that was late finds a later epoch and stops, also in a cell to
which the user has come back: that is why fences stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from cq.cells.directory import Directory
from cq.cells.records import ARRIVING, GONE, HERE, LEAVING, CopyProgress, Fence, Record
from cq.cells.stores import CellStores
from cq.errors import CellMismatch, MoveFailed
from cq.keys import after
from cq.keys import cell as keys
from cq.store.api import Database, KeyValue, Transaction, TransactionRead
from cq.store.transact import transact

PIECE_BYTES: Final = 200_000
PIECE_ROWS: Final = 2_000
_MOST_TIMES: Final = 20
"""How often others may come between while the directory says the same: more than those who help each other do."""


class _Overtaken(Exception):
    """Somebody else has gone on with the move: look at the record again."""


class UserMove:
    """The moves of one user; for one thread at a time.

    Args:
        directory: see there.
        stores: those of the cells.
        user: the user's id.
    """

    def __init__(self, directory: Directory, stores: CellStores, user: Any) -> None:
        self._directory = directory
        self._stores = stores
        self._user = user
        self._encoded = keys.encoded_user(user)

    def to(self, target: str) -> Record:
        """Move the user, when an earlier move is done; returns the record behind it. Errors as `Cells.move`."""
        while True:
            record = self.finish()
            if record.cell == target:
                return record
            self._directory.begin_move(self._user, target)

    def finish(self) -> Record:
        """Do all that is left of a move under way; returns the user's record behind it. Errors as `Cells.move`."""
        before, times = None, 0
        while True:
            record = self._directory.record(self._user)
            if not record.is_moving:
                return record
            before, times = record, times + 1 if record == before else 0
            if times > _MOST_TIMES:
                raise CellMismatch(
                    f"cells know more of user {self._user!r} than the directory (epoch {record.epoch}): one of them "
                    "was set back; restore all as of one moment"
                )
            try:
                if record.target is not None:
                    self._carry(record, record.target)
                elif record.source is not None:
                    self._tidy(record, record.source)
            except _Overtaken:
                continue

    def _carry(self, record: Record, target: str) -> None:
        """Steps 2 to 5."""
        source_db, target_db = self._stores[record.cell], self._stores[target]
        leaving, arriving = Fence(LEAVING, record.epoch + 1), Fence(ARRIVING, record.epoch + 1)
        transact(source_db, lambda tr: self._leave(tr, record))
        if transact(target_db, lambda tr: self._arrive(tr, record, target)):
            tries = self._copy(source_db, leaving, target_db, arriving)
            if self._digest(source_db, leaving) != self._digest(target_db, arriving):
                transact(target_db, lambda tr: self._begin_again(tr, arriving, tries))
                raise MoveFailed(
                    f"the copy of user {self._user!r} in cell {target!r} is not as the original in cell "
                    f"{record.cell!r}: let only Cells.transact() write what belongs to users, and move the user again"
                )
            transact(target_db, lambda tr: self._settle(tr, arriving, tries))
        self._directory.switch(self._user, record)

    def _tidy(self, record: Record, source: str) -> None:
        """Steps 6 and 7."""
        db = self._stores[source]
        while transact(db, lambda tr: self._clear_some(tr, record.epoch)):
            pass
        self._directory.end_move(self._user, record)

    # The fences

    def _fence(self, tr: TransactionRead) -> Fence | None:
        stored = tr.get(keys.fence(self._encoded)).value
        return None if stored is None else Fence.from_bytes(stored)

    def _set_fence(self, tr: Transaction, fence: Fence) -> None:
        tr.set(keys.fence(self._encoded), fence.to_bytes())

    def _expect(self, tr: TransactionRead, fence: Fence) -> None:
        if self._fence(tr) != fence:
            raise _Overtaken

    def _leave(self, tr: Transaction, record: Record) -> None:
        """Step 2, unless it is done."""
        fence = self._fence(tr)
        if fence is None:  # nobody has used the user's data yet
            self._stores.check(tr, record.cell)
            fence = Fence(HERE, 1)
        if fence == Fence(HERE, record.epoch):
            self._set_fence(tr, Fence(LEAVING, record.epoch + 1))
        elif fence.epoch <= record.epoch:
            raise self._set_back(record.cell, record)
        elif fence != Fence(LEAVING, record.epoch + 1):
            raise _Overtaken

    def _arrive(self, tr: Transaction, record: Record, target: str) -> bool:
        """The beginning of step 3, unless it is done; whether anything is left to be done until step 5."""
        arriving = Fence(ARRIVING, record.epoch + 1)
        fence = self._fence(tr)
        if fence == Fence(HERE, arriving.epoch):
            return False
        if fence is None or (fence.state == GONE and fence.epoch < arriving.epoch):
            self._set_fence(tr, arriving)
            self._begin_copy(tr, 1)
        elif fence.epoch < arriving.epoch:
            raise self._set_back(target, record)
        elif fence != arriving:
            raise _Overtaken
        return True

    def _settle(self, tr: Transaction, arriving: Fence, tries: int) -> None:
        """The first half of step 5: what has just been verified is the user's from now on."""
        if self._fence(tr) == Fence(HERE, arriving.epoch):
            return
        self._expect_copied(tr, arriving, tries)
        self._set_fence(tr, Fence(HERE, arriving.epoch))
        tr.clear(keys.progress(self._encoded))

    def _clear_some(self, tr: Transaction, epoch: int) -> bool:
        """A piece of step 6; whether there is more."""
        gone = Fence(GONE, epoch)
        fence = self._fence(tr)
        if fence == Fence(LEAVING, epoch):
            self._set_fence(tr, gone)
        elif fence != gone:
            return False  # all is cleared, and the user may have come back
        begin, _ = keys.all_of(self._encoded)
        rows = self._piece(tr, b"")
        if rows:
            tr.clear_range(begin, after(rows[-1].key))
        return bool(rows)

    def _set_back(self, cell: str, record: Record) -> CellMismatch:
        return CellMismatch(
            f"cell {cell!r} knows less of user {self._user!r} than the directory (epoch {record.epoch}): one of the "
            "two was set back; restore both as of one moment"
        )

    # The copy

    def _begin_copy(self, tr: Transaction, tries: int) -> None:
        tr.clear_range(*keys.all_of(self._encoded))
        tr.set(keys.progress(self._encoded), CopyProgress(tries=tries).to_bytes())

    def _begin_again(self, tr: Transaction, arriving: Fence, tries: int) -> None:
        """Throw a copy away that is not as the original."""
        self._expect_copied(tr, arriving, tries)
        self._begin_copy(tr, tries + 1)

    def _expect_copied(self, tr: TransactionRead, arriving: Fence, tries: int) -> None:
        """Raise unless the copy is still the one of this try."""
        self._expect(tr, arriving)
        progress = self._progress(tr)
        if not progress.is_done or progress.tries != tries:
            raise _Overtaken

    def _progress(self, tr: TransactionRead) -> CopyProgress:
        stored = tr.get(keys.progress(self._encoded)).value
        if stored is None:
            raise _Overtaken
        return CopyProgress.from_bytes(stored)

    def _copy(self, source: Database, leaving: Fence, target: Database, arriving: Fence) -> int:
        """Copy all that is left; returns which try it is."""
        while not (progress := transact(target, lambda tr: self._progress(tr.snapshot))).is_done:
            rows = transact(source, partial(self._read, fence=leaving, cursor=progress.cursor))
            transact(target, partial(self._write, fence=arriving, before=progress, rows=rows))
        return progress.tries

    def _write(self, tr: Transaction, fence: Fence, before: CopyProgress, rows: list[KeyValue]) -> None:
        """Write a piece and how far it goes, unless somebody else has."""
        self._expect(tr, fence)
        if self._progress(tr) != before:
            return
        begin = len(keys.all_of(self._encoded)[0])
        for row in rows:
            tr.set(row.key, row.value)
        cursor = after(rows[-1].key)[begin:] if rows else before.cursor
        tr.set(keys.progress(self._encoded), CopyProgress(cursor, not rows, before.tries).to_bytes())

    def _read(self, tr: Transaction, fence: Fence, cursor: bytes) -> list[KeyValue]:
        """The next piece behind a cursor; empty when there is no more."""
        self._expect(tr, fence)
        return self._piece(tr, cursor)

    def _piece(self, tr: Transaction, cursor: bytes) -> list[KeyValue]:
        begin, end = keys.all_of(self._encoded)
        rows: list[KeyValue] = []
        size = 0
        for row in tr.snapshot.get_range(begin + cursor, end, limit=PIECE_ROWS):
            rows.append(row)
            size += len(row.key) + len(row.value)
            if size > PIECE_BYTES:
                break
        return rows

    def _digest(self, db: Database, fence: Fence) -> tuple[int, bytes]:
        """How many rows the user has in a cell, and a digest of them all."""
        digest, count = hashlib.blake2b(digest_size=16), 0
        for row in self._rows(db, fence):
            for part in (row.key, row.value):
                digest.update(len(part).to_bytes(8, "big"))
                digest.update(part)
            count += 1
        return count, digest.digest()

    def _rows(self, db: Database, fence: Fence) -> Iterator[KeyValue]:
        begin = len(keys.all_of(self._encoded)[0])
        cursor = b""
        while rows := transact(db, partial(self._read, fence=fence, cursor=cursor)):
            yield from rows
            cursor = after(rows[-1].key)[begin:]
