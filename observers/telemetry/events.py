"""The events that workers tell of themselves, in one table: what logs and metrics are made from.

An event's fields are those named in its line for people, and those named besides. `FIELDS` says what each means and in
which unit, the same in all events. No event has a value, a key or a secret, but that of a key set aside names the key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Final, Literal, NamedTuple

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class Metric(NamedTuple):
    """What an event does to a metric, which has the label `queue` when the event has that field.

    Attributes:
        name: with its unit; a counter's is exposed with `_total` behind it.
        type: a counter goes up, a histogram observes, a gauge is set.
        value: the field whose value does so, or the value itself; None takes the gauge of the queue away.
        description: empty where an event before says it.
    """

    name: str
    type: Literal["counter", "histogram", "gauge"]
    value: str | float | None = 1.0
    description: str = ""


@dataclass(frozen=True, slots=True)
class EventKind:
    """A kind of event.

    Attributes:
        level: at which it is logged.
        text: the line for people, with its fields.
        description: when it is emitted.
        others: fields that the line does not show.
        metrics: which it feeds.
        logger: by which it is logged.
    """

    level: int
    text: str
    description: str
    others: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = ()
    logger: str = "cq.worker"

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields."""
        shown = (name for _, name, _, _ in Formatter().parse(self.text) if name)
        return tuple(dict.fromkeys([*shown, *self.others]))


FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "address": ("", "host and port"),
    "app": ("", "module and name of the application"),
    "aside": ("keys", "set aside, with their updates"),
    "bucket": ("", "the bucket's number"),
    "buckets": ("", "buckets to combine that are this worker's"),
    "conflicts": ("transactions", "thrown away as another one had changed what they had read"),
    "entries": ("", "entries exported"),
    "error": ("", "type and message of the error"),
    "export_bytes": ("bytes", "that wait to be exported, about"),
    "export_lag": ("s", "age of the oldest entry that waits to be exported; 0 when none waits"),
    "feed": ("", "the feed's name"),
    "file": ("", "the path of the file"),
    "folded": ("keys", "whose updates were combined ahead of their report"),
    "host": ("", "the machine's name"),
    "key": ("", "the key that was set aside, as Python writes it"),
    "oldest": ("s", "age of the oldest update queued; 0 when none is"),
    "passes": ("", "passes committed since the worker began"),
    "pause": ("s", "until it is tried again"),
    "pid": ("", "the process"),
    "purged": ("keys", "whose value a purge has deleted"),
    "queue": ("", "the queue's name"),
    "queues": ("", "names of the queues that the worker is for; empty for all"),
    "messages": ("messages", "of a feed"),
    "reason": ("", "why"),
    "repeated": ("rows", "left out, as their operation had been added before"),
    "reported": ("keys", "whose value was written or found unchanged"),
    "retries": ("transactions", "begun again, for conflicts or other reasons"),
    "roles": ("", "what the worker does"),
    "rows": ("rows", "taken out of the queue, or of a table"),
    "seconds": ("s", "how long it took"),
    "sequence": ("", "of an entry of an export, in hexadecimal"),
    "status": ("", "exit status"),
    "task": ("", "a bucket to combine or to export, a cloud to publish ..."),
    "tasks": ("", "tasks of all kinds that are this worker's"),
    "told": ("keys", "of which an observer that is new to the queue was told"),
    "updates": ("updates", "combined"),
    "version": ("", "of the cloud"),
    "waiting_buckets": ("buckets", "with work"),
    "waiting_bytes": ("bytes", "queued, about"),
    "worker": ("", "the worker's id"),
    "workers": ("workers", "that live, as this one sees it"),
}
"""{name of a field: (unit, meaning)}."""

