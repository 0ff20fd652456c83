"""Errors: FoundationDB's numbers and texts, so that a retry loop written for a cluster works unchanged.

The constants here and in `cq.store.api` are the codes that this store raises itself; `DESCRIPTIONS` also knows the
others that an application may receive or pass to `on_error`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

FUTURE_VERSION = 1009
TRANSACTION_CANCELLED = 1025
TOO_MANY_WATCHES = 1032
WATCHES_DISABLED = 1034
DATABASE_LOCKED = 1038
OPERATION_CANCELLED = 1101
PLATFORM_ERROR = 1500
IO_ERROR = 1510
CLIENT_INVALID_OPERATION = 2000
KEY_OUTSIDE_LEGAL_RANGE = 2004
INVERTED_RANGE = 2005
INVALID_OPTION_VALUE = 2006
READ_VERSION_ALREADY_SET = 2010
VERSION_INVALID = 2011
RANGE_LIMITS_INVALID = 2012
USED_DURING_COMMIT = 2017
TRANSACTION_INVALID_VERSION = 2020
NO_COMMIT_VERSION = 2021
KEY_TOO_LARGE = 2102
VALUE_TOO_LARGE = 2103
EXACT_MODE_WITHOUT_LIMITS = 2210

RETRYABLE = frozenset({1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223})
"""The errors that `on_error` retries, as FoundationDB's client of version 7.3 does.

One that has loaded several client libraries also retries 1039, which only such a client raises.
"""

DESCRIPTIONS = {
    0: "Success",
    1007: "Transaction is too old to perform reads or be committed",
    1009: "Request for future version",
    1020: "Transaction not committed due to conflict with another transaction",
    1021: "Transaction may or may not have committed",
    1025: "Operation aborted because the transaction was cancelled",
    1031: "Operation aborted because the transaction timed out",
    1032: "Too many watches currently set",
    1034: "Watches cannot be set if read your writes is disabled",
    1036: "Read or wrote an unreadable key",
    1037: "Storage process does not have recent mutations",
    1038: "Database is locked",
    1042: "Commit proxy commit memory limit exceeded",
    1051: "Batch GRV request rate limit exceeded",
    1078: "GRV proxy memory limit exceeded",
    1101: "Asynchronous operation cancelled",
    1213: "Transaction tag is being throttled",
    1223: "Transaction tag is being throttled by a proxy",
    1500: "Platform error",
    1510: "Disk i/o operation failed",
    2000: "Invalid API call",
    2004: "Key outside legal range",
    2005: "Range begin key larger than end key",
    2006: "Option set with an invalid value",
    2010: "Transaction already has a read version set",
    2011: "Version not valid",
    2012: "Range limits not valid",
    2017: "Operation issued while a commit was outstanding",
    2020: "Transaction does not have a valid commit version",
    2021: "Transaction is read-only and therefore does not have a commit version",
    2101: "Transaction exceeds byte limit",
    2102: "Key length exceeds limit",
    2103: "Value length exceeds limit",
    2210: "Exact streaming mode requires limits, but none were given",
}


class FDBError(Exception):
    """An error with FoundationDB's number in `.code` and its text in `.description`.

    `.detail` names the file and the remedy, if known; otherwise it is empty.
    """

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(code)  # as in the binding: `args` is the code alone
        self.code = code
        self.detail = detail

    @property
    def description(self) -> str:
        """FoundationDB's text for the number."""
        return DESCRIPTIONS.get(self.code, "UNKNOWN_ERROR")

    def __str__(self) -> str:
        return f"{self.description} ({self.code})" + (f": {self.detail}" if self.detail else "")

    def __repr__(self) -> str:
        return f"FDBError({self.code})"


_BUSY = frozenset({apsw.SQLITE_BUSY, apsw.SQLITE_LOCKED, apsw.SQLITE_PROTOCOL})
# Without SQLITE_CANTOPEN and SQLITE_IOERR: these are faults of the system, and a backup would not help.
_DAMAGED = frozenset({apsw.SQLITE_CORRUPT, apsw.SQLITE_NOTADB})


STORAGE_ERRORS: Final = (apsw.Error, UnicodeDecodeError)
"""The errors of SQLite, and of text in another encoding in the place of bytes."""


def not_bytes() -> apsw.Error:
    """The error for a row with other values than bytes."""
    return apsw.CorruptError("a row of it is not made of bytes")


def storage_error(error: Exception, path: Path) -> FDBError:
    """The FoundationDB error for one of `STORAGE_ERRORS`: retryable for a busy file, not for a failing disk."""
    if isinstance(error, UnicodeDecodeError):
        error = not_bytes()
    return FDBError(DATABASE_LOCKED if is_busy(error) else IO_ERROR, explain(error, path))


def is_busy(error: Exception) -> bool:
    """Whether another connection locks the file for now."""
    return _kind(error) in _BUSY


def is_full(error: Exception) -> bool:
    """Whether the disk was full, so that the transaction was rolled back."""
    return _kind(error) == apsw.SQLITE_FULL


def is_unwritten(error: Exception) -> bool:
    """Whether a failed COMMIT left no complete commit record, so that it cannot reappear after a crash."""
    return is_busy(error) or is_full(error) or _code(error) == apsw.SQLITE_IOERR_WRITE


def is_damaged(error: Exception) -> bool:
    """Whether the content of the file is wrong; also True for errors without a code of SQLite."""
    return _kind(error) in _DAMAGED or not _kind(error)


def explain(error: Exception, path: Path) -> str:
    """A message with the fault of the file at `path` and the remedy."""
    if is_busy(error):
        return f"{path} is locked by a process that does not release it ({error}): look for a stopped process"
    if is_full(error):
        return f"there is no room for {path} ({error}): free space on its disk"
    if is_damaged(error):
        return f"{path} is damaged ({error}): restore it from a backup"
    return f"{path} cannot be read or written ({error}): check whether its disk is full or fails, and `ulimit -n`"


def _kind(error: Exception) -> int:
    """The primary result code, such as SQLITE_BUSY for SQLITE_BUSY_RECOVERY; 0 without a code."""
    return _code(error) & 0xFF


def _code(error: Exception) -> int:
    """The extended result code of SQLite; 0 for an error of another origin."""
    return getattr(error, "extendedresult", 0)
