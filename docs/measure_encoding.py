"""Measurement of cq/encoding/cbor.py, for docs/understand/benchmarks.md.

Run it by `python docs/measure_encoding.py [--rounds N]`.

Adds and passes of the same updates, once with the room's encoder and once with cbor2's, in turns of random order. The
times are processor times of the process; the figure is the median of the ratios of all rounds.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cbor2

import cq
from cq.bucket.pass_runner import PassRunner
from cq.config.queue import read_config
from cq.encoding import codec
from cq.observers.builtin import FACTORIES
from cq.passes import repacking
from cq.store.embedded import Database
from cq.store.transact import transact

SIZES = (5, 100, 5000)
KEYS = 100_000
WORDS = [f"word{number}" for number in range(KEYS)]
WEIGHTS = [1 / (number + 1) for number in range(KEYS)]


def plain() -> AbstractContextManager[Any]:
    """A context in which each item takes a call of cbor2's encoder."""

    def encode(items: Sequence[Any]) -> list[bytes]:
        return list(map(cbor2.dumps, items))

    stack = ExitStack()
    stack.enter_context(patch.dict(codec._ENCODERS, dict.fromkeys(codec._ENCODERS, encode)))
    stack.enter_context(patch.object(codec, "encode_ints", encode))
    stack.enter_context(patch.object(repacking, "encode_strings", encode))
    return stack


def seconds(db: Any, transactions: list[dict[str, int]]) -> tuple[float, float]:
    """Add these updates, then combine them; returns the processor time of each."""
    queue = cq.CombineQueue("words")
    runner = PassRunner(db, cq.App().code(transact(db, lambda tr: read_config(tr, "words")), FACTORIES), 0)
    gc.collect()
    begin = time.process_time()
    for updates in transactions:
        transact(db, lambda tr, updates=updates: queue.add(tr, updates))
    added = time.process_time()
    while runner.combine().more:
        pass
    return added - begin, time.process_time() - added


def measure(folder: Path, size: int, rounds: int) -> tuple[float, float]:
    """The time of an add and of the passes with cbor2's encoder, as multiples of those with cq's."""
    variants = {"cq": ExitStack, "cbor2": plain}
    dbs = {name: Database(folder / f"{name}.db", power_safe=False) for name in variants}
    for db in dbs.values():
        cq.configure(db, "words", buckets=1)
    rng, ratios = random.Random(1), []
    updates = 5_000 if size < 100 else 100_000
    for _ in range(1 + rounds):
        drawn = rng.choices(WORDS, WEIGHTS, k=updates)
        parts = [dict.fromkeys(drawn[first : first + size], 1) for first in range(0, updates, size)]
        times = {}
        for name in rng.sample(list(variants), len(variants)):
            with variants[name]():
                times[name] = seconds(dbs[name], parts)
        ratios.append([plain / own for plain, own in zip(times["cbor2"], times["cq"], strict=True)])
    for db in dbs.values():
        db.close()
    add, passes = (
        statistics.median(column) for column in zip(*ratios[1:], strict=True)
    )  # without the warm-up
    return add, passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="of each size (12)")
    rounds = parser.parse_args().rounds
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            add, passes = measure(Path(folder), size, rounds)
        print(
            f"{size:,} updates in a transaction: with cbor2's encoder an add takes {add:.2f}, a pass {passes:.2f}"
        )


if __name__ == "__main__":
    main()
