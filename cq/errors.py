"""Every exception that cq raises, each with what to do about it in its message.

    CqError
    ├── StoreError                  a store cannot be used
    │   ├── InvalidUrl              (ValueError) no store is meant by this URL
    │   ├── ClientLibraryError      FoundationDB's binding or client library is missing or does not fit
    │   ├── StoreUnreachable        the cluster does not answer, or its cluster file cannot be read
    │   └── NotAStore               the file is no cq store, is damaged, or comes from a newer version
    ├── ConfigurationError          what is asked for and what is configured do not fit
    │   ├── InvalidConfiguration    (ValueError) a setting is not one that cq knows
    │   ├── QueueNotConfigured      (LookupError) no queue of this name
    │   ├── FeedNotConfigured       (LookupError) no feed of this name
    │   ├── ConfigurationConflict   the queue exists with other settings
    │   ├── CodeMismatch            this process lacks a combiner or observer that the queue asks for
    │   ├── NotReady                what an observer keeps is still being built
    │   └── NotNow                  a change of the queue that must wait for one under way
    ├── InvalidData                 (ValueError) a key, update or operation id that a queue does not take
    │   ├── OneShotIterable         (TypeError) an iterator, which is empty when the transaction is retried
    │   └── TooLarge                a key, update or value beyond FoundationDB's limits
    ├── QueueFull                   so much waits in the queue that adds are refused
    ├── EmitterFull                 so much waits in an emitter that nothing more is taken
    ├── EmitterClosed               an emitter that takes nothing any more
    ├── FlushFailed                 what an emitter was given could not be committed, or nobody knows
    ├── WritesUnreadable            a read needs what the same transaction has written, and cannot see that
    │   └── PendingUnreadable       pending updates asked for after an add in the same transaction
    ├── BacklogTooDeep              more waits in the bucket than one read may combine
    ├── NotChecked                  a bucket of an audit that cannot be checked now
    ├── CellError                   a directory of cells cannot do what is asked for
    │   ├── CellNotKnown            (LookupError) no cell of this name
    │   ├── CellMismatch            a store is not the cell that the directory says, or was set back
    │   ├── NoRoom                  no cell takes users
    │   ├── UserNotPlaced           (LookupError) the user is in no cell yet
    │   ├── UserMoving              the user is being moved to another cell: try again
    │   └── MoveFailed              a copied user is not as the original
    └── CorruptData                 stored bytes that cq has not written
        └── CorruptConfiguration    a queue's configuration is among them

Errors of the store itself (conflicts, timeouts ...) are not wrapped: they arrive as the `FDBError` of the
binding or of the embedded store, so that retry loops see their codes.
"""

from __future__ import annotations


class CqError(Exception):
    """The root: `except cq.CqError` catches everything that cq itself raises."""


class StoreError(CqError):
    """A store cannot be used."""


class InvalidUrl(StoreError, ValueError):
    """The URL names no store."""


class ClientLibraryError(StoreError):
    """FoundationDB's Python binding or client library is missing, or the two do not fit together."""


class StoreUnreachable(StoreError):
    """The cluster does not answer in time, or its cluster file cannot be read."""


class NotAStore(StoreError):
    """The file is no cq store, is damaged, or was written by a newer version of cq."""


class ConfigurationError(CqError):
    """What is asked for and what is configured do not fit."""


class InvalidConfiguration(ConfigurationError, ValueError):
    """A setting is not one that cq knows: a bad queue name, type, combiner or number of buckets."""


class QueueNotConfigured(ConfigurationError, LookupError):
    """There is no queue of this name in the store."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"queue {self.name!r} is not configured in this store: run `cq configure {self.name}` first"


class FeedNotConfigured(ConfigurationError, LookupError):
    """There is no feed of this name in the store."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"feed {self.name!r} is not configured in this store: run `cq feed configure {self.name}` first"
        )


class ConfigurationConflict(ConfigurationError):
    """The queue exists with other settings; nothing was changed."""

    def __init__(self, name: str, differences: dict[str, tuple[object, object]]) -> None:
        super().__init__(name, differences)
        self.name = name
        self.differences = differences

    def __str__(self) -> str:
        changes = ", ".join(f"{what} {old} -> {new}" for what, (old, new) in self.differences.items())
        return (
            f"queue {self.name!r} is configured with other settings: {changes}; "
            "nothing was changed: use the stored settings, or another queue name"
            + ("; `cq rebucket` changes the number of buckets" if "buckets" in self.differences else "")
        )


class CodeMismatch(ConfigurationError):
    """This process lacks a combiner or an observer, or has another version, than the queue asks for."""


class NotReady(ConfigurationError):
    """What an observer keeps of a queue is still being built from the queue's values, by the workers' passes."""


class NotNow(ConfigurationError):
    """A change of a queue that must wait for another one, which workers are about to finish."""


class InvalidData(CqError, ValueError):
    """A key, update or operation id that the queue does not take; nothing was written."""


class OneShotIterable(InvalidData, TypeError):
    """An iterator where the transaction may be retried: it would be empty by then. Nothing was written."""


class TooLarge(InvalidData):
    """A key, update or value beyond what FoundationDB stores; nothing was written."""


class QueueFull(CqError):
    """More waits in the queue than its limits allow; nothing was written."""


class EmitterFull(CqError):
    """More waits in an emitter than it may hold, and none of it was committed in time; nothing was taken."""


class EmitterClosed(CqError):
    """The emitter was closed, or belongs to the process that this one was forked from; nothing was taken."""


class FlushFailed(CqError):
    """What an emitter was given could not be committed; the message and the cause say why.

    Attributes:
        is_unknown: whether it may count all the same, now or later. Else nothing of it counts, nor ever will.
    """

    def __init__(self, message: str, is_unknown: bool) -> None:
        super().__init__(message, is_unknown)
        self.is_unknown = is_unknown

    def __str__(self) -> str:
        return str(self.args[0])


class WritesUnreadable(CqError):
    """A read needs what its own transaction has written, and cannot see that."""


class PendingUnreadable(WritesUnreadable):
    """Pending updates cannot be read in a transaction that has added to the same bucket."""


class BacklogTooDeep(CqError):
    """More updates wait in the key's bucket than one read may combine."""


class NotChecked(CqError):
    """A bucket of a queue's audit cannot be checked now; the message says why, and what to do."""


class CellError(CqError):
    """A directory of cells cannot do what is asked for."""


class CellNotKnown(CellError, LookupError):
    """The directory has no cell of this name."""


class CellMismatch(CellError):
    """A store is not the cell that the directory says: another one, another directory's, or one that was set back."""


class NoRoom(CellError):
    """There is no cell that takes users."""


class UserNotPlaced(CellError, LookupError):
    """The user is in no cell yet."""


class UserMoving(CellError):
    """The user is being moved to another cell; the data cannot be used until that is done: try again."""


class MoveFailed(CellError):
    """A copy of a user's data is not as the original, which stays; the copy begins anew with the next try."""


class CorruptData(CqError):
    """Stored bytes that this version of cq cannot have written."""


class CorruptConfiguration(CorruptData):
    """The configuration of a queue is not one that cq wrote, so nothing else of the queue can be told."""
