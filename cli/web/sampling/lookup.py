"""The value of one key, for an operator who looks it up: one transaction for each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import cq
from cq.cli.web.sampling.problems import problem_of
from cq.config.queue import QueueConfig, read_config
from cq.durations import duration
from cq.encoding.codec import ValueType
from cq.encoding.json_values import key_from_word
from cq.plain_text import describe
from cq.store import OpenDatabase
from cq.store.api import Transaction, TransactionRead
from cq.store.transact import transact
from cq.windows.window import reader_of

SLOTS: Final = 60
"""Periods of a roll-up that a lookup reads, at most one more."""


@dataclass(frozen=True, slots=True)
class KeySeries:
    """The values of a key by the periods of one level of a roll-up.

    Attributes:
        levels: the names of all levels, such as `1h`, the finest first.
        level: the name of this level.
        period: the length of its periods, in seconds.
        type: the type of the values.
        slots: (start in seconds since 1970, value); None for a period without a value.
    """

    levels: Sequence[str]
    level: str
    period: int
    type: ValueType
    slots: Sequence[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to a lookup.

    Attributes:
        word: the key as the operator typed it.
        value: of the key; None without a value.
        problem: why the value is unknown; else empty.
        series: its values by periods; None for a queue without a roll-up.
    """

    word: str
    value: Any = None
    problem: str = ""
    series: KeySeries | None = None


def look_up(db: OpenDatabase, queue: str, word: str, by: str = "") -> Lookup:
    """The value of a key, as `cq get` reads it; `word` has the syntax of keys on the command line.

    If the queue has a roll-up, also its values by the periods of the level `by`, such as `1h`; by default, and if there
    is no such level, of the finest one.
    """

    def read(tr: Transaction) -> Lookup:
        config = read_config(tr.snapshot, queue)
        key = key_from_word(config.key, word)
        value = reader_of(config).get(tr.snapshot, key)
        return Lookup(word, value, series=_series(tr.snapshot, config, key, by))

    try:
        return transact(db, read)
    except Exception as error:  # noqa: BLE001 - also a combiner's, which stored values of another type make fail
        return Lookup(word, problem=problem_of(error) or describe(error))


def _series(tr: TransactionRead, config: QueueConfig, key: Any, by: str) -> KeySeries | None:
    if config.rollup is None:
        return None
    levels = {duration(each.period): each for each in config.rollup.levels}
    name = by if by in levels else next(iter(levels))
    period, retention = levels[name]
    span = SLOTS * period if retention is None else min(SLOTS * period, retention)
    # A sum without updates is 0. Other combiners, such as a minimum, have no such value.
    fill = 0 if config.combiner.name == "sum" else None
    # Slots of one period each need no combiner, so this also reads queues with a combiner of the application.
    slots = cq.CombineQueue[Any, Any](config.name).series(tr, key, last=span, by=period, fill=fill)
    return KeySeries(tuple(levels), name, period, config.value, slots)
