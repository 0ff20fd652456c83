"""Measurement of the cost of counting visits, for docs/systems/visits.md: `python docs/measure_visits.py [--rounds N]`.

A small forum, served by one process, answers a few clients: without counting visits, with a row per request in a SQL
table, and with cq. The variants alternate every few seconds, so that other load on the machine affects all of them
equally. At the end each must have counted every answered request. Needs the extra `web`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import socket
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from html import escape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route

import cq
from cq.observers.visits import VisitEmitter, Visits
from cq.observers.worker import Worker

KINDS = ("none", "row", "emitter", "add", "slow")
CQ_KINDS = ("emitter", "add", "slow")
TOPICS, POSTS, WORDS = 50, 130, 400
CLIENTS = 6
SLOW_SECONDS = 0.3
SMILEYS = {":-)": "&#128578;", ":-(": "&#128577;", ";-)": "&#128521;"}


class SlowDatabase:
    """A database with slow transactions, as on a machine that is too busy to run the committing thread."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def __getattr__(self, what: str) -> Any:
        return getattr(self._db, what)

    def create_transaction(self) -> Any:
        time.sleep(SLOW_SECONDS)
        return self._db.create_transaction()


def make_forum(path: Path) -> None:
    """Create topics with posts in a SQLite file, and the table of the row-per-request variant."""
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(2_000)] + list(SMILEYS)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE posts (topic INTEGER, text TEXT)")
        connection.execute("CREATE INDEX posts_topic ON posts (topic)")
        connection.execute("CREATE TABLE visits (time REAL, page TEXT, visitor TEXT)")
        connection.execute("CREATE INDEX visits_time ON visits (time)")
        rows = [(number % TOPICS, " ".join(rng.choices(words, k=WORDS))) for number in range(TOPICS * POSTS)]
        connection.executemany("INSERT INTO posts VALUES (?, ?)", rows)
    connection.close()


class Forum:
    """The application: pages of topics, under the name of the variant that counts their visits."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._local = threading.local()
        self._db = cq.open(f"embedded:{folder / 'cq.db'}")
        self._added = Visits("add")
        self._count: dict[str, Callable[[str, str], object]] = {
            "none": lambda page, visitor: None,
            "row": self._insert,
            "add": lambda page, visitor: cq.transact(
                self._db, lambda tr: self._added.count(tr, page, visitor)
            ),
        }

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> Any:
        """Open the emitters, and close them at the end."""
        with ExitStack() as stack:
            for kind, db in (("emitter", self._db), ("slow", SlowDatabase(self._db))):
                emitter = stack.enter_context(VisitEmitter(Visits(kind), db, every=1.0, timeout=60.0))
                self._count[kind] = emitter.count
            yield

    def topic(self, request: Request) -> HTMLResponse:
        """Return a topic's page, made for each request in a thread of the server's pool."""
        self._count[request.path_params["kind"]](request.url.path, request.headers["x-visitor"])
        rows = self._connection().execute(
            "SELECT text FROM posts WHERE topic = ?", (request.path_params["topic"],)
        )
        posts = "".join(
            f"<p>{' '.join(SMILEYS.get(word) or escape(word) for word in text.split())}</p>"
            for (text,) in rows
        )
        return HTMLResponse(f"<!doctype html><title>Topic</title>{posts}")

    async def processor(self, request: Request) -> PlainTextResponse:
        """Return the processor seconds of the server, which other programs do not affect."""
        return PlainTextResponse(str(time.process_time()))

    def _insert(self, page: str, visitor: str) -> None:
        with self._connection() as connection:
            connection.execute("INSERT INTO visits VALUES (?, ?, ?)", (time.time(), page, visitor))

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(self._folder / "forum.db", timeout=60.0)
        connection: sqlite3.Connection = self._local.connection
        return connection


def serve(folder: Path, port: int) -> None:
    """Run the server; in a process of its own."""
    forum = Forum(folder)
    app = Starlette(
        routes=[Route("/{kind}/{topic:int}", forum.topic), Route("/processor", forum.processor)],
        lifespan=forum.lifespan,
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def work(folder: Path) -> None:
    """Run a worker; in a process of its own."""
    Worker(cq.open(f"embedded:{folder / 'cq.db'}")).run()


def used(port: int) -> float:
    """Return the processor seconds that the server has used."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60.0)
    connection.request("GET", "/processor")
    seconds = float(connection.getresponse().read())
    connection.close()
    return seconds


