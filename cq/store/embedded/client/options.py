"""Options of transactions and databases, with the binding's names.

The options with a meaning for one file have a method here or in `Settings`. FoundationDB's other options (priorities,
tags, tracing ...) are accepted and ignored. A name that FoundationDB does not know raises `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cq.store.embedded.binding.error import INVALID_OPTION_VALUE, FDBError
from cq.store.embedded.binding.keys import MAX_TRANSACTION_BYTES
from cq.store.embedded.engine.engine import Engine

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


TRANSACTION_NAMES = (
    "causal_write_risky causal_read_risky causal_read_disable include_port_in_address read_ahead_disable "
    "read_server_side_cache_enable read_server_side_cache_disable read_priority_normal read_priority_low "
    "read_priority_high durability_datacenter durability_risky durability_dev_null_is_web_scale "
    "priority_system_immediate priority_batch initialize_new_database raw_access bypass_storage_quota "
    "debug_retry_logging transaction_logging_enable debug_transaction_identifier log_transaction "
    "transaction_logging_max_field_length server_request_tracing automatic_idempotency lock_aware "
    "read_lock_aware use_provisional_proxies report_conflicting_keys special_key_space_relaxed "
    "special_key_space_enable_writes tag auto_throttle_tag span_parent expensive_clear_cost_estimation_enable "
    "use_grv_cache max_grv_queue_delay authorization_token enable_replica_consistency_check "
    "consistency_check_required_replicas"
)
_DATABASE_NAMES = (
    "location_cache_size machine_id datacenter_id transaction_logging_max_field_length "
    "transaction_causal_read_risky transaction_include_port_in_address transaction_automatic_idempotency "
    "transaction_report_conflicting_keys test_causal_read_risky"
)
# A database has them as defaults for its transactions, whose options have no `transaction_` in their names.
_DEFAULT_NAMES = (
    "transaction_timeout transaction_retry_limit transaction_max_retry_delay transaction_size_limit "
    "snapshot_ryw_enable snapshot_ryw_disable transaction_bypass_unreadable "
    "transaction_used_during_commit_protection_disable"
)


def ignored(names: str, method: str) -> Callable[..., None]:
    prefix, _, name = method.partition("_")
    if prefix != "set" or name not in names.split():
        raise AttributeError(f"FoundationDB has no option {method!r}")
    return _nothing


def _nothing(_: Any = None) -> None:
    """Ignore an option without a meaning for one file."""


class DatabaseOptions:
    """`db.options`: defaults for transactions created from now on. A bad value raises at once."""

    __slots__ = ("_defaults", "_engine")

    def __init__(self, defaults: Settings, engine: Engine) -> None:
        self._defaults = defaults
        self._engine = engine

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.removeprefix("set_") in _DEFAULT_NAMES.split():
            method: Callable[..., None] = getattr(self._defaults, name.replace("transaction_", ""))
            return method
        return ignored(_DATABASE_NAMES, name)

    def set_max_watches(self, number: int) -> None:
        """The maximum number of watches, by default 10,000; further ones fail with 1032."""
        self._engine.watches.limit = in_range(number, 0)
