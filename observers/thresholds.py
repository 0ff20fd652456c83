"""Thresholds: each key that reaches a share of a cap, such as 80 %, is told once, as a new key of another queue.

The other queue has the keys of the first one with the share in percent, and the combiner `first`: so a value that
falls below a threshold and reaches it again changes nothing there. Its links and its feed tell each threshold exactly
once, as the pass that reports a value adds to the other queue in its own transaction. The keys of a level, such as
`spent.1d`, have the start of the period: so each threshold is told once in each period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, Final

from cq.config.queue import QueueConfig, read_config
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration
from cq.keys import check_name
from cq.observer import Change, ObserverFunction, ObserverSpec
from cq.observers.receiver import check_receiver
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Transaction, TransactionRead

NAME: Final = "thresholds"
VERSION: Final = 1
_NUMBERS: Final = ("int", "float", "decimal")
_EXACT: Final = Context(10_000, Emin=MIN_EMIN, Emax=MAX_EMAX)


def thresholds(into: str, *, cap: float | None = None, at: Sequence[int] = (80, 100)) -> ObserverSpec:
    """Return the observer that adds to another queue when a value reaches a share of a cap.

    Configure the other queue before, with the parts of the first one's keys and an int as keys, the combiner `first`,
    and the values of the first queue (int for a budget). Its keys are those of the first queue with the percents, its
    values those with which they were reached. Observe it, or give it a link, a feed and an expiry.

    Put it on a queue of numbers, on a level of it, such as `spent.1d`, for once per key and period, or on a queue with
    the decider `budget`, whose states have their own cap: what is spent counts. Keys that have values already are told
    of, too; each is told of once, also after the observer is removed and put on the queue again.

    Args:
        into: name of the other queue.
        cap: the cap of each key; None for budgets only.
        at: the shares, as whole percents from 1 to 1,000.

    Raises:
        InvalidConfiguration: the name is invalid, the cap is no positive number, or a share is none.
    """
    is_cap = cap is None or (type(cap) in (int, float) and 0 < cap < float("inf"))
    percents = sorted(at) if all(type(each) is int and 1 <= each <= 1_000 for each in at) else []
    if not is_cap or not percents:
        raise InvalidConfiguration(
            f"expected a positive cap, and shares of it in whole percents, got: {brief(cap)}, {brief(at)}"
        )
    settings = {"into": check_name(into), "cap": cap, "at": percents}
    return ObserverSpec(NAME, VERSION, settings, check=lambda tr, config: _check(tr, config, settings))


def observer(config: QueueConfig, settings: Mapping[str, Any], generation: int) -> ObserverFunction:
    """Return the observer's function; raises `InvalidConfiguration` if it does not suit the queue."""
    cap, percents, target = settings["cap"], settings["at"], CombineQueue[Any, Any](settings["into"])
    is_tuple, is_budget = config.key.is_tuple, _is_budget(config)
    if is_budget != (cap is None) or not (is_budget or config.value.name in _NUMBERS):
        raise InvalidConfiguration(
            f"expected a queue of numbers and a cap, or a queue with the decider budget and no cap, queue "
            f"{config.name!r} has values of {config.value}"
        )
    if config.value.name == "decimal":
        cap = Decimal(str(cap))  # the float 1.1 is more than Decimal("1.1"), which reaches a cap written so

    def reached(value: Any) -> dict[int, Any]:
        """{each percent reached: the amount spent}."""
        if value is None:
            return {}
        spent, most = (value["spent"], value["cap"]) if is_budget else (value, cap)
        return {each: spent for each in percents if spent > 0 and _is_reached(spent, most, each)}

    def tell(tr: Transaction, changes: list[Change]) -> None:
        told = []
        for change in changes:
            key = change.key if is_tuple else (change.key,)
            before, now = reached(change.old), reached(change.new)
            told += [((*key, each), spent) for each, spent in now.items() if each not in before]
        if told:
            target.add(tr, told)

    return tell


def _is_reached(spent: Any, most: Any, percent: int) -> bool:
    if isinstance(spent, Decimal):  # the context of the thread could round a product, or refuse it
        return bool(spent >= _EXACT.scaleb(_EXACT.multiply(most, percent), -2))
    return bool(spent * 100 >= most * percent)


def _is_budget(config: QueueConfig) -> bool:
    return config.decider is not None and config.decider.kind == "budget"


def _check(tr: TransactionRead, config: QueueConfig, settings: Mapping[str, Any]) -> None:
    """Raise `InvalidConfiguration` unless the observer suits both queues."""
    observer(config, settings, 0)
    value = "int" if _is_budget(config) else config.value.name
    check_receiver(read_config(tr, settings["into"]), [*config.key.parts, "int"], "first", value)
