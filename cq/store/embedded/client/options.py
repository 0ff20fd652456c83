"""Options of transactions and databases, with the binding's names.

The options with a meaning for one file have a method here or in `Settings`. FoundationDB's other options (priorities,
tags, tracing ...) are accepted and ignored. A name that FoundationDB does not know raises `AttributeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cq.store.embedded.client.settings import Settings, in_range
from cq.store.embedded.client.state import TransactionState
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
# A database has them as defaults for its transactions, whose options have no `transaction_` in their names.
_DEFAULT_NAMES = (
    "transaction_timeout transaction_retry_limit transaction_max_retry_delay transaction_size_limit "
    "snapshot_ryw_enable snapshot_ryw_disable transaction_bypass_unreadable "
    "transaction_used_during_commit_protection_disable"
)


def _ignored(names: str, method: str) -> Callable[..., None]:
    prefix, _, name = method.partition("_")
    if prefix != "set" or name not in names.split():
        raise AttributeError(f"FoundationDB has no option {method!r}")
    return _nothing


def _nothing(_: Any = None) -> None:
    """Ignore an option without a meaning for one file."""


class TransactionOptions:
    """`tr.options`: the methods of `Settings` and two others. A bad value raises at the next use, as in the binding."""

    __slots__ = ("_state",)

    def __init__(self, state: TransactionState) -> None:
        self._state = state

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("set_") and hasattr(Settings, name):
            return partial(self._state.defer, getattr(self._state.settings, name))
        return _ignored(_TRANSACTION_NAMES, name)

    def set_timeout(self, milliseconds: int) -> None:
        """See `Settings.set_timeout`."""
        self._state.defer(self._state.set_timeout, milliseconds)

    def set_read_your_writes_disable(self) -> None:
        """Hide own writes from all reads. Fails with 2000 after the first read or write."""
        self._state.defer(self._state.disable_read_your_writes)


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
        return _ignored(_DATABASE_NAMES, name)

    def set_max_watches(self, number: int) -> None:
        """The maximum number of watches, by default 10,000; further ones fail with 1032."""
        self._engine.watches.limit = in_range(number, 0)
