"""Checks the queue that a built-in observer adds to."""

from __future__ import annotations

from collections.abc import Sequence

from cq.config.queue import QueueConfig
from cq.errors import InvalidConfiguration


def check_receiver(target: QueueConfig, parts: Sequence[str], combiner: str, value: str) -> None:
    """Raise `InvalidConfiguration` unless a queue takes what an observer adds to it.

    Args:
        target: the queue's configuration.
        parts: the types of the parts of the keys that the observer adds.
        combiner, value: names of the combiner and of the type of the values that it expects.
    """
    found = ([*target.key.parts], target.combiner.name, target.value.name)
    if found != ([*parts], combiner, value) or target.decider is not None:
        raise InvalidConfiguration(
            f"expected queue {target.name!r} to have keys of ({', '.join(parts)}), the combiner {combiner} and values "
            f"of {value}, got: keys of {target.key}, {target.combiner.name}, {target.value}"
        )
