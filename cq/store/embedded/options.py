"""Options of transactions and databases, with the binding's names.

The options with a meaning for one file have a method here. FoundationDB's other options (priorities, tags, tracing ...)
are accepted and ignored. A name that FoundationDB does not know raises `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cq.store.embedded.binding.error import INVALID_OPTION_VALUE, FDBError
from cq.store.embedded.binding.keys import MAX_TRANSACTION_BYTES
from cq.store.embedded.client.core import TransactionCore
from cq.store.embedded.client.settings import Settings
from cq.store.embedded.engine.engine import Engine

_TRANSACTION_NAMES = (
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

_MAX_INT = 2**31 - 1
_MIN_SIZE_LIMIT = 32


def in_range(value: int, low: int, high: int = _MAX_INT) -> int:
    """The value of an option; raises 2006 if it is out of range."""
    if not low <= value <= high:
        raise FDBError(INVALID_OPTION_VALUE)
    return value


def _ignored(names: str, method: str) -> Callable[..., None]:
    prefix, _, name = method.partition("_")
    if prefix != "set" or name not in names.split():
        raise AttributeError(f"FoundationDB has no option {method!r}")
    return _nothing


def _nothing(_: Any = None) -> None:
    """Ignore an option without a meaning for one file."""


class TransactionOptions:
    """`tr.options`. A bad value raises when the transaction is used next, as in the binding."""

    __slots__ = ("_core",)

    def __init__(self, core: TransactionCore) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignored(_TRANSACTION_NAMES, name)

    def set_timeout(self, milliseconds: int) -> None:
        """Fail with 1031 after this time since the transaction began, retries included; 0: never."""
        self._set("timeout", milliseconds, 0)
        # Deferred as well, so that a bad value does not restart the timeout.
        self._core.defer(self._core.restart_timeout)

    def set_retry_limit(self, retries: int) -> None:
        """The maximum number of retries by `on_error`; -1: no limit."""
        self._set("retry_limit", retries, -1)

    def set_max_retry_delay(self, milliseconds: int) -> None:
        """The maximum retry delay; by default 1000."""
        self._set("max_retry_delay", milliseconds, 0)

    def set_size_limit(self, size: int) -> None:
        """The maximum size of a commit in bytes, by default 10,000,000; a larger commit fails with 2101."""
        self._set("size_limit", size, _MIN_SIZE_LIMIT, MAX_TRANSACTION_BYTES)

    def set_snapshot_ryw_enable(self) -> None:
        """Let snapshot reads see own writes (the default). Each call undoes one `set_snapshot_ryw_disable`."""
        self._core.settings.snapshot_ryw += 1

    def set_snapshot_ryw_disable(self) -> None:
        """Hide own writes from snapshot reads."""
        self._core.settings.snapshot_ryw -= 1

    def set_read_your_writes_disable(self) -> None:
        """Hide own writes from all reads. Fails with 2000 after the first read or write."""
        self._core.defer(self._core.disable_read_your_writes)

    def set_next_write_no_write_conflict_range(self) -> None:
        """Let the next write add no write conflict."""
        self._core.settings.next_write_no_conflict = True

    def set_access_system_keys(self) -> None:
        """Allow reads and writes of keys that begin with \\xff."""
        self._core.settings.read_system = self._core.settings.access_system = True

    def set_read_system_keys(self) -> None:
        """Allow reads of keys that begin with \\xff."""
        self._core.settings.read_system = True

    def set_bypass_unreadable(self) -> None:
        """Let `get` read keys with versionstamped values, as written, without the stamp."""
        self._core.settings.bypass_unreadable = True

    def set_used_during_commit_protection_disable(self) -> None:
        """Let calls after `commit` fail without an effect on the commit."""
        self._core.settings.protect_commit = False

    def _set(self, name: str, value: int, low: int, high: int = _MAX_INT) -> None:
        settings = self._core.settings
        self._core.defer(lambda: setattr(settings, name, in_range(value, low, high)))


class DatabaseOptions:
    """`db.options`: defaults for transactions created from now on."""

    __slots__ = ("_defaults", "_engine")

    def __init__(self, defaults: Settings, engine: Engine) -> None:
        self._defaults = defaults
        self._engine = engine

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _ignored(_DATABASE_NAMES, name)

    def set_transaction_timeout(self, milliseconds: int) -> None:
        """See `TransactionOptions.set_timeout`."""
        self._defaults.timeout = in_range(milliseconds, 0)

    def set_transaction_retry_limit(self, retries: int) -> None:
        """See `TransactionOptions.set_retry_limit`."""
        self._defaults.retry_limit = in_range(retries, -1)

    def set_transaction_max_retry_delay(self, milliseconds: int) -> None:
        """See `TransactionOptions.set_max_retry_delay`."""
        self._defaults.max_retry_delay = in_range(milliseconds, 0)

    def set_transaction_size_limit(self, size: int) -> None:
        """See `TransactionOptions.set_size_limit`."""
        self._defaults.size_limit = in_range(size, _MIN_SIZE_LIMIT, MAX_TRANSACTION_BYTES)

    def set_snapshot_ryw_enable(self) -> None:
        """See `TransactionOptions.set_snapshot_ryw_enable`."""
        self._defaults.snapshot_ryw += 1

    def set_snapshot_ryw_disable(self) -> None:
        """See `TransactionOptions.set_snapshot_ryw_disable`."""
        self._defaults.snapshot_ryw -= 1

    def set_transaction_bypass_unreadable(self) -> None:
        """See `TransactionOptions.set_bypass_unreadable`."""
        self._defaults.bypass_unreadable = True

    def set_transaction_used_during_commit_protection_disable(self) -> None:
        """See `TransactionOptions.set_used_during_commit_protection_disable`."""
        self._defaults.protect_commit = False

    def set_max_watches(self, number: int) -> None:
        """The maximum number of watches, by default 10,000; further ones fail with 1032."""
        self._engine.watches.limit = in_range(number, 0)
