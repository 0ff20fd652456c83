"""The settings of a transaction, and those that the transactions of a database start with."""

from __future__ import annotations

from dataclasses import dataclass

from cq.store.embedded.binding.error import INVALID_OPTION_VALUE, FDBError
from cq.store.embedded.binding.keys import MAX_TRANSACTION_BYTES

_MAX_INT = 2**31 - 1
_MIN_SIZE_LIMIT = 32


def in_range(value: int, low: int, high: int = _MAX_INT) -> int:
    """The value of an option; raises 2006 if it is out of range."""
    if not low <= value <= high:
        raise FDBError(INVALID_OPTION_VALUE)
    return value


@dataclass(slots=True)
class Settings:
    """The settings, and the methods of `tr.options` that change only them."""

    timeout: int = 0
    retry_limit: int = -1
    max_retry_delay: int = 1000
    size_limit: int = MAX_TRANSACTION_BYTES
    snapshot_ryw: int = 1
    bypass_unreadable: bool = False
    protect_commit: bool = True
    ryw_disabled: bool = False
    next_write_no_conflict: bool = False
    read_system: bool = False
    access_system: bool = False

    def for_try(self, defaults: Settings) -> Settings:
        """The settings of the next try: FoundationDB keeps the first four, and resets the others."""
        return Settings(
            self.timeout,
            self.retry_limit,
            self.max_retry_delay,
            self.size_limit,
            defaults.snapshot_ryw,
            defaults.bypass_unreadable,
            defaults.protect_commit,
        )

    def set_timeout(self, milliseconds: int) -> None:
        """Fail with 1031 after this time since the transaction began, retries included; 0: never."""
        self.timeout = in_range(milliseconds, 0)

    def set_retry_limit(self, retries: int) -> None:
        """The maximum number of retries by `on_error`; -1: no limit."""
        self.retry_limit = in_range(retries, -1)

    def set_max_retry_delay(self, milliseconds: int) -> None:
        """The maximum retry delay; by default 1000."""
        self.max_retry_delay = in_range(milliseconds, 0)

    def set_size_limit(self, size: int) -> None:
        """The maximum size of a commit in bytes, by default 10,000,000; a larger commit fails with 2101."""
        self.size_limit = in_range(size, _MIN_SIZE_LIMIT, MAX_TRANSACTION_BYTES)

    def set_snapshot_ryw_enable(self) -> None:
        """Let snapshot reads see own writes (the default). Each call undoes one `set_snapshot_ryw_disable`."""
        self.snapshot_ryw += 1

    def set_snapshot_ryw_disable(self) -> None:
        """Hide own writes from snapshot reads."""
        self.snapshot_ryw -= 1

    def set_next_write_no_write_conflict_range(self) -> None:
        """Let the next write add no write conflict."""
        self.next_write_no_conflict = True

    def set_access_system_keys(self) -> None:
        """Allow reads and writes of keys that begin with \\xff."""
        self.read_system = self.access_system = True

    def set_read_system_keys(self) -> None:
        """Allow reads of keys that begin with \\xff."""
        self.read_system = True

    def set_bypass_unreadable(self) -> None:
        """Let `get` read keys with versionstamped values, as written, without the stamp."""
        self.bypass_unreadable = True

    def set_used_during_commit_protection_disable(self) -> None:
        """Let calls after `commit` fail without an effect on the commit."""
        self.protect_commit = False
