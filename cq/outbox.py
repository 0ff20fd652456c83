"""Adds to queues within transactions of an application's own SQL database, through its outbox table.

`cq outbox init` creates the table `cq_outbox` there. A row is an update of one key. Workers add the rows of committed
transactions to their queues, each exactly once, and delete them.

The module needs only the connection that it is given; importing it imports neither SQLAlchemy nor Django.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final

from cq.arguments import repeatable
from cq.encoding import codec
from cq.encoding.codec import DELETE, MAX_UPDATE_BYTES
from cq.encoding.json_values import to_json, update_to_json
from cq.errors import InvalidConfiguration, InvalidData
from cq.keys import check_name

TABLE: Final = "cq_outbox"
"""The name of the table in the application's database."""
COLUMNS: Final = ("queue", "key_json", "update_json", "operation")
"""The columns of a row that the application writes; the others have defaults."""

_SCHEMA: Final = re.compile("[a-z_][a-z0-9_]{0,62}")


def add(
    connection: Any,
    queue: str,
    updates: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    *,
    once: str | None = None,
    schema: str | None = None,
) -> None:
    """Insert an update for each key into the outbox table, as a part of the connection's transaction.

    The updates count if that transaction commits: a worker then adds them to the queue, in the order of this call. They
    are checked against the queue's types only then; a row that the queue refuses stays in the table with its error.

    If another transaction commits before this call, its updates of a key are combined before those of this call. To
    give two concurrent transactions this order, too, lock a row that both change before you call this function.

    Args:
        connection: a SQLAlchemy `Session` or `Connection`, `django.db.connection`, or a connection or cursor of a
            DB-API driver of PostgreSQL, MySQL, MariaDB or SQLite. This function does not commit.
        queue: the queue's name.
        updates: `{key: update}`; or pairs of these, in order, with repeated keys allowed.
        once: an operation id (str, up to 1,000 bytes): of all rows with the same queue, key and id, only the first
            that is added to the queue counts. It is remembered as `CombineQueue.add` remembers its ids. With it, keys
            must not repeat.
        schema: the schema of the table, as given to `cq outbox init`; None: the connection's default one.

    Raises:
        InvalidData: no queue takes a key, an update or the id, or a list, dict or set has parts that JSON lacks, such
            as bytes, a Decimal or a key that is no text; no row is inserted. Also `TooLarge`, `OneShotIterable`.
        InvalidConfiguration: the name of the queue or the schema is invalid.
        Exception: an error of the database.
    """
    rows = _rows(check_name(queue), updates, once)
    if not rows:
        return
    table = TABLE if schema is None else f"{check_schema(schema)}.{TABLE}"
    insert = f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES"
    if hasattr(connection, "get_bind") or hasattr(connection, "exec_driver_sql"):
        import sqlalchemy as sa  # the connection is SQLAlchemy's, so it is installed

        statement = sa.text(f"{insert} ({', '.join(f':{name}' for name in COLUMNS)})")
        connection.execute(statement, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
        return
    text = f"{insert} ({', '.join([_placeholder(connection)] * len(COLUMNS))})"
    if not callable(
        getattr(connection, "cursor", None)
    ):  # it is a cursor; Django's has the driver's as `cursor`
        connection.executemany(text, rows)
        return
    cursor = connection.cursor()
    try:
        cursor.executemany(text, rows)
    finally:
        cursor.close()


def check_schema(schema: str) -> str:
    """Return the schema's name; raises `InvalidConfiguration` unless it needs no quotes in any database."""
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise InvalidConfiguration(
            f"expected a schema of 1 to 63 lower-case letters, digits and '_', got: {codec.brief(schema)}"
        )
    return schema


def _rows(queue: str, updates: object, once: str | None) -> list[tuple[str, str, str, str | None]]:
    pairs = list(updates.items()) if isinstance(updates, Mapping) else _pairs(updates)
    if once is not None:
        if not isinstance(once, str):
            raise InvalidData(f"expected an operation id as a str, got: {codec.shown(once)}")
        codec.encode_operation(once)
        if len({codec.encode(key) for key, _ in pairs}) < len(pairs):
            raise InvalidData("expected each key once in an add with an operation id")
    return [(queue, _key(key), _update(key, update), once) for key, update in pairs]


def _pairs(updates: object) -> list[Any]:
    if not isinstance(updates, Iterable):
        raise InvalidData(
            f"expected a dict of updates, or pairs of key and update, got: {codec.shown(updates)}"
        )
    pairs = list(repeatable(updates, "updates"))
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidData(f"expected a pair of key and update, got: {codec.shown(pair)}")
    return pairs


def _key(key: object) -> str:
    parts = key if isinstance(key, tuple) else (key,)
    if not parts or not all(type(part) in (str, int, bytes) for part in parts):
        raise InvalidData(f"expected a key of str, int, bytes, or a tuple of these, got: {codec.shown(key)}")
    codec.encode(key)
    return json.dumps(to_json(key))


def _update(key: object, update: object) -> str:
    if update is DELETE:
        return "null"
    try:
        codec.encode_value(update, MAX_UPDATE_BYTES)
        _check_parts(update)
        return json.dumps(update_to_json(update), allow_nan=False)
    except (InvalidData, ValueError) as error:
        kind = type(error) if isinstance(error, InvalidData) else InvalidData
        raise kind(f"key {codec.brief(key)}: {error}") from None


def _check_parts(update: object) -> None:
    """Raise `InvalidData` for a list, a set or a dict with parts that would come back from JSON as other ones.

    Workers know the type of an update from its queue, but not those of its parts.
    """
    if not isinstance(update, list | tuple | set | frozenset | Mapping):
        return
    keys, parts = (update.keys(), update.values()) if isinstance(update, Mapping) else ((), update)
    wrong = [key for key in keys if not isinstance(key, str)]
    wrong += [part for part in parts if not _is_in_json(part)]
    if wrong:
        raise InvalidData(
            f"expected parts that JSON has, in dicts with keys of str, got within a {type(update).__name__}: "
            f"{codec.shown(wrong[0])}; the outbox carries rows as JSON"
        )
    for part in parts:
        _check_parts(part)


def _is_in_json(part: object) -> bool:
    if isinstance(part, float):
        return isfinite(part)
    return part is None or isinstance(part, str | int | list | tuple | Mapping)


def _placeholder(connection: Any) -> str:
    """The placeholder in statements of this connection or cursor."""
    driver = sys.modules.get(type(connection).__module__.partition(".")[0])
    # Django, and the drivers of PostgreSQL and MySQL, take %s; the driver of SQLite takes ?.
    return "?" if getattr(driver, "paramstyle", "format") == "qmark" else "%s"
