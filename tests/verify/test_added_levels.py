"""A level is compared with another one only for periods in which both have all updates."""

from __future__ import annotations

from typing import Any

import cq
from cq.encoding import codec
from cq.keys import QueueKeys
from cq.observers.verify.queue import verification
from cq.store.transact import transact
from cq.testing import drain
from tests.clocks import START, set_clock
from tests.helpers import put


def test_updates_ahead_of_a_new_level_make_no_differences(db: Any, name: str) -> None:
    hour = int(START) // 3600 * 3600 + 3600
    level = f"{name}.1m"

    def add(at: float) -> None:
        assert transact(db, lambda tr: cq.Window(name).add(tr, {"a": 1}, at=at)) == "taken"
        drain(db)

    with set_clock() as clock:
        clock.now = hour - 600
        cq.configure(db, name, rollup="1h:forever")
        add(hour + 1800)  # at most an hour ahead
        cq.configure(db, name, rollup="1m:forever,1h:forever")
        clock.now = hour + 2400
        add(clock.now)
        assert not list(verification(db, level).run())

        clock.now = hour + 3600
        add(clock.now)
        key = codec.encode(["a", hour + 3600])
        put(db, {QueueKeys(f"{name}.1h").value(key): codec.encode(7)})
        (found,) = verification(db, level).run()
        assert (found.kind, found.key) == ("level-value", ("a", hour + 3600))
