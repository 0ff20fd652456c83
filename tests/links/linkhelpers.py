"""What tests of links need: the tasks of a link without a worker, what its log has, and workers that die."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import cq
from cq import links
from cq.admin.backfill import publish_generations
from cq.encoding.hashing import bucket_of
from cq.keys import INCOMPLETE_VERSIONSTAMP
from cq.keys.link import LinkKeys
from cq.links import Changes, Source, Target
from cq.observers.builtin import observer_parts
from cq.observers.links import state
from cq.observers.links.log import BUCKETS, append, encoded_key
from cq.observers.links.operate import OpenLink
from cq.observers.links.registry import sender_of
from cq.observers.links.sender import Sender
from cq.observers.links.spec import find_link, links_in
from cq.observers.links.state import AsideEntry
from cq.observers.links.task import LinkTask, SendingTask
from cq.observers.monitoring.link_status import link_status
from cq.observers.scheduling.members import LINK
from cq.observers.scheduling.task import Task
from cq.store.api import METADATA_VERSION
from cq.store.transact import transact
from tests.kit import queues
from tests.kit.processes import StartedProcesses, ended
from tests.kit.queues import combine_all, config_of, stored

_WORKER = Path(__file__).with_name("linkworker.py")
ALL = (b"cq/", b"cq0")  # what cq stores: on a cluster, in the space of the test
"""All keys of a store."""
OWN: Final = "own"
"""The name of a link that the application fills, and of its target."""


class Kept:
    """A function of a target that keeps what it gets, as a store of latest values would."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.batches: list[Changes] = []
        self.sequences: dict[Any, bytes] = {}

    def __call__(self, batch: Changes) -> None:
        self.batches.append(batch)
        for entry in batch:
            if entry.sequence <= self.sequences.get(entry.key, b""):
                continue
            self.sequences[entry.key] = entry.sequence
            if entry.value is None:
                self.values.pop(entry.key, None)
            else:
                self.values[entry.key] = entry.value

    @property
    def received(self) -> list[Any]:
        """The values of all entries, with repetitions."""
        return [entry.value for batch in self.batches for entry in batch]


def bucket(key: Any) -> int:
    """The bucket of a key."""
    return bucket_of(encoded_key(key), BUCKETS)


# Links that the application fills


class FunctionTarget(Target):
    """A target without positions, which passes changes to a function."""

    def __init__(self, function: Callable[[Changes], object]) -> None:
        self._function = function

    def apply(self, changes: Changes) -> None:
        if changes.entries:
            self._function(changes)


def own_link(db: Any, name: str, function: Callable[[Changes], object], app: cq.App | None = None) -> cq.App:
    """Configure a queue with a link to a target that calls the function; returns the application with the target."""
    app = app or cq.App()
    app.target(OWN)(lambda source: FunctionTarget(function))
    cq.configure(db, name, links=[links.app(OWN)])
    return app


def add(db: Any, name: str, *pairs: tuple[Any, Any]) -> None:
    """Add entries to the log of a link in one transaction, whether the link is configured or not."""
    transact(db, lambda tr: append(tr, LinkKeys(name, OWN), 1, pairs))


def tasks(db: Any, name: str, function: Callable[[Changes], object], **settings: Any) -> list[LinkTask]:
    """A task for each bucket of this link, which need not be configured."""
    sender = Sender(db, Source(b"", name, OWN, 0), FunctionTarget(function))
    made = [LinkTask(db, LinkKeys(name, OWN), number, sender) for number in range(BUCKETS)]
    return [with_settings(task, **settings) for task in made]


def task_of(db: Any, name: str, key: Any, function: Callable[[Changes], object], **settings: Any) -> LinkTask:
    """The task of the bucket of a key."""
    return tasks(db, name, function, **settings)[bucket(key)]


def with_settings(task: LinkTask, **settings: Any) -> LinkTask:
    """The task with other limits of a batch, or with a function that is called between its steps."""
    for what, value in settings.items():
        setattr(task if what == "signal" else task._target, what, value)
    return task


def send_all(db: Any, name: str, function: Callable[[Changes], object], **settings: Any) -> None:
    """Run every bucket's task until it has nothing to do; fails when one fails."""
    for task in tasks(db, name, function, **settings):
        run_to_end(task)


def run_to_end(task: Any) -> None:
    """Run a task until it has nothing to do; fails when it fails."""
    while (pause := task.run()) >= 0.0:
        assert pause == 0.0, task.problem


# Links of combine queues


def found(db: Any, name: str, link: str | None = None, app: cq.App | None = None) -> OpenLink:
    """A link of a queue, by default its only one. The fixture `_closed` closes reporting databases."""
    config = config_of(db, name)
    observer = find_link(config, link)
    opened = OpenLink(db, config, observer, sender_of(db, config, observer, app))
    opened.sender.open()
    return opened


def combine(db: Any, name: str) -> None:
    """Run passes until nothing is queued, without sending anything."""
    combine_all(db, name)
    publish_generations(db, name)


def change(db: Any, name: str, updates: Any) -> None:
    """Change values, without sending the changes."""
    queues.add(db, name, updates)
    combine(db, name)


