"""Running a demo: processes that do its work and are killed, a recount of what they did, and the figures."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final

import cq
from cq import runtime
from cq.cli.demos.harness.crew import DemoCrew, DemoDiffers, DemoRole
from cq.cli.demos.harness.roles import Steps
from cq.cli.shared.output import note, print_json, progress
from cq.errors import NotReady
from cq.keys import prefix_end
from cq.observers.top.cloud import Cloud, CloudReader
from cq.store.api import Database
from cq.store.transact import transact

_SETTLING_SECONDS: Final = 10.0
_SHOWN: Final = 5


class Demo(ABC):
    """A demo. Subclasses are dataclasses of the options of its command.

    Attributes:
        db: the store with the positions of the steps; set by `start`, as are the following three.
        work: {name: role} of the processes that end when their work is done.
        services: {name: role} of the processes that run until they are stopped.
        steps: the steps whose progress is shown.
        seconds: time limit for the work, and for settling it; infinite: no limit.
    """

    db: Database
    work: Mapping[str, DemoRole]
    services: Mapping[str, DemoRole]
    steps: Sequence[Steps]
    seconds: ClassVar[float] = 600.0

    @abstractmethod
    def start(self, stack: ExitStack, folder: Path, rng: Random) -> None:
        """Create queues without data of earlier demos, and the roles.

        The stack closes resources; the temporary folder is deleted at the end.
        """

    def show_progress(self, stack: ExitStack, what: str) -> None:
        """Show the number of finished steps on a terminal from now on."""
        self._progress = stack.enter_context(progress())
        self._task = self._progress.add_task(what, total=sum(each.number for each in self.steps))

    def done(self) -> list[int]:
        """The numbers of finished steps, read in one transaction."""
        return transact(self.db, lambda tr: [each.done(tr.snapshot) for each in self.steps])

    def look(self) -> None:
        """Show progress; called about ten times per second. Subclasses may check what must hold at any time."""
        self._progress.update(self._task, completed=sum(self.done()))

    @abstractmethod
    def is_settled(self) -> bool:
        """Whether the services have done all that follows from the finished work."""

    @abstractmethod
    def recount(self) -> dict[str, Any]:
        """Compare the result with a recount; returns the figures of the demo. Raises `DemoDiffers`."""

    def summarize_interrupted(self) -> str | None:
        """A line about the work until ^C, whose processes have ended; None: nothing to report.

        Raises `DemoDiffers` if that work differs from its recount.
        """
        return None

    @abstractmethod
    def show(self, figures: Mapping[str, Any]) -> None:
        """Print the figures for people."""


def run_demo(demo: Demo, seed: int | None, kill_every: float, *, json: bool) -> None:
    """Run a demo and print its figures.

    Raises `DemoDiffers` for a difference from the recount, `ProcessFailed`, and the errors of the demo.
    """
    seed = secrets.randbelow(2**32) if seed is None else seed
    rng = Random(seed)  # noqa: S311 - a load and kills that can be repeated
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="cq-demo-"))
        demo.start(stack, Path(folder), rng)
        # After the check of the input, and before all that can fail in another way: a failed run can be repeated.
        note(f"seed {seed}")
        begun = runtime.monotonic()
        try:
            kills = _run_crew(demo, rng, kill_every)
        except KeyboardInterrupt:
            if (line := demo.summarize_interrupted()) is not None:
                note(line)
            raise
        seconds = runtime.monotonic() - begun
        figures = {
            "seed": seed,
            **demo.recount(),
            "kills": kills,
            "seconds": round(seconds, 1),
        }
    if json:
        print_json(figures)
    else:
        demo.show(figures)


def _run_crew(demo: Demo, rng: Random, kill_every: float) -> int:
    """Run the processes of a demo until its work is done and settled; returns the number of kills."""
    with DemoCrew({**demo.work, **demo.services}, rng, kill_every) as crew:

        def is_worked_off() -> bool:
            demo.look()
            return crew.ended >= demo.work.keys()

        crew.run(is_worked_off, demo.seconds)
        # Few processes are left now. Frequent kills would never let a worker start on a busy machine.
        crew.spare(after=_SETTLING_SECONDS)
        crew.run(demo.is_settled, demo.seconds)
    return crew.kills


def killed(figures: Mapping[str, Any]) -> str:
    """The number of kills in words."""
    kills = figures["kills"]
    return f"{kills:,} process{'' if kills == 1 else 'es'} killed"


def numbered(what: str, roles: Iterable[DemoRole]) -> dict[str, DemoRole]:
    """Roles of one kind with their names: `{"worker 1": ..., "worker 2": ...}`."""
    return {f"{what} {number}": role for number, role in enumerate(roles, 1)}


def published(db: Database, queue: str) -> Cloud | None:
    """The last cloud of a queue; None if none was published, because no key has a value."""
    try:
        return transact(db, lambda tr: CloudReader(queue).read(tr.snapshot))
    except NotReady:
        return None


def delete_earlier(db: Database, prefix: bytes, queues: Iterable[str] = ()) -> None:
    """Delete the queues of earlier demos, and their own keys, which begin with a prefix."""
    for queue in queues:
        with suppress(cq.QueueNotConfigured):
            cq.delete(db, queue)
    transact(db, lambda tr: tr.clear_range(prefix, prefix_end(prefix)))


def compare(what: str, found: Mapping[str, Any], recounted: Mapping[str, Any]) -> None:
    """Raise `DemoDiffers` with the first differences from the recount."""
    keys = sorted(key for key in {*found, *recounted} if found.get(key) != recounted.get(key))
    if keys:
        shown = [f"{key!r}: {found.get(key)} instead of {recounted.get(key)}" for key in keys[:_SHOWN]]
        more = f" and {len(keys) - _SHOWN:,} more" if len(keys) > _SHOWN else ""
        raise DemoDiffers(f"{what}: not as recounted: {', '.join(shown)}{more}")
