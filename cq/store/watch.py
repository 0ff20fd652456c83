"""Waiting for a watch outside of transactions."""

from __future__ import annotations

from cq import runtime
from cq.store.api import Database, Void, error_code


def wait_for(db: Database, watch: Void, seconds: float | None) -> bool:
    """Whether the watch fired or failed within `seconds`. After a failure, waits for the retry delay of the store."""
    ready = runtime.event()
    watch.on_ready(lambda _: ready.set())
    try:
        if not ready.wait(None if seconds is None else max(0.0, seconds)):
            return False
    finally:
        watch.cancel()
    try:
        watch.wait()
    except Exception as error:
        code = error_code(error)
        if code is None:
            raise
        # Kept in a variable: without its transaction, the retry delay ends at once with 1025.
        tr = db.create_transaction()
        tr.on_error(code).wait()
    return True
