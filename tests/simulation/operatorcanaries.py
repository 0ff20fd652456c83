"""Variants that are broken on purpose in what operators and loaders start, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq.admin import audit as cq_audit
from cq.admin import configure, purge, rebucket
from cq.config.queue import QueueConfig, read_config, write_config
from cq.encoding import hashing
from cq.intake import documents, json_lines
from cq.keys import QueueKeys
from cq.keys.audit import AuditKeys
from cq.observers.export.keeper import Keeper
from cq.observers.sql import exporter
from cq.observers.telemetry import history
from cq.observers.top.publisher import Publisher
from cq.passes import combine_pass
from cq.queue import set_aside
from cq.queue.ledger import to_bytes
from cq.queue.operation_ids import Trim
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.transact import transact
from tests.faults import Passing
from tests.simulation.store import SimTransaction


def sweeps_before_all_is_exported() -> Any:
    """The keeper of an export deletes old rows while entries of the new generation are queued."""
    return patch.object(Keeper, "_is_exported", lambda self, tr: True)


def ignores_staged_updates_of_the_former_shape() -> Any:
    """A pass of the new shape looks for rows of the former one, and not for its staged updates."""

    def is_blocked(snapshot: Any, config: QueueConfig, bucket: int) -> bool:
        if config.former is None:
            return False
        generation, buckets = config.former
        queue = QueueKeys(config.name)
        others = hashing.overlapping(config.buckets, bucket, buckets)
        return any(snapshot.get_range(*queue.rows(generation, other), limit=1).to_list() for other in others)

    return patch.object(combine_pass, "is_blocked", is_blocked)


def adds_minutes_again() -> Any:
    """A worker repeats the addition of a minute whose result is unknown."""
    return patch.object(history, "transact_noting", lambda db, add, in_doubt: transact(db, add))


def publishes_clouds_of_old_generations() -> Any:
    """A publisher does not look whether readers use its generation."""
    return patch.object(Publisher, "_is_current", lambda self, tr: True)


def goes_on_after_a_set_back() -> Any:
    """An exporter does not compare the progress of the two databases."""
    return patch.object(exporter.SqlExporter, "_may_apply", lambda self, batch, progress: True)


def forgets_ids_of_queued_rows() -> Any:
    """Operation ids are forgotten by their age alone."""

    def horizon(self: Trim, tr: Any) -> int:
        return int(tr.get_read_version().wait()) - int(self._remember_seconds * VERSIONS_PER_SECOND)

    return patch.object(Trim, "_read_horizon", horizon)


def replaces_documents_side_by_side() -> Any:
    """Two processes that store one document do not conflict."""
    read = documents.Documents._read_part

    def weak(self: Any, tr: Any, document: bytes, number: int) -> Any:
        return read(self, tr.snapshot if isinstance(tr, SimTransaction) else tr, document, number)

    return patch.object(documents.Documents, "_read_part", weak)


@contextmanager
def adds_lines_whatever_the_position() -> Iterator[None]:
    """A file is added from the position that the process remembers."""
    add = json_lines._add

    def forgetful(db: Any, batch: Any, key: Any) -> Any:
        with patch.object(json_lines, "_read_position", lambda tr, key: batch.position):
            return add(db, batch, key)

    with patch.object(json_lines, "_add", forgetful):
        yield


def deletes_without_a_word() -> Any:
    """Adds and passes under way do not learn that their queue is deleted."""
    return patch.object(purge, "write_config", lambda tr, config: None)


def finishes_rebuckets_early() -> Any:
    """A former shape is forgotten while it has rows."""

    def finish(tr: Any, name: str) -> bool:
        config = read_config(tr, name)
        if config.former is None:
            return False
        for bounds in QueueKeys(name).of_generation(config.former.generation):
            tr.clear_range(*bounds)
        write_config(tr, replace(config, former=None))
        return True

    return patch.object(rebucket, "_finish", finish)


def purges_without_notifying() -> Any:
    """The mark of a purge notifies no bucket."""
    return patch.object(purge, "notify_all", lambda tr, config: None)


def gives_generations_again() -> Any:
    """A rebuilt observer gets a generation that it had before, of which all values have been reported."""
    with_observers = configure._with_observers

    def number(current: QueueConfig, specs: Any) -> QueueConfig:
        changed = with_observers(current, specs)
        observers = (replace(each, generation=at) for at, each in enumerate(changed.observers, 1))
        return replace(changed, observers=tuple(observers))

    return patch.object(configure, "_with_observers", number)


def retries_without_clearing() -> Any:
    """Updates that were set aside are added again, and stay set aside."""

    class Uncleared(Passing):
        def clear(self, key: bytes) -> None:
            pass

    def without(db: Any, step: Callable[[Any], Any]) -> Any:
        return transact(db, lambda tr: step(Uncleared(tr)))

    return patch.object(set_aside, "transact", without)


def includes_updates_twice() -> Any:
    """An audit includes a bucket though another process has included it."""

    def include(tr: Any, name: str, audit: Any, bucket: int, excess: int) -> None:
        keys = AuditKeys(name)
        tr.add(keys.added(audit.generation, bucket), to_bytes(excess))
        tr.set(keys.included(audit.generation, bucket), b"")

    return patch.object(cq_audit, "_include", include)


OPERATING: Final[dict[Callable[[], Any], int]] = {
    sweeps_before_all_is_exported: 60,
    ignores_staged_updates_of_the_former_shape: 150,
    publishes_clouds_of_old_generations: 150,
    goes_on_after_a_set_back: 150,
    forgets_ids_of_queued_rows: 100,
    replaces_documents_side_by_side: 60,
    adds_lines_whatever_the_position: 60,
    deletes_without_a_word: 60,
    finishes_rebuckets_early: 10,
    purges_without_notifying: 10,
    gives_generations_again: 20,
    retries_without_clearing: 20,
    includes_updates_twice: 60,
    adds_minutes_again: 60,
}
WITH: Final[dict[Callable[[], Any], frozenset[str]]] = {
    sweeps_before_all_is_exported: frozenset(("table", "export again")),
    ignores_staged_updates_of_the_former_shape: frozenset(("rebucket",)),
    goes_on_after_a_set_back: frozenset(("table", "table set back")),
    forgets_ids_of_queued_rows: frozenset(("once", "short-lived ids", "unknown commits")),
    replaces_documents_side_by_side: frozenset(("documents",)),
    adds_lines_whatever_the_position: frozenset(("files", "deaths", "unknown commits")),
    deletes_without_a_word: frozenset(("delete",)),
}
"""{canary: the kinds that all of its plans have}."""
ONLY: Final[dict[Callable[[], Any], frozenset[str]]] = {
    adds_minutes_again: frozenset(("unknown commits", "come and go", "drains")),
    publishes_clouds_of_old_generations: frozenset(
        ("top", "freezes", "calls are late", "observers raise", "opposite", "watches are late")
    ),
    finishes_rebuckets_early: frozenset(("rebucket", "calls are late")),
    purges_without_notifying: frozenset(("purge",)),
    gives_generations_again: frozenset(("observers", "rebuild")),
    retries_without_clearing: frozenset(("retry aside", "too large", "observers raise", "purge")),
    includes_updates_twice: frozenset(("audit", "unknown commits", "deaths")),
}
"""{canary: the only kinds that its plans have}, for those that other kinds hide or make slow."""
