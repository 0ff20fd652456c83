"""Canaries of what operators and loaders start, of repairs, and of what readers get; see `canary`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cq.config.queue import QueueConfig, read_config, write_config
from cq.encoding import hashing
from cq.intake import lines as lines_of_files
from cq.intake.lines import FilePosition
from cq.intake.logs import LogFile
from cq.keys import QueueKeys
from cq.keys.audit import AuditKeys
from cq.queue.ledger import to_bytes
from cq.store.api import VERSIONS_PER_SECOND
from cq.store.transact import transact
from tests.kit.faults import Passing
from tests.simulation.canary import Canaries
from tests.simulation.store import SimTransaction

queues = Canaries("queues")


@queues.replaces("cq.observers.links.lease.Lease.take", seed=48, only={"feed", "come and go"})
def sends_a_bucket_without_a_lease(*_: Any) -> bool:
    """A new owner of a bucket does not wait for the last call of the former one."""
    return True


@queues.replaces("cq.observers.links.lease.Lease._is_alive", seed=48, only={"feed", "come and go"})
def takes_leases_of_live_workers(*_: Any) -> bool:
    """A worker takes every holder of a lease for dead."""
    return False


@queues.replaces("cq.passes.combine_pass.is_blocked", seed=252, also={"rebucket"})
def ignores_staged_updates_of_the_former_shape(
    _: Any, snapshot: Any, config: QueueConfig, bucket: int
) -> bool:
    """A pass of the new shape looks for rows of the former one, and not for its staged updates."""
    if config.former is None:
        return False
    generation, buckets = config.former
    queue = QueueKeys(config.name)
    others = hashing.overlapping(config.buckets, bucket, buckets)
    return any(snapshot.get_range(*queue.rows(generation, other), limit=1).to_list() for other in others)


@queues.replaces(
    "cq.observers.telemetry.history.transact_chained",
    seed=274,
    only={"unknown commits", "come and go", "drains"},
)
def adds_minutes_again(_: Any, db: Any, add: Any, in_doubt: Any) -> Any:
    """A worker repeats the addition of a minute whose result is unknown."""
    return transact(db, add)


@queues.replaces(
    "cq.observers.top.publisher.Publisher._is_current",
    seed=1051,
    only={"top", "freezes", "calls are late", "observers raise", "opposite", "watches are late"},
)
def publishes_clouds_of_old_generations(*_: Any) -> bool:
    """A publisher does not look whether readers use its generation."""
    return True


@queues.replaces("cq.observers.links.sender.Sender._progress", seed=431, also={"table", "table set back"})
def goes_on_after_a_set_back(*_: Any) -> bytes:
    """A sender does not compare the positions of the two databases."""
    return b""


@queues.replaces(
    "cq.queue.operation_ids.Trim._read_horizon",
    seed=6,
    also={"once", "short-lived ids", "unknown commits"},
)
def forgets_ids_of_queued_rows(_: Any, self: Any, tr: Any) -> int:
    """Operation ids are forgotten by their age alone."""
    return int(tr.get_read_version().wait()) - int(self._remember_seconds * VERSIONS_PER_SECOND)


@queues.replaces("cq.intake.documents.Documents._read_part", seed=172, also={"documents"})
def replaces_documents_side_by_side(read: Any, self: Any, tr: Any, *given: Any) -> Any:
    """Two processes that store one document do not conflict."""
    return read(self, tr.snapshot if isinstance(tr, SimTransaction) else tr, *given)


@queues.replaces("cq.intake.json_lines.add_lines", seed=26, also={"files", "deaths", "unknown commits"})
def adds_lines_whatever_the_position(add_lines: Any, *given: Any) -> Any:
    """A file is added from the position that the process remembers."""
    *_, stored = given
    with patch.object(lines_of_files, "read_position", lambda tr, key: stored.before):
        return add_lines(*given)


@queues.replaces("cq.intake.logs.add_lines", seed=1005, also={"files", "deaths", "unknown commits"})
def adds_lines_of_logs_whatever_the_position(add_lines: Any, *given: Any) -> Any:
    """A log is added from the position that the follower remembers."""
    *_, stored = given
    with patch.object(lines_of_files, "read_position", lambda tr, key: stored.before):
        return add_lines(*given)


@queues.replaces("cq.intake.logs.LogFollower._find", seed=9, also={"files"})
def leaves_the_rest_of_rotated_logs(find: Any, self: Any, position: FilePosition) -> LogFile | None:
    """A follower that begins after a rotation begins with the present file."""
    found = find(self, position)
    if found is None or found.path == self._path:
        return found  # type: ignore[no-any-return]
    found.close()
    return LogFile(self._path, FilePosition())


@queues.replaces("cq.intake.logs.LogFile._is_whole", seed=252, also={"files"})
def takes_a_truncated_log_for_the_one_before(*_: Any) -> bool:
    """A follower does not notice that a log was truncated."""
    return True


@queues.replaces("cq.admin.purging.write_config", seed=39, also={"delete"})
def deletes_without_a_word(*_: Any) -> None:
    """Adds and passes under way do not learn that their queue is deleted."""


@queues.replaces("cq.admin.rebucketing._finish", only={"rebucket", "calls are late"})
def finishes_rebuckets_early(_: Any, tr: Any, name: str) -> bool:
    """A former shape is forgotten while it has rows."""
    config = read_config(tr, name)
    if config.former is None:
        return False
    for bounds in QueueKeys(name).of_generation(config.former.generation):
        tr.clear_range(*bounds)
    write_config(tr, replace(config, former=None))
    return True


@queues.replaces("cq.admin.purging.notify_all", only={"purge"})
def purges_without_notifying(*_: Any) -> None:
    """The mark of a purge notifies no bucket."""


@queues.replaces("cq.admin.configure._with_observers", only={"observers", "rebuild"})
def gives_generations_again(with_observers: Any, *given: Any) -> QueueConfig:
    """A rebuilt observer gets a generation that it had before, of which all values have been reported."""
    changed: QueueConfig = with_observers(*given)
    observers = (replace(each, generation=at) for at, each in enumerate(changed.observers, 1))
    return replace(changed, observers=tuple(observers))


class _Uncleared(Passing):
    """A transaction that clears nothing."""

    def clear(self, key: bytes) -> None:
        pass


@queues.replaces(
    "cq.queue.set_aside.transact", seed=34, only={"retry aside", "too large", "observers raise", "purge"}
)
def retries_without_clearing(_: Any, db: Any, step: Callable[[Any], Any]) -> Any:
    """Updates that were set aside are added again, and stay set aside."""
    return transact(db, lambda tr: step(_Uncleared(tr)))


@queues.replaces("cq.admin.audit._include", seed=106, only={"audit", "unknown commits", "deaths"})
def includes_updates_twice(_: Any, tr: Any, name: str, audit: Any, bucket: int, excess: int) -> None:
    """An audit includes a bucket though another process has included it."""
    keys = AuditKeys(name)
    tr.add(keys.added(audit.generation, bucket), to_bytes(excess))
    tr.set(keys.included(audit.generation, bucket), b"")


@queues.replaces("cq.queue.pending._staged", seed=41, only={"pending reads"})
def reads_without_staged_updates(*_: Any) -> list[Any]:
    """A reader gets the value with the queued updates, and without the staged ones."""
    return []


@queues.replaces("cq.queue.combine_queue.read_pending_updates", seed=93, only={"pending reads", "rebucket"})
def reads_updates_of_the_shape_now(read: Any, snapshot: Any, shape: Any, wanted: Any) -> Any:
    """A reader gets the updates that are queued under the shape now, and not those under the former one."""
    return read(snapshot, replace(shape, former=None), wanted)


@queues.replaces(
    "cq.queue.limits.read_config",
    "cq.admin.purging.read_config",
    "cq.admin.rebucketing.read_config",
    seed=72,
    only={"two operators", "rebucket", "purge", "calls are late"},
)
def changes_configurations_by_snapshot(_: Any, tr: Any, name: str) -> Any:
    """Of two changes of one configuration, the later one undoes the other."""
    return read_config(tr.snapshot if isinstance(tr, SimTransaction) else tr, name)


@queues.replaces("cq.admin.backfill._is_complete", only={"top"})
def switches_too_early(*_: Any) -> bool:
    """Readers use what an observer keeps before the observer has all values."""
    return True


class _Unconflicted(Passing):
    """A transaction that adds no conflicts."""

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        pass


@queues.replaces(
    "cq.queue.operation_ids.Trim._forget",
    seed=197,
    only={"once", "short-lived ids", "late tries", "come and go", "watches are late"},
)
def forgets_ids_without_a_conflict(
    forget: Any, self: Any, tr: Any, operation: bytes, markers: list[Any]
) -> Any:
    """An operation id is forgotten while another try of the operation is committed."""
    return forget(self, _Unconflicted(tr), operation, markers)


@queues.replaces("cq.verify.buckets.notify", only={"drill"})
def repairs_without_notifying(*_: Any) -> None:
    """A repair leaves a bucket with updates without its notification."""


@queues.replaces("cq.config.flags.Flags.is_paused", only={"drill"})
def ignores_pauses(*_: Any) -> bool:
    """A worker combines a queue that is paused."""
    return False


@queues.replaces("cq.queue.adds.refuse_if_full", only={"drill"})
def adds_to_full_queues(*_: Any) -> None:
    """An add does not read the mark of a full queue."""


@queues.replaces("cq.queue.limits._reason", only={"drill"})
def keeps_queues_full(reason: Any, flags: Any, waiting: Any, *, is_full: bool) -> Any:
    """A worker does not clear the mark of a full queue that has room again."""
    return "full" if is_full else reason(flags, waiting, is_full=False)


@queues.replaces("cq.admin.configure.RequestedSettings.begin_observers", only={"observers"}, seed=11)
def keeps_what_the_former_version_wrote(*_: Any) -> None:
    """A new version of an observer receives all values again, and nothing is cleared."""


@queues.replaces("cq.passes.reporting._note_missed", only={"unreadable", "rebuild"})
def forgets_reports_of_unreadable_values(
    note: Callable[..., object], effects: Any, missed: Any, encoded: bytes, failure: Any
) -> None:
    """A new observer does not get a value later that could not be read in its turn."""
    if not failure.error.startswith("stored bytes"):
        note(effects, missed, encoded, failure)
