"""Reads of a roll-up: the values of a span of time by slots, such as the hours of the last day.

Each value is stored under its own key, so a read costs one request for each period of the chosen level; all are in
flight together, at one read version. All levels follow their queue by one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cq import runtime
from cq.arguments import repeatable
from cq.combiners import Combiner
from cq.config.queue import QueueConfig
from cq.config.rollup import RollUp, RollUpLevel, level_key, level_key_type
from cq.durations import Span, duration, seconds_of
from cq.encoding import codec
from cq.errors import InvalidData, NotInStore
from cq.failure import is_failure
from cq.keys import QueueKeys
from cq.plain_text import describe
from cq.store.api import TransactionRead, Value

MAX_VALUES: Final = 5_000
"""Maximum number of values that one call reads."""
_FEW_SLOTS: Final = 100  # maximum number of slots that a read without `by` chooses


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The slots to read.

    Attributes:
        queue: the name of the level's queue.
        period: the length of the level's periods, in seconds.
        by: the length of a slot, a multiple of it.
        starts: the starts of the slots, in seconds since 1970.
    """

    queue: str
    period: int
    by: int
    starts: range

    @property
    def times(self) -> range:
        """The starts of all periods to read."""
        return range(self.starts.start, self.starts.stop, self.period)


def plan_slots(
    config: QueueConfig, last: Span, by: Span | None, until: float | None, keys: int = 1
) -> SlotPlan:
    """The slots that have a part of the last `last` seconds before `until`, for reads of a number of keys.

    Raises `NotInStore` for a queue without a roll-up, `InvalidData` if no level suits or the slots are too many.
    """
    if config.rollup is None:
        raise NotInStore(
            f"queue {config.name!r} has no roll-up: run `cq configure {config.name} --rollup 1m:2d,1h:60d,1d:forever`"
        )
    seconds, now = seconds_of(last), runtime.time()
    end = now if until is None else until
    if type(end) not in (int, float) or not abs(end) < 1 << 40:
        raise InvalidData(f"expected a time in seconds since 1970, got: {codec.shown(until)}")
    # A level that deletes periods must still have the first one of the span.
    kept = [level for level in config.rollup.levels if (level.retention or 1 << 60) >= now - end + seconds]
    wanted = _finest(config.rollup, kept, seconds) if by is None else seconds_of(by)
    fitting = [level for level in kept if wanted % level.period == 0]
    if not fitting:
        raise _unfitting(config, wanted, seconds)
    level = fitting[-1]
    first = int((end - seconds) // wanted * wanted)
    if level.retention is not None:  # a slot whose first periods may be gone would be too small
        first = max(first, ((int(now) - level.retention) // wanted + 1) * wanted)
    starts = range(first, int(-(-end // wanted) * wanted), wanted)
    plan = SlotPlan(level.queue_of(config.name), level.period, wanted, starts)
    if len(plan.times) * keys > MAX_VALUES:
        raise _too_many(plan, kept, keys)
    return plan


def read_slots(
    tr: TransactionRead,
    config: QueueConfig,
    wanted: Collection[Any],
    plan: SlotPlan,
    combiner: Callable[[], Combiner],
) -> dict[Any, list[tuple[int, Any]]]:
    """{key: [(start, value), ...]} of the slots, with None for a slot without a value.

    `combiner` returns the queue's combiner; it is called only if a slot has several periods.
    """
    check, encode = config.key.encoder(), level_key_type(config.key).encoder()
    queue = QueueKeys(plan.queue)
    futures: dict[Any, list[Value]] = {}
    for key in repeatable(wanted, "keys"):
        check(key)  # so that the message names the queue's own type
        futures[key] = [tr.get(queue.value(encode(level_key(key, time)))) for time in plan.times]
    code = combiner() if plan.by > plan.period else None
    found = {}
    each = plan.by // plan.period
    for key, values in futures.items():
        slots = [values[at : at + each] for at in range(0, len(values), each)]
        found[key] = [
            (start, combined(code, key, map(decoded, slot)))
            for start, slot in zip(plan.starts, slots, strict=True)
        ]
    return found


def combined(combiner: Combiner | None, key: Any, values: Any) -> Any:
    """The combination of the values except None; None if no values remain, or if the combination is empty.

    Raises `InvalidData` if the combiner raises, as for a damaged value.
    """
    present = [value for value in values if value is not None]
    if not present or combiner is None:
        return present[0] if present else None
    with combining(key):
        value = combiner.combine(key, present)
        return None if combiner.is_empty(value) else value


@contextmanager
def combining(key: Any) -> Iterator[None]:
    """Context of a read that combines the stored values of a key: converts errors of the combiner to `InvalidData`."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        what = "the keys: their" if key is None else f"key {codec.brief(key)}: its"
        raise InvalidData(f"{what} values cannot be combined: {describe(error)}") from error


def decoded(value: Value) -> Any:
    """The value of a read, None if the key has none."""
    return None if value.value is None else codec.decode(value.value)


def _finest(rollup: RollUp, kept: list[RollUpLevel], seconds: int) -> int:
    """The shortest period that gives few slots, of the levels that keep the span."""
    few = [level for level in kept if seconds // level.period < _FEW_SLOTS]
    return (few or kept or list(rollup.levels))[0 if few else -1].period


def _too_many(plan: SlotPlan, kept: Sequence[RollUpLevel], keys: int) -> InvalidData:
    """The error about a plan with too many values for a number of keys: it names a level with few enough."""
    span = len(plan.starts) * plan.by
    coarser = next((each for each in kept if span // each.period * keys <= MAX_VALUES), None)
    how = f"give by={duration(coarser.period)!r}, or a shorter span" if coarser else "give a shorter span"
    return InvalidData(
        f"{len(plan.times) * keys:,} values of queue {plan.queue!r} are more than the {MAX_VALUES:,} of one read: "
        f"{how}{', or fewer keys' if keys > 1 else ''}"
    )


def _unfitting(config: QueueConfig, by: int, seconds: int) -> InvalidData:
    return InvalidData(
        f"the roll-up of queue {config.name!r} has no slots of {duration(by)} over {duration(seconds)}: "
        f"it has {config.rollup}"
    )
