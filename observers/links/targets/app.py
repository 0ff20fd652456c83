"""Targets that the application declares, by `App.target`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cq.app import App
from cq.config.queue import QueueConfig
from cq.failure import is_failure
from cq.observers.links.target import LinkFailed, NotDeclared, Source, Target, UnmadeTarget
from cq.plain_text import describe


def make_target(source: Source, config: QueueConfig, settings: Mapping[str, Any], app: App) -> Target:
    """The target that the application has declared under the name in the settings, which its first use makes."""
    name = settings["target"]
    make = app.targets.get(name)
    if make is None:
        raise NotDeclared(
            f"this process has no target {name!r}: start it with --app and the application that declares it"
        )
    return UnmadeTarget(partial(_made, name, make, source))


def _made(name: str, make: Callable[[Any], object], source: Source) -> Target:
    try:
        found: Any = make(source)
    except BaseException as error:
        if not is_failure(error):
            raise
        raise LinkFailed(
            f"the target {name!r} of the application cannot be made: {describe(error)}"
        ) from error
    if not isinstance(found, Target):
        raise LinkFailed(
            f"expected the target {name!r} of the application to be a cq.links.Target, got: {type(found).__name__}"
        )
    return found
