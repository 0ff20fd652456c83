"""The options of a transaction, and the defaults of its database."""

from __future__ import annotations

from dataclasses import dataclass

from cq.store.embedded.binding.keys import MAX_TRANSACTION_BYTES


@dataclass(slots=True)
class Settings:
    """The options of one transaction, or those that the transactions of one database start with."""

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
        """The options of the next try: FoundationDB keeps the first four, and resets the others."""
        return Settings(
            self.timeout,
            self.retry_limit,
            self.max_retry_delay,
            self.size_limit,
            defaults.snapshot_ryw,
            defaults.bypass_unreadable,
            defaults.protect_commit,
        )
