"""One driver for each kind of target: it makes links, reads what the target has, breaks it, and sets it back.

All links have the name `target`. A place is one target of a driver's kind: a table, a receiver, a topic, a queue.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

import cq
from cq import admin, links
from cq.config.queue import Named, QueueConfig
from cq.encoding.codec import KeyType, ValueType
from cq.links import Source, Target
from cq.observer import ObserverSpec
from cq.observers.links import registry
from cq.observers.links.spec import TO
from cq.observers.links.target import UnmadeTarget
from cq.observers.links.targets import brokers
from cq.testing import MemoryTarget, drain
from tests.kit.processes import free_ports
from tests.kit.queues import config_of, stored
from tests.links.kafkahelpers import Broker, history, once
from tests.links.linkhelpers import ALL, found, restore
from tests.links.webhookhelpers import SECRET, Kept, serving_kept

LINK: Final = "target"
FIRST, SECOND = "first_place", "second_place"


class Driver(ABC):
    """Targets of one kind.

    Attributes:
        combiner: of the queues whose changes are sent.
        app: the application that workers need.
        keeps_positions: whether the targets keep positions, so a set back is noticed, and nothing comes twice.
        has_history: whether `history` tells what the targets got.
        repeats: whether all values may be sent again.
        sweeps: whether keys without a value go once all values were sent again.
        points: of the target at which a worker can die; the first of them may be in a transaction of the target.
    """

    combiner = "sum"
    keeps_positions = True
    has_history = True
    repeats = True
    sweeps = True
    points: tuple[str, ...] = ()

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.app = cq.App()
        self.ending = ExitStack()

    @abstractmethod
    def prepare(self, place: str) -> None:
        """Create a place, as far as links do not."""

    @abstractmethod
    def spec(self, place: str) -> ObserverSpec:
        """A link to a place."""

    def target(self, source: Source, place: str) -> Target:
        """A target without a link, for queues of ints."""
        settings = dict(self.spec(place).settings)
        module = import_module(f"cq.observers.links.{registry._MODULES[settings.pop(TO)]}")
        config = QueueConfig(
            source.queue,
            key=KeyType.parse(str),
            value=ValueType("int"),
            combiner=Named(self.combiner, 1),
            observers=(),
            buckets=1,
        )
        found: Target = module.make_target(source, config, settings, self.app)
        return found.make() if isinstance(found, UnmadeTarget) else found

    @abstractmethod
    def values(self, place: str) -> dict[Any, Any]:
        """{key: value} that a place has."""

    def history(self, place: str) -> dict[Any, list[Any]]:
        """{key: its values in order}, without deletions and without what a consumer ignores; tables may lack some."""
        raise NotImplementedError

    def copy(self, place: str) -> Any:
        """What a place has now, for `restore`."""
        raise NotImplementedError

    def restore(self, place: str, copy: Any) -> None:
        """Set a place back."""
        raise NotImplementedError

    @abstractmethod
    def broken(self, place: str) -> Any:
        """A context in which a place fails."""

    @abstractmethod
    def refusing(self, place: str) -> Any:
        """A context in which a place refuses a key: yields the key, and a value."""


class MemoryDriver(Driver):
    """The target in memory."""

    points = ("committed",)

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.targets: dict[str, MemoryTarget] = defaultdict(MemoryTarget)

    def prepare(self, place: str) -> None:
        self.app.target(place)(lambda source: self.targets[place])

    def spec(self, place: str) -> ObserverSpec:
        return links.app(place, name=LINK)

    def values(self, place: str) -> dict[Any, Any]:
        return dict(self.targets[place].values)

    def history(self, place: str) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for entry in self.targets[place].applied:
            if entry.value is not None:
                found.setdefault(entry.key, []).append(entry.value)
        return found

    def copy(self, place: str) -> Any:
        return self.targets[place].copy()

    def restore(self, place: str, copy: Any) -> None:
        self.targets[place].restore(copy)

    @contextmanager
    def broken(self, place: str) -> Iterator[None]:
        self.targets[place].error = ConnectionError("no route")
        yield
        self.targets[place].error = None

    @contextmanager
    def refusing(self, place: str) -> Iterator[tuple[Any, Any]]:
        self.targets[place].refused = {"bad"}
        yield "bad", 13
        self.targets[place].refused = set()


_NOTED: Final = "INSERT INTO {0}_history (`key`, value) VALUES (NEW.key, NEW.value)"
_EACH_ROW: Final = "CREATE TRIGGER {0}_%s AFTER %s ON {0} FOR EACH ROW"
_FUNCTION: Final = (
    "CREATE FUNCTION {0}_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO {0}_history (key, value) VALUES (NEW.key, NEW.value); RETURN NULL; END $$"
)
HISTORIES: Final = {
    "sqlite": [
        "CREATE TABLE {0}_history (id INTEGER PRIMARY KEY, key TEXT, value BIGINT)",
        f"{_EACH_ROW} BEGIN {_NOTED}; END" % ("insert", "INSERT"),
        f"{_EACH_ROW} BEGIN {_NOTED}; END" % ("update", "UPDATE"),
    ],
    "postgresql": [
        "CREATE TABLE {0}_history (id BIGSERIAL PRIMARY KEY, key TEXT, value BIGINT)",
        _FUNCTION,
        f"{_EACH_ROW} EXECUTE FUNCTION {{0}}_note()" % ("note", "INSERT OR UPDATE"),
    ],
    "mysql": [
        "CREATE TABLE {0}_history (id BIGINT AUTO_INCREMENT PRIMARY KEY, `key` VARCHAR(99), value BIGINT)",
        f"{_EACH_ROW} {_NOTED}" % ("insert", "INSERT"),
        f"{_EACH_ROW} {_NOTED}" % ("update", "UPDATE"),
    ],
}
"""What notes all rows that are written to a table, in the language of each database."""


class SqlDriver(Driver):
    """Tables of a database."""

    points = ("locked", "applied", "committed")

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        super().__init__(folder, monkeypatch)
        self.engine = sa.create_engine(url, poolclass=sa.NullPool)
        monkeypatch.setenv("CQ_REPORTING_URL", url)

    def prepare(self, place: str) -> None:
        pass

    def note_history(self, place: str) -> None:
        """Begin with the history of a table, which must exist."""
        self._run(*(text.format(place) for text in HISTORIES[self.engine.dialect.name]))

    def spec(self, place: str) -> ObserverSpec:
        return links.table(place, name=LINK)

    def values(self, place: str) -> dict[Any, Any]:
        return dict(self._rows(place, "key"))

    def history(self, place: str) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for key, value in self._rows(f"{place}_history", "id"):
            found.setdefault(key, []).append(value)
        return found

    def copy(self, place: str) -> Any:
        with self.engine.connect() as conn:
            tables = [sa.Table(name, sa.MetaData(), autoload_with=conn) for name in (place, "cq_progress")]
            return [
                (table, [dict(row) for row in conn.execute(table.select()).mappings()]) for table in tables
            ]

    def restore(self, place: str, copy: Any) -> None:
        with self.engine.begin() as conn:
            for table, rows in copy:
                conn.execute(table.delete())
                if rows:
                    conn.execute(table.insert(), rows)

    @contextmanager
    def broken(self, place: str) -> Iterator[None]:
        self._run(f"ALTER TABLE {place} RENAME TO elsewhere")
        yield
        self._run(f"ALTER TABLE elsewhere RENAME TO {place}")

    @contextmanager
    def refusing(self, place: str) -> Iterator[tuple[Any, Any]]:
        yield "bad", 2**63

    def _rows(self, table: str, order: str) -> list[Any]:
        query: Any = sa.select(sa.column("key"), sa.column("value")).select_from(sa.table(table))
        with self.engine.connect() as conn:
            return list(map(tuple, conn.execute(query.order_by(sa.column(order)))))

    def _run(self, *statements: str) -> None:
        with self.engine.begin() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)


class WebhookDriver(Driver):
    """The receiver of the page about webhooks, behind HTTP."""

    points = ("delivered",)

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        monkeypatch.setenv("CQ_WEBHOOK_SECRET", SECRET)
        self.receivers: dict[str, Kept] = {}

    def prepare(self, place: str) -> None:
        kept = self.receivers[place] = Kept(self.folder / f"{place}.db")
        self.monkeypatch.setenv(f"CQ_{place}", self.ending.enter_context(serving_kept(kept)))

    def spec(self, place: str) -> ObserverSpec:
        return links.webhook(f"CQ_{place}", name=LINK)

    def values(self, place: str) -> dict[Any, Any]:
        return self.receivers[place].values()

    def history(self, place: str) -> dict[Any, list[Any]]:
        return self.receivers[place].history()

    def copy(self, place: str) -> Any:
        with self.receivers[place].opened() as db:
            return list(db.iterdump())

    def restore(self, place: str, copy: Any) -> None:
        with self.receivers[place].opened() as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                db.execute(f"DROP TABLE {table}")
            db.executescript("\n".join(copy))

    @contextmanager
    def broken(self, place: str) -> Iterator[None]:
        with self._answering(place, lambda receive, db, message: (503, {"error": "busy"})):
            yield

    @contextmanager
    def refusing(self, place: str) -> Iterator[tuple[Any, Any]]:
        def refuse(receive: Any, db: sqlite3.Connection, message: Any) -> tuple[int, Any]:
            bad = [each for each in message["data"].get("entries", ()) if each["key"] == "bad"]
            return (422, {"error": "too bad"}) if bad else receive(db, message)

        with self._answering(place, refuse):
            yield "bad", 13

    @contextmanager
    def _answering(self, place: str, answer: Callable[..., tuple[int, Any]]) -> Iterator[None]:
        kept = self.receivers[place]
        receive = kept.receive
        kept.receive = partial(answer, receive)
        yield
        kept.receive = receive


class PlainWebhookDriver(WebhookDriver):
    """A receiver that keeps no positions, and ignores entries that are not newer than the last one of their key."""

    keeps_positions = False

    def prepare(self, place: str) -> None:
        super().prepare(place)
        self.receivers[place].receive = partial(self._receive, defaultdict(str))

    @staticmethod
    def _receive(latest: dict[str, str], db: sqlite3.Connection, message: Any) -> tuple[int, Any]:
        with db:
            db.execute("DELETE FROM word_counts WHERE sequence < ?", [message["data"].get("below", "")])
            for entry in message["data"].get("entries", ()):
                key, value, sequence = json.dumps(entry["key"]), json.dumps(entry["value"]), entry["sequence"]
                if sequence > latest[key]:
                    latest[key] = sequence
                    db.execute("DELETE FROM word_counts WHERE key = ?", [key])
                    if entry["value"] is not None:
                        db.execute("INSERT INTO word_counts VALUES (?, ?, ?)", [key, value, sequence])
        return 200, {}


class KafkaDriver(Driver):
    """Topics of a broker."""

    keeps_positions = False
    points = ("delivered",)

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
        super().__init__(folder, monkeypatch)
        self.broker = broker
        monkeypatch.setenv("CQ_KAFKA", broker.address)
        monkeypatch.setenv("CQ_KAFKA_CONFIG", str(folder / "kafka.properties"))
        (folder / "kafka.properties").touch()

    def prepare(self, place: str) -> None:
        self.broker.create(self._topic(place))

    def spec(self, place: str) -> ObserverSpec:
        return links.kafka(self._topic(place), name=LINK)

    def values(self, place: str) -> dict[Any, Any]:
        return self.broker.values(self._topic(place))

    def history(self, place: str) -> dict[Any, list[Any]]:
        received = history(once(self.broker.received(self._topic(place))))
        return {key: [value for value in values if value is not None] for key, values in received.items()}

    @contextmanager
    def broken(self, place: str) -> Iterator[None]:
        with self.monkeypatch.context() as patched:
            patched.setenv("CQ_KAFKA", f"127.0.0.1:{free_ports()}")
            patched.setattr(brokers, "CONNECT_SECONDS", 0.1)
            yield

    @contextmanager
    def refusing(self, place: str) -> Iterator[tuple[Any, Any]]:
        (self.folder / "kafka.properties").write_text("message.max.bytes = 1000\n")
        yield "bad" * 1_000, 13
        (self.folder / "kafka.properties").write_text("")

    def _topic(self, place: str) -> str:
        return f"{self.folder.name}.{place}"


class QueueDriver(Driver):
    """Queues of another store, to which differences are sent."""

    repeats = False
    sweeps = False
    has_history = False

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        url = f"embedded:{folder / 'central.db'}"
        monkeypatch.setenv("CQ_FORWARD_URL", url)
        central: Any = cq.open(url)
        self.central = central
        self.ending.callback(central.close)

    def prepare(self, place: str) -> None:
        cq.configure(self.central, place, combiner=self.combiner, value="int")

    def spec(self, place: str) -> ObserverSpec:
        return links.queue(place, name=LINK)

    def values(self, place: str) -> dict[Any, Any]:
        drain(self.central, place)
        return dict(cq.CombineQueue[Any, Any](place).scan(self.central))

    def copy(self, place: str) -> Any:
        return stored(self.central, ALL)

    def restore(self, place: str, copy: Any) -> None:
        restore(self.central, copy)

    @contextmanager
    def broken(self, place: str) -> Iterator[None]:
        with self.monkeypatch.context() as patched:
            patched.setenv("CQ_FORWARD_URL", f"embedded:{self.folder / 'none.db'}")
            yield

    @contextmanager
    def refusing(self, place: str) -> Iterator[tuple[Any, Any]]:
        cq.configure(self.central, place, rollup="1m:2d")  # whose keys are shorter
        yield "b" * 7_995, 13


class LatestQueueDriver(QueueDriver):
    """Queues of another store that keep the latest value, so all values may be sent again."""

    combiner = "last"
    repeats = True


def made(kind: str, request: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver of a kind; skips the test if its server is not installed."""
    if kind == "kafka":
        return KafkaDriver(folder, monkeypatch, request.getfixturevalue("broker"))
    if kind in ("sqlite", "postgresql", "mariadb"):
        fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url", "mariadb": "mariadb_url"}[kind]
        return SqlDriver(folder, monkeypatch, request.getfixturevalue(fixture))
    return DRIVERS[kind](folder, monkeypatch)


