"""Transfer of queue settings between stores: the configuration and flags of queues, as a JSON document.

The document does not contain updates, values, data of observers, or generations, which belong to one store. It contains
no secrets, because settings do not: an export has the name of an environment variable, not the URL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args, get_type_hints

from cq.admin.configure import create
from cq.app import App, Factory
from cq.config.queue import (
    Audit,
    Flags,
    Named,
    ObserverConfig,
    QueueConfig,
    queue_names,
    read_config,
    read_flags,
)
from cq.config.window import WindowSpec
from cq.encoding.codec import KeyType, ValueType
from cq.errors import CodeMismatch, ConfigurationConflict, InvalidConfiguration
from cq.keys import QueueKeys, check_name
from cq.store.api import Database, Transaction
from cq.store.transact import transact

FORMAT: Final = 1
"""The version of the document. Higher versions are refused."""

_DOCUMENT: Final = {"format": int, "queues": dict}
_QUEUE: Final = {
    "audit": bool,
    "buckets": int,
    "combiner": dict,
    "flags": dict,
    "key": str,
    "observers": list,
    "value": str,
    "window": str,
}
_ADDED_LATER: Final = {"audit": False, "window": ""}
"""Settings that documents of earlier versions of cq lack, with the values that their queues have."""
_COMBINER: Final = {"name": str, "version": int}
_OBSERVER: Final = {"built_in": bool, "name": str, "settings": dict, "version": int}
_FLAGS: Final = {what: get_args(kind) or (kind,) for what, kind in get_type_hints(Flags).items()}
_NAMES: Final = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "an array",
    str: "a string",
}


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The names of the queues that an import created, and of those that existed with equal settings."""

    created: list[str]
    unchanged: list[str]


@dataclass(frozen=True, slots=True)
class _QueueSettings:
    """The settings of one queue, from a document or from a store."""

    config: QueueConfig
    flags: Flags

    def document(self) -> dict[str, Any]:
        """The settings as they are in the document."""
        return {
            "audit": self.config.audit is not None,
            "buckets": self.config.buckets,
            "combiner": {"name": self.config.combiner.name, "version": self.config.combiner.version},
            "flags": asdict(self.flags),
            "key": str(self.config.key),
            "observers": [
                {
                    "built_in": each.is_built_in,
                    "name": each.name,
                    "settings": each.settings,
                    "version": each.version,
                }
                for each in self.config.observers
            ],
            "value": str(self.config.value),
            "window": str(self.config.window or ""),
        }

    def shown(self) -> dict[str, object]:
        """The settings as messages show them, with the names of the document."""
        default = asdict(Flags())
        flags = [f"{what}={flag!r}" for what, flag in asdict(self.flags).items() if flag != default[what]]
        return {**self.config.settings(), "flags": ", ".join(flags) or "none"}


def export_config(db: Database, names: Sequence[str] = ()) -> dict[str, Any]:
    """The document of these queues, or of all queues of the store, from one read version.

    Raises `QueueNotConfigured`, and `InvalidConfiguration` for an observer whose settings JSON cannot carry.
    """

    given = sorted(
        {*names}
    )  # outside of the transaction: a retry would find an iterator empty, and export all queues

    def read(tr: Transaction) -> list[_QueueSettings]:
        wanted = given or queue_names(tr.snapshot)
        return [
            _QueueSettings(read_config(tr.snapshot, name), read_flags(tr.snapshot, name)) for name in wanted
        ]

    found = transact(db, read)
    for queue in found:
        _check_is_json(queue.config)
    return {"format": FORMAT, "queues": {queue.config.name: queue.document() for queue in found}}


