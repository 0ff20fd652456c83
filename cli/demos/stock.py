"""`cq demo stock`: buyers buy from two shops and spend one budget, while they and the workers are killed.

Each purchase reserves its price, takes a piece, and settles the price. A transaction counts the answer to one request,
stores what to do next and asks for it. A buyer that was killed while it reserved makes another purchase: its hold
expires, and others spend the amount. A buyer whose hold has expired before it could settle puts the piece back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from functools import partial
from random import Random
from threading import Event
from typing import Any, Final

import cq
from cq import deciders, runtime
from cq.cli.demos.command import StockOptions
from cq.cli.demos.harness import (
    DemoDiffers,
    DemoRun,
    Figures,
    check,
    compare,
    compare_queue,
    delete_earlier,
    numbered,
    workers,
)
from cq.cli.shared.options import make_store
from cq.cli.shared.output import note, print_table, quantity
from cq.encoding import codec
from cq.keys import below
from cq.store.api import Database, Transaction, TransactionRead
from cq.store.bounded_reads import scan_rows
from cq.store.transact import transact

STOCK: Final = "demo_stock"
"""The queue of the pieces that are left, by shop and day."""
BUDGET: Final = "demo_stock_budget"
"""The queue of budgets, by day."""
QUEUES: Final = (STOCK, BUDGET)
PRICES: Final = {"north": 1, "south": 2}
NORTH: Final = 0.8
"""The share of purchases that begin in the shop north: so it is sold out before the budget is spent."""
KEYS: Final = b"demo_stock/"
_BUYERS: Final = KEYS + b"buyer/"
_COUNTS: Final = KEYS + b"count/"
_CLOSED: Final = KEYS + b"closed"
TTL: Final = 2.0
"""Seconds after which holds expire."""
_LATE: Final = 1.0
"""Seconds after which an expired hold must be free."""
_WAIT: Final = 0.1
_ANSWER_SECONDS: Final = 120.0
_KEEP: Final = 300
"""Seconds for which answers are kept: longer than a restarted buyer needs to read one."""
_USABLE: Final = 0.99

_stock: cq.CombineQueue[tuple[str, int], int] = cq.CombineQueue(STOCK)
_budget: cq.CombineQueue[int, dict[str, Any]] = cq.CombineQueue(BUDGET)


@dataclass(frozen=True)
class Purchase:
    """A purchase of a buyer, with the request that is under way.

    Attributes:
        buyer, number: name it.
        day: whose budget it spends.
        shop: where.
        step: what is asked: "reserve", "buy", "settle", "release", "put back"; "" at the end.
        ticket: of the request.
    """

    buyer: int
    number: int
    day: int
    shop: str
    step: str
    ticket: str

    @property
    def hold(self) -> str:
        """The name of its hold."""
        return f"{self.buyer}-{self.number}"

    @property
    def queue(self) -> cq.CombineQueue[Any, Any]:
        """The queue that answers."""
        return _stock if self.step in ("buy", "put back") else _budget

    def asked(self, tr: Transaction) -> Purchase:
        """Ask for the step in a transaction, and store the purchase; returns it with the ticket."""
        price, ticket = PRICES[self.shop], ""
        if self.step:
            asked: Any = {
                "reserve": deciders.reserve(price, self.hold, ttl=TTL),
                "buy": -1,
                "settle": deciders.settle(self.hold, price),
                "release": deciders.release(self.hold),
                "put back": 1,
            }[self.step]
            ticket = self.queue.ask(tr, self.day if self.queue is _budget else (self.shop, self.day), asked)
        found = replace(self, ticket=ticket)
        tr.set(_BUYERS + b"%d" % self.buyer, codec.encode(list(astuple(found))))
        return found


# The demo


def run(options: StockOptions, demo: DemoRun) -> Figures:
    """Run the demo; returns its figures."""
    db, url, cap = make_store(options.store), options.store, options.cap - options.cap % 4
    make_queues(db, cap)
    free, found = math.inf, Figures()

    def look() -> str:
        return quantity(sum(each.number for each in check_bounds(db, cap)), "purchase")

    def close() -> None:
        transact(db, lambda tr: tr.set(_CLOSED, b""))

    def is_recounted() -> bool:
        """Recount, while there are workers, once all holds must have expired."""
        nonlocal free
        free = min(free, runtime.monotonic() + TTL + _LATE)
        if runtime.monotonic() < free:
            return False
        found.update(recount(db, cap))
        return True

    buy = partial(run_buyer, url=url, seed=demo.seed)
    buyers = numbered("buyer", (partial(buy, buyer=n) for n in range(options.processes)))
    work = workers(options.workers, url, QUEUES)
    return demo.complete(buyers, work, look, is_recounted, close, options.seconds) | found


def make_queues(db: Database, cap: int) -> None:
    """Create the queues, and delete all data of an earlier demo. Each shop has half as many pieces as the cap."""
    delete_earlier(db, KEYS, QUEUES)
    pieces = cap // 2
    cq.configure(
        db, STOCK, key=(str, int), value=int, decider=deciders.bounded(0, pieces, start=pieces, keep=_KEEP)
    )
    cq.configure(db, BUDGET, key=int, value=dict, decider=deciders.budget(cap, keep=_KEEP))


def stored_purchases(tr: TransactionRead) -> list[Purchase]:
    """The purchase of each buyer."""
    return [Purchase(*codec.decode(row.value)) for row in tr.get_range(*below(_BUYERS))]


def check_bounds(db: Database, cap: int) -> list[Purchase]:
    """Check the shops and budgets of the days of all buyers, as they are now; returns the purchases.

    Raises `DemoDiffers` if something is oversold or overspent.
    """

    def read(tr: Transaction) -> tuple[list[Purchase], dict[Any, int | None], dict[int, Any]]:
        purchases = stored_purchases(tr.snapshot)
        days = sorted({each.day for each in purchases})
        places = [(shop, day) for shop in PRICES for day in days]
        return purchases, _stock.get_many(tr.snapshot, places), _budget.get_many(tr.snapshot, days)

    purchases, stock, budgets = transact(db, read)
    for (shop, day), pieces in stock.items():
        is_possible = pieces is None or 0 <= pieces <= cap // 2
        check(is_possible, f"the shop {shop} has {pieces} of {cap // 2} pieces on day {day}")
    for day, book in budgets.items():
        used = book["spent"] + sum(hold[0] for hold in book["holds"].values()) if book else 0
        check(used <= cap, f"more than {cap} are spent and reserved on day {day}: {book}")
    return purchases


def recount(db: Database, cap: int) -> Figures:
    """Compare the states with the answers that the buyers got, and spend the rest of the budgets; returns the figures.

    It asks the workers. Raises `DemoDiffers`.
    """
    counts = counted(db)
    books = dict(_budget.scan(db))
    answers = {place: cap // 2 + counts[place] for place in counts if place[0] in PRICES}
    compare_queue(db, "the pieces that are left", STOCK, answers)
    spent = {day: counts["charged", day] for day in books}
    compare("the spent amounts", {day: book["spent"] for day, book in books.items()}, spent)
    paid = {day: sum(-price * counts[shop, day] for shop, price in PRICES.items()) for day in books}
    compare("the prices of what is sold", paid, spent)
    usable = {day: amount + _spend(db, day, cap - amount) for day, amount in spent.items()}
    share = sum(usable.values()) / (cap * len(usable))
    check(share >= _USABLE, f"only {share:.1%} of the budgets were usable: {usable}")
    totals: Counter[str] = Counter()
    for (what, _), number in counts.items():
        totals[what] += number
    return {
        "days": len(books),
        "decisions": totals["decisions"],
        "abandoned": totals["abandoned"],
        "put_back": totals["put back"],
        "refused": totals["refused"],
        "shops": {shop: {"price": price, "sold": -totals[shop]} for shop, price in PRICES.items()},
        "spent": totals["charged"],
        "cap": cap * len(books),
        "usable": round(share, 4),
    }


def counted(db: Database) -> Counter[tuple[str, int]]:
    """{(what, day): sum over the answers of all buyers}."""
    counts: Counter[tuple[str, int]] = Counter()
    for key, value in scan_rows(db, *below(_COUNTS)):
        what, day = codec.decode(key.removeprefix(_COUNTS))
        counts[what, day] = int.from_bytes(value, "little", signed=True)
    return counts


def _spend(db: Database, day: int, rest: int) -> int:
    """Spend the rest of a budget; returns the amount that was charged, 0 if the rest was not free."""
    if not rest:
        return 0
    _budget.ask_now(db, day, deciders.reserve(rest, "rest", ttl=60), timeout=_ANSWER_SECONDS)
    found: int = _budget.ask_now(db, day, deciders.settle("rest", rest), timeout=_ANSWER_SECONDS)["charged"]
    return found


def show(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    rows = (
        [shop, f"{each['price']}", f"{each['sold']:,}", f"{each['price'] * each['sold']:,}"]
        for shop, each in figures["shops"].items()
    )
    print_table(["shop", "price", "sold", "paid"], rows, right=["price", "sold", "paid"])
    note(
        f"budgets of {quantity(figures['days'], 'day')}: {figures['spent']:,} of {figures['cap']:,} spent; with what "
        f"was free {TTL + _LATE:g} s after the last purchase, {figures['usable']:.1%} usable"
    )
    note(
        f"{quantity(figures['decisions'], 'decision')}, of which {figures['refused']:,} refused; "
        f"{quantity(figures['abandoned'], 'abandoned hold')} expired, "
        f"{quantity(figures['put_back'], 'piece')} put back: nothing oversold"
    )


# The buyers


def run_buyer(stop: Event, *, url: str, buyer: int, seed: int) -> None:
    """Buy until the shops close; goes on with the stored purchase."""
    db: Any = cq.open(url)
    _Buyer(db, buyer, Random(f"{seed} {buyer}"), stop).run()  # noqa: S311 - a load that can be repeated


_NextStep = tuple[Mapping[str, int], Purchase]
"""The counts that an answer adds to, and the next step of the purchase."""


class _Buyer:
    def __init__(self, db: Database, number: int, rng: Random, stop: Event) -> None:
        self._db, self._number, self._rng, self._stop = db, number, rng, stop
        self._key = _BUYERS + b"%d" % number
        self._sold_out: set[str] = set()

    def run(self) -> None:
        purchase = transact(self._db, self._stored)
        is_abandoned = purchase is not None and purchase.step == "reserve"
        if purchase is None:
            first = Purchase(self._number, 0, 1, self._shop(), "reserve", "")
            purchase = transact(self._db, lambda tr: self._stored(tr) or first.asked(tr))
        while purchase.step and not self._stop.is_set():
            answer = purchase.queue.answer(self._db, purchase.ticket, _ANSWER_SECONDS)
            if is_abandoned:  # the hold of a killed buyer is left to expire
                step: _NextStep = {"abandoned": int(answer["ok"])}, self._another(purchase)
            else:
                step = self._next(purchase, answer)
            purchase = transact(self._db, partial(self._count, purchase, step))
            is_abandoned = False

    def _stored(self, tr: TransactionRead) -> Purchase | None:
        stored = tr.get(self._key).value
        return None if stored is None else Purchase(*codec.decode(stored))

    def _count(self, purchase: Purchase, step: _NextStep, tr: Transaction) -> Purchase:
        """Count an answer, and ask for the next step, in one transaction; returns the purchase with its ticket."""
        stored = self._stored(tr)
        if stored is not None and stored != purchase:  # an earlier try has committed
            return stored
        counts, next_ = step
        for what, number in {**counts, "decisions": 1}.items():
            tr.add(_COUNTS + codec.encode([what, purchase.day]), number.to_bytes(8, "little", signed=True))
        is_last = next_.step == "reserve" and tr.snapshot.get(_CLOSED).value is not None
        return (replace(next_, step="") if is_last else next_).asked(tr)

    def _next(self, purchase: Purchase, answer: Any) -> _NextStep:
        shop, price = purchase.shop, PRICES[purchase.shop]
        match purchase.step, answer:
            case "reserve", {"ok": True}:
                return {}, replace(purchase, step="buy")
            case "reserve", {"free": free}:
                return {"refused": 1}, self._after_refusal(purchase, free)
            case "buy", -1:
                return {shop: -1}, replace(purchase, step="settle")
            case "buy", 0:
                self._sold_out.add(shop)
                return {"refused": 1}, replace(purchase, step="release")
            case "settle", {"charged": charged}:
                # The hold has expired, as the buyer or the workers were killed: the piece is not paid.
                next_ = self._another(purchase) if charged == price else replace(purchase, step="put back")
                return {"charged": charged}, next_
            case "put back", 1:
                return {shop: 1, "put back": 1}, self._another(purchase)
            case "release", _:
                return {}, self._another(purchase)
        raise DemoDiffers(f"the answer to {purchase} is {answer}")

    def _another(self, purchase: Purchase) -> Purchase:
        return replace(purchase, number=purchase.number + 1, shop=self._shop(), step="reserve")

    def _after_refusal(self, purchase: Purchase, free: int) -> Purchase:
        """The next purchase: for less, later, or on the next day if the whole budget is spent."""
        if free:
            return replace(self._another(purchase), shop="north")
        book = transact(self._db, lambda tr: _budget.get(tr.snapshot, purchase.day))
        if book is not None and book["spent"] == book["cap"]:
            self._sold_out.clear()
            return replace(self._another(purchase), day=purchase.day + 1)
        self._stop.wait(_WAIT)
        return self._another(purchase)

    def _shop(self) -> str:
        if "north" in self._sold_out:
            return "south"
        return "north" if self._rng.random() < NORTH else "south"
