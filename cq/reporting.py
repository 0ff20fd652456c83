"""Telling the observers: of the changes of a pass, and of all values when they are new to the queue.

An observer that is enabled on a queue that holds values is told of these by the passes, piece by piece in the order of
the keys' hashes, each with None for the old value. How far it has been told is kept, for each observer and bucket, in
the bucket's state. Changes of keys up to there it is told as any observer is; of those beyond not yet, as it will be
told of their values. So each old value it gets is the new value it got before, and nothing is stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cq.app import QueueCode
from cq.changes import Change
from cq.errors import CqError
from cq.keys import QueueKeys
from cq.plaintext import printable
from cq.pressure import admitted
from cq.reading import read_values
from cq.state import BucketState
from cq.store.api import Transaction, error_code


class ReportFailed(CqError):
    """An observer has raised; the transaction holds what it wrote before, and must be thrown away."""


@dataclass(slots=True)
class Refill:
    """A piece of a bucket's values that an observer is told of for the first time.

    Attributes:
        generation: of the observer.
        before, reached: up to where it has been told before this piece, and with it (None for the end).
        values: [(encoded key, value)] of the piece.
    """

    generation: int
    before: bytes
    reached: bytes | None
    values: list[tuple[bytes, Any]] = field(default_factory=list)


def told_so_far(tr: Transaction, code: QueueCode, bucket: int, state: BucketState) -> dict[int, bytes | None]:
    """For the generation of each observer, up to where it has been told of the bucket's values; None for all.

    An observer that is new to a bucket without values has been told of all of them.
    """
    config = code.config
    told = {each.generation: state.observers.get(each.generation, b"") for each in config.observers}
    new = told.keys() - state.observers.keys()
    told.update({each: None for each in new if each <= config.told_before})
    new = {each for each in new if each > config.told_before}
    if new:
        bounds = QueueKeys(config.name).values_of_bucket(config.buckets, bucket)
        if not tr.snapshot.get_range(*bounds, limit=1).to_list():
            told.update(dict.fromkeys(new))
    return told


def read_refill(
    tr: Transaction,
    code: QueueCode,
    bucket: int,
    generation: int,
    before: bytes,
    limit: int,
    limit_bytes: int,
) -> Refill:
    """The next values to tell an observer of, as they are with what the transaction has written so far."""
    values, reached = read_values(tr, code.config, bucket, before, limit, limit_bytes)
    return Refill(generation, before, reached, values)


def tell(
    tr: Transaction,
    code: QueueCode,
    told_before: Mapping[int, bytes | None],
    changes: Sequence[tuple[bytes, Change]],
    refill: Refill | None,
) -> int:
    """Call every observer, in order, with what it is to be told; returns of how many changes they were told.

    Args:
        told_before: up to where each has been told of the bucket's values.
        changes: with the place of each key in hash order.
        refill: the piece that one of them is told of for the first time.

    Raises `ReportFailed` when one raises, or the store's `FDBError` if it raises one.
    """
    told = 0
    for observer, function in zip(code.config.observers, code.observers, strict=True):
        cursor = told_before[observer.generation]
        news = [change for where, change in changes if cursor is None or where <= cursor]
        if refill is not None and refill.generation == observer.generation:
            news += [Change(code.config.key.decode(encoded), None, value) for encoded, value in refill.values]
        if not news:
            continue
        told += len(news)
        try:
            with admitted():
                function(tr, news)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # Also SystemExit and CancelledError: an observer must not end its worker.
            if error_code(error) is not None:
                raise
            raise ReportFailed(f"observer {observer.name!r}: {describe(error)}") from error
    return told


def describe(error: BaseException) -> str:
    """An exception in one printable line, which can be stored whatever the exception contains."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - a foreign __str__
        text = f"(its message raises {type(failure).__name__})"
    return printable(f"{type(error).__name__}: {text}")
