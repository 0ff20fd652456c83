"""Variants of windows that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq.admin import purge
from cq.config.window import WindowSpec
from cq.keys.window import WindowKeys
from cq.observers import builtin, distinct
from cq.queue import adds
from cq.queue.rows import by_key
from cq.windows import expiry
from cq.windows import window as windows
from tests.simulation.store import Reads, SimTransaction


def takes_out_what_it_has_not_read() -> Any:
    """Who takes out clears one range across all times, in which others may be added meanwhile."""

    def clear(tr: Any, window: Any, found: Any) -> None:
        tr.clear_range(window.rows()[0], found.keys[-1] + b"\0")
        for row in found.rows:
            tr.clear(window.operation_of(row.key))

    return patch.object(expiry, "_clear", clear)


def takes_out_side_by_side() -> Any:
    """Two who take out do not conflict."""

    def weak(self: Reads, key: bytes) -> Any:
        return get(
            self.snapshot if key == b"cq/q/seen/vb" and isinstance(self, SimTransaction) else self, key
        )

    get = Reads.get
    return patch.object(Reads, "get", weak)


def takes_out_all_tries() -> Any:
    """What every try of an operation has added is taken out."""
    return patch.object(expiry, "updates_that_count", lambda snapshot, keys, rows: by_key(rows))


def takes_out_too_early() -> Any:
    """What happened leaves a width after it, not after its slice."""
    return patch.object(WindowSpec, "expires", lambda self, at: at + self.width)


def purges_no_window() -> Any:
    """A purge leaves what is to be taken out."""
    return patch.object(purge, "WindowKeys", lambda name: WindowKeys("other"))


def counts_visits_for_visitors() -> Any:
    """Each change of a value counts as a distinct key that comes."""
    function = distinct.observer

    def observer(config: Any, settings: Any, generation: int) -> Any:
        count = function(config, settings, generation)
        return lambda tr, changes: count(tr, [replace(each, old=None) for each in changes])

    return patch.dict(builtin.FACTORIES, {distinct.NAME: observer})


def adds_without_leaving() -> Any:
    """An add puts into a window's total what never leaves it."""
    return patch.object(adds, "write_expiring", lambda *args, **settings: None)


def reads_without_overdue() -> Any:
    """A window is read with the updates that have left it and that no worker has taken out."""
    return patch.object(windows, "read_changes", lambda snapshot, config, now: {})


VISITING: Final[dict[Callable[[], Any], int]] = {
    takes_out_what_it_has_not_read: 150,
    takes_out_side_by_side: 60,
    takes_out_all_tries: 20,
    takes_out_too_early: 20,
    purges_no_window: 20,
    counts_visits_for_visitors: 10,
    adds_without_leaving: 10,
    reads_without_overdue: 10,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
