"""The options of one transaction, and the defaults of its database."""

from __future__ import annotations

from cq.store.embedded.binding.keys import MAX_TRANSACTION_BYTES


class Defaults:
    """The options that the transactions of one database start with."""

    __slots__ = (
        "bypass_unreadable",
        "max_retry_delay",
        "protect_commit",
        "retry_limit",
        "size_limit",
        "snapshot_ryw",
        "timeout",
    )

    def __init__(self) -> None:
        self.timeout = 0
        self.retry_limit = -1
        self.max_retry_delay = 1000
        self.size_limit = MAX_TRANSACTION_BYTES
        self.snapshot_ryw = 1
        self.bypass_unreadable = False
        self.protect_commit = True


class Settings:
    """The options of one transaction. `begin_try` resets those that FoundationDB resets before each retry."""

    __slots__ = (
        "access_system",
        "bypass_unreadable",
        "max_retry_delay",
        "next_write_no_conflict",
        "protect_commit",
        "read_system",
        "retry_limit",
        "ryw_disabled",
        "size_limit",
        "snapshot_ryw",
        "timeout",
    )

    def __init__(self, defaults: Defaults) -> None:
        self.timeout = defaults.timeout
        self.retry_limit = defaults.retry_limit
        self.max_retry_delay = defaults.max_retry_delay
        self.size_limit = defaults.size_limit
        self.begin_try(defaults)

    def begin_try(self, defaults: Defaults) -> None:
        """Reset the options that FoundationDB does not keep for a retry."""
        self.snapshot_ryw = defaults.snapshot_ryw
        self.bypass_unreadable = defaults.bypass_unreadable
        self.protect_commit = defaults.protect_commit
        self.ryw_disabled = False
        self.next_write_no_conflict = False
        self.read_system = False
        self.access_system = False
