"""The table of events of workers and operators, from which logs, metrics and spans are made.

An event has the fields that its text names, the fields in `others`, and the queue of a task. `FIELDS` has the meaning
and unit of each, the same in all events. Events contain no values, keys or secrets, except that `key_set_aside` names
the key, and an operator's action the key that the operator gave.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Final, Literal, NamedTuple

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class Metric(NamedTuple):
    """A metric that an event updates; it has the labels `queue` and `link` if the event has these fields.

    Attributes:
        name: with its unit; a counter is exposed with the suffix `_total`.
        type: a counter is increased, a histogram observes, a gauge is set.
        value: the field with the value, or the value itself; None removes the gauge.
        description: empty if an earlier event of the table has it.
    """

    name: str
    type: Literal["counter", "histogram", "gauge"]
    value: str | float | None = 1.0
    description: str = ""


class TracedOperation(NamedTuple):
    """An operation that an event ends; OpenTelemetry gets a span for it, of the event's `seconds`.

    Attributes:
        name: the verb; the span's name is the verb and the queue.
        messages: the field with the number of messages that the operation has processed, if any.
    """

    name: str
    messages: str | None = None


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event.

    Attributes:
        level: of the log record.
        text: format of the log message, with names of fields.
        description: when the event is emitted.
        others: fields that the text does not contain, except the queue of a task.
        metrics: the metrics that it updates.
        operation: the operation that it ends, if any.
    """

    level: int
    text: str
    description: str
    others: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    operation: TracedOperation | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its metrics."""
        return tuple(name for name in ("queue", "link") if name in self.fields)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields."""
        shown = [name for _, name, _, _ in Formatter().parse(self.text) if name]
        of_task = ["queue"] if "task" in shown else []
        return tuple(dict.fromkeys([*shown, *of_task, *self.others]))


FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "action": ("", "name of an operator's action"),
    "address": ("", "host and port"),
    "app": ("", "module and name of the application"),
    "aside": ("keys", "set aside, with their updates"),
    "bucket": ("", "the bucket's number"),
    "buckets": ("", "buckets to combine that this worker owns"),
    "code": ("", "name and version of the combiner or observer that raised the error; empty for others"),
    "conflicts": ("transactions", "discarded because another one had changed data that they had read"),
    "decided": ("requests", "decided"),
    "entries": ("", "entries sent"),
    "error": ("", "type and message of the error"),
    "expired": ("keys", "deleted by the queue's expiry"),
    "link_bytes": ("bytes", "queued for the link, about"),
    "link_lag": ("s", "age of the oldest entry of the link, or row of the outbox; 0 if there is none"),
    "feed": ("", "the feed's name"),
    "file": ("", "the path of the file"),
    "folded": ("keys", "whose updates were combined ahead of their report"),
    "given": ("", "the fields of an action's form, with a key if the operator gave one"),
    "host": ("", "the machine's name"),
    "key": ("", "the key that was set aside, as Python writes it"),
    "lag": ("s", "age of the oldest row of a batch when it was moved, by the clocks of both machines"),
    "moved": ("rows", "of an outbox, added to the queue"),
    "oldest": ("s", "age of the oldest queued update; 0 if the queue is empty"),
    "passes": ("", "passes committed since the worker began"),
    "pause": ("s", "until the next try"),
    "paused": ("", "1 while changes of a paused link are queued, else 0"),
    "pid": ("", "the process"),
    "problems": ("findings", "of `cq status` because of which something does not get done"),
    "purged": ("keys", "whose value a purge has deleted"),
    "queue": ("", "the queue's name"),
    "queues": ("", "names of the queues that the worker works on; empty for all"),
    "link": ("", "the link's name; outbox for the outbox of the queue"),
    "messages": ("messages", "of a feed"),
    "reason": ("", "why"),
    "refused": ("requests", "decided so that the answer refuses them"),
    "repeated": ("rows", "dropped because their operation was added before"),
    "reported": ("keys", "whose value was written or found unchanged"),
    "result": ("", "of an action: what was changed, or why nothing was"),
    "retries": ("transactions", "repeated, after conflicts or other errors"),
    "roles": ("", "the worker's roles"),
    "row": ("", "id of a row of an outbox"),
    "rows": ("rows", "removed from the queue, or from a table"),
    "seconds": ("s", "how long it took"),
    "sequence": ("", "of an entry of a link, in hexadecimal"),
    "status": ("", "exit status"),
    "session": ("", "the first characters of the id of an operator's session"),
    "store": ("", "URL of the store"),
    "stopped": ("", "1 while the link or the outbox is stopped, else 0"),
    "task": ("", "a bucket to combine, a bucket of a link, a cloud to publish ..."),
    "tasks": ("", "tasks of all kinds that this worker owns"),
    "told": ("keys", "backfilled to an observer new to the queue"),
    "trace": ("", "the frames of the application's code in which the error was raised, as a list of lines"),
    "updates": ("updates", "combined"),
    "version": ("", "of the cloud"),
    "waited": ("s", "from the commit of the first request of a pass to that of its answer"),
    "waiting_buckets": ("buckets", "with work"),
    "waiting_bytes": ("bytes", "queued, about"),
    "warnings": ("findings", "of `cq status` that somebody must look at"),
    "work": ("", "the queues and buckets that a worker may combine, its links, clouds, outboxes and feeds"),
    "worker": ("", "the worker's id"),
    "workers": ("workers", "alive, as seen by this one"),
}
"""{name of a field: (unit, meaning)}."""


