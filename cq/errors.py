"""Exceptions of cq. Their messages say what to do. The root `cq` has only those that programs often catch.

    CqError
    ├── StoreError                  a store cannot be used
    │   ├── InvalidUrl              (ValueError) the URL names no store
    │   ├── ClientLibraryError      FoundationDB's binding or client library is missing, or their versions do not match
    │   ├── StoreUnreachable        the cluster does not answer, or its cluster file cannot be read
    │   └── NotAStore               the file is not a cq store, is damaged, or a newer version wrote it
    ├── ConfigurationError          a request does not fit the configuration
    │   ├── InvalidConfiguration    (ValueError) an invalid setting
    │   │   ├── NotInStore          (LookupError) the queue has no outbox, export ...
    │   │   └── MissingDriver       (MissingPackage) the driver of a reporting database is not installed
    │   ├── QueueNotConfigured      (LookupError) no queue has this name
    │   ├── FeedNotConfigured       (LookupError) no feed has this name
    │   ├── ConfigurationConflict   the queue exists with other settings
    │   ├── CodeMismatch            this process lacks code or a feature that the queue needs
    │   ├── NotReady                workers are still building the data of an observer
    │   └── NotNow                  another change of the queue must finish first
    ├── InvalidData                 (ValueError) the queue does not accept a key, update or operation id
    │   ├── WrongType               (TypeError) an argument of the wrong kind
    │   │   └── OneShotIterable     an iterator, which is empty when the transaction is retried
    │   └── TooLarge                a key, update or value exceeds a limit of FoundationDB
    ├── QueueFull                   the backlog of the queue has reached its limit, so adds are refused
    ├── NoAnswer                    a request has no answer yet, or its answer is no longer kept
    │   ├── Withdrawn               the request was withdrawn before it was decided
    │   └── DecisionFailed          the decider has raised for the request
    ├── EmitterFull                 the buffer of an emitter is full
    ├── EmitterClosed               the emitter is closed
    ├── FlushFailed                 a flush of an emitter failed, or its result is unknown
    ├── WritesUnreadable            a read needs writes of its own transaction that it cannot see
    │   └── PendingUnreadable       a read of pending updates after an add in the same transaction
    ├── BacklogTooDeep              the bucket has more queued updates than one read may combine
    ├── NotChecked                  a bucket of an audit cannot be checked now
    ├── MissingPackage              (ImportError) a package of an extra is not installed
    ├── NotInColumn                 a value does not fit into the type of a table's column
    ├── CellError                   a directory of cells cannot do an operation
    │   ├── CellNotKnown            (LookupError) no cell has this name
    │   ├── CellMismatch            a store and the directory disagree about a cell, or about a user
    │   ├── NameTaken               another user has the second name
    │   ├── NoRoom                  no cell accepts users
    │   ├── UserDeleted             (LookupError) the user was deleted; the id is not used again
    │   ├── UserNotPlaced           (LookupError) the user has no cell yet
    │   ├── UserMoving              the user is moving to another cell: try again
    │   └── MoveFailed              the copy of a user differs from the original
    └── CorruptData                 stored bytes that cq has not written
        └── CorruptConfiguration    a queue's configuration is corrupt

cq does not wrap errors of the store (conflicts, timeouts ...): retry loops need the code in the `FDBError` of the
binding or of the embedded store.
"""

from __future__ import annotations

import re
from typing import ClassVar

from cq.distribution import page_address


class CqError(Exception):
    """Base of all exceptions of cq: `except cq.CqError` catches them.

    Attributes:
        page: the page of the documentation about errors of this class, which tracebacks and commands name; or empty.
    """

    page: ClassVar[str] = ""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if self.page:
            self.add_note(f"see {page_address(self.page)}")


class StoreError(CqError):
    """A store cannot be used."""


class InvalidUrl(StoreError, ValueError):
    """The URL names no store."""


class ClientLibraryError(StoreError, ImportError):
    """FoundationDB's Python binding or client library is missing, or their versions do not match."""

    page = "operate/foundationdb.md"


class StoreUnreachable(StoreError):
    """The cluster does not answer in time, or its cluster file cannot be read."""

    page = "operate/foundationdb.md"


class NotAStore(StoreError):
    """The file is not a cq store, is damaged, or a newer version of cq wrote it."""

    page = "operate/problems.md#problems-of-an-embedded-store"


class ConfigurationError(CqError):
    """A request does not fit the configuration."""


class InvalidConfiguration(ConfigurationError, ValueError):
    """An invalid setting, such as a queue name, type, combiner or number of buckets."""


class NotInStore(InvalidConfiguration, LookupError):
    """The store has no part of this kind: the queue has no outbox, no export, or no updates set aside ..."""


class _NotConfigured(ConfigurationError, LookupError):
    _kind: ClassVar[str]
    _command: ClassVar[str]

    def __init__(self, name: str, nearest: str | None = None) -> None:
        super().__init__(name, nearest)
        self.name = name
        self.nearest = nearest

    def __str__(self) -> str:
        what = f"{self._kind} {self.name!r} is not configured in this store"
        advice = f"run {self._advice()}"
        return (
            f"{what}: {advice}"
            if self.nearest is None
            else f"{what}: did you mean {self.nearest!r}? If not, {advice}"
        )

    def _advice(self) -> str:
        command = self._command.format(self.name)
        return f"`{command}`, or `cq configure --app MODULE:APP` if an application declares it"


class QueueNotConfigured(_NotConfigured):
    """The store has no queue of this name. `nearest` is the most similar name that it has, or None."""

    _kind, _command = "queue", "cq configure {} --combiner sum"

    def _advice(self) -> str:
        level = re.fullmatch(r"(.+)\.(?:(window|slices)|(\d+[smhd]))", self.name)
        if level is None:
            return super()._advice()
        setting = "--window 10m/10s" if level[2] else f"--rollup {level[3]}:forever"
        return f"`cq configure {level[1]} {setting}`, as this is the name of a level"


