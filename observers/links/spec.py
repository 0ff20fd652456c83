"""The kinds of links, and the settings of a link in the queue's configuration, where it is an observer.

Settings name environment variables with the URLs, addresses and secrets of other systems. The names come from the
store, and whoever can write there could have a worker send another program's credentials, or sign with them. So only
names that are meant for cq are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from cq.combiners import BUILT_IN, Combiner, built_in_combiner
from cq.config.queue import ObserverConfig, QueueConfig
from cq.encoding.codec import brief
from cq.errors import InvalidConfiguration, NotInStore
from cq.keys import check_name
from cq.keys.link import OBSERVER, check_link_name
from cq.observer import ObserverSpec
from cq.observers.links.target import LinkFailed

VERSION: Final = 1
TO: Final = "to"
"""The setting with the kind of a link."""
MAX_NAME: Final = 63
"""Maximum bytes of an identifier in SQL: PostgreSQL's limit, the lowest of all."""
TABLE_ENV: Final = "CQ_REPORTING_URL"
"""The default environment variable of the reporting database's URL."""
WEBHOOK_ENV: Final = "CQ_WEBHOOK_URL"
"""The default environment variable of the URL of a webhook's receiver."""
SECRET_ENV: Final = "CQ_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
"""The default environment variable of a webhook's secret."""
KAFKA_ENV: Final = "CQ_KAFKA"
"""The default environment variable of the addresses of Kafka's brokers."""
QUEUE_ENV: Final = "CQ_FORWARD_URL"
"""The default environment variable of the URL of the receiving queue's store."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
PREFIX: Final = "CQ_"
LISTED_ENV: Final = "CQ_ENV_NAMES"
"""The environment variable with other names that settings in the store may use, separated by commas."""
RULE: Final = f"begin its name with {PREFIX}, or list it in ${LISTED_ENV}"


def table(
    table: str,
    *,
    name: str = "export",
    schema: str | None = None,
    url_env: str = TABLE_ENV,
    columns: str | None = None,
) -> ObserverSpec:
    """A link to a table of a SQL database, for `cq.configure(..., links=[...])`.

    Args:
        table: the table's name, which statements quote.
        name: the link's name.
        schema: the table's schema; None: the database's default.
        url_env: the environment variable in which workers find the URL of the database.
        columns: the return value of `App.columns`; None: `key` and `value`.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    settings = {"table": check_identifier(table), "url_env": checked_env(url_env, TABLE_ENV)}
    if "://" in table:  # it would be stored and shown, perhaps with a password
        raise InvalidConfiguration(
            "expected the name of a table, not a URL, which belongs in an environment variable"
        )
    if schema is not None:
        settings["schema"] = check_identifier(schema)
    if columns is not None:
        settings["columns"] = columns
    return _spec(name, "sql", settings)


def webhook(
    url_env: str = WEBHOOK_ENV, *, name: str = "webhook", secret_env: str = SECRET_ENV
) -> ObserverSpec:
    """A link to a URL, which receives the changes in signed requests, for `cq.configure(..., links=[...])`.

    Args:
        url_env: the environment variable in which workers find the receiver's URL.
        name: the link's name.
        secret_env: the environment variable with the secret that signs requests. If it is not set, the variable of
            this name with `_FILE` names a file with the secret.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    settings = {
        "url_env": checked_env(url_env, WEBHOOK_ENV),
        "secret_env": checked_env(secret_env, SECRET_ENV),
    }
    return _spec(name, "webhook", settings)


def kafka(topic: str, *, name: str = "kafka", url_env: str = KAFKA_ENV) -> ObserverSpec:
    """A link to a topic of Kafka, for `cq.configure(..., links=[...])`.

    Args:
        topic: the topic's name. The topic must exist.
        name: the link's name.
        url_env: the environment variable in which workers find the addresses of brokers, separated by commas. If the
            variable of this name with `_CONFIG` is set, it names a file with settings of the client, such as
            passwords.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidConfiguration(
            "expected the name of a topic, 1 to 249 letters, digits, dots, hyphens and underscores"
        )
    return _spec(name, "kafka", {"topic": topic, "url_env": checked_env(url_env, KAFKA_ENV)})


