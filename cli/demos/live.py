"""`cq demo live`: counts on the dashboard that stay equal to a recount while the processes that keep them are killed.

Adders put baskets of fruit into the store: a row for each basket, and updates of the fruit's counts in the same
transaction. Workers combine the updates. Twice a second the demo reads the counts and the new rows at one version of
the store, and compares them. What it compared is in another queue, whose page shows it.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import webbrowser
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any, Final

import cq
from cq import runtime
from cq.admin.queue_status import is_drained
from cq.cli.demos.command import LiveOptions
from cq.cli.demos.harness import DemoRun, Figures, compare, delete_earlier, numbered, workers
from cq.cli.shared.options import make_store
from cq.cli.shared.output import note, print_table, quantity
from cq.cli.web.command import WebOptions, server_module
from cq.keys import after, prefix_end
from cq.keys.queue import stamped
from cq.observers.telemetry.metrics import Address
from cq.observers.top.index import top
from cq.store import OpenDatabase
from cq.store.api import Database, Transaction
from cq.store.transact import transact

QUEUE: Final = "demo_live"
"""The queue of the fruits' counts."""
COMPARED: Final = "demo_live_compared"
"""The queue of the numbers that the demo has compared last."""
QUEUES: Final = (QUEUE, COMPARED)
KEYS: Final = b"demo_live/"
"""The prefix of the demo's own keys: the baskets, and the end."""
BASKETS: Final = KEYS + b"basket/"
FRUITS: Final = ("apples", "oranges", "pears")
_WEIGHTS: Final = (4, 2, 1)
_BASKET: Final = 20
_END: Final = KEYS + b"end"
_BASKETS_PER_SECOND: Final = 25
"""Of each adder: so few that the processor has time for the browser."""
_COMPARE_SECONDS: Final = 0.5
_SHOWN: Final = 2 * len(FRUITS) + 3


