"""Errors for arguments of the wrong kind. Called after an operation has failed, so that correct calls cost nothing."""

from __future__ import annotations

from cq.encoding.codec import shown

_IN_A_TRANSACTION = (
    "give it the `tr` of `db.transact(lambda tr: ...)`, or of your function with @cq.transactional"
)


def refuse_unless_transaction(given: object) -> None:
    """Raise `TypeError` unless the object is a transaction."""
    if hasattr(given, "get_read_version"):
        if hasattr(given, "sync"):
            raise TypeError(
                "expected a transaction, got one of asyncio: use the class of this name in `cq.aio`"
            )
        return
    if hasattr(given, "create_transaction"):
        raise TypeError(
            f"expected a transaction, got a database: {_IN_A_TRANSACTION} "
            "(`add_now` and `scan` of a queue take a database)"
        )
    raise TypeError(f"expected a transaction as the first argument, got: {shown(given)}; {_IN_A_TRANSACTION}")


def refuse_snapshot(given: object) -> None:
    """Raise `TypeError` if an object that was used for writes is the `.snapshot` of a transaction."""
    if not hasattr(given, "snapshot"):
        raise TypeError(
            "expected a transaction, got its snapshot, which can only read: give `tr`, not `tr.snapshot`"
        )


def refuse_unless_database(given: object) -> None:
    """Raise `TypeError` unless the object is a database."""
    if hasattr(given, "create_transaction"):
        return
    if hasattr(given, "get_read_version"):
        raise TypeError(
            "expected a database, got a transaction: inside of a transaction call your function itself, as in "
            "`fn(tr)`, `add` instead of `add_now`, and `items` instead of `scan`"
        )
    if isinstance(given, str):
        remedy = f"open the store first, as in `db = cq.open({given!r})`"
    elif callable(given):
        remedy = "the database comes first, as in `cq.transact(db, fn)`"
    else:
        remedy = "open one with `db = cq.open()`"
    raise TypeError(f"expected a database, got: {shown(given)}; {remedy}")


def refuse_unless_function(given: object) -> None:
    """Raise `TypeError` unless the function given for a transaction can be called."""
    if not callable(given):
        raise TypeError(
            f"expected a function of a transaction, got: {shown(given)}; give the function itself and do not call "
            "it, as in `db.transact(lambda tr: words.add(tr, {'hello': 1}))`"
        )
