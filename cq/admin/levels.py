"""The parts of a queue that have its updates by time: levels of a roll-up, and the slices and keys of a window.

Each is a queue of its own. They are configured, purged and deleted together with their queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from cq import runtime
from cq.config.expiry import KEY, SLICE, ExpirySpec
from cq.config.queue import TOTALS, ObserverConfig, QueueConfig, read_config, refuse_while_rebucketing
from cq.config.rollup import LevelOf, LevelPart, RollUp, RollUpLevel, level_key_type
from cq.config.window import WindowSpec
from cq.errors import ConfigurationConflict, InvalidConfiguration
from cq.keys import QueueKeys
from cq.keys.queue import MAX_NAME
from cq.store.api import TransactionRead

MAX_SLICES: Final = 1_000
"""Slices of a window that reads merge, at most: each read of a key reads all of them."""
_VERSION: Final = 1  # of the observer of totals


def with_levels_of(
    current: QueueConfig, rollup: RollUp | None, window: WindowSpec | Literal[False] | None
) -> QueueConfig:
    """The configuration of a queue with the wanted roll-up and window; None: with those that it has.

    Raises `ConfigurationConflict` if the slices of a window that reads merge would change, `InvalidConfiguration` if
    the queue cannot have the roll-up or the window.
    """
    changed = current
    if rollup is not None:
        changed = replace(changed, rollup=rollup if rollup.levels else None)
    if window is not None:
        changed = replace(changed, window=window or None)
        _check_window(current, changed)
    if changed.is_timed:
        current.refuse_level("give a window or a roll-up to")
    longest = max(map(len, changed.level_names), default=0)
    if longest > MAX_NAME:
        raise InvalidConfiguration(
            f"a part of queue {changed.name!r} would have a name of {longest} characters, which can have {MAX_NAME}: "
            f"give the queue a name of at most {MAX_NAME - longest + len(changed.name)}"
        )
    return changed


def _check_window(current: QueueConfig, changed: QueueConfig) -> None:
    window = changed.window
    if window is None:
        return
    if changed.takes_delete:
        raise InvalidConfiguration(
            f"the combiner {changed.combiner.name} cannot have a window: give the queue an expiry of "
            f"{window.width / 1000:g} s (`cq configure {changed.name} --expire`), which deletes a key without updates"
        )
    if not changed.merges_window:
        return
    if window.width // window.slice > MAX_SLICES:
        raise InvalidConfiguration(
            f"expected at most {MAX_SLICES:,} slices for a window of the combiner {changed.combiner.name} and values "
            f"of {changed.value}, whose slices are merged at each read, got: {window}"
        )
    if current.window is not None and current.window.slice != window.slice:
        # Reads find slices by their ends, which differ.
        raise ConfigurationConflict(current.name, {"window": (current.window, window)})


def levels_after(
    tr: TransactionRead, before: QueueConfig | None, after: QueueConfig
) -> list[tuple[QueueConfig | None, QueueConfig]]:
    """The stored and the new configuration of each level of a queue, for a change of the queue's configuration.

    Raises `InvalidConfiguration` if another queue has the name of a new level, and `NotNow` while the version of the
    combiner is being changed.
    """
    if before is not None and (before.rollup, before.window) == (after.rollup, after.window):
        return []
    if before is not None and before.conversion is not None:
        # A new level has no former shape, for the updates of the former version.
        refuse_while_rebucketing(before)
    stored = [(level, tr.get(QueueKeys(level.name).config)) for level in _levels(after)]
    found: list[tuple[QueueConfig | None, QueueConfig]] = []
    for level, config in stored:
        current = None if config.value is None else QueueConfig.from_bytes(level.name, config.value)
        if current is None:
            found.append((None, level))
        elif current.level_of is None or current.level_of[:3] != level.level_of[:3]:  # type: ignore[index]
            raise InvalidConfiguration(
                f"queue {level.name!r} exists, and does not belong to queue {after.name!r}: delete it, or choose "
                "another name"
            )
        else:
            found.append((current, replace(current, expiry=level.expiry)))
    return found


def removed_levels(tr: TransactionRead, before: QueueConfig | None, after: QueueConfig) -> list[QueueConfig]:
    """The configurations of the levels that a change of a queue's configuration removes."""
    if before is None:
        return []
    return [read_config(tr, name) for name in before.level_names if name not in after.level_names]


