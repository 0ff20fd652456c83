"""A directory and its cells as several processes see them, on both stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cq
from cq.cells.cells import Cells
from cq.cells.records import HERE, Fence, Record
from cq.keys import cell as cellkeys
from cq.store import Space
from cq.store.embedded import Database
from cq.store.transact import transact
from tests.kit.faults import Died, WrappedDatabase, WrappedTransaction
from tests.kit.queues import stored

USER = "ada"


class Watched(WrappedDatabase):
    """A database that calls something before and after each commit."""

    def __init__(self, db: Any, act: Callable[[], object]) -> None:
        super().__init__(db)
        self._act = act

    def call(self, tr: WrappedTransaction, what: str, *args: Any, **kwargs: Any) -> Any:
        if what != "commit":
            return super().call(tr, what, *args, **kwargs)
        self._act()
        done = tr.inner.commit()
        done.wait()
        self._act()
        return done


class Site:
    """A directory and its cells, as several processes see them."""

    def __init__(self, url_of: Callable[[str], str], cells: int) -> None:
        self.url_of = url_of
        self.stores: dict[str, Any] = {}
        self.directory = self.open(url_of("directory"))
        self.own = self.process()
        for number in range(cells):
            self.own.add_cell(f"cell{number}", url_of(f"cell{number}"))

    def open(self, url: str) -> Any:
        """Each store once, for all processes."""
        if url not in self.stores:
            is_file = url.startswith("embedded:")
            self.stores[url] = (
                # Commits do not wait for the disk: only tests/crash is about power failures.
                Database(url.removeprefix("embedded:"), power_safe=False)
                if is_file
                else cq.store.open_exactly(url)
            )
        return self.stores[url]

    def process(self, wrap: Callable[[Any], Any] = lambda db: db) -> Cells:
        """The cells as a process of its own sees them, through databases wrapped so."""
        return Cells(wrap(self.directory), opener=lambda url, *, create: wrap(self.open(url)))

    def fences(self, user: Any = USER) -> dict[str, Fence]:
        """A user's fences, by cells."""
        key = cellkeys.fence(cellkeys.encoded_user(user))
        found = {name: transact(self.own.store(name), lambda tr: tr.get(key).value) for name in self.names()}
        return {name: Fence.from_bytes(fence) for name, fence in found.items() if fence is not None}

    def state(self, name: str, user: Any = USER) -> str | None:
        """The state of a user's fence in a cell."""
        fence = self.fences(user).get(name)
        return fence.state if fence else None

    def names(self) -> list[str]:
        return [each.name for each in self.own.cells()]

    def rows(self, name: str, user: Any = USER) -> list[tuple[bytes, bytes]]:
        """All that a cell has of a user."""
        return stored(self.own.store(name), cellkeys.all_of(cellkeys.encoded_user(user)))

    def check(self) -> None:
        """Every user is in one cell and in no other one, no move is left, and the loads are right."""
        assert list(self.own.directory.moving()) == []
        for cell in self.own.cells():
            users = list(self.own.directory.users_in(cell.name))
            assert len(users) == cell.users
            for user in users:
                record = self.own.directory.record(user)
                assert record == Record(cell.name, record.epoch)
                here = [name for name, fence in self.fences(user).items() if fence.state == HERE]
                assert here in ([cell.name], [])  # none before the first transaction
                for other in self.names():
                    if other != cell.name:
                        assert self.rows(other, user) == []

    def close(self) -> None:
        for db in self.stores.values():
            cq.store.close(db)


def urls_in(folder: Path) -> Callable[[str], str]:
    """URLs of embedded stores in a folder, by the names of the stores."""
    return lambda name: f"embedded:{folder}/{name}.db"


def urls_below(url: str) -> Callable[[str], str]:
    """URLs of parts of a cluster, by the names of the stores; `url` has a prefix."""
    cluster, _, prefix = url.partition("?prefix=")
    return lambda name: f"{cluster}?prefix=0x{(Space(prefix).prefix + name.encode() + b'/').hex()}"


def put(key: bytes, value: bytes) -> Callable[[Any], None]:
    return lambda data: data.tr.set(data.prefix + key, value)


def read(key: bytes) -> Callable[[Any], bytes | None]:
    return lambda data: data.tr.get(data.prefix + key).value


def load(cells: Cells, rows: int, size: int = 10, user: Any = USER) -> dict[bytes, bytes]:
    """Give a user so many rows."""
    content = {b"%06d" % number: bytes([number % 256]) * size for number in range(rows)}

    def write(data: Any) -> None:
        for key, value in content.items():
            data.tr.set(data.prefix + key, value)

    cells.transact(user, write)
    return content


def content_of(cells: Cells, user: Any = USER) -> dict[bytes, bytes]:
    def scan(data: Any) -> dict[bytes, bytes]:
        end = data.prefix + b"\xff"
        return {row.key[len(data.prefix) :]: row.value for row in data.tr.get_range(data.prefix, end)}

    return cells.transact(user, scan)


def die_when(is_time: Callable[[], bool], site: Site, act: Callable[[Cells], object]) -> bool:
    """Do something in a process that dies before or after a commit, as soon as it is time; whether it did."""

    def look() -> None:
        if is_time():
            raise Died

    try:
        act(site.process(lambda db: Watched(db, look)))
    except Died:
        return True
    return False


def place(cells: Cells, user: Any, cell: str) -> None:
    """Place a user in this cell."""
    cells.place(user)
    cells.move(user, cell)