def queue(into: str | None = None, *, name: str = "forward", url_env: str = QUEUE_ENV) -> ObserverSpec:
    """A link to a queue of another store, which can combine the updates of many stores.

    Args:
        into: the name of the receiving queue; None: the queue's own name.
        name: the link's name.
        url_env: the environment variable in which workers find the URL of the receiving store.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    settings = {"url_env": checked_env(url_env, QUEUE_ENV)}
    if into is not None:
        settings["into"] = check_name(into)
    return _spec(name, "queue", settings)


def app(target: str, *, name: str | None = None) -> ObserverSpec:
    """A link to a target of the application, which `App.target` declares, for `cq.configure(..., links=[...])`.

    Args:
        target: the target's name in the application.
        name: the link's name; None: that of the target.

    Raises:
        InvalidConfiguration: a name is invalid.
    """
    return _spec(target if name is None else name, "app", {"target": check_link_name(target)})


class _Kind(NamedTuple):
    """A kind of links.

    Attributes:
        make: returns the link of this kind with these settings.
        main: the setting that follows the kind in the text of a link.
        shown: returns where a link goes, for operators; takes the settings, and the name of the queue.
    """

    make: Callable[..., ObserverSpec]
    main: str
    shown: Callable[[Mapping[str, Any], str], str]


_KINDS: Final[Mapping[str, _Kind]] = {
    "sql": _Kind(
        table, "table", lambda of, _: ".".join(of[part] for part in ("schema", "table") if part in of)
    ),
    "webhook": _Kind(webhook, "url_env", lambda of, _: f"webhook in ${of['url_env']}"),
    "kafka": _Kind(kafka, "topic", lambda of, _: f"topic {of['topic']} in ${of['url_env']}"),
    "queue": _Kind(queue, "into", lambda of, name: f"queue {of.get('into', name)} in ${of['url_env']}"),
    "app": _Kind(app, "target", lambda of, _: f"target {of['target']} of the application"),
}
KINDS: Final = tuple(_KINDS)


def parse_link(text: str) -> ObserverSpec:
    """The link that a text describes, as the option `--link` takes it; raises `InvalidConfiguration`.

    Args:
        text: `NAME=KIND:TARGET,SETTING=VALUE...`

    >>> parse_link("report=sql:word_counts,schema=shop").settings["schema"]
    'shop'
    """
    name, equals, rest = text.partition("=") if isinstance(text, str) else ("", "", "")
    kind, _, target = rest.partition(":")
    if not equals or kind not in _KINDS:
        # Messages do not show what was given: it may be a URL with a password.
        raise InvalidConfiguration(
            f"expected a link as NAME=KIND:TARGET with a KIND of {', '.join(_KINDS)}, such as report=sql:counts"
        )
    main, *others = target.split(",")
    settings = {_KINDS[kind].main: main} if main else {}
    for each in others:
        what, equals, value = each.partition("=")
        if not equals or what in settings or what == "name":
            raise InvalidConfiguration("expected SETTING=VALUE after a comma in a link")
        settings[what] = value
    try:
        return _KINDS[kind].make(**settings, name=name)
    except TypeError:
        raise InvalidConfiguration(
            f"a link of the kind {kind} has a wrong or missing setting: see `cq configure --help`"
        ) from None


def kind_of_link(queue: str, observer: str, settings: Mapping[str, Any]) -> str:
    """The kind of a link with these stored settings; raises `InvalidConfiguration` if no link has them."""
    given = dict(settings)
    try:
        kind = given.pop(TO)
        fits = _KINDS[kind].make(**given, name=link_name(observer)).settings == settings
    except (TypeError, KeyError, AttributeError):  # unknown settings, or settings of other types
        fits = False
    if not fits:
        raise InvalidConfiguration(
            f"the link {link_name(observer)!r} of queue {queue!r} has settings that are invalid for its kind"
        )
    return str(kind)


def link_name(observer: str) -> str:
    """The name of the link that an observer of this name is."""
    return observer.removeprefix(OBSERVER)


def links_in(config: QueueConfig) -> dict[str, ObserverConfig]:
    """{name: observer} of a queue's links, in the order of the configuration."""
    return {
        link_name(each.name): each
        for each in config.observers
        if each.is_built_in and each.name.startswith(OBSERVER)
    }


def find_link(config: QueueConfig, link: str | None = None) -> ObserverConfig:
    """The link of a queue with this name, or its only one; raises `NotInStore`."""
    found = links_in(config)
    if link is None and len(found) == 1:
        return next(iter(found.values()))
    if link in found:
        return found[link]
    names = ", ".join(found)
    if not found:
        raise NotInStore(
            f"queue {config.name!r} has no link: run `cq configure {config.name} --link NAME=KIND:TARGET` first"
        )
    if link is None:
        raise NotInStore(f"queue {config.name!r} has several links: give the name of one of {names}")
    raise NotInStore(f"queue {config.name!r} has no link {link!r}: expected one of {names}")


def shown_target(observer: ObserverConfig, queue: str) -> str:
    """Where a link goes, for operators; raises `InvalidConfiguration` for settings that no link has."""
    kind = kind_of_link(queue, observer.name, observer.settings)
    return _KINDS[kind].shown(observer.settings, queue)


def _spec(name: str, kind: str, settings: Mapping[str, Any]) -> ObserverSpec:
    check = _check_forwarded if kind == "queue" else None
    return ObserverSpec(OBSERVER + check_link_name(name), VERSION, {TO: kind, **settings}, check=check)


def _check_forwarded(tr: Any, config: QueueConfig) -> None:
    forwarded_combiner(config)


def forwarded_combiner(config: QueueConfig) -> Combiner:
    """The combiner of a queue, whose changes a link to another queue can send.

    Raises `InvalidConfiguration` if it is not built in, or if its changes cannot be sent as updates.
    """
    combiner = built_in_combiner(config.combiner.name)
    if combiner is None or not _can_forward(combiner) or config.combiner.version != combiner.version:
        raise InvalidConfiguration(
            f"queue {config.name!r} combines by {config.combiner}, whose changes cannot be forwarded: expected one of "
            f"{', '.join(name for name, each in BUILT_IN.items() if _can_forward(each))}"
        )
    return combiner


def _can_forward(combiner: Combiner) -> bool:
    return combiner.takes_delete or combiner.difference is not None


def check_identifier(name: object) -> str:
    """Return the name; raises `InvalidConfiguration` unless every database accepts it in quotes."""
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME
        or not name.isprintable()
    ):
        raise InvalidConfiguration(f"expected a name of 1 to {MAX_NAME} printable bytes, got: {brief(name)}")
    if name != name.strip():  # MySQL rejects names that end with a space
        raise InvalidConfiguration(f"expected a name without spaces around it, got: {name!r}")
    return name


def checked_env(name: str, example: str) -> str:
    """Return the name of an environment variable; raises `InvalidConfiguration` unless it is one."""
    if not isinstance(name, str) or not name.isidentifier():
        # The message must not show the argument: it may be the URL itself, with a password.
        raise InvalidConfiguration(f"expected the name of an environment variable, such as {example}")
    return name


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