def run(options: LiveOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    server_module()  # raises before anything is changed
    db, url = make_store(options.store), options.store
    delete_earlier(db, KEYS, QUEUES)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum", observers=[top(len(FRUITS))])
    cq.configure(db, COMPARED, key=str, value=int, combiner="last", buckets=1, observers=[top(_SHOWN)])
    comparison = Comparison(db, demo.kills)
    with served(db, options) as address:
        note(f"open {address}")
        note(
            f"{quantity(options.adders, 'adder')} and {quantity(options.workers, 'worker')} keep counts of fruit, and "
            f"about every {options.kill_every:g} s one of these processes is killed. The page has the counts and a "
            "recount. ^C ends the demo."
        )
        figures = demo.complete(
            numbered("adder", [partial(add_baskets, url=url)] * options.adders),
            workers(options.workers, url, QUEUES),
            comparison.look,
            lambda: all(is_drained(db, name) for name in QUEUES),
            lambda: transact(db, lambda tr: tr.set(_END, b"")),
            options.seconds,
        )
    return figures | comparison.finish() | {"store": url}


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    recount = figures["recount"]
    rows = [[fruit, f"{number:,}", f"{recount[fruit]:,}"] for fruit, number in figures["values"].items()]
    print_table(["fruit", "value of cq", "recount"], rows, right=["value of cq", "recount"])
    note(
        f"{quantity(figures['baskets'], 'basket')}, {quantity(figures['comparisons'], 'comparison')}: all equal"
    )
    note(f"look further: cq status --store {figures['store']}, cq top {QUEUE} --store {figures['store']}")
    note("then: docs/learn/first-steps.md, cq demo --help, and cq web for the dashboard of your own store")


# The dashboard


@contextmanager
def served(db: OpenDatabase, options: LiveOptions) -> Iterator[str]:
    """Serve the dashboard, and open a browser if there is a display; yields the address of the page to look at."""
    token = secrets.token_urlsafe(24)
    server = server_module().Server(db, Address.parse(options.listen), token, WebOptions(options.store))
    serving = Thread(target=server.run, name="dashboard", daemon=True)
    serving.start()
    address = f"{server.url}/queues/{COMPARED}?token={token}#part-top"
    if options.browser and has_display():
        # In a thread: some browsers return when they are closed.
        Thread(target=webbrowser.open, args=[address], daemon=True).start()
    try:
        yield address
    finally:
        server.stop()
        serving.join()


def has_display() -> bool:
    """Whether a browser would have a window; without one `webbrowser` may start a text browser in this terminal."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


# The comparison


class Comparison:
    """Compares the counts with a recount of the baskets, again and again.

    Args:
        db: the store.
        kills: of processes, by their kinds.
    """

    def __init__(self, db: Database, kills: Mapping[str, int]) -> None:
        self._db, self._kills = db, kills
        self._next = runtime.monotonic()
        self._number = 0
        self._baskets = 0
        self._counts: Counter[str] = Counter()  # of the fruit in these baskets
        self._begin = BASKETS  # the key after the last one

    def look(self) -> str:
        """Compare, if it is time; returns the state in words. Raises `DemoDiffers`."""
        if runtime.monotonic() >= self._next:
            self.compare()
            self._next = runtime.monotonic() + _COMPARE_SECONDS
        return f"{quantity(self._baskets, 'basket')}, {quantity(self._number, 'comparison')}: all equal"

    def compare(self) -> None:
        """Compare once, and report the numbers. Raises `DemoDiffers`."""
        counts = transact(self._db, self._read)
        found = {fruit: count or 0 for fruit, count in counts.items()}
        recount = {fruit: self._counts[fruit] for fruit in FRUITS}
        compare("the counts and the queued updates", found, recount)
        self._number += 1
        shown = {f"{fruit}, value of cq": found[fruit] for fruit in FRUITS}
        shown |= {f"{fruit}, recount": recount[fruit] for fruit in FRUITS}
        shown["comparisons"] = self._number
        shown |= {f"restarts of killed {kind}s": self._kills[kind] for kind in ("adder", "worker")}
        transact(self._db, lambda tr: cq.CombineQueue(COMPARED).add(tr, shown))

    def _read(self, tr: Transaction) -> dict[str, int | None]:
        """The counts with the queued updates; counts the new baskets, too, at the same version."""
        counts = {fruit: cq.CombineQueue(QUEUE).get(tr.snapshot, fruit, pending=True) for fruit in FRUITS}
        for row in tr.snapshot.get_range(self._begin, prefix_end(BASKETS)).to_list():
            self._counts.update(json.loads(row.value))
            self._baskets += 1
            self._begin = after(row.key)  # rows are in the order of their commits
        return counts

    def finish(self) -> Figures:
        """The figures, after a last comparison. Raises `DemoDiffers`."""
        transact(self._db, self._read)
        values = dict(sorted(cq.CombineQueue(QUEUE).scan(self._db)))
        compare("the counts", values, self._counts)
        return {
            "values": values,
            "recount": self._counts,
            "baskets": self._baskets,
            "comparisons": self._number + 1,
        }


# The adders


def add_baskets(stop: Event, *, url: str) -> None:
    """Put baskets into the store, until it says that the demo ends."""
    db = cq.open(url)
    rng = secrets.SystemRandom()
    while not stop.wait(1 / _BASKETS_PER_SECOND):
        basket = Counter(rng.choices(FRUITS, _WEIGHTS, k=_BASKET))
        if not transact(db, partial(put_basket, basket=basket)):
            return


def put_basket(tr: Transaction, basket: Mapping[str, int]) -> bool:
    """Store a basket and count its fruit, unless the demo ends."""
    if tr.snapshot.get(_END).present():
        return False
    tr.set_versionstamped_key(stamped(BASKETS), json.dumps(basket).encode())
    cq.CombineQueue(QUEUE).add(tr, basket)
    return True
