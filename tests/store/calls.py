"""What calls of a store raise and return."""

from __future__ import annotations

from typing import Any

from cq.store.api import error_code


def code_of(call: Any) -> int | None:
    """The store's error code that a call raises; None when it raises none."""
    try:
        call()
    except Exception as error:
        code = error_code(error)
        if code is None:
            raise
        return code
    return None


def commit_code(tr: Any) -> int | None:
    """The code of the error with which a transaction's commit fails; None if it commits."""
    return code_of(lambda: tr.commit().wait())


def read_version(db: Any) -> int:
    """A read version; its transaction lives until the answer is there."""
    tr = db.create_transaction()
    version: int = tr.get_read_version().wait()
    return version