def send(db: Any, name: str, updates: Any, app: cq.App | None = None) -> None:
    """Change values, and send the changes."""
    change(db, name, updates)
    work(db, name, app=app)


@contextmanager
def link_tasks(db: Any, name: str, link: str | None = None, app: cq.App | None = None) -> Iterator[list[Any]]:
    """The tasks of a link, or of all links of a queue: each keeper, then a task for each bucket."""
    config = config_of(db, name)
    link_parts = [part for part in observer_parts(db, config, app) if part.first.kind == LINK]
    made: list[Task] = [
        task
        for observer, part in zip(links_in(config), link_parts, strict=True)
        if link in (None, observer)
        for task in part.make()
    ]
    for each in made:
        if isinstance(each, SendingTask):
            each._open()  # else its first step does so
    try:
        yield made
    finally:
        for task in made:
            task.end()


def bucket_task(
    db: Any,
    name: str,
    key: Any,
    signal: Callable[[str], object] = lambda point: None,
    *,
    link: str | None = None,
    app: cq.App | None = None,
) -> LinkTask:
    """The task of a key's bucket; `signal` is called with points of the task and of its target."""
    with link_tasks(db, name, link, app) as made:
        task = made[1 + bucket(key)]
    task.signal = task._target.signal = signal
    assert isinstance(task, LinkTask)
    return task


def work(db: Any, name: str, link: str | None = None, app: cq.App | None = None) -> None:
    """Send until nothing is left to do; fails when a task fails."""
    with link_tasks(db, name, link, app) as made:
        keepers = [task for task in made if not isinstance(task, LinkTask)]
        for task in keepers:
            task.run()  # it looks whether a link that is stopped may continue
        for task in [task for task in made if task not in keepers] + keepers:
            while (pause := task.run()) >= 0.0:
                assert pause == 0.0, f"{task}: {task.problem or pause}"


def step(db: Any, name: str, link: str | None = None, app: cq.App | None = None) -> str:
    """Run every task once; returns the state of the link, and its error."""
    with link_tasks(db, name, link, app) as made:
        for task in made:
            task.run()
    return status(db, name, link)


def problems(db: Any, name: str, link: str | None = None, app: cq.App | None = None) -> list[str]:
    """Run every task once; returns what those that fail say."""
    with link_tasks(db, name, link, app) as made:
        for task in made:
            task.run()
    return [task.problem for task in made if task.problem]


def status(db: Any, name: str, link: str | None = None) -> str:
    """State and error of a link."""
    (each,) = [each for each in link_status(db, name) if link in (None, each.link)]
    return f"{each.state}: {each.error}"


# The log


def waits(db: Any, name: str, link: str = OWN) -> int:
    """How many rows wait to be sent."""
    return len(stored(db, LinkKeys(name, link).all_rows()))


def notified(db: Any, name: str, link: str = OWN) -> list[int]:
    """The buckets that have a notification."""
    keys = LinkKeys(name, link)
    values = transact(db, lambda tr: [tr.get(keys.notification(number)).value for number in range(BUCKETS)])
    return [number for number, value in enumerate(values) if value is not None]


def entries_aside(db: Any, name: str, link: str = OWN) -> list[AsideEntry]:
    """What was set aside."""
    return list(state.entries_aside(db, LinkKeys(name, link)))


def restore(db: Any, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Set a store back to what `stored(db, ALL)` has returned."""

    def put(tr: Any) -> None:
        tr.clear_range(*ALL)
        for key, value in rows:
            tr.set(key, value)
        tr.set_versionstamped_value(METADATA_VERSION, INCOMPLETE_VERSIONSTAMP)

    transact(db, put)


# Processes


class Workers(StartedProcesses):
    """Processes that send the links of a queue until they are killed or kill themselves, see linkworker.py.

    Attributes:
        running: the processes.
        died: how many have killed themselves.
    """

    def __init__(self, store: str, queue: str, seed: int) -> None:
        super().__init__()
        self._args = [_WORKER, store, queue, ""]
        self._draw = random.Random(seed)
        self.running: list[subprocess.Popen[bytes]] = []
        self._ready: list[subprocess.Popen[bytes]] = []
        self.died = 0

    def start(self, chance: float) -> None:
        """One more, which kills itself with this chance at each point."""
        process = self.python(*self._args, self._draw.random(), chance, stderr=subprocess.DEVNULL)
        self.running.append(process)

    def wait_ready(self) -> None:
        """Wait until all have begun, or are dead."""
        for process in self.running:
            if process not in self._ready:
                assert process.stdout is not None
                process.stdout.readline()
                self._ready.append(process)

    def replace_dead(self, chance: float) -> None:
        """Start another one for each that has died."""
        for process in [each for each in self.running if each.poll() is not None]:
            assert ended(process).status == -signal.SIGKILL
            self.died += 1
            self.running.remove(process)
            self.start(chance)


def run_killed(store: str, queue: str, point: str) -> None:
    """Send the links of a queue in a process that kills itself at this point, or at none."""
    with StartedProcesses() as processes:
        found = ended(processes.python(_WORKER, store, queue, point))
    assert found.status == (0 if point == "none" else -signal.SIGKILL), found.err
