"""Workers in processes of their own, what they print, and what a test can wait for."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Collection
from typing import Any

import cq
from cq.config.queue import read_config
from cq.keys import QueueKeys
from cq.keys import membership as workerkeys
from cq.observers.scheduling.members import Member, read_members
from cq.store.transact import transact
from tests.cli.conftest import Cli
from tests.kit.processes import SECONDS, wait_for_line
from tests.kit.queues import event_of


def running(
    cli: Cli, *args: str, until: bytes = b"waiting for updates", **settings: Any
) -> subprocess.Popen[bytes]:
    """A worker that waits for updates."""
    worker = cli.start("worker", *args, **settings)
    wait_for_line(worker, until)
    return worker


def wait_for(db: Any, name: str, key: Any, value: Any) -> None:
    """Wait until the key has this value."""
    queue, stored = cq.CombineQueue(name), QueueKeys(name)
    encoded = transact(db, lambda tr: read_config(tr, name)).key.encoder()(key)
    while True:
        found, watch = transact(db, lambda tr: (queue.get(tr, key), tr.watch(stored.value(encoded))))
        if found == value:
            watch.cancel()
            return
        fired = event_of(watch)
        assert fired.wait(SECONDS), f"{key!r} has the value {found!r}, not {value!r}"


def said(worker: subprocess.Popen[bytes], event: str, **fields: Any) -> dict[str, Any]:
    """Read what a worker says, in JSON, until it says this."""
    assert worker.stderr is not None
    for line in worker.stderr:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == event and fields.items() <= found.items():
            return found
    raise AssertionError(f"it ended with {worker.wait()} and has not said {event}")


def wait_for_workers(db: Any, number: int, without: Collection[int] = ()) -> list[Member]:
    """Wait until so many workers, other than these processes, are registered."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        changed = transact(db, lambda tr: tr.watch(workerkeys.WORKERS_CHANGED))
        fired = event_of(changed)
        found = transact(db, lambda tr: read_members(tr.snapshot))
        others = [each for each in found if each.pid not in without]
        if len(others) == number:
            changed.cancel()
            return others
        fired.wait(1.0)
    raise AssertionError(f"expected {number} workers, found: {found}")
