"""Damaged sketches in the values that a command prints: it prints all others, and then names the keys of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import typer

from cq.app import App
from cq.cli.shared.exit_status import NO_VALUE, Refused
from cq.cli.shared.output import print_line
from cq.combiners import Combiner, built_in_combiner
from cq.config.queue import QueueConfig
from cq.encoding.codec import brief
from cq.encoding.sketches import Sketch
from cq.errors import InvalidData

_SHOWN: Final = 10


class DamagedSketches:
    """The keys of the damaged sketches that a command has found."""

    def __init__(self) -> None:
        self._keys: dict[Any, None] = {}

    def sound(self, key: Any, value: Any) -> Any:
        """The value; None instead of a damaged sketch, whose key is kept for `refuse`."""
        if not _is_damaged(value):
            return value
        self._keys[key] = None
        return None

    def refuse(self, queue: str) -> None:
        """Raise `Refused` if any sketch was damaged; `queue` is the name of the queue or level with the sketches."""
        keys = list(self._keys)
        if keys:
            more = f" and {len(keys) - _SHOWN:,} more" if len(keys) > _SHOWN else ""
            raise Refused(
                f"queue {queue!r} has damaged sketches, whose rows are printed without a value, of the keys "
                f"{', '.join(map(brief, keys[:_SHOWN]))}{more}: see `cq verify {queue}`"
            )


def print_values(pairs: Iterable[tuple[Any, Any]], queue: str, *, json: bool) -> None:
    """Print a line for each key with its value, and then raise an error for damaged sketches and for missing values.

    Raises `Refused` as `DamagedSketches.refuse`, and `typer.Exit` if a key has no value.
    """
    damaged = DamagedSketches()
    values = [(key, damaged.sound(key, value)) for key, value in pairs]
    for key, value in values:
        print_line(json, key=key, value=value)
    damaged.refuse(queue)
    if any(value is None for _, value in values):
        raise typer.Exit(NO_VALUE)


def reading_combiner(app: App | None, config: QueueConfig) -> Combiner | None:
    """The queue's combiner for reads of a command: with a damaged sketch among the values, it returns this sketch.

    The queue's own combiner raises an error for a damaged sketch, which would hide all sound values of the read.
    Returns None for a combiner of the application without `app`. Raises the errors of `App.code`.
    """
    combiner = app.code(config).combiner if app else built_in_combiner(config.combiner.name)
    return combiner if combiner is None or config.value.sketch is None else _keeping_damage(combiner)


def _keeping_damage(combiner: Combiner) -> Combiner:
    def combine(key: Any, values: Sequence[Any]) -> Any:
        damaged = [value for value in values if _is_damaged(value)]
        return damaged[0] if damaged else combiner.combine(key, values)

    def is_empty(value: Any) -> bool:
        return not _is_damaged(value) and combiner.is_empty(value)

    return replace(combiner, combine=combine, is_empty=is_empty)


def _is_damaged(value: Any) -> bool:
    try:
        if isinstance(value, Sketch):
            value.check()
    except InvalidData:
        return True
    return False