def to_text(document: Mapping[str, Any]) -> str:
    """A document as ASCII text with sorted keys, one setting on each line. Equal settings give equal texts."""
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def from_text(text: str | bytes) -> Any:
    """The inverse of `to_text`; raises `InvalidConfiguration` if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # a UnicodeDecodeError is a ValueError, too
        raise InvalidConfiguration(
            f"expected a document of `cq export-config`, this is not JSON: {error}"
        ) from None


def import_config(
    db: Database, document: object, app: App | None = None, built_in: Mapping[str, Factory] | None = None
) -> ImportResult:
    """Create the missing queues of a document, and compare the other queues, in one transaction.

    Args:
        db: a database of either store.
        document: a result of `export_config`.
        app: the application's combiners and observers of the missing queues.
        built_in: the factories of the observers that need no code of the application. They must raise an exception for
            invalid settings. `cq.observers.builtin.CHECKED` has those of cq.

    Raises, without any change of the store:
        InvalidConfiguration: the document or one of its settings is invalid.
        CodeMismatch: a newer version of cq has written it, or a missing queue needs code that `app` lacks.
        ConfigurationConflict: a queue exists with other settings.
    """
    queues = _parse(document)
    return transact(db, lambda tr: _import(tr, queues, app or App(), built_in or {}))


def _import(
    tr: Transaction, queues: list[_QueueSettings], app: App, built_in: Mapping[str, Factory]
) -> ImportResult:
    stored = [tr.get(QueueKeys(queue.config.name).config) for queue in queues]
    missing = []
    for queue, found in zip(queues, stored, strict=True):
        if found.value is None:
            missing.append((queue, app.code(queue.config, _factories(queue.config, built_in)).combiner))
        else:
            name = queue.config.name
            _compare(_QueueSettings(QueueConfig.from_bytes(name, found.value), read_flags(tr, name)), queue)
    for queue, combiner in missing:
        try:
            create(tr, queue.config, combiner, queue.flags)
        except InvalidConfiguration as error:
            raise InvalidConfiguration(f"queue {queue.config.name!r}: {error}") from None
    created = [queue.config.name for queue, _ in missing]
    return ImportResult(created, [each.config.name for each in queues if each.config.name not in created])


def _factories(config: QueueConfig, built_in: Mapping[str, Factory]) -> dict[str, Factory]:
    """The factories of the observers that the configuration marks as built in.

    An observer of an application may have the name of a built-in one.
    """
    names = {each.name for each in config.observers if each.is_built_in}
    return {name: factory for name, factory in built_in.items() if name in names}


def _compare(stored: _QueueSettings, wanted: _QueueSettings) -> None:
    before, after = stored.document(), wanted.document()
    differences = {
        what: (stored.shown()[what], wanted.shown()[what]) for what in _QUEUE if before[what] != after[what]
    }
    if differences:
        raise ConfigurationConflict(stored.config.name, differences)


def _check_is_json(config: QueueConfig) -> None:
    for observer in config.observers:
        try:
            carried = json.loads(json.dumps(observer.settings, allow_nan=False)) == observer.settings
        except (TypeError, ValueError):
            carried = False
        if not carried:
            raise InvalidConfiguration(
                f"JSON cannot carry the settings of observer {observer.name!r} of queue {config.name!r}: "
                "configure this queue by its application, and export the others by name"
            )


# Reading a document


def _parse(document: object) -> list[_QueueSettings]:
    found = document.get("format") if isinstance(document, dict) else None
    if type(found) is int and found > FORMAT:
        raise CodeMismatch(
            f"the document was written by a newer version of cq (format {found}, this version knows {FORMAT}): "
            "upgrade cq"
        )
    fields = _object(document, _DOCUMENT, "the document")
    if found != FORMAT:
        raise InvalidConfiguration(f"expected the document to have the format {FORMAT}, got: {found}")
    return [_queue(check_name(name), fields["queues"][name]) for name in sorted(fields["queues"])]


def _queue(name: str, found: object) -> _QueueSettings:
    where = f"queue {name!r}"
    fields = _object({**_ADDED_LATER, **found} if isinstance(found, dict) else found, _QUEUE, where)
    combiner = _object(fields["combiner"], _COMBINER, f"the combiner of {where}")
    observers = [_object(each, _OBSERVER, f"each observer of {where}") for each in fields["observers"]]
    names = [each["name"] for each in observers]
    if len({*names}) < len(names):
        raise InvalidConfiguration(
            f"expected {where} to have observers of different names, got: {', '.join(names)}"
        )
    try:
        key, value = KeyType.parse(fields["key"]), ValueType.parse(fields["value"])
        window = WindowSpec.parse(fields["window"]) if fields["window"] else None
    except InvalidConfiguration as error:
        raise InvalidConfiguration(f"{where}: {error}") from None
    config = QueueConfig(
        name,
        key,
        value,
        Named(combiner["name"], combiner["version"]),
        tuple(
            ObserverConfig(each["name"], each["version"], each["settings"], generation, each["built_in"])
            for generation, each in enumerate(observers, 1)
        ),
        fields["buckets"],
        audit=Audit(1, fields["buckets"], True) if fields["audit"] else None,
        window=window,
    )
    return _QueueSettings(config, _flags(fields["flags"], f"flags of {where}"))


def _flags(found: dict[str, Any], where: str) -> Flags:
    """The flags in a document. Missing flags have their defaults: an older version of cq may not know them."""
    for what, value in found.items():
        _check_known(what, _FLAGS, where)
        kinds = _FLAGS[what]
        if type(value) not in kinds and not (type(value) is int and float in kinds):
            raise InvalidConfiguration(f"expected {what!r} of {where} to be {_NAMES[kinds[0]]}")
    return Flags(**found)


def _object(found: object, fields: Mapping[str, type], where: str) -> dict[str, Any]:
    """The object, which must have exactly these fields; raises `InvalidConfiguration`.

    The message does not show values, because a wrong file may contain anything.
    """
    if not isinstance(found, dict):
        raise InvalidConfiguration(
            f"expected {where} to be an object, got {_NAMES.get(type(found), 'something else')}"
        )
    for what, kind in fields.items():
        if what not in found:
            raise InvalidConfiguration(f"expected {where} to have {what!r}")
        if type(found[what]) is not kind:
            raise InvalidConfiguration(f"expected {what!r} of {where} to be {_NAMES[kind]}")
    for what in found:
        _check_known(what, fields, where)
    return found


def _check_known(what: str, known: Mapping[str, object], where: str) -> None:
    if what not in known:
        raise InvalidConfiguration(f"{where} has {what!r}, which this version of cq does not know")
