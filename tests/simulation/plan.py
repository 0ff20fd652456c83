"""What a seed stands for: which kinds of operations and faults there are, and how much of each.

Not everything happens in every run: kinds are left out at random, so that what one of them hides another run shows
(swarm testing, Groce et al. 2012).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

OPERATIONS: Final = (
    "once",  # adds with operation ids, tried again until they are known to be committed
    "opposite",  # updates that cancel out
    "bad keys",  # a key that the combiner refuses
    "rebucket",
    "purge",
    "pause",
    "observers",  # enabled, removed, and given other versions
    "retry aside",
    "limit",
    "top",
    "table",  # a link to a SQL database
    "feed",  # a link of the application, which fills it by itself
    "audit",  # on from the beginning, and turned off and on
    "come and go",  # workers stop in good order, others start
)
FAULTS: Final = (
    "reads fail",
    "calls are late",
    "conflicts",
    "unknown commits",
    "too large",
    "watches are late",
    "watches fire early",
    "watches fail",
    "deaths",
    "freezes",
    "clock jumps",
    "clocks differ",
    "observers raise",
    "observers hang",
    "targets fail",
    "the table's database fails",
)
LATER: Final = (
    "emitters",  # increments from emitters
    "rebuild",  # an observer of the application's gets all values again
    "send again",  # rebuild or rebase of the table's link
    "table set back",  # the table's database is restored to an earlier state
    "delete",  # a queue is deleted and made anew
    "repair",
    "short-lived ids",  # operation ids are forgotten after seconds
    "drains",  # `cq worker --drain` beside the workers
    "large",  # keys of kilobytes, updates of tens of kilobytes
    "other combiners",  # a queue with another built-in combiner
    "documents",  # in a queue without observers, as are files
    "files",
)
"""Operations of the queues that came later: drawn after all others, and seldom, so that most seeds are as they were."""
LATER_FAULTS: Final = (
    "commits land late",  # after the process was given an error
    "timeouts",
    "the cluster changes",
    "long freezes",  # of ten minutes
    "observers refuse keys",  # in first reports and in purges, now and then for a while
)
"""Faults that came later, drawn as these."""
NEWEST: Final = (
    "pending reads",  # `get(pending=True)`
    "two operators",
    "late tries",  # operation ids that are used again after their commit was known
    "damage",  # a notification is lost, and the repair of a queue in use replaces it
    "drill",  # at the end, without faults: a pause, a full queue, and a lost notification
    "write only",  # adds at the version of the latest commit of their process
    "single adds",  # calls of `add_now` by the threads of a process
    "unreadable",  # a value cannot be read, until the operator restores it
)
"""Operations of the queues that are drawn after all others, and very seldom."""
QUEUES: Final = "queues"
SYSTEMS: Final[Mapping[str, tuple[str, ...]]] = {
    QUEUES: OPERATIONS,
    "tags": (
        "overlapping servers",  # which read the same logs
        "pages",  # which go from server to server
    ),
    "windows": (
        "once",
        "opposite",
        "other times",  # visits that are late, or from the future
        "purge",
        "rebucket",
        "width",  # of the window: changed
        "retry aside",
        "audit",
        "come and go",
    ),
    "sessions": ("once", "rebucket", "retry aside", "come and go"),
    "feeds": (
        "groups",
        "numbers",
        "keep",  # the last messages only, by their numbers
        "flood",  # most is sent to one receiver, and one group
        "come and go",  # workers stop in good order, others start
        "changes",  # messages have senders, who edit and recall them
    ),
    "cells": ("move", "rebalance", "drain", "resume", "forward", "limits", "deletes", "names", "adopt"),
    "backlogs": ("once", "rebucket", "drains"),
    "links": (
        "store set back",
        "table set back",
        "send again",
        "come and go",
        "hook",  # a second link, to a webhook
        "hook set back",
        "hook moves",  # to another receiver
        "the receiver fails",
        "hook comes and goes",  # its link is removed, and made again
        "set back once begun",  # a target is, at once after a rebase, when no bucket has sent an entry since
        "targets are slow",  # to begin, or to answer what they have applied
        "workers hear late",  # of changes of the configuration
        "set back after a rebuild",  # the receiver is, alone or with the store, and the sweep of before comes late
    ),
    "outboxes": (
        "store set back",
        "table set back",
        "send again",
        "come and go",
        "once",  # rows with operation ids, which are inserted again
        "refused rows",  # which cannot be read until they are repaired
        "remove",  # the outbox, and give the queue one again
        "careless",  # operators do not delete the rows that the queue has, and rebase without a reason
    ),
    "expiries": (
        "once",
        "purge",
        "rebucket",
        "period",  # of the expiry: changed
        "switch",  # the expiry off and on
        "audit",
        "come and go",
    ),
    "sketches": ("once", "sketches", "top", "rebucket"),
    "rollups": (
        "once",
        "opposite",  # hits of 0, and negative ones
        "other times",
        "purge",
        "rebucket",
        "retention",  # of the levels: changed
        "come and go",
        "levels",  # are added and removed
        "version",  # of the application's combiner: changed
        "retry aside",
    ),
    "decisions": (
        "once",
        "purge",
        "rebucket",
        "retry aside",
        "come and go",
        "withdraw",
        "bad requests",  # which make the decider raise
        "calls",  # of `ask_now` by the threads of a process
    ),
    "recent": ("once", "other times", "purge", "rebucket", "width", "come and go"),
}
"""{system: its kinds of operations}; see `scenario`."""
ADDED: Final[Mapping[str, tuple[str, ...]]] = {
    "tags": (
        "half-life",  # scores that decay, in a queue of their own
        "short keep",  # the versions of the cloud are kept for seconds
    ),
    "sessions": ("ids",),  # visitors have ids by the salts of days
    "feeds": ("forget",),  # receivers are forgotten
}
"""{system: its kinds of operations that came later}, drawn after all others, so that most seeds are as they were."""
MAY_SET_ASIDE: Final = frozenset(
    {
        "bad keys",
        "too large",
        "deaths",
        "observers raise",
        "observers hang",
        "observers refuse keys",
        "large",
        "timeouts",
        "unreadable",
    }
)
"""What may set keys aside."""
STEPS: Final = 1_500
"""After how many turns of a run no more faults happen."""
LONGER: Final[Mapping[str, int]] = {"links": 3_000}
"""{system: its steps} where a story takes longer, as of a rebase and what follows it."""
END_SECONDS: Final = 300.0
"""How long after the last fault everything must be done."""


@dataclass(frozen=True)
class Plan:
    """One run.

    Attributes:
        seed: of everything that is drawn.
        on: the kinds of operations and faults that there are.
        steps: after how many turns no more faults happen, and nothing new is begun.
        system: which one is run.
        end_seconds: how long after the last fault everything must be done.
    """

    seed: int
    on: frozenset[str]
    steps: int = STEPS
    system: str = QUEUES
    end_seconds: float = END_SECONDS

    @classmethod
    def of(cls, seed: int, steps: int | None = None, system: str = QUEUES) -> Plan:
        """The plan that a seed stands for; `steps`: None for as many as the system has."""
        steps = LONGER.get(system, STEPS) if steps is None else steps
        rng = Random(f"plan {seed}")
        share = rng.choice((0.2, 0.5, 0.8))
        on = [what for what in (*SYSTEMS[system], *FAULTS) if rng.random() < share]
        if system == QUEUES:
            on += [what for what in LATER if rng.random() < share / 2]
        on += [what for what in LATER_FAULTS if rng.random() < share / 2]
        if system == QUEUES:
            on += [what for what in NEWEST if rng.random() < share / 4]
        on += [what for what in ADDED.get(system, ()) if rng.random() < share]
        return cls(seed, frozenset(on), steps, system)

    def __contains__(self, what: str) -> bool:
        return what in self.on

    def without(self, what: str) -> Plan:
        """The plan without a kind."""
        return replace(self, on=self.on - {what})

    def rng(self, what: str) -> Random:
        """Numbers for one purpose, whatever is drawn for others."""
        return Random(f"{what} {self.seed}")

    def chance(self, what: str, most: float) -> float:
        """How often a fault happens, as a probability; 0 when it is not on."""
        return self.rng(what).random() * most if what in self.on else 0.0

    def __str__(self) -> str:
        kinds = ", ".join(sorted(self.on)) or "nothing"
        return f"system {self.system}, seed {self.seed}, {self.steps} steps, with {kinds}"
