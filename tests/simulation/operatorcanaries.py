"""Variants that are broken on purpose in what operators and loaders start, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from cq import combining, documents, hashing, jsonl, purging
from cq.config import QueueConfig
from cq.keys import QueueKeys
from cq.markers import Trim
from cq.observers import sql
from cq.observers.exportkeeper import Keeper
from cq.observers.publisher import Publisher
from cq.store.api import VERSIONS_PER_SECOND
from tests.simulation.store import FaultyTransaction


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

    return patch.object(combining, "is_blocked", is_blocked)


def publishes_clouds_of_old_generations() -> Any:
    """A publisher does not look whether readers use its generation."""
    return patch.object(Publisher, "_is_current", lambda self, tr: True)


def goes_on_after_a_set_back() -> Any:
    """An exporter does not compare the progress of the two databases."""
    return patch.object(sql.SqlExporter, "_may_apply", lambda self, batch, progress: True)


def forgets_ids_of_queued_rows() -> Any:
    """Operation ids are forgotten by their age alone."""

    def horizon(self: Trim, tr: Any) -> int:
        return int(tr.get_read_version().wait()) - int(self._remember_seconds * VERSIONS_PER_SECOND)

    return patch.object(Trim, "_read_horizon", horizon)


def replaces_documents_side_by_side() -> Any:
    """Two processes that store one document do not conflict."""
    read = documents.Documents._read_part

    def weak(self: Any, tr: Any, document: bytes, number: int) -> Any:
        return read(self, tr.snapshot if isinstance(tr, FaultyTransaction) else tr, document, number)

    return patch.object(documents.Documents, "_read_part", weak)


@contextmanager
def adds_lines_whatever_the_position() -> Iterator[None]:
    """A file is added from the position that the process remembers."""
    add = jsonl._add

    def forgetful(db: Any, queue: Any, key: Any, pairs: Any, position: Any, reached: Any) -> None:
        with patch.object(jsonl, "_read_position", lambda tr, key: position):
            add(db, queue, key, pairs, position, reached)

    with patch.object(jsonl, "_add", forgetful):
        yield


def deletes_without_a_word() -> Any:
    """Adds and passes under way do not learn that their queue is deleted."""
    return patch.object(purging, "write_config", lambda tr, config: None)


OPERATING: Final[dict[Callable[[], Any], int]] = {
    sweeps_before_all_is_exported: 60,
    ignores_staged_updates_of_the_former_shape: 150,
    publishes_clouds_of_old_generations: 100,
    goes_on_after_a_set_back: 150,
    forgets_ids_of_queued_rows: 100,
    replaces_documents_side_by_side: 60,
    adds_lines_whatever_the_position: 60,
    deletes_without_a_word: 60,
}
WITH: Final[dict[Callable[[], Any], frozenset[str]]] = {
    sweeps_before_all_is_exported: frozenset(("table", "export again")),
    ignores_staged_updates_of_the_former_shape: frozenset(("rebucket",)),
    publishes_clouds_of_old_generations: frozenset(("top", "freezes")),
    goes_on_after_a_set_back: frozenset(("table", "table set back")),
    forgets_ids_of_queued_rows: frozenset(("once", "short-lived ids", "unknown commits")),
    replaces_documents_side_by_side: frozenset(("documents",)),
    adds_lines_whatever_the_position: frozenset(("files", "deaths", "unknown commits")),
    deletes_without_a_word: frozenset(("delete",)),
}
"""{canary: the kinds that all of its plans have}."""
