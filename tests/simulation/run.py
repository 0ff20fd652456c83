"""Running a plan, and making a failing one small."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Final

from cq import runtime
from cq.feeds import messages
from cq.observers.links import log
from cq.queue import adds
from tests.simulation.backlogs import Backlogs
from tests.simulation.cells import CellsWorld
from tests.simulation.deciding import Deciding
from tests.simulation.expiring import Expiries
from tests.simulation.feeds import FeedWorld
from tests.simulation.links import Links
from tests.simulation.outboxes import Outboxes
from tests.simulation.plan import Plan
from tests.simulation.recent import RecentTotals
from tests.simulation.rolling import Hits
from tests.simulation.scenario import Scenario
from tests.simulation.sessions import VisitorSessions
from tests.simulation.sketching import Sketching
from tests.simulation.tagcloud import TagCloud
from tests.simulation.visiting import Site
from tests.simulation.world import World

SCENARIOS: Final[Mapping[str, type[Scenario]]] = {
    "queues": World,
    "tags": TagCloud,
    "windows": Site,
    "sessions": VisitorSessions,
    "feeds": FeedWorld,
    "cells": CellsWorld,
    "backlogs": Backlogs,
    "links": Links,
    "outboxes": Outboxes,
    "expiries": Expiries,
    "sketches": Sketching,
    "rollups": Hits,
    "recent": RecentTotals,
    "decisions": Deciding,
}
"""{system: its scenario}."""
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there
_MAX_SECONDS: Final = 120.0
_TRACE_LINES: Final = 300


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        plan: what was run.
        violation: the promise that is broken; empty when none is.
        turns: how many there were.
        seconds: simulated.
        digest: of all that happened: the same plan gives the same one.
        lines: the last things that happened.
    """

    plan: Plan
    violation: str
    turns: int
    seconds: float
    digest: str
    lines: list[str]


def run(plan: Plan, told: Callable[[str], object] = lambda line: None) -> Outcome:
    """Run a plan from its beginning to its end."""
    lines: deque[str] = deque(maxlen=_TRACE_LINES)
    digest = blake2b(digest_size=8)

    def trace(line: str) -> None:
        lines.append(line)
        digest.update(line.encode())
        told(line)

    folder = Path(tempfile.mkdtemp(prefix="cq-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None))
    violation = ""
    # What is counted in a process begins anew with each run.
    adds._counter = count()  # type: ignore[misc]
    log._counters = count(0, log._COUNTED)  # type: ignore[misc]
    messages._counter = count()
    world = SCENARIOS[plan.system](plan, folder, trace)
    logging.disable(logging.CRITICAL)  # what goes wrong here is meant to
    gc.disable()  # it must not run what it finds at moments of its own
    try:
        with runtime.using(world.machine), world.around():
            world.start()
            hub = world.hub
            hub.run(lambda: hub.turns >= plan.steps or hub.clock >= _MAX_SECONDS or bool(world.violations))
            world.end()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what came of it
        violation = (
            str(error) if isinstance(error, AssertionError) else "".join(traceback.format_exception(error))
        )
        if error.__cause__ is not None:
            violation += "\n" + "".join(traceback.format_exception(error.__cause__))
    finally:
        turns, seconds = world.hub.turns, world.hub.clock
        with runtime.using(world.machine), suppress(Exception):
            world.close()
        shutil.rmtree(folder, ignore_errors=True)
        gc.enable()
        gc.collect()
        logging.disable(logging.NOTSET)
    return Outcome(plan, violation, turns, seconds, digest.hexdigest(), list(lines))


def smaller(outcome: Outcome, tries: int = 60) -> Outcome:
    """A run of the same seed with fewer kinds of operations and faults and fewer steps that fails, too."""
    best = outcome
    for what in sorted(outcome.plan.on):
        if tries <= 0:
            break
        tries -= 1
        tried = run(best.plan.without(what))
        if tried.violation:
            best = tried
    steps = best.plan.steps // 2
    while steps >= 20 and tries > 0:
        tries -= 1
        tried = run(replace(best.plan, steps=steps))
        if tried.violation:
            best = tried
            steps //= 2
        else:
            steps = (steps + best.plan.steps) // 2 if best.plan.steps - steps > 20 else 0
    return best