EVENTS: Final[Mapping[str, EventKind]] = {
    # A worker and the others
    "worker_started": EventKind(
        INFO,
        "worker {worker} started: {roles}",
        "A worker begins.",
        others=("host", "pid", "queues"),
    ),
    "app_named": EventKind(
        INFO,
        "the app {app} is imported, which {file} names",
        "The app of a worker comes from the file of settings.",
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
        "Another worker says nothing any more: its tasks go to those that live.",
        metrics=(Metric("cq_workers_gone", "counter", 1.0, "workers that said nothing any more"),),
    ),
    "tasks_shared": EventKind(
        INFO,
        "workers: {workers}; tasks of this one: {tasks}, of which buckets to combine: {buckets}",
        "Tasks were shared out anew, as workers or queues have changed.",
        metrics=(
            Metric("cq_workers", "gauge", "workers", "workers that live, as this one sees it"),
            Metric("cq_owned_tasks", "gauge", "tasks", "tasks of all kinds that are this worker's"),
            Metric("cq_owned_buckets", "gauge", "buckets", "buckets to combine that are this worker's"),
        ),
    ),
    "task_taken_over": EventKind(
        WARNING,
        "{task}: taken over from worker {worker}, which comes to no end with it",
        "A task of a worker that lives but hangs is now this one's.",
        others=("queue",),
        metrics=(Metric("cq_tasks_taken_over", "counter", 1.0, "tasks taken over from workers that hang"),),
    ),
    "task_failed": EventKind(
        WARNING,
        "{task}: failed, again in {pause:.1f} s: {error}",
        "A step of a task has raised an error: it is tried again.",
        others=("queue",),
        metrics=(Metric("cq_task_failures", "counter", 1.0, "steps of tasks that raised an error"),),
    ),
    "steps_left": EventKind(
        WARNING,
        "steps under way have not come to an end in {seconds:.0f} s: they are left",
        "A worker that was stopped ends although steps of it go on.",
    ),
    "work_left": EventKind(
        WARNING,
        "{task}: left with work to do: {reason}",
        "A worker that drains ends although a queue is not combined, or an export or a cloud is not done.",
        others=("queue",),
    ),
    "store_failed": EventKind(
        WARNING,
        "the store cannot be read, again in {pause:.1f} s: {error}",
        "The worker's loop could not read the store.",
        metrics=(
            Metric("cq_store_failures", "counter", 1.0, "turns of the loop that could not read the store"),
        ),
    ),
    "process_ended": EventKind(
        WARNING,
        "a worker process ended with status {status}, again in {pause:.1f} s",
        "A process of `--processes` has died, and is started again.",
    ),
    "metrics_served": EventKind(
        INFO, "metrics at http://{address}/metrics", "The endpoint of `--metrics` is there."
    ),
    # Queues
    "queue_left_alone": EventKind(
        WARNING,
        "left alone: {reason}",
        "The worker lacks the code that the queue asks for.",
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
    "queue_resumed": EventKind(
        INFO,
        "queue {queue!r} is left alone no longer",
        "The reason why the worker has left the queue alone is no more.",
        metrics=(Metric("cq_left_alone", "gauge", 0.0),),
    ),
    "queue_broken": EventKind(
        ERROR,
        "queue {queue!r} is paused: {reason}",
        "This worker has paused the queue, as too many of its keys fail.",
        metrics=(
            Metric("cq_broken", "counter", 1.0, "times that too many keys failed, so that it was paused"),
        ),
    ),
    "queue_full": EventKind(
        WARNING,
        "queue {queue!r} is full: {reason}",
        "More waits in the queue than its limits allow.",
        metrics=(
            Metric("cq_full", "gauge", 1.0, "1 while the queue is full, else 0; by the worker that looks"),
        ),
    ),
    "queue_has_room": EventKind(
        INFO,
        "queue {queue!r} is full no more",
        "What waits is within the limits again.",
        metrics=(Metric("cq_full", "gauge", 0.0),),
    ),
    "queue_measured": EventKind(
        DEBUG,
        "queue {queue!r}: about {waiting_bytes} bytes wait in {waiting_buckets} buckets, for {oldest:.1f} s",
        "With `--metrics`, by one worker for each queue: every 15 s while something waits, else up to every 120 s.",
        others=("export_bytes", "export_lag"),
        metrics=(
            Metric("cq_waiting_bytes", "gauge", "waiting_bytes", "bytes queued, about"),
            Metric("cq_waiting_buckets", "gauge", "waiting_buckets", "buckets with work"),
            Metric("cq_oldest_seconds", "gauge", "oldest", "age of the oldest update queued"),
            Metric(
                "cq_export_waiting_bytes", "gauge", "export_bytes", "bytes that wait to be exported, about"
            ),
            Metric("cq_export_lag_seconds", "gauge", "export_lag", "age of the oldest entry to be exported"),
        ),
    ),
    "queue_handed_over": EventKind(
        DEBUG,
        "queue {queue!r} is measured by this worker no more",
        "Another worker measures the queue, or it is gone.",
        metrics=tuple(
            Metric(name, "gauge", None)
            for name in (
                "cq_waiting_bytes",
                "cq_waiting_buckets",
                "cq_oldest_seconds",
                "cq_export_waiting_bytes",
                "cq_export_lag_seconds",
            )
        ),
    ),
    # What is done
    "pass_done": EventKind(
        DEBUG,
        "bucket {bucket} of queue {queue!r}: {rows} rows with {updates} updates, {reported} keys reported and "
        "{folded} folded, in {seconds:.3f} s",
        "A pass is committed.",
        others=("told", "purged", "repeated", "aside", "conflicts", "retries"),
        metrics=(
            Metric("cq_passes", "counter", 1.0, "passes committed"),
            Metric("cq_pass_seconds", "histogram", "seconds", "how long passes took, retries included"),
            Metric("cq_rows", "counter", "rows", "rows taken out of the queue"),
            Metric("cq_updates", "counter", "updates", "updates combined"),
            Metric(
                "cq_reported_keys", "counter", "reported", "keys whose value was written or found unchanged"
            ),
            Metric(
                "cq_folded_keys",
                "counter",
                "folded",
                "keys whose updates were combined ahead of their report",
            ),
            Metric("cq_told_keys", "counter", "told", "keys that an observer new to the queue was told of"),
            Metric(
                "cq_repeated_rows",
                "counter",
                "repeated",
                "rows left out, as their operation was added before",
            ),
            Metric("cq_set_aside_keys", "counter", "aside", "keys set aside"),
            Metric("cq_conflicts", "counter", "conflicts", "transactions of passes that met another one"),
            Metric("cq_retries", "counter", "retries", "transactions of passes begun again"),
        ),
    ),
    "key_set_aside": EventKind(
        WARNING,
        "bucket {bucket} of queue {queue!r}: set aside {key}: {error}",
        "Updates of a key cannot be combined or reported, and are kept with the error.",
    ),
    "export_done": EventKind(
        DEBUG,
        "bucket {bucket} of the export of queue {queue!r}: {entries} entries in {seconds:.3f} s",
        "A batch is exported.",
        logger="cq.export",
        metrics=(
            Metric("cq_export_batches", "counter", 1.0, "batches exported"),
            Metric("cq_export_entries", "counter", "entries", "entries exported"),
            Metric("cq_export_seconds", "histogram", "seconds", "how long batches took"),
        ),
    ),
    "export_failed": EventKind(
        WARNING,
        "{task} failed, again in {pause:.1f} s: {error}",
        "A batch could not be exported: it is tried again.",
        others=("queue",),
        logger="cq.export",
        metrics=(Metric("cq_export_failures", "counter", 1.0, "tries to export that failed"),),
    ),
    "export_left_alone": EventKind(
        WARNING,
        "export of queue {queue!r} is left to other workers: {reason}",
        "The worker lacks the URL, the driver or the columns of an export. The queue itself is combined.",
        logger="cq.export",
        metrics=(Metric("cq_export_failures", "counter", 1.0),),
    ),
    "export_stopped": EventKind(
        ERROR,
        "{task} is stopped: {error}",
        "Going on would lose or mix up data: somebody has to decide what to do.",
        others=("queue",),
        logger="cq.export",
        metrics=(Metric("cq_export_stops", "counter", 1.0, "times that an export was stopped"),),
    ),
    "entry_set_aside": EventKind(
        WARNING,
        "bucket {bucket} of the export of queue {queue!r}: set aside the entry {sequence}: {error}",
        "An entry can never be exported, and is kept with the error.",
        logger="cq.export",
        metrics=(Metric("cq_export_set_aside_entries", "counter", 1.0, "entries set aside"),),
    ),
    "export_swept": EventKind(
        INFO,
        "export of queue {queue!r}: {rows} rows of earlier generations are swept",
        "Rows of keys that have no value any more were deleted, after all values were exported anew.",
        logger="cq.export",
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
        "feed {feed!r}: {messages:,} messages have got their numbers",
        "A step has given numbers to messages.",
        metrics=(Metric("cq_feed_numbers", "counter", "messages", "messages of feeds given their numbers"),),
    ),
    "feed_trimmed": EventKind(
        DEBUG,
        "feed {feed!r}: {messages:,} messages removed",
        "A step has removed messages that are older, or more, than the feed keeps.",
        metrics=(Metric("cq_feed_removals", "counter", "messages", "messages of feeds removed"),),
    ),
    "feed_passed_over": EventKind(
        WARNING,
        "feed {feed!r}: a receiver or group is passed over: {reason}",
        "What is stored of a receiver or a group is nothing that cq wrote; the others go on. It is tried again.",
    ),
    "window_left": EventKind(
        DEBUG,
        "queue {queue!r}: {rows:,} rows have left its window",
        "A step has taken out of a queue what has left its window.",
        metrics=(Metric("cq_window_rows", "counter", "rows", "rows taken out of windows"),),
    ),
    "cloud_published": EventKind(
        DEBUG,
        "cloud {version} of queue {queue!r} is published",
        "A cloud that differs from the one before is published, of the queue or of a group.",
        metrics=(Metric("cq_clouds", "counter", 1.0, "clouds published"),),
    ),
}
"""{name: kind}."""