def refuse_level_change(before: QueueConfig, after: QueueConfig) -> None:
    """Raises `InvalidConfiguration` if a level would lose, replace or rebuild what its queue has given it."""
    if before.level_of is None:
        return
    kept = [[each for each in config.observers if each.keeps_totals] for config in (before, after)]
    if kept[0] != kept[1]:
        raise InvalidConfiguration(
            f"the observer {TOTALS!r} of queue {before.name!r} belongs to the window of queue "
            f"{before.level_of.queue!r}, and cannot be changed"
        )
    if kept[1] and len(after.observers) > len(kept[1]):
        # No slice is deleted without a report, so an observer that refuses a deletion would keep all slices.
        raise InvalidConfiguration(
            f"queue {before.name!r} can have no other observer than {TOTALS!r}: configure the observers of queue "
            f"'{before.level_of.queue}.window', which has the totals"
        )
    if after.expiry != before.expiry:
        before.refuse_level("configure")
    if before.lists_keys and after.observers:
        raise InvalidConfiguration(
            f"no pass has the totals of queue {before.name!r}, as each read merges the slices of the window: configure "
            f"the observers of queue '{before.level_of.queue}.slices', which has a value for each key and slice"
        )


def with_levels(tr: TransactionRead, config: QueueConfig) -> list[QueueConfig]:
    """The configurations of a queue and of its levels, read as `read_config` does."""
    return [config, *(read_config(tr, level) for level in config.level_names)]


def is_level(tr: TransactionRead, name: str) -> bool:
    """Whether there is a queue of this name that is a level of another one, with a time in its keys."""
    stored = tr.get(QueueKeys(name).config).value
    level = None if stored is None else QueueConfig.from_bytes(name, stored).level_of
    return level is not None and not level.is_window


def _levels(config: QueueConfig) -> list[QueueConfig]:
    """The configurations of new levels of a queue."""
    now = int(runtime.time())
    found = []
    for name, periods in config.fed.items():
        if isinstance(periods, RollUpLevel):
            expiry = None if periods.retention is None else ExpirySpec(periods.retention, 1, KEY)
            part = LevelOf(config.name, LevelPart.PERIODS, periods.period, now)
            found.append(_level(config, name, part, expiry=expiry))
        elif periods is not None:
            expiry = ExpirySpec(periods.width, 1, SLICE)
            part = LevelOf(config.name, LevelPart.SLICES, 0, now)
            observers = [] if config.merges_window else [_totals_observer(config)]
            found.append(_level(config, name, part, expiry=expiry, observers=observers))
    if config.window is not None:
        part = LevelOf(config.name, LevelPart.WINDOW, 0, now)
        found.append(_level(config, config.totals_name, part, expiry=_expiry_of_keys(config, config.window)))
    return found


def _totals_observer(config: QueueConfig) -> ObserverConfig:
    return ObserverConfig(TOTALS, _VERSION, {"into": config.totals_name}, 1, is_built_in=True)


def _expiry_of_keys(config: QueueConfig, window: WindowSpec) -> ExpirySpec | None:
    """When keys of a window that reads merge are deleted: reads find their slices, so only keys without any may be."""
    if not config.merges_window:
        return None
    return ExpirySpec.parse(-(-(window.width + 3 * window.slice) // 1000)) or None


def _level(config: QueueConfig, name: str, part: LevelOf, **given: Any) -> QueueConfig:
    """The configuration of a new level."""
    observers = tuple(given.get("observers", ()))
    return QueueConfig(
        name,
        key=config.key if part.part is LevelPart.WINDOW else level_key_type(config.key),
        value=config.value,
        combiner=config.combiner,
        observers=observers,
        buckets=config.buckets,
        observer_generations=len(observers),
        takes_delete=config.takes_delete,
        expiry=given["expiry"],
        level_of=part,
    )
