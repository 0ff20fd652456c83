"""Measurements of workers, for docs/understand/benchmarks.md.

Run them by `python docs/measure_workers.py [idle|wake|backlog|fair ...]`.

They use an embedded store in a temporary folder; each prints a line or two. The machine should be idle otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cq
from cq.admin import is_drained
from cq.keys import QueueKeys
from cq.observers.worker import Worker
from cq.store.transact import transact

IDLE_SECONDS = 120.0
WAKES = 300
BACKLOG = 10_000_000
KEYS = 100_000
FLOOD = 4_000_000


class Counted:
    """A database that counts requests to a cluster: read versions, reads, watches and commits."""

    def __init__(self, db: Any) -> None:
        self._db, self.requests = db, Counter[str]()

    options = property(lambda self: self._db.options)

    def create_transaction(self) -> Any:
        return CountedTransaction(self._db.create_transaction(), self.requests)


class CountedTransaction:
    """A transaction of `Counted`; its `snapshot` shares the counts."""

    def __init__(self, tr: Any, requests: Counter[str], whole: Any = None) -> None:
        self._tr, self._requests, self._whole = tr, requests, whole or self
        self._has_version, self._writes = False, False

    def __getattr__(self, what: str) -> Any:
        return getattr(self._tr, what)

    @property
    def snapshot(self) -> Any:
        return CountedTransaction(self._tr.snapshot, self._requests, self._whole)

    def _read(self, what: str) -> None:
        if not self._whole._has_version:
            self._whole._has_version = True
            self._requests["read version"] += 1
        self._requests[what] += 1

    def get(self, key: bytes) -> Any:
        if key != b"\xff/metadataVersion":  # it arrives with the read version
            self._read("read")
        return self._tr.get(key)

    def get_range(self, *args: Any, **kwargs: Any) -> Any:
        self._read("range read")
        return self._tr.get_range(*args, **kwargs)

    def watch(self, key: bytes) -> Any:
        self._read("watch")
        return self._tr.watch(key)

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        self._whole._writes = True
        self._tr.set_versionstamped_value(key, value)

    def commit(self) -> Any:
        if self._whole._writes:
            self._requests["commit"] += 1
        return self._tr.commit()


def run_worker(url: str, queues: list[str]) -> None:
    """Run a worker; in a process of its own."""
    Worker(cq.open(url), queues=queues).run()


def in_process(url: str, queues: list[str]) -> Any:
    """Start and return a worker process."""
    process = multiprocessing.get_context("spawn").Process(target=run_worker, args=(url, queues), daemon=True)
    process.start()
    return process


def until_changed(db: Any, name: str, key: Any, before: Any, change: Callable[[], object]) -> float:
    """Return the seconds from the end of a change until the key has another value."""
    queue, stored = cq.CombineQueue(name), QueueKeys(name)
    encoded = transact(db, lambda tr: cq.config.queue.read_config(tr, name)).key.encoder()(key)
    watch = transact(db, lambda tr: tr.watch(stored.value(encoded)))
    fired = threading.Event()
    watch.on_ready(lambda _: fired.set())
    change()
    begun = time.perf_counter()
    fired.wait()
    seconds = time.perf_counter() - begun
    assert transact(db, lambda tr: queue.get(tr, key)) != before
    return seconds


def described(times: list[float]) -> str:
    """Return median, 99th percentile and maximum in milliseconds, as text."""
    ordered = sorted(1000 * each for each in times)
    return (
        f"p50 {statistics.median(ordered):.1f} ms, p99 {ordered[int(0.99 * len(ordered))]:.1f} ms, "
        f"max {ordered[-1]:.1f} ms"
    )


def idle(url: str) -> None:
    """Measure the requests of an idle worker to the store."""
    for number in (1, 10):
        db = Counted(cq.open(url))
        names = [f"idle-{number}-{each}" for each in range(number)]
        for name in names:
            cq.configure(cq.open(url), name)
        worker = Worker(db, queues=names)
        thread = threading.Thread(target=worker.run)
        thread.start()
        time.sleep(10)  # without the requests of its start
        db.requests.clear()
        time.sleep(IDLE_SECONDS)
        found = dict(db.requests)
        worker.stop()
        thread.join()
        rate = sum(found.values()) / IDLE_SECONDS
        allowed = 1 + number * 16 / 30
        print(f"idle, {number} queues of 16 buckets: {rate:.2f} requests/s (at most {allowed:.2f}): {found}")


def wake(url: str) -> None:
    """Measure the time from a commit to the combined value, with the worker in another process."""
    db = cq.open(url)
    queue = cq.configure(db, "wake")
    process = in_process(url, ["wake"])
    times = []
    for number in range(WAKES + 10):
        add = lambda: transact(db, lambda tr: queue.add(tr, {"a": 1}))  # noqa: E731
        times.append(until_changed(db, "wake", "a", number, add))
        time.sleep(random.random() * 0.05)
    process.terminate()
    print(f"wake-up, from the add's commit to the value, across processes: {described(times[10:])}")


def backlog(url: str) -> None:
    """Measure the memory and the time to drain a deep backlog."""
    db = cq.open(url)
    queue = cq.configure(db, "deep", buckets=1)
    words = [f"word {number}" for number in range(KEYS)]
    weights = [1 / (number + 1) for number in range(KEYS)]
    drawn = iter(random.choices(words, weights, k=BACKLOG))
    begun = time.perf_counter()
    for _ in range(BACKLOG // 5_000):
        updates = [(next(drawn), 1) for _ in range(5_000)]
        transact(db, lambda tr: queue.add(tr, updates))  # noqa: B023 - runs at once
    added = time.perf_counter() - begun
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=drain, args=(url, results))
    process.start()
    seconds, size = results.get()
    process.join()
    print(
        f"a backlog of {BACKLOG:,} updates in 1 bucket: added in {added:.0f} s, drained in {seconds:.0f} s, "
        f"{size / 1024:.0f} MB at most"
    )
    assert sum(value for _, value in queue.scan(db)) == BACKLOG


def drain(url: str, results: Any) -> None:
    """Drain in a process of its own; puts seconds and kB of memory into `results`."""
    db = cq.open(url)
    begun = time.perf_counter()
    Worker(db, queues=["deep"]).drain()
    seconds = time.perf_counter() - begun
    results.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def fair(url: str) -> None:
    """Measure the latency of a small queue, alone and next to a flooded one."""
    db = cq.open(url)
    for name in ("small", "flooded"):
        cq.configure(db, name)
    small, flooded = cq.CombineQueue("small"), cq.CombineQueue("flooded")
    process = in_process(url, ["small", "flooded"])

    number = 0

    def measure(seconds: float, is_over: Callable[[], bool] = lambda: False) -> list[float]:
        nonlocal number
        times: list[float] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not is_over():
            add = lambda: transact(db, lambda tr: small.add(tr, {"a": 1}))  # noqa: E731
            times.append(until_changed(db, "small", "a", number, add))
            number += 1
            time.sleep(0.02)
        return times

    measure(2)
    print(f"a small queue alone: {described(measure(10))}")
    for start in range(0, FLOOD, 5_000):
        updates = {f"word {word}": 1 for word in range(start, start + 5_000)}
        transact(db, lambda tr: flooded.add(tr, updates))  # noqa: B023
    waited = measure(30, lambda: is_drained(db, "flooded"))
    print(f"beside a flood of {FLOOD:,} updates, while it lasts: {described(waited)}")
    process.terminate()


def main() -> None:
    """Run the given measurements, or all."""
    measurements = {"idle": idle, "wake": wake, "backlog": backlog, "fair": fair}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=[*measurements])
    for what in parser.parse_args().what or measurements:
        with tempfile.TemporaryDirectory() as folder:
            measurements[what](f"embedded:{Path(folder) / 'cq.db'}")


if __name__ == "__main__":
    main()