def _of_field(name: str, type_: Literal["counter", "gauge"], field: str) -> Metric:
    """The metric of a field, described by its unit and meaning."""
    return Metric(name, type_, field, " ".join(FIELDS[field]).strip())


def _count(name: str, description: str = "") -> Metric:
    """The counter of a kind of events."""
    return Metric(name, "counter", 1.0, description)


_BACKLOG: Final = (
    _of_field("cq_waiting_bytes", "gauge", "waiting_bytes"),
    _of_field("cq_waiting_buckets", "gauge", "waiting_buckets"),
    Metric("cq_oldest_seconds", "gauge", "oldest", "age of the oldest queued update"),
)
_LINK_BACKLOG: Final = (
    _of_field("cq_link_waiting_bytes", "gauge", "link_bytes"),
    Metric(
        "cq_link_lag_seconds",
        "gauge",
        "link_lag",
        "age of the oldest entry of the link, or row of the outbox",
    ),
    _of_field("cq_link_stopped", "gauge", "stopped"),
    _of_field("cq_link_paused", "gauge", "paused"),
)

EVENTS: Final[Mapping[str, EventKind]] = {
    # A worker and the others
    "worker_started": EventKind(
        INFO,
        "worker {worker} started: {roles}",
        "A worker starts.",
        others=("host", "pid", "queues"),
    ),
    "work_found": EventKind(
        INFO, "works on {work}, in {store}", "A worker has found its work, or this has changed since."
    ),
    "app_named": EventKind(
        INFO,
        "the app {app} is imported, which {file} names",
        "A worker's application is named by the file of settings.",
    ),
    "worker_stopped": EventKind(
        INFO,
        "worker {worker} stopped after {seconds:.1f} s: {passes} passes, {rows} rows",
        "A worker ends in good order.",
    ),
    "worker_joined": EventKind(
        INFO,
        "worker {worker} joined, process {pid} on {host}",
        "This worker sees another one for the first time.",
    ),
    "worker_left": EventKind(
        INFO, "worker {worker} left, process {pid} on {host}", "Another worker has ended in good order."
    ),
    "worker_gone": EventKind(
        WARNING,
        "worker {worker} is gone, process {pid} on {host}",
        "Another worker has stopped beating: the live workers take over its tasks.",
        metrics=(_count("cq_workers_gone", "workers that have stopped beating"),),
    ),
    "tasks_shared": EventKind(
        INFO,
        "workers: {workers}; tasks of this one: {tasks}, of which buckets to combine: {buckets}",
        "Workers or queues have changed, and so this worker owns other numbers of tasks.",
        metrics=(
            Metric("cq_workers", "gauge", "workers", "live workers, as seen by this one"),
            _of_field("cq_owned_tasks", "gauge", "tasks"),
            _of_field("cq_owned_buckets", "gauge", "buckets"),
        ),
    ),
    "task_taken_over": EventKind(
        WARNING,
        "{task}: taken over from worker {worker}, where it is stuck",
        "This worker has acquired a task that is stuck in a live worker.",
        metrics=(_count("cq_tasks_taken_over", "stuck tasks taken over from other workers"),),
    ),
    "task_failed": EventKind(
        WARNING,
        "{task}: failed, again in {pause:.1f} s: {error}",
        "A step of a task has raised an error; the worker retries it.",
        others=("seconds",),
        operation=TracedOperation("run"),
        metrics=(_count("cq_task_failures", "steps of tasks that raised an error"),),
    ),
    "steps_left": EventKind(
        WARNING,
        "steps under way have not ended within {seconds:.0f} s: the worker ends without them",
        "A stopped worker ends while some of its steps still run.",
    ),
    "drain_goes_on": EventKind(
        INFO,
        "the drain goes on after {seconds:.0f} s: {passes} passes, {rows} rows",
        "A drain has combined for 10 seconds more.",
    ),
    "work_left": EventKind(
        WARNING,
        "{task}: left with work to do: {reason}",
        "A drain ends although a queue is not combined, or a link, an outbox or a cloud is not up to date.",
    ),
    "store_failed": EventKind(
        WARNING,
        "the store failed, again in {pause:.1f} s: {error}",
        "A read or a write of the worker's loop failed.",
        metrics=(_count("cq_store_failures", "turns of the loop in which the store failed"),),
    ),
    "process_ended": EventKind(
        WARNING,
        "a worker process ended with status {status}, again in {pause:.1f} s",
        "A process of `--processes` has died; it is restarted.",
    ),
    "metrics_served": EventKind(
        INFO, "metrics at http://{address}/metrics", "The endpoint of `--metrics` is open."
    ),
    # Queues
    "queue_left_alone": EventKind(
        WARNING,
        "left alone: {reason}",
        "The worker lacks code that the queue needs.",
        others=("queue",),
        metrics=(
            Metric("cq_left_alone", "gauge", 1.0, "1 while this worker leaves the queue alone, else 0"),
        ),
    ),
    "queue_paused": EventKind(
        WARNING,
        "left alone: {reason}",
        "The queue is paused.",
        others=("queue",),
        metrics=(Metric("cq_left_alone", "gauge", 1.0),),
    ),
    "queue_taken_up": EventKind(
        DEBUG,
        "queue {queue!r} can be combined by this worker",
        "A worker has found a queue that it need not leave alone.",
        metrics=(Metric("cq_left_alone", "gauge", 0.0),),
    ),
    "queue_resumed": EventKind(
        INFO,
        "queue {queue!r} is no longer left alone",
        "The worker works on a queue again that it had left alone.",
        metrics=(Metric("cq_left_alone", "gauge", 0.0),),
    ),
    "queue_broken": EventKind(
        ERROR,
        "queue {queue!r} is paused: {reason}",
        "This worker has paused the queue because too many of its keys fail.",
        others=("code", "trace"),
        metrics=(_count("cq_broken", "pauses of the queue because too many keys failed"),),
    ),
    "queue_full": EventKind(
        WARNING,
        "queue {queue!r} is full: {reason}",
        "The queue's backlog exceeds its limits.",
        metrics=(
            Metric(
                "cq_full", "gauge", 1.0, "1 while the queue is full, else 0; from the worker that checks it"
            ),
        ),
    ),
    "queue_has_room": EventKind(
        INFO,
        "queue {queue!r} is no longer full",
        "The queue's backlog is within its limits again.",
        metrics=(Metric("cq_full", "gauge", 0.0),),
    ),
    "limit_handed_over": EventKind(
        DEBUG,
        "the limits of queue {queue!r} are no longer checked by this worker",
        "Another worker checks the limits from now on, or they were removed, or the queue was deleted.",
        metrics=(Metric("cq_full", "gauge", None),),
    ),
    "queue_measured": EventKind(
        DEBUG,
        "queue {queue!r}: about {waiting_bytes} bytes wait in {waiting_buckets} buckets, for {oldest:.1f} s",
        "With `--metrics` or `--otel`, one worker measures all queues: every 15 s, with hundreds of them less often.",
        metrics=_BACKLOG,
    ),
    "link_measured": EventKind(
        DEBUG,
        "link {link!r} of queue {queue!r}: about {link_bytes} bytes are queued, for {link_lag:.1f} s",
        "This worker also measures all links and outboxes.",
        others=("stopped", "paused"),
        metrics=_LINK_BACKLOG,
    ),
    "link_handed_over": EventKind(
        DEBUG,
        "link {link!r} of queue {queue!r} is no longer measured by this worker",
        "Another worker measures the store from now on, or the link was removed.",
        metrics=tuple(Metric(each.name, "gauge", None) for each in _LINK_BACKLOG),
    ),
    "queue_handed_over": EventKind(
        DEBUG,
        "queue {queue!r} is no longer measured by this worker",
        "Another worker measures the store from now on, or the queue was deleted or cannot be read.",
        metrics=tuple(Metric(each.name, "gauge", None) for each in _BACKLOG),
    ),
    "store_checked": EventKind(
        DEBUG,
        "findings about the store: problems {problems}, warnings {warnings}",
        "The worker that measures the queues also counts the findings of `cq status`.",
        metrics=(
            _of_field("cq_problems", "gauge", "problems"),
            _of_field("cq_warnings", "gauge", "warnings"),
        ),
    ),
    "store_handed_over": EventKind(
        DEBUG,
        "the findings about the store are no longer counted by this worker",
        "Another worker counts the findings from now on.",
        metrics=(Metric("cq_problems", "gauge", 0.0), Metric("cq_warnings", "gauge", 0.0)),
    ),
    # Completed work
    "pass_done": EventKind(
        DEBUG,
        "bucket {bucket} of queue {queue!r}: {rows} rows with {updates} updates, {reported} keys reported and "
        "{folded} folded, in {seconds:.3f} s",
        "A pass is committed.",
        others=("told", "purged", "repeated", "aside", "conflicts", "retries"),
        operation=TracedOperation("combine", "updates"),
        metrics=(
            _count("cq_passes", "passes committed"),
            Metric("cq_pass_seconds", "histogram", "seconds", "how long passes took, retries included"),
            Metric("cq_rows", "counter", "rows", "rows removed from the queue"),
            _of_field("cq_updates", "counter", "updates"),
            _of_field("cq_reported_keys", "counter", "reported"),
            _of_field("cq_folded_keys", "counter", "folded"),
            _of_field("cq_told_keys", "counter", "told"),
            _of_field("cq_repeated_rows", "counter", "repeated"),
            Metric("cq_set_aside_keys", "counter", "aside", "keys set aside"),
            Metric("cq_conflicts", "counter", "conflicts", "transactions of passes that had a conflict"),
            Metric("cq_retries", "counter", "retries", "retried transactions of passes"),
        ),
    ),
    "requests_decided": EventKind(
        DEBUG,
        "bucket {bucket} of queue {queue!r}: {decided} requests decided, {refused} of them refused, the first one "
        "after {waited:.3f} s",
        "A pass over a queue with a decider is committed.",
        metrics=(
            _of_field("cq_decisions", "counter", "decided"),
            _of_field("cq_refused_decisions", "counter", "refused"),
            Metric(
                "cq_answer_seconds",
                "histogram",
                "waited",
                "how long the first request of each pass waited for its answer",
            ),
        ),
    ),
    "keys_expired": EventKind(
        DEBUG,
        "bucket {bucket} of queue {queue!r}: {expired:,} keys have expired",
        "A pass has deleted keys that had no update for the queue's period.",
        metrics=(_of_field("cq_expired_keys", "counter", "expired"),),
    ),
    "key_set_aside": EventKind(
        WARNING,
        "bucket {bucket} of queue {queue!r}: set aside {key}: {error}",
        "Updates of a key cannot be combined or reported, and are kept with the error.",
        others=("code", "trace"),
    ),
    "link_done": EventKind(
        DEBUG,
        "bucket {bucket} of link {link!r} of queue {queue!r}: {entries} entries in {seconds:.3f} s",
        "A batch is sent.",
        operation=TracedOperation("link", "entries"),
        metrics=(
            _count("cq_link_batches", "batches sent"),
            _of_field("cq_link_entries", "counter", "entries"),
            Metric("cq_link_seconds", "histogram", "seconds", "how long batches took"),
        ),
    ),
    "link_failed": EventKind(
        WARNING,
        "{task} failed, again in {pause:.1f} s: {error}",
        "A batch could not be sent; the worker sends it again.",
        others=("link",),
        metrics=(_count("cq_link_failures", "failed tries to send a batch"),),
    ),
    "link_left_alone": EventKind(
        WARNING,
        "{task} is left to other workers: {reason}",
        "The worker lacks the URL, the driver or the columns of a link or an outbox. It still combines the queue.",
        others=("link",),
        metrics=(_count("cq_link_failures"),),
    ),
    "link_stopped": EventKind(
        ERROR,
        "{task} is stopped: {error}",
        "To continue would lose or mix up data: an operator must decide what to do.",
        others=("link",),
        metrics=(_count("cq_link_stops", "stops of links"),),
    ),
    "entry_set_aside": EventKind(
        WARNING,
        "bucket {bucket} of link {link!r} of queue {queue!r}: set aside the entry {sequence}: {error}",
        "A target can never apply an entry, which is kept with the error.",
        metrics=(_count("cq_link_set_aside_entries", "entries set aside"),),
    ),
    "link_swept": EventKind(
        INFO,
        "link {link!r} of queue {queue!r}: {rows} rows of earlier generations are swept",
        "After all values were sent again, rows of keys without a value were deleted.",
    ),
    "outbox_moved": EventKind(
        DEBUG,
        "outbox of queue {queue!r}: {moved} rows moved, the oldest {lag:.1f} s old",
        "Rows of an outbox are added to their queue.",
        others=("seconds",),
        operation=TracedOperation("move", "moved"),
        metrics=(Metric("cq_outbox_rows", "counter", "moved", "rows moved from the outbox"),),
    ),
    "outbox_row_set_aside": EventKind(
        WARNING,
        "outbox of queue {queue!r}: the row {row} stays in the table: {error}",
        "The queue refuses a row of its outbox, which stays in the table with the error.",
        metrics=(_count("cq_outbox_set_aside_rows", "rows of outboxes refused"),),
    ),
    "feed_delivered": EventKind(
        DEBUG,
        "feed {feed!r}: {messages:,} messages written to members of groups",
        "A step has written messages of groups to some of their members.",
        metrics=(
            Metric("cq_feed_deliveries", "counter", "messages", "messages of groups written to members"),
        ),
    ),
    "feed_numbered": EventKind(
        DEBUG,
        "feed {feed!r}: {messages:,} messages numbered",
        "A step has given numbers to messages.",
        metrics=(Metric("cq_feed_numbers", "counter", "messages", "numbered messages of feeds"),),
    ),
    "feed_trimmed": EventKind(
        DEBUG,
        "feed {feed!r}: {messages:,} messages removed",
        "A step has removed messages beyond the age or the number that the feed keeps.",
        metrics=(Metric("cq_feed_removals", "counter", "messages", "removed messages of feeds"),),
    ),
    "feed_passed_over": EventKind(
        WARNING,
        "feed {feed!r}: a receiver or group is skipped: {reason}",
        "The stored data of a receiver or group was not written by cq. The others continue; the worker retries it.",
    ),
    "cloud_published": EventKind(
        DEBUG,
        "cloud {version} of queue {queue!r} is published",
        "A cloud of the queue or of a group is published, as it differs from the previous one.",
        metrics=(_count("cq_clouds", "published clouds"),),
    ),
    "operator_acted": EventKind(
        INFO,
        "session {session}: {action} {queue!r}, {given}: {result}",
        "An operator has changed a queue in the dashboard.",
    ),
    "operator_failed": EventKind(
        WARNING,
        "session {session}: {action} {queue!r}, {given}: failed: {result}",
        "An action of an operator in the dashboard has changed nothing.",
    ),
}
"""{name: kind}."""
