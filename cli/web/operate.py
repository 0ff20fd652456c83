"""Actions of operators: what each does, the fields of its form, and its run on the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import typer

import cq
from cq.cli.shared.options import seconds_of
from cq.cli.shared.output import with_levels
from cq.config.queue import read_config
from cq.encoding.json_values import key_from_word
from cq.errors import CqError, InvalidConfiguration
from cq.observers.links.operate import set_paused
from cq.observers.links.registry import link_keys, opened_link
from cq.plain_text import printable
from cq.queue.limits import MODES
from cq.queue.set_aside import ANY, drop_aside, retry_aside
from cq.store import OpenDatabase
from cq.store.api import error_code
from cq.store.transact import transact

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form.

    Attributes:
        name: in the form.
        label, help: its texts.
        choices: its values; empty for any text.
        required: whether it must not be empty.
    """

    name: str
    label: str
    help: str
    choices: Sequence[str] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """An action of an operator on a queue.

    Attributes:
        title: the heading of its form, and its button.
        effect: what it does, for the operator who confirms it.
        run: does it, and returns the result in one line.
        fields: of its form, in addition to the queue.
        is_dangerous: whether its result cannot be undone.
    """

    title: str
    effect: str
    run: Callable[[OpenDatabase, str, Fields], str]
    fields: Sequence[FormField] = field(default_factory=tuple)
    is_dangerous: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an action: its result, or its error."""

    text: str
    is_done: bool


def perform(db: OpenDatabase, operation: Operation, queue: str, fields: Fields) -> Done:
    """Run an action; errors of cq, of the store and of the form's fields become its result."""
    try:
        return Done(operation.run(db, queue, fields), True)
    except (CqError, typer.BadParameter) as error:
        return Done(printable(str(error)), False)
    except Exception as error:
        if error_code(error) is None:
            raise
        return Done(printable(f"the store does not answer: {error}"), False)


def _pause(db: OpenDatabase, queue: str, fields: Fields) -> str:
    duration = _given(fields, "duration")
    cq.pause(
        db,
        queue,
        _given(fields, "reason") or "by hand",
        seconds=None if duration is None else seconds_of(duration),
    )
    return _with_levels(db, queue, f"queue {queue!r} is paused")


def _resume(db: OpenDatabase, queue: str, fields: Fields) -> str:
    cq.resume(db, queue)
    return _with_levels(db, queue, f"queue {queue!r} is active")


def _rebucket(db: OpenDatabase, queue: str, fields: Fields) -> str:
    cq.rebucket(db, queue, _whole(fields, "buckets"))
    text = _with_levels(db, queue, f"queue {queue!r} has {_whole(fields, 'buckets'):,} buckets")
    return f"{text}: workers drain the former ones"


def _limit(db: OpenDatabase, queue: str, fields: Fields) -> str:
    seconds, size = _given(fields, "max_age"), _given(fields, "max_bytes")
    cq.limit(
        db,
        queue,
        seconds=None if seconds is None else seconds_of(seconds),
        size=None if size is None else _whole(fields, "max_bytes"),
        mode=_given(fields, "when_full") or MODES[0],
    )
    text = f"queue {queue!r} has no limits" if seconds is size is None else f"queue {queue!r} is limited"
    return _with_levels(db, queue, text)


def _retry(db: OpenDatabase, queue: str, fields: Fields) -> str:
    return f"retried {retry_aside(db, queue, _key(db, queue, fields)):,} updates and missed reports of queue {queue!r}"


def _drop(db: OpenDatabase, queue: str, fields: Fields) -> str:
    return f"dropped {drop_aside(db, queue, _key(db, queue, fields)):,} pieces of queue {queue!r}"


def _set_link(db: OpenDatabase, queue: str, fields: Fields, *, paused: bool) -> str:
    keys = link_keys(db, queue, _given(fields, "link"))
    set_paused(db, keys, paused=paused)
    return f"link {keys.link!r} of queue {queue!r} is {'paused' if paused else 'active'}"