class FeedNotConfigured(_NotConfigured):
    """The store has no feed of this name. `nearest` is the most similar name that it has, or None."""

    _kind, _command = "feed", "cq feed configure {}"


class ConfigurationConflict(ConfigurationError):
    """The queue exists with other settings; nothing was changed."""

    page = "operate/workers.md#changing-a-queue-as-a-whole"

    def __init__(self, name: str, differences: dict[str, tuple[object, object]]) -> None:
        super().__init__(name, differences)
        self.name = name
        self.differences = differences

    def __str__(self) -> str:
        changes = ", ".join(f"{setting} {old} -> {new}" for setting, (old, new) in self.differences.items())
        return (
            f"queue {self.name!r} is configured with other settings: {changes}; "
            "nothing was changed: use the stored settings, or another queue name"
            + ("; `cq rebucket` changes the number of buckets" if "buckets" in self.differences else "")
            + ("; to go back to former code, give it a later version" if self._is_earlier_version else "")
        )

    @property
    def _is_earlier_version(self) -> bool:
        """Whether a name stays and its version does not; only an earlier one is a conflict."""
        named = [[str(part).partition("@") for part in pair] for pair in self.differences.values()]
        return any(old[0] == new[0] and "@" in old for old, new in named)


class CodeMismatch(ConfigurationError):
    """This process lacks the version of a combiner or observer that the queue needs, or a feature of the queue."""

    page = "operate/workers.md#deploying-new-code"


class NotReady(ConfigurationError):
    """Workers are still building the data of an observer from the values of the queue."""


class NotNow(ConfigurationError):
    """Another change of the queue must finish first; workers finish it."""


class InvalidData(CqError, ValueError):
    """The queue does not accept a key, update or operation id; nothing was written."""


class WrongType(InvalidData, TypeError):
    """An argument of the wrong kind, such as a list of keys instead of a dict of updates; nothing was written."""


class OneShotIterable(WrongType):
    """An iterator, which would be empty when the transaction is retried; nothing was written."""

    page = "count/add.md"


class TooLarge(InvalidData):
    """A key, update or value exceeds a limit of FoundationDB; nothing was written."""

    page = "operate/problems.md#limits"


class QueueFull(CqError):
    """The backlog of the queue exceeds its limits; nothing was written."""

    page = "operate/problems.md#cqqueuefull"


class NoAnswer(CqError):
    """A request has no answer within the timeout, or its answer is no longer kept; the message says which.

    Attributes:
        ticket: the ticket of the request, with which a later answer can be read.
    """

    def __init__(self, message: str, ticket: str) -> None:
        super().__init__(message, ticket)
        self.ticket = ticket

    def __str__(self) -> str:
        return str(self.args[0])


class Withdrawn(NoAnswer):
    """The request was withdrawn: it has changed nothing and never will."""


class DecisionFailed(NoAnswer):
    """The decider has raised for the request, which changed nothing and is set aside with the error."""

    page = "count/decide.md"


class EmitterFull(CqError):
    """The buffer of an emitter stayed full until the timeout; the emitter did not accept the increment."""

    page = "count/emitter.md"


class EmitterClosed(CqError):
    """The emitter is closed, or belongs to the parent of this forked process; it did not accept the increment."""


class FlushFailed(CqError):
    """A flush of an emitter failed; the message and `__cause__` say why.

    Attributes:
        is_unknown: whether the increments may count nevertheless, now or later. If False, they never will.
    """

    page = "count/emitter.md"

    def __init__(self, message: str, is_unknown: bool) -> None:
        super().__init__(message, is_unknown)
        self.is_unknown = is_unknown

    def __str__(self) -> str:
        return str(self.args[0])


class WritesUnreadable(CqError):
    """A read needs writes of its own transaction that it cannot see."""


class PendingUnreadable(WritesUnreadable):
    """Pending updates cannot be read in a transaction that has added to the same bucket."""


class BacklogTooDeep(CqError):
    """The bucket of the key has more queued updates than one read may combine."""


class NotChecked(CqError):
    """A bucket of an audit cannot be checked now; the message says why, and what to do."""


class MissingPackage(CqError, ImportError):
    """A package that an extra of cq installs is missing; the message has the command that installs it."""


class NotInColumn(CqError):
    """A value does not fit into the type of its column in a table; CSV and JSON lines have no such types."""


class MissingDriver(InvalidConfiguration, MissingPackage):
    """The driver of a reporting database is not installed; the message has the command that installs it."""


class CellError(CqError):
    """A directory of cells cannot do an operation."""

    page = "systems/cells.md"


class CellNotKnown(CellError, LookupError):
    """The directory has no cell of this name."""


class CellMismatch(CellError):
    """A store is not the cell that the directory names, or one of the two was restored from an older backup."""


class NameTaken(CellError):
    """Another user has the second name."""


class NoRoom(CellError):
    """No cell accepts users."""


class UserNotPlaced(CellError, LookupError):
    """The user has no cell yet."""


class UserDeleted(CellError, LookupError):
    """The user was deleted. No other user can have the id."""


class UserMoving(CellError):
    """The user is moving to another cell; the data cannot be used until the move ends: try again."""


class MoveFailed(CellError):
    """A copy of a user's data differs from the original, which stays; the next attempt copies it again."""


class CorruptData(CqError):
    """Stored bytes that this version of cq cannot have written."""

    page = "operate/verify.md"


class CorruptConfiguration(CorruptData):
    """The configuration of a queue is corrupt, so the other data of the queue cannot be interpreted."""
