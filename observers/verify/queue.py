"""Verifying a queue while it is in use, with all that its observers keep: `cq verify`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cq.app import App
from cq.combiners import Combiner
from cq.config.queue import read_config
from cq.errors import CodeMismatch, CorruptData
from cq.observers.builtin import FACTORIES
from cq.observers.verify.cloud import check_cloud
from cq.observers.verify.export import check_export, look_at_table
from cq.observers.verify.top import TopChecks
from cq.store.api import Database
from cq.store.transact import transact
from cq.verify.audit import check_audit_balance
from cq.verify.buckets import check_buckets
from cq.verify.queue import Difference, Verification, VerifyProgress
from cq.verify.rows import HANDLERS
from cq.verify.store import check_configuration, check_store
from cq.verify.verification import every_row
from cq.verify.window import check_window_totals

__all__ = ["WAIT_SECONDS", "Difference", "Verification", "VerifyProgress", "verification"]

WAIT_SECONDS: Final = 30.0
"""How long changes may be on their way to the exported table, unless told otherwise."""


def verification(
    db: Database,
    name: str,
    *,
    app: App | None = None,
    repair: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    url_env: str | None = None,
    progress: Callable[[VerifyProgress], object] = lambda progress: None,
) -> Verification:
    """A verification of a queue with its top, clouds and export; `run()` goes through it.

    As `cq.verify.queue.verify`, and exact on a queue in use as that is. Only the table is not read at one moment
    with the values: what differs there counts once all that waited has been exported, and it differs still.

    Args:
        db: a database of either store.
        name: the queue.
        app: has the combiner, and the score and group functions of the top, of an application's own.
        repair: whether to mend what can be derived; see `cq.verify.kinds.KINDS`.
        wait_seconds: how long changes may be on their way to the table, all in all.
        url_env: the environment variable with the URL of the table's database, None for the one configured. Without
            a URL the table is not looked at.
        progress: called after each piece.

    `run()` raises `QueueNotConfigured`; `CodeMismatch` for a queue that a newer version of cq has configured;
    `ExportFailed` when the reporting database cannot be read; and the store's `FDBError` when that cannot go on.
    """
    top = TopChecks(app)
    handlers = {
        **HANDLERS,
        "d": [*HANDLERS["d"], top.check_value],
        "e": [check_export],
        "t": [*HANDLERS["t"], top.check_data],
        "z": [*HANDLERS["z"], check_cloud],
    }
    parts = [
        check_configuration,
        every_row(handlers),
        check_buckets,
        top.look_at_counts,
        look_at_table(wait_seconds, url_env),
        check_audit_balance,
        check_window_totals,
        check_store,
    ]
    return Verification(
        db, name, repair=repair, combiner=_combiner(db, name, app), parts=parts, progress=progress
    )


def _combiner(db: Database, name: str, app: App | None) -> Combiner | None:
    """The queue's combiner, None when this process lacks it: then empty values are not found."""
    with suppress(CodeMismatch, CorruptData):
        config = transact(db, lambda tr: read_config(tr.snapshot, name))
        return (app or App()).code(config, FACTORIES).combiner
    return None
