"""Uses of cq that type checkers refuse. Comments name the errors that they report; any difference fails the test.

No function here is called: cq raises an error for most of this when it runs, too.
"""

from __future__ import annotations

import cq
from cq.windows import Window

words: cq.CombineQueue[str, int] = cq.CombineQueue("words")


@cq.transactional
def save(tr: cq.Transaction, text: str, *, mark: str = "!") -> int:
    """A transaction."""
    return len(text)


class Library:
    """A class with a transactional method."""

    @cq.transactional
    def save(self, tr: cq.Transaction, text: str) -> int:
        """Saves a text."""
        return len(text)


def transactions(db: cq.Database, tr: cq.Transaction, library: Library) -> None:
    """Wrong arguments of transactional functions."""
    save("cq.db", "a b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    save(db, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    save(db)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    save(db, "a", sign="?")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    library.save(tr, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    library.save("a", "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cq.transact(tr, lambda tr: None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    int.from_bytes(save(db, "a"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_database_instead_of_a_transaction(db: cq.Database) -> None:
    """Adds and reads are inside of a transaction."""
    words.add(db, {"a": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words.get(db, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Window(words).get(db, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_transaction_instead_of_a_database(tr: cq.Transaction) -> None:
    """A scan and an emitter have transactions of their own."""
    words.scan(tr)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cq.Emitter(words, tr)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def adds(tr: cq.Transaction) -> None:
    """Updates of other types, and iterators."""
    words.add(tr, {1: 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words.add(tr, {"a": "b"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words.add(tr, ["a", "b"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    words.add(tr, "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words.add(tr, (("a", each) for each in range(3)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words.add(tr.snapshot, {"a": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def reads(tr: cq.Transaction) -> None:
    """Keys of another type, and values that may be None."""
    words.get(tr, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words.get(tr, "a") + 1  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand,reportUnusedExpression]


def types(db: cq.Database) -> None:
    """Keys are str, int, bytes or tuples of these; settings have names."""
    cq.configure(db, "a", key=float, value=int)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue,reportArgumentType]
    cq.configure(db, "a", key=str, value=int, bucket=2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    cq.App().queue("a", key=str, value=int, bucket=2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    cq.App().queue("a", window=[600, 10])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    cq.configure(db, "a", key=str, value=int).add(db, {})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cq.CombineQueue[float, int]("a")  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]


def alert(tr: cq.Transaction, changes: list[cq.Change[str, int]]) -> None:
    """An observer."""
    for change in changes:
        change.new + 1  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand,reportUnusedExpression]
        change.new = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
