"""Environment variables that the settings of a queue name: the URLs, addresses and secrets of other systems.

The names come from the store, and whoever can write there could have a worker send another program's credentials, or
sign with them. So only names that are meant for cq are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from cq.encoding.codec import brief
from cq.observer import ObserverSpec
from cq.observers.links.target import LinkFailed

PREFIX: Final = "CQ_"
LISTED_ENV: Final = "CQ_ENV_NAMES"
"""The environment variable with other names that settings in the store may use, separated by commas."""
RULE: Final = f"begin its name with {PREFIX}, or list it in ${LISTED_ENV}"


def is_for_cq(name: object) -> bool:
    """Whether settings in the store may name this variable: one of `CQ_...`, or one that `$CQ_ENV_NAMES` lists."""
    listed = map(str.strip, os.environ.get(LISTED_ENV, "").split(","))
    return isinstance(name, str) and (name.startswith(PREFIX) or name in filter(None, listed))


def read_variable(name: str, suffix: str = "") -> str:
    """The variable of a name from the store, with a suffix; empty if it is not set. Raises `LinkFailed`."""
    if not name.isidentifier():
        # The message must not show the argument: it may be the URL itself, with a password.
        raise LinkFailed("expected the name of an environment variable, such as CQ_REPORTING_URL")
    if not is_for_cq(name):
        raise LinkFailed(
            f"the environment variable {brief(name)} is not read for settings in a store: {RULE}"
        )
    return os.environ.get(name + suffix, "")


def unread_variables(specs: Iterable[ObserverSpec]) -> list[str]:
    """A warning for each variable that these observers' settings name, and that would not be read in this process."""
    named = [
        name
        for spec in specs
        for setting, name in spec.settings.items()
        if setting in ("url_env", "secret_env")
    ]
    return [
        f"a worker does not read the environment variable {brief(name)}: {RULE}, in the worker's environment"
        for name in dict.fromkeys(named)
        if not is_for_cq(name)
    ]