def load(port: int, kind: str, seconds: float) -> int:
    """Return the number of requests answered in `seconds`; each client sends one after the other."""
    until = time.monotonic() + seconds
    answered = [0] * CLIENTS

    def ask(client: int) -> None:
        rng = random.Random()
        connection = HTTPConnection("127.0.0.1", port, timeout=60.0)
        while time.monotonic() < until:
            headers = {"x-visitor": f"visitor {rng.randrange(500)}"}
            connection.request("GET", f"/{kind}/{rng.randrange(TOPICS)}", headers=headers)
            response = connection.getresponse()
            response.read()
            assert response.status == 200
            answered[client] += 1
        connection.close()

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered)


@contextmanager
def halting(process: Any) -> Iterator[None]:
    """Stop the worker half of the time."""
    over = threading.Event()

    def halt() -> None:
        while not over.wait(0.5):
            os.kill(process.pid, signal.SIGSTOP)
            over.wait(0.5)
            os.kill(process.pid, signal.SIGCONT)

    thread = threading.Thread(target=halt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def counted(folder: Path) -> dict[str, int]:
    """Return the number of visits that each variant has counted."""
    db = cq.open(f"embedded:{folder / 'cq.db'}")
    Worker(db).drain()
    found = {kind: sum(number for _, number in Visits(kind).lifetime.scan(db)) for kind in CQ_KINDS}
    with sqlite3.connect(folder / "forum.db") as connection:
        (rows,) = connection.execute("SELECT count(*) FROM visits").fetchone()
    connection.close()
    return {"row": int(rows), **found}


def measure(folder: Path, rounds: int, seconds: float) -> None:
    """Run all variants, and print the results."""
    make_forum(folder / "forum.db")
    db = cq.open(f"embedded:{folder / 'cq.db'}")
    for kind in CQ_KINDS:
        Visits(kind).configure(db, window=(600, 10), buckets=2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    server, worker = (
        context.Process(target=serve, args=(folder, port)),
        context.Process(target=work, args=(folder,)),
    )
    server.start()
    worker.start()
    try:
        answered, pairs = ask_in_turns(port, worker, rounds, seconds)
    finally:
        server.terminate()
        server.join()
        worker.terminate()
        worker.join()
    report(answered, pairs, counted(folder))


class Turn(NamedTuple):
    """The result of a turn: requests per second, and processor milliseconds of the server per request."""

    rate: float
    cost: float


class Pair(NamedTuple):
    """A turn of a variant, and the turn without counting just before it."""

    turn: Turn
    base: Turn


def ask_in_turns(
    port: int, worker: Any, rounds: int, seconds: float
) -> tuple[dict[str, int], dict[str, list[Pair]]]:
    """Return {kind: requests answered}, and {kind: its turns}, each with the turn without counting before it."""
    until = time.monotonic() + 60
    while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
        time.sleep(0.1)
    answered, pairs = dict.fromkeys(KINDS, 0), {kind: list[Pair]() for kind in KINDS[1:]}

    def turn(kind: str) -> Turn:
        begun, before = time.monotonic(), used(port)
        requests = load(port, kind, seconds)
        answered[kind] += requests
        rate = requests / (time.monotonic() - begun)
        return Turn(rate, 1000 * (used(port) - before) / requests)

    for kind in KINDS:
        turn(kind)  # to warm up
    for _ in range(rounds):
        for kind in KINDS[1:]:
            base = turn("none")
            with halting(worker) if kind == "slow" else nullcontext():
                pairs[kind].append(Pair(turn(kind), base))
    return answered, pairs


def report(answered: dict[str, int], pairs: dict[str, list[Pair]], found: dict[str, int]) -> None:
    """Print medians: of all turns without counting, and of each variant, also as shares of the turns before."""
    bases = [pair.base for some in pairs.values() for pair in some]
    print(f"{'none':8} {_middle([each.rate for each in bases]):6.1f} requests/s, {_cost(bases)}")
    for kind, some in pairs.items():
        shares = [turn.rate / base.rate for turn, base in some]
        turns = [pair.turn for pair in some]
        print(
            f"{kind:8} {_middle([each.rate for each in turns]):6.1f} requests/s, {_middle(shares):.3f} of none "
            f"({min(shares):.3f} to {max(shares):.3f}), {_cost(turns)}, "
            f"{answered[kind] - found[kind]:,} of {answered[kind]:,} visits lost"
        )


def _middle(numbers: list[float]) -> float:
    return statistics.median(numbers)


def _cost(turns: list[Turn]) -> str:
    return f"{_middle([turn.cost for turn in turns]):.2f} ms of a processor for each"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        measure(Path(name), asked.rounds, asked.seconds)
