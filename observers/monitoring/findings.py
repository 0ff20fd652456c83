"""The one list of findings about a store: `cq status`, `cq health`, `cq doctor`, the dashboard and metrics show it.

A finding follows from an overview only, so all who look at the same moment say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from cq import runtime
from cq.admin.queue_status import QueueStatus
from cq.config.parts import MAX_BUCKETS
from cq.observers.monitoring.link_status import PAUSED, LinkStatus
from cq.observers.monitoring.store_overview import Overview, WorkerStatus
from cq.plain_text import utc_time

MAX_AGE_SECONDS: Final = 60.0
"""How long updates may be queued before `cq status` warns of it, and `cq health` by default fails."""
LATE_LINK_SECONDS: Final = 300.0
"""A link or outbox is late if its oldest entry or row has waited for longer, as the alerts for Prometheus say."""
_LATE_SECONDS: Final = 10.0  # a window whose updates wait longer to expire is late
_OVERDUE_SECONDS: Final = 60.0  # as many seconds after they are due, workers should have deleted keys
_RECENT_SECONDS: Final = 600.0  # older errors of a worker are notes
_ACTIVE: Final = "active"  # the state of a link with nothing to do but its entries
_FEW_BUCKETS: Final = 4
_MANY_ROWS: Final = 1_000  # for fewer rows the average size is no basis for advice
_SMALL_ROW: Final = 90  # bytes, key included: one or two updates


_QUEUE: Final = "queue {name!r}: "
_LINK: Final = "the link {name!r} "
_OUTBOX: Final = "the outbox of queue {name!r} "
_FEED: Final = "feed {name!r}: "
_WORKER: Final = "worker {name} "
_TRIED_AGAIN: Final = "The error says what failed. Workers try again by themselves."


class Level(StrEnum):
    """How much a finding matters, the least first.

    `cq doctor` fails for a warning or a problem, and `cq health` for a problem: something does not get done.
    """

    GOOD = "good"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Enum):
    """The kinds of remarks.

    Attributes:
        subject: the format of the words before the text of a remark.
        level: how much it matters, unless a remark says otherwise.
        todo: what to do, a sentence.
        command: the format of a command that does it; or empty.
    """

    NO_WORKER = "", Level.PROBLEM, "Start a worker: it combines queued updates with the values.", "cq worker"
    NOT_COMBINED = _QUEUE, Level.PROBLEM, "Start a worker for this queue.", "cq worker {name}"
    CODE_MISSING = (
        _QUEUE,
        Level.PROBLEM,
        "Their logs say what. If it is code, start a worker with the application that has it.",
        "cq worker --app MODULE:APP",
    )
    UNREADABLE = (
        _QUEUE,
        Level.PROBLEM,
        "The error says why. If data are damaged, this command names them.",
        "cq verify {name}",
    )
    PAUSED = (
        _QUEUE,
        Level.WARNING,
        "Its updates stay queued. Resume it when the reason is gone.",
        "cq resume {name}",
    )
    FULL = _QUEUE, Level.PROBLEM, "Run more workers, or change the limits.", "cq worker --processes 2"
    ASIDE = (
        _QUEUE,
        Level.WARNING,
        "Read the errors, repair the cause, and retry them.",
        "cq aside list {name}",
    )
    PROGRESS = _QUEUE, Level.NOTE, "Workers finish it: nothing else is to be done.", ""
    CONVERSION = (
        _QUEUE,
        Level.PROBLEM,
        "A worker is stuck in it, and its log says why. Repair `convert`, and deploy it with the same version.",
        "",
    )
    REFUSED = (
        _QUEUE,
        Level.NOTE,
        "Add updates sooner after they happen, or widen the window or the roll-up.",
        "",
    )
    LATE = _QUEUE, Level.WARNING, "If it stays so, run more workers.", "cq worker --processes 2"
    BUCKETS = _QUEUE, Level.NOTE, "The command is in the text.", ""
    LINK = _LINK, Level.WARNING, _TRIED_AGAIN, "cq link list {queue}"
    LINK_STOPPED = (
        _LINK,
        Level.PROBLEM,
        "The error says why. Repair the cause; then `cq link rebase` or `cq link rebuild` continues it.",
        "cq link list {queue}",
    )
    LINK_PAUSED = (
        _LINK,
        Level.NOTE,
        "Its entries stay queued. Resume it when the reason is gone.",
        "cq link resume {name}",
    )
    LINK_ASIDE = (
        _LINK,
        Level.WARNING,
        "Read the errors, repair the cause, and rebuild the link.",
        "cq link aside {name}",
    )
    OUTBOX = _OUTBOX, Level.WARNING, _TRIED_AGAIN, "cq link list {name}"
    OUTBOX_STOPPED = (
        _OUTBOX,
        Level.PROBLEM,
        "The error says why. Repair the cause; then `cq link rebase` continues it.",
        "cq link list {name}",
    )
    LINK_LATE = (
        _LINK,
        Level.WARNING,
        "Run a worker with the role `link` and all that the target needs; else the target is too slow.",
        "cq link list {queue}",
    )
    OUTBOX_LATE = (
        _OUTBOX,
        Level.WARNING,
        "Run a worker with the role `outbox` and the URL of the database; else the database is too slow.",
        "cq link list {name}",
    )
    FEED = _FEED, Level.PROBLEM, "Start a worker for this feed.", "cq worker {name} --only deliver"
    DEAD_WORKER = _WORKER, Level.NOTE, "No other worker does all of its work: start another one.", ""
    LEFT_ALONE = (
        _WORKER,
        Level.NOTE,
        "They are paused, or it lacks something for them: its log says what.",
        "",
    )
    WORKER = _WORKER, Level.WARNING, "Its log has the details.", ""

    def __init__(self, subject: str, level: Level, todo: str, command: str) -> None:
        self.subject, self.level, self.todo, self.command = subject, level, todo, command

    @property
    def page(self) -> str:
        """The section of the documentation about it."""
        return f"operate/problems.md#{_SECTIONS.get(self, 'warnings-of-cq-status')}"


_SECTIONS: Final = {
    Finding.NO_WORKER: "cqnoworker",
    Finding.FULL: "cqqueuefull",
    Finding.ASIDE: "keys-that-were-set-aside",
    Finding.LINK_STOPPED: "cqlinkstopped",
}

_LINK_KINDS: Final = Finding.LINK, Finding.LINK_STOPPED, Finding.LINK_LATE
_OUTBOX_KINDS: Final = Finding.OUTBOX, Finding.OUTBOX_STOPPED, Finding.OUTBOX_LATE
_NOT_NEEDED: Final = "Start one when updates are added."
_STUCK: Final = (
    "Its log has the errors. Without one, some of these wait for a system that does not answer, or for code of the "
    "application."
)
_REPLACED: Final = "Other workers do its work. Start another one if you still need it."
OF_WORKERS, OF_LINKS, OF_SYSTEMS = (
    tuple(each for each in Finding if each.subject in subjects)
    for subjects in ((_WORKER,), (_LINK,), (_LINK, _OUTBOX))
)
"""The kinds about one worker, whose `name` is the id of it, about links, and about links and outboxes."""


class Remark(NamedTuple):
    """A remark for an operator.

    Attributes:
        level: how much it matters.
        finding: its kind.
        name: the queue, link, feed or worker; empty: the whole store.
        text: what is found.
        todo: what to do, a sentence; or empty.
        command: a command that does it; or empty.
    """

    level: Level
    finding: Finding
    name: str
    text: str
    todo: str
    command: str

    @property
    def is_urgent(self) -> bool:
        """Whether there is something to do."""
        return self.level in (Level.WARNING, Level.PROBLEM)

    @property
    def instruction(self) -> str:
        """What to do, with the command if there is one; or empty."""
        return f"{self.todo.removesuffix('.')}: `{self.command}`" if self.command else self.todo

    def __str__(self) -> str:
        """The whole line."""
        return self.finding.subject.format(name=self.name) + self.text


def remarks(seen: Overview) -> list[str]:
    """Remarks for an operator on an overview, one line each."""
    return list(map(str, find_remarks(seen)))


def find_remarks(seen: Overview) -> list[Remark]:
    """As `remarks`, each with its kind, its subject and its level.

    Args:
        seen: the store, as `overview` reads it.
    """
    is_any_alive = any(worker.alive for worker in seen.workers)
    stuck = {name for worker in seen.workers if worker.alive for name in worker.stuck_queues}
    found = [] if is_any_alive else [_no_worker(seen)]
    by_queue: dict[str, list[Remark]] = {}
    for queue in seen.queues:
        activity = seen.activity[queue.name]
        said = by_queue[queue.name] = []
        if is_any_alive and not (queue.paused or queue.problem or activity.workers):
            said.append(_not_combined(queue, seen.workers))
        said += [
            *_of_queue(queue, is_stuck=queue.name in stuck),
            *_about_buckets(queue, activity.concurrency),
        ]
        if activity.workers and not queue.paused:  # else all updates wait, and another remark says why
            said += [_remark(Finding.LATE, queue.name, text) for text in _waits(queue)]
        # A pause of a queue, for instance, is one remark: it is also true of the levels.
        of_source = {(each.finding, each.text) for each in by_queue.get(queue.level_of or "", [])}
        found += [
            each
            for each in said
            if each.finding is Finding.ASIDE or (each.finding, each.text) not in of_source
        ]
    for link in seen.links:
        found += _of_link(link, link.name, _LINK_KINDS, is_any_alive)
    for queue_name, outbox in seen.outboxes.items():
        found += _of_link(outbox, queue_name, _OUTBOX_KINDS, is_any_alive)
        if is_any_alive and outbox.state != PAUSED and not seen.outbox_workers[queue_name]:
            text = "has no worker: the live workers are for other queues, or have other roles"
            found.append(_remark(Finding.OUTBOX_LATE, queue_name, text))
    if is_any_alive:
        text = "no worker delivers its messages: the live workers are for other queues, or have other roles"
        found += [_remark(Finding.FEED, name, text) for name, workers in seen.feeds.items() if not workers]
    for worker in seen.workers:
        found += _of_worker(worker, seen.workers)
    return found


def _remark(finding: Finding, name: str, text: str, level: Level | None = None) -> Remark:
    """A remark, by default of the level of its kind."""
    command = finding.command.format(name=name, queue=name.partition(" ")[0])
    return Remark(level or finding.level, finding, name, text, finding.todo, command)


def _no_worker(seen: Overview) -> Remark:
    """A problem if work is due, else a note."""
    # Nobody but a worker sees the rows of an outbox.
    has_outbox = any(each.state != PAUSED for each in seen.outboxes.values())
    has_messages = has_outbox or bool(seen.feeds)
    if has_messages or any(map(_has_work, seen.queues)) or any(map(_has_entries, seen.links)):
        found = _remark(Finding.NO_WORKER, "", "no worker is alive")
    else:
        found = _remark(Finding.NO_WORKER, "", "no worker is alive, and none is needed now", Level.NOTE)
        found = found._replace(todo=_NOT_NEEDED)
    latest = min(seen.workers, key=lambda worker: worker.beat_seconds, default=None)
    return found if latest is None else found._replace(command=latest.command)


def _has_work(queue: QueueStatus) -> bool:
    """Whether a queue needs a worker now."""
    if queue.paused:
        return False
    is_changing = queue.waiting_buckets or _in_progress(queue)
    overdue = [each.overdue_seconds for each in (queue.window, queue.expiry) if each is not None]
    return bool(is_changing or queue.problem or any(seconds > 0 for seconds in overdue))


def _has_entries(link: LinkStatus) -> bool:
    """Whether a link needs a worker now."""
    return link.state != PAUSED and (link.waiting_buckets > 0 or link.state != _ACTIVE)


def _not_combined(queue: QueueStatus, workers: Sequence[WorkerStatus]) -> Remark:
    if any(queue.name in worker.left_alone for worker in workers if worker.alive):
        level = Level.PROBLEM if _has_work(queue) else Level.WARNING
        text = "no worker combines it: the live workers lack something for it"
        return _remark(Finding.CODE_MISSING, queue.name, text, level)
    level = Level.PROBLEM if _has_work(queue) else Level.NOTE
    text = "no worker combines it: the live workers are for other queues, or have other roles"
    return _remark(Finding.NOT_COMBINED, queue.name, text, level)


def _in_progress(queue: QueueStatus) -> list[str]:
    """The changes of a queue that workers have not finished."""
    found = []
    if queue.former_combiner is not None:
        found.append(
            f"workers with {queue.former_combiner} must combine its former updates, before later ones begin"
        )
    elif queue.former_buckets is not None:
        found.append(f"former buckets are being drained: {queue.former_buckets:,}")
    if queue.converting is not None:
        found.append(
            f"the values of {queue.converting:,} buckets are converted to its new combiner, the others wait for it"
        )
    for observer, complete in queue.backfilling.items():
        found.append(f"backfill of {observer}: buckets {complete:,} of {queue.settings['buckets']:,}")
    return found


def _of_queue(queue: QueueStatus, *, is_stuck: bool) -> list[Remark]:
    found: list[tuple[Finding, str]] = []
    if queue.problem:
        found.append((Finding.UNREADABLE, f"cannot be read: {queue.problem}"))
    if queue.paused:
        end = "`cq resume`" if queue.paused_until is None else utc_time(queue.paused_until)
        found.append((Finding.PAUSED, f"paused until {end}: {queue.reason}"))
    if queue.full:
        found.append((Finding.FULL, f"full: {queue.full}"))
    if queue.aside:
        found.append((Finding.ASIDE, f"pieces set aside, as their updates fail: {queue.aside:,}"))
    # The change of a combiner goes on after the updates set aside are retried or discarded.
    progress = Finding.ASIDE if queue.aside and queue.former_combiner is not None else Finding.PROGRESS
    if is_stuck and queue.converting is not None:
        progress = Finding.CONVERSION
    found += [(progress, text) for text in _in_progress(queue)]
    window = queue.window
    if window is not None and (window.late or window.future):
        text = f"it has refused {window.late:,} updates as too late, {window.future:,} as too early"
        found.append((Finding.REFUSED, text))
    if window is not None and window.overdue_seconds > _LATE_SECONDS:
        text = f"updates due to expire from its window have waited for {window.overdue_seconds:,.1f} s"
        found.append((Finding.LATE, text))
    if queue.expiry is not None and queue.expiry.overdue_seconds > _OVERDUE_SECONDS:
        found.append(
            (Finding.LATE, f"keys due to expire have waited for {queue.expiry.overdue_seconds:,.1f} s")
        )
    return [_remark(finding, queue.name, text) for finding, text in found]


def _waits(queue: QueueStatus) -> list[str]:
    """The buckets that wait far longer than others; if all wait alike, how long the queue does, if that is too long."""
    found = [
        f"bucket {bucket} has waited for {age:,.1f} s, far longer than others"
        for bucket, age in queue.outstanding.items()
    ]
    oldest = queue.oldest_seconds or 0.0
    return found or [f"its oldest update has waited for {oldest:,.1f} s"] * (oldest > MAX_AGE_SECONDS)


def _about_buckets(queue: QueueStatus, concurrency: int) -> list[Remark]:
    """Advice on the number of buckets, as far as it follows from the backlog."""
    if queue.problem or queue.former_buckets is not None or queue.paused:
        return []
    buckets: int = queue.settings["buckets"]
    late = queue.oldest_seconds is not None and queue.oldest_seconds > _LATE_SECONDS
    if late and queue.waiting_buckets == buckets and concurrency > buckets:
        wanted = min(MAX_BUCKETS, 1 << (concurrency - 1).bit_length())
        text = f"buckets that wait: all {buckets:,}, and workers could run {concurrency:,} passes at once"
    elif buckets > _FEW_BUCKETS and queue.rows >= _MANY_ROWS and queue.bytes < _SMALL_ROW * queue.rows:
        size, wanted = queue.bytes // queue.rows, max(_FEW_BUCKETS, buckets // 4)
        text = f"rows are of {size:,} bytes only, so adds would cost less with fewer buckets"
    else:
        return []
    advice = f"`cq rebucket {queue.name} --buckets {wanted}`"
    return [_remark(Finding.BUCKETS, queue.name, f"{text}: {advice}")]


def _of_link(link: LinkStatus, name: str, kinds: Sequence[Finding], is_any_alive: bool) -> list[Remark]:
    found, lag = [], link.oldest_seconds or 0.0
    failing, stopped, late = kinds
    if link.has_failed:
        kind = stopped if link.state in ("stopped", "unreadable") else failing
        found.append(_remark(kind, name, f"is {link.state}: {link.error}"))
    elif link.state == PAUSED:
        found.append(_remark(Finding.LINK_PAUSED, link.name, "is paused"))
    elif is_any_alive and lag > LATE_LINK_SECONDS:
        found.append(_remark(late, name, f"has a lag of {lag:,.1f} s"))
    if link.aside:
        found.append(_remark(Finding.LINK_ASIDE, link.name, f"has set entries aside: {link.aside:,}"))
    return found


def _of_worker(worker: WorkerStatus, workers: Sequence[WorkerStatus]) -> list[Remark]:
    if not worker.alive:
        text = f"is dead: its latest beat is {worker.beat_seconds:,.1f} s old"
        dead = _remark(Finding.DEAD_WORKER, worker.id, text)._replace(command=worker.command)
        if any(_replaces(other, worker) for other in workers):
            dead = dead._replace(todo=_REPLACED)
        return [dead]
    found = []
    if worker.left_alone:
        found.append(_remark(Finding.LEFT_ALONE, worker.id, f"leaves alone: {', '.join(worker.left_alone)}"))
    if worker.stuck:
        stuck = _remark(Finding.WORKER, worker.id, f"is stuck in: {', '.join(worker.stuck)}")
        found.append(stuck._replace(todo=_STUCK))
    if worker.error:
        is_recent = worker.error_at is None or runtime.time() - worker.error_at < _RECENT_SECONDS
        text, level = f"had the latest error: {worker.error}", None if is_recent else Level.NOTE
        found.append(_remark(Finding.WORKER, worker.id, text, level))
    return found


def _replaces(other: WorkerStatus, dead: WorkerStatus) -> bool:
    """Whether a worker is alive and does all that the dead one did, as far as their rows say."""
    has_queues = other.queues is None or (dead.queues is not None and set(dead.queues) <= set(other.queues))
    return other.alive and has_queues and set(dead.roles) <= set(other.roles) and dead.app in ("", other.app)
