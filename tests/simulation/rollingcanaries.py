"""Variants of roll-ups that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from cq.admin import purge
from cq.combiners import Combiner, built_in_combiner
from cq.config.expiry import ExpirySpec
from cq.config.queue import ObserverConfig, read_config
from cq.config.rollup import OBSERVER, level_key
from cq.keys import QueueKeys
from cq.observers import builtin, rollup
from cq.queue import adds
from cq.store.transact import transact
from cq.windows import series


def _derives(change: Callable[[Callable[[Any, Any], object], Any, Any], object]) -> Any:
    """Change how the observer of a level is called."""
    function = rollup.observer

    def observer(config: Any, settings: Any, generation: int) -> Any:
        derive = function(config, settings, generation)
        return lambda tr, changes: change(derive, tr, changes)

    return patch.dict(builtin.FACTORIES, {OBSERVER: observer})


def subtracts_what_expires() -> Any:
    """A period that expires is subtracted from the longer one."""
    return _derives(
        lambda derive, tr, changes: derive(tr, [replace(each, cause="updates") for each in changes])
    )


def loses_a_maximum_of_zero() -> Any:
    """A difference of 0 is taken for none."""

    def built_in(name: str) -> Combiner | None:
        combiner = built_in_combiner(name)
        if combiner is None or combiner.difference is None:
            return combiner
        difference = combiner.difference
        return replace(combiner, difference=lambda new, old: difference(new, old) or None)

    return patch.object(rollup, "built_in_combiner", built_in)


def misses_deletions() -> Any:
    """A deletion that another observer refuses is reported later, and subtracted from the longer period."""
    return patch.object(ObserverConfig, "derives_level", False)


def derives_beside_the_pass() -> Any:
    """The next level gets differences in a transaction of their own, again if the pass is tried again."""
    return _derives(lambda derive, tr, changes: transact(tr.db, lambda own: derive(own, changes)))


def derives_whole_values() -> Any:
    """The next level gets each new value instead of its difference."""
    return _derives(lambda derive, tr, changes: derive(tr, [replace(each, old=None) for each in changes]))


def expires_periods_early() -> Any:
    """A period expires after half of its retention."""
    return patch.object(ExpirySpec, "latest_due", lambda self, now: int(now) - self.seconds // 2)


def adds_to_levels_beside() -> Any:
    """An add writes its level in another transaction."""

    def write(tr: Any, config: Any, updates: Any, once: Any, times: Any) -> None:
        adds.write_updates(tr, QueueKeys(config.name), config, updates, once, due=None)
        level = config.rollup.levels[0]
        start = times[0] // level.period * level.period
        name = level.queue_of(config.name)
        pairs = [(level_key(key, start), number) for key, number in updates]
        transact(
            tr.db,
            lambda own: adds.write_updates(
                own, QueueKeys(name), read_config(own, name), pairs, once, due=None
            ),
        )

    return patch.object(series, "write_with_levels", write)


def purges_no_levels() -> Any:
    """A purge leaves the levels."""
    return patch.object(purge, "with_levels", lambda tr, config: [config])


ROLLING: Final[dict[Callable[[], Any], int]] = {
    subtracts_what_expires: 20,
    misses_deletions: 20,
    loses_a_maximum_of_zero: 20,
    expires_periods_early: 20,
    derives_beside_the_pass: 20,
    derives_whole_values: 10,
    adds_to_levels_beside: 20,
    purges_no_levels: 20,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
