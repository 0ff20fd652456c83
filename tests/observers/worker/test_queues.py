"""The search for the queues that a worker can work on."""

from __future__ import annotations

from typing import Any

import cq
from cq import admin
from cq.app import QueueCode
from cq.observers.worker.queues import find_queues
from tests.kit.queues import event_of
from tests.kit.workers import SECONDS


def test_a_change_after_the_first_of_many_queues_was_read_is_noticed(db: Any, name: str) -> None:
    names = [f"{name}-{number:03}" for number in range(101)]
    for each in names:
        cq.configure(db, each)

    class Changing(cq.App):
        def code(self, config: Any, *args: Any) -> QueueCode:
            if config.name == names[0]:
                cq.configure(db, names[0], audit=True)
                admin.delete(db, names[-1])
            return super().code(config, *args)

    found, watch = find_queues(db, Changing(), names, is_strict=False)

    assert event_of(watch).wait(SECONDS)
    assert [each for each in names if found[each].code is None] == [names[-1]]
    assert "is not configured" in found[names[-1]].problem