DRIVERS: Final[Mapping[str, Callable[[Path, pytest.MonkeyPatch], Driver]]] = {
    "memory": MemoryDriver,
    "webhook": WebhookDriver,
    "webhook-without-positions": PlainWebhookDriver,
    "queue": QueueDriver,
    "queue-latest": LatestQueueDriver,
}
KINDS: Final = ("sqlite", "postgresql", "mariadb", "kafka", *DRIVERS)


class Case:
    """A queue with a link to a place of a driver.

    Attributes:
        expected: the values of the queue, as last put.
    """

    def __init__(self, db: Any, name: str, driver: Driver) -> None:
        self.db, self.name, self.driver = db, name, driver
        self.expected: dict[Any, Any] = {}
        for place in (FIRST, SECOND):
            driver.prepare(place)
        cq.configure(db, name, combiner=driver.combiner, value="int")

    def link_to(self, place: str) -> None:
        """Have the queue's link go to a place, with what its target lacks."""
        admin.put_observer(self.db, self.name, self.driver.spec(place))
        found(self.db, self.name, LINK, self.driver.app).target.create()

    def put(self, values: Mapping[Any, Any] | None = None, **more: Any) -> None:
        """Change values, without sending the changes; None: the key has no value any more."""
        given = {**(values or {}), **more}
        if self.driver.combiner == "last":
            updates = {key: cq.DELETE if value is None else value for key, value in given.items()}
        else:
            updates = {key: (value or 0) - (self.expected.get(key) or 0) for key, value in given.items()}
        cq.transact(self.db, lambda tr: cq.CombineQueue(self.name).add(tr, updates))
        self.expected |= given
        self.expected = {key: value for key, value in self.expected.items() if value is not None}

    @property
    def config(self) -> Any:
        """The queue's configuration."""
        return config_of(self.db, self.name)