def _rebuild_link(db: OpenDatabase, queue: str, fields: Fields) -> str:
    with opened_link(db, queue, _given(fields, "link")) as opened:
        opened.rebuild()
        return f"workers send all values of queue {queue!r} to link {opened.keys.link!r} again"


def _rebase_link(db: OpenDatabase, queue: str, fields: Fields) -> str:
    with opened_link(db, queue, _given(fields, "link")) as opened:
        opened.rebase()
        return f"link {opened.keys.link!r} of queue {queue!r} continues from the current state"


def _with_levels(db: OpenDatabase, queue: str, text: str) -> str:
    return with_levels(text, transact(db, lambda tr: read_config(tr.snapshot, queue)).level_names)


def _key(db: OpenDatabase, queue: str, fields: Fields) -> Any:
    """The key of a form; `ANY` for an empty field."""
    word = _given(fields, "key")
    if word is None:
        return ANY
    return key_from_word(transact(db, lambda tr: read_config(tr.snapshot, queue)).key, word)


def _given(fields: Fields, name: str) -> str | None:
    return fields.get(name, "").strip() or None


def _whole(fields: Fields, name: str) -> int:
    text = fields.get(name, "").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidConfiguration(
            f"expected a whole number for {name.replace('_', ' ')}, got: {text[:80]!r}"
        )
    return int(text)


_LINK: Final = FormField("link", "Link", "The name of the link. Empty: the queue's only one.")
_KEY: Final = FormField("key", "Key", "One key, as on the command line. Empty: all keys.")
OPERATIONS: Final[Mapping[str, Operation]] = {
    "pause": Operation(
        "Pause",
        "Workers stop combining this queue and its levels. Adds and reads continue, so its backlog grows until it is "
        "resumed.",
        _pause,
        (
            FormField("reason", "Reason", "Operators and workers see it."),
            FormField("duration", "Duration", "Such as 90s, 10m or 2h. Empty: until it is resumed."),
        ),
    ),
    "resume": Operation("Resume", "Workers combine this queue and its levels again, at once.", _resume),
    "rebucket": Operation(
        "Change the number of buckets",
        "The queue stays in use, and no update is lost. Workers drain the former buckets.",
        _rebucket,
        (
            FormField(
                "buckets", "Buckets", "1 to 4,096: the number of passes that can run at once.", required=True
            ),
        ),
    ),
    "limit": Operation(
        "Change the limits",
        "Workers and adds notice within two seconds that a limit is exceeded. Updates queued in its levels count, "
        "too. An empty field removes its limit.",
        _limit,
        (
            FormField("max_age", "Maximum age", "Of queued updates, such as 90s, 10m or 2h."),
            FormField("max_bytes", "Maximum size", "Of all queued updates, in bytes."),
            FormField("when_full", "Adds to a full queue", "raise: they fail. admit: they continue.", MODES),
        ),
    ),
    "pause-link": Operation(
        "Pause the link",
        "Workers stop sending the changes of this link, which stay queued until it is resumed.",
        partial(_set_link, paused=True),
        (_LINK,),
    ),
    "resume-link": Operation(
        "Resume the link",
        "Workers send the changes of this link again.",
        partial(_set_link, paused=False),
        (_LINK,),
    ),
    "rebuild-link": Operation(
        "Send all values again",
        "Workers send all values to the target, and then delete what keys without a value have left there. It also "
        "lets a stopped link continue.",
        _rebuild_link,
        (_LINK,),
    ),
    "rebase-link": Operation(
        "Continue from the current state",
        "The queued changes follow, and no value is sent again: what the target lacks stays missing.",
        _rebase_link,
        (_LINK,),
        is_dangerous=True,
    ),
    "retry": Operation(
        "Retry what was set aside",
        "The updates are added to the queue again, after all queued ones. Repair the cause first.",
        _retry,
        (_KEY,),
    ),
    "drop": Operation(
        "Drop what was set aside",
        "The updates will never count. This cannot be undone.",
        _drop,
        (_KEY,),
        is_dangerous=True,
    ),
}
"""{name in addresses: the action}."""
