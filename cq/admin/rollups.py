"""Roll-ups in configurations: the settings of a queue's levels, which change together with those of the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cq.combiners import built_in_combiner
from cq.config.expiry import KEY, ExpirySpec
from cq.config.queue import ObserverConfig, QueueConfig, read_config
from cq.config.rollup import OBSERVER, LevelOf, RollUp, RollUpLevel, level_key_type
from cq.errors import ConfigurationConflict, InvalidConfiguration
from cq.keys import QueueKeys, check_name
from cq.store.api import TransactionRead

_VERSION: Final = 1  # of the observer


def with_rollup(current: QueueConfig, wanted: RollUp | None) -> QueueConfig:
    """The configuration of a queue with the wanted roll-up; None: with the one that it has.

    Raises `ConfigurationConflict` for other periods than those of the present levels, `InvalidConfiguration` if the
    queue cannot have a roll-up.
    """
    if wanted is None:
        return current
    if current.merges_window:
        raise InvalidConfiguration(
            f"the roll-up of queue {current.name!r} has the slices of its window: run `cq configure {current.name} "
            "--window ...` to change that"
        )
    if not wanted.levels:
        return replace(current, rollup=None)
    if current.level_of is not None or current.window is not None:
        what = "a level of another queue" if current.level_of else "a queue with a window"
        raise InvalidConfiguration(f"queue {current.name!r} is {what}, so it cannot have a roll-up")
    before = current.rollup
    if before is not None and _periods(before) != _periods(wanted):
        raise ConfigurationConflict(current.name, {"rollup": (before, wanted)})
    for level in wanted.levels:
        check_name(level.queue_of(current.name))
    return replace(current, rollup=wanted._replace(is_derived=_is_derived(current)))


def levels_after(
    tr: TransactionRead, before: QueueConfig | None, after: QueueConfig
) -> list[tuple[QueueConfig | None, QueueConfig]]:
    """The stored and the new configuration of each level of a queue, for a change of the queue's configuration.

    Raises `InvalidConfiguration` if another queue has the name of a new level.
    """
    if after.rollup is None or (before is not None and before.rollup == after.rollup):
        return []
    stored = [tr.get(QueueKeys(name).config) for name in after.level_names]
    found = []
    for level, name, config in zip(after.rollup.levels, after.level_names, stored, strict=True):
        current = None if config.value is None else QueueConfig.from_bytes(name, config.value)
        if current is not None and current.level_of != LevelOf(after.name, level.period):
            raise InvalidConfiguration(
                f"queue {name!r} exists, and is no level of queue {after.name!r}: delete it, or choose another period"
            )
        found.append((current, _level(after, level, current)))
    return found


def removed_levels(tr: TransactionRead, before: QueueConfig | None, after: QueueConfig) -> list[QueueConfig]:
    """The configurations of the levels that a change of a queue's configuration removes."""
    if before is None or before.rollup is None or after.rollup is not None:
        return []
    return with_levels(tr, before)[1:]


def refuse_level_change(before: QueueConfig, after: QueueConfig) -> None:
    """Raises `InvalidConfiguration` if a level would lose, replace or rebuild its part of the roll-up."""
    if before.level_of is None:
        return
    kept = [[each for each in config.observers if each.name == OBSERVER] for config in (before, after)]
    if kept[0] != kept[1]:
        raise InvalidConfiguration(
            f"the observer {OBSERVER!r} of queue {before.name!r} belongs to the roll-up of queue "
            f"{before.level_of.queue!r}, and cannot be changed"
        )
    if after.window is not None or after.expiry != before.expiry:
        raise InvalidConfiguration(
            f"queue {before.name!r} is a level of a roll-up, which says how long its periods are kept: run "
            f"`cq configure {before.level_of.queue} --rollup ...` to change that"
        )


def refuse_level(config: QueueConfig, verb: str) -> None:
    """Raises `InvalidConfiguration` for a level: an operator must `verb` it together with its queue."""
    if config.level_of is not None:
        config.level_of.refuse(config.name, verb)


def with_levels(tr: TransactionRead, config: QueueConfig) -> list[QueueConfig]:
    """The configurations of a queue and of its levels, read as `read_config` does."""
    return [config, *(read_config(tr, level) for level in config.level_names)]


def is_level(tr: TransactionRead, name: str) -> bool:
    """Whether there is a queue of this name that is a level of a roll-up."""
    stored = tr.get(QueueKeys(name).config).value
    return stored is not None and QueueConfig.from_bytes(name, stored).level_of is not None


def _periods(rollup: RollUp) -> list[int]:
    return [level.period for level in rollup.levels]


def _is_derived(config: QueueConfig) -> bool:
    combiner = built_in_combiner(config.combiner.name)
    return (
        combiner is not None
        and combiner.version == config.combiner.version
        and combiner.difference is not None
    )


def _level(config: QueueConfig, level: RollUpLevel, current: QueueConfig | None) -> QueueConfig:
    """The configuration of a level; `current` is the stored one, or None for a new level."""
    expiry = None if level.retention is None else ExpirySpec(level.retention, 1, KEY)
    if current is not None:
        return replace(current, expiry=expiry)
    following = config.rollup.after(level) if config.rollup else None
    observers = []
    if following is not None:
        settings = {"into": following.queue_of(config.name), "period": following.period}
        observers.append(ObserverConfig(OBSERVER, _VERSION, settings, 1, is_built_in=True))
    return QueueConfig(
        level.queue_of(config.name),
        level_key_type(config.key),
        config.value,
        config.combiner,
        tuple(observers),
        config.buckets,
        observer_generations=len(observers),
        takes_delete=config.takes_delete,
        expiry=expiry,
        level_of=LevelOf(config.name, level.period),
    )
