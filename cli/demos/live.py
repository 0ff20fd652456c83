"""`cq demo live`: counts on the dashboard that stay equal to a recount while the processes that keep them are killed.

Adders put baskets of fruit into the store: a row for each basket, and updates of the fruit's counts in the same
transaction. Workers combine the updates. Twice a second the demo reads the counts and the new rows at one version of
the store, and compares them. What it compared is in another queue, whose page shows it.
"""

from __future__ import annotations

import json
import math
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
from cq.cli.demos.harness import DemoRun, Figures, compare, delete_earlier, killed, numbered, run_worker
from cq.cli.demos.options import LiveOptions
from cq.cli.shared.options import make_store
from cq.cli.shared.output import note, print_table, progress, quantity
from cq.cli.shared.processes import stop_on_signals
from cq.cli.web.command import WebOptions, server_module
from cq.keys import prefix_end
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
"""The prefix of the demo's own keys: the baskets, the number of starts, and the end."""
FRUITS: Final = ("apples", "oranges", "pears")
_WEIGHTS: Final = (4, 2, 1)
_BASKET: Final = 20
_END: Final = KEYS + b"end"
_STARTS: Final = KEYS + b"starts/"
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
    comparison = Comparison(db, options)
    with served(db, options) as address, progress(counted=False) as display:
        note(f"open {address}")
        note(
            f"{quantity(options.adders, 'adder')} and {quantity(options.workers, 'worker')} keep counts of fruit, and "
            f"about every {options.kill_every:g} s one of these processes is killed. The page has the counts and a "
            "recount. ^C ends the demo."
        )
        shown = display.add_task("")

        def look() -> None:
            comparison.look()
            display.update(shown, description=comparison.text())

        stop_on_signals(comparison.stop)
        figures = demo.complete(
            numbered("adder", (partial(add_baskets, url=url, number=n) for n in range(options.adders))),
            numbered(
                "worker", (partial(run_counted_worker, url=url, number=n) for n in range(options.workers))
            ),
            look,
            lambda: all(is_drained(db, name) for name in QUEUES),
            math.inf,
        )
    return figures | comparison.finish() | {"store": url}


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    recount = figures["recount"]
    rows = [[fruit, f"{number:,}", f"{recount[fruit]:,}"] for fruit, number in figures["values"].items()]
    print_table(["fruit", "value of cq", "recount"], rows, right=["value of cq", "recount"])
    note(
        f"{quantity(figures['baskets'], 'basket')} in {figures['seconds']:.0f} s, {killed(figures)}, "
        f"{quantity(figures['comparisons'], 'comparison')}: all equal"
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
        options: of the demo.
    """

    def __init__(self, db: Database, options: LiveOptions) -> None:
        self._db = db
        self._baskets = Baskets(options.adders)
        self._processes = {"adders": options.adders, "workers": options.workers}
        self._until = runtime.monotonic() + options.seconds
        self._next = runtime.monotonic()
        self._stopped = runtime.event()
        self._is_ended = False
        self._number = 0

    def stop(self) -> None:
        """Let the adders end; for any thread."""
        self._stopped.set()

    def look(self) -> None:
        """Compare, if it is time; end the adders, if it is time. Raises `DemoDiffers`."""
        now = runtime.monotonic()
        if now >= self._next:
            self.compare()
            self._next = now + _COMPARE_SECONDS
        if not self._is_ended and (self._stopped.is_set() or now >= self._until):
            transact(self._db, lambda tr: tr.set(_END, b""))
            self._is_ended = True

    def text(self) -> str:
        """The state in words."""
        number = self._baskets.number
        return f"{quantity(number, 'basket')}, {quantity(self._number, 'comparison')}: all equal"

    def finish(self) -> Figures:
        """The figures, after a last comparison with a recount of all baskets. Raises `DemoDiffers`."""
        recount = Baskets(self._baskets.adders)
        transact(self._db, recount.read)
        values = dict(sorted(_queue(QUEUE).scan(self._db)))
        compare("the counts", values, recount.counts)
        return {
            "values": values,
            "recount": recount.counts,
            "baskets": recount.number,
            "comparisons": self._number + 1,
        }

    def compare(self) -> None:
        """Compare once, and report the numbers. Raises `DemoDiffers`."""
        counts, starts = transact(self._db, self._read)
        found = {fruit: count or 0 for fruit, count in counts.items()}
        recount = {fruit: self._baskets.counts[fruit] for fruit in FRUITS}
        compare("the counts and the queued updates", found, recount)
        self._number += 1
        shown = {f"{fruit}, value of cq": found[fruit] for fruit in FRUITS}
        shown |= {f"{fruit}, recount": recount[fruit] for fruit in FRUITS}
        shown["comparisons"] = self._number
        for kind, number in self._processes.items():
            shown[f"restarts of killed {kind}"] = max(0, starts[kind] - number)
        transact(self._db, lambda tr: _queue(COMPARED).add(tr, shown))

    def _read(self, tr: Transaction) -> tuple[dict[str, int | None], dict[str, int]]:
        """The counts with the queued updates, and the starts; reads the new baskets at the same version."""
        self._baskets.read(tr)
        counts = {fruit: _queue(QUEUE).get(tr.snapshot, fruit, pending=True) for fruit in FRUITS}
        return counts, {kind: _number(tr.snapshot.get(_starts(kind)).value) for kind in self._processes}


class Baskets:
    """The baskets that have been read.

    Args:
        adders: number of adders.

    Attributes:
        counts: {fruit: its number in all of them}.
        number: their number.
    """

    def __init__(self, adders: int) -> None:
        self.adders = adders
        self.counts: Counter[str] = Counter()
        self.number = 0
        self._read = [_baskets(number) for number in range(adders)]

    def read(self, tr: Transaction) -> None:
        """Read the baskets that are new."""
        found = [
            list(tr.snapshot.get_range(begin, prefix_end(_baskets(number))))
            for number, begin in enumerate(self._read)
        ]
        for number, rows in enumerate(found):  # after all reads: a retry reads them again
            for row in rows:
                self.counts.update(json.loads(row.value))
                self._read[number] = bytes(row.key) + b"\0"
            self.number += len(rows)


def _baskets(adder: int) -> bytes:
    return KEYS + b"basket/%d/" % adder


def _starts(kind: str) -> bytes:
    return _STARTS + kind.encode()


def _number(stored: Any) -> int:
    return int.from_bytes(bytes(stored or b""), "little")


# The processes


def add_baskets(stop: Event, *, url: str, number: int) -> None:
    """Put baskets into the store, until it says that the demo ends."""
    db = cq.open(url)
    rng = secrets.SystemRandom()
    place = transact(db, partial(_begun, prefix=_baskets(number)))
    while not stop.wait(1 / _BASKETS_PER_SECOND):
        basket = Counter(rng.choices(FRUITS, _WEIGHTS, k=_BASKET))
        if not transact(db, partial(put_basket, row=_baskets(number) + b"%012d" % place, basket=basket)):
            return
        place += 1


def _begun(tr: Transaction, prefix: bytes) -> int:
    """Count a start; returns the place of the adder's next basket."""
    _count_start(tr, "adders")
    last = list(tr.get_range(prefix, prefix_end(prefix), limit=1, reverse=True))
    return int(bytes(last[0].key).removeprefix(prefix)) + 1 if last else 0


def put_basket(tr: Transaction, row: bytes, basket: Mapping[str, int]) -> bool:
    """Store a basket and count its fruit, unless the demo ends."""
    if tr.snapshot.get(_END).present():
        return False
    if not tr.get(row).present():  # else an earlier try has committed
        tr.set(row, json.dumps(basket).encode())
        _queue(QUEUE).add(tr, basket)
    return True


def run_counted_worker(stop: Event, *, url: str, number: int) -> None:
    """Count a start, and run a worker."""
    transact(cq.open(url), lambda tr: _count_start(tr, "workers"))
    run_worker(stop, url=url, queues=QUEUES, identity=f"demo-{number + 1}")


def _count_start(tr: Transaction, kind: str) -> None:
    tr.add(_starts(kind), (1).to_bytes(8, "little"))


def _queue(name: str) -> cq.CombineQueue[str, int]:
    return cq.CombineQueue(name)
