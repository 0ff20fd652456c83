"""The verification of a live queue, with the data of its observers: `cq verify`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

from cq.app import App
from cq.combiners import Combiner
from cq.config.queue import read_config
from cq.durations import Span, span_of
from cq.errors import CodeMismatch, CorruptData
from cq.observers.telemetry.history import check_row
from cq.observers.verify.levels import check_levels
from cq.observers.verify.link import check_link, check_outbox, check_tables
from cq.observers.verify.top import TopChecks, check_cloud
from cq.store.api import Database
from cq.store.transact import transact
from cq.verify.piece import RowCheck
from cq.verify.queue import CHECKS, PARTS
from cq.verify.verification import Check, Verification, every_row

WAIT_SECONDS: Final = 30.0
"""Default time to wait for pending changes of the exported table."""


def verification(
    db: Database,
    name: str,
    *,
    app: App | None = None,
    repair: bool = False,
    wait: Span = WAIT_SECONDS,
) -> Verification:
    """A verification of a queue with its top, clouds and export; `run()` executes it.

    Extends `cq.verify.queue.verify`, and is as exact on a live queue. Only the table is not read at one moment with the
    values: a difference there counts if it remains after all changes of its time have been exported.

    Args:
        db: a database of either store.
        name: the queue.
        app: the application, with its combiner and the score and group functions of its top.
        repair: whether to repair data that can be derived; see `cq.verify.kinds.KINDS`.
        wait: how long to wait, in total, for pending changes of the table. Without a URL of its database, the table is
            not checked.

    Raises:
        QueueNotConfigured: there is no such queue. This error and the following ones are those of `run()`.
        CodeMismatch: a newer version of cq has configured the queue.
        LinkFailed: the reporting database cannot be read.
        FDBError: the store fails.
    """
    top = TopChecks(app)
    parts = {
        **PARTS,
        "d": [*PARTS["d"], RowCheck("top-missing", None, top.check_value, None)],
        "e": [RowCheck("unknown-key", None, check_link, None)],
        "g": [RowCheck("outbox", None, check_outbox, None)],
        "h": [RowCheck("history", None, lambda piece, found: check_row(found.rest, found.value))],
        "t": [*PARTS["t"], RowCheck("top-unreadable", None, top.check_data)],
        "z": [*PARTS["z"], RowCheck("cloud-piece", None, check_cloud)],
    }
    checks: dict[str, Check] = {
        **CHECKS,
        "rows": every_row(parts),
        "levels": check_levels,
        "tables": partial(check_tables, app=app, wait_seconds=span_of(wait)),
    }
    return Verification(db, name, checks, repair=repair, combiner=_combiner(db, name, app))


def _combiner(db: Database, name: str, app: App | None) -> Combiner | None:
    """The queue's combiner, None if this process lacks it: then empty values are not detected."""
    with suppress(CodeMismatch, CorruptData):
        config = transact(db, lambda tr: read_config(tr.snapshot, name))
        return (app or App()).combiner(config)
    return None
