"""`cq rebucket`, `cq purge`, `cq delete` and `cq drain`: what workers do for a queue as a whole, and waiting for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

import cq
from cq.cli.options import Json, Queue, Store, open_store, read_store, seconds_of
from cq.cli.output import note, print_json, progress, quantity, say
from cq.config import read_config, read_flags
from cq.errors import ConfigurationError, InvalidConfiguration, NotNow
from cq.purging import is_purging
from cq.status import is_drained

_LOOK_SECONDS: Final = 0.2

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask whether you are sure.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until workers have done it.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("rebucket", epilog="Example: cq rebucket words --buckets 64")(rebucket)
    app.command("purge", epilog="Example: cq purge words --yes")(purge)
    app.command("delete", epilog="Example: cq delete words --yes")(delete)
    app.command(
        "limit",
        epilog="Examples: cq limit words --max-age 10m --max-bytes 1000000000; cq limit words --none",
    )(limit)
    app.command("drain", epilog="Example: cq drain words --timeout 60")(drain)


def rebucket(
    queue: Queue,
    buckets: Annotated[int, typer.Option(metavar="N", help="1 to 4,096; as many passes can run at once.")],
    wait: Wait = True,
    store: Store = None,
    json: Json = False,
) -> None:
    """Spread a queue over another number of buckets, while it is in use.

    Nothing is stopped, lost, repeated or put out of order: workers drain the buckets there were, and go on with the new
    ones. Current values do not move.
    """
    db = open_store(store)
    config = cq.rebucket(db, queue, buckets)
    if wait:
        _wait(db, queue, "rebucketing", lambda: _config(db, queue).former is None)
    if json:
        print_json({"queue": queue, **config.settings()})
    else:
        say(f"queue {queue!r} has {quantity(buckets, 'bucket')}" + ("" if wait else ": workers see to it"))


def purge(queue: Queue, yes: Yes = False, wait: Wait = True, store: Store = None, json: Json = False) -> None:
    """Delete all values of a queue and all updates that wait; what is added from now on counts.

    Workers do it, and tell the observers of every deletion: a top and an exported table follow.
    """
    db = open_store(store)
    _config(db, queue)
    confirm(f"delete all values of queue {queue!r}?", yes)
    cq.purge(db, queue)
    if wait:
        _wait(db, queue, "purging", lambda: not is_purging(db, queue))
    _tell(queue, json, "purged" if wait else "being purged")


def delete(queue: Queue, yes: Yes = False, store: Store = None, json: Json = False) -> None:
    """Delete a queue: values, updates that wait, what was set aside, top and cloud, and its configuration.

    A table that it was exported to stays. Adds fail from now on.
    """
    db = open_store(store)
    _config(db, queue)
    confirm(f"delete queue {queue!r} with all that it holds?", yes)
    cq.delete(db, queue)
    _tell(queue, json, "deleted")


def limit(
    queue: Queue,
    max_age: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long updates may wait: 90s, 10m, 2h ...")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="How many bytes of updates may wait, about.")
    ] = None,
    when_full: Annotated[
        str, typer.Option(metavar="MODE", help="What adds do then: raise an error, or admit the updates.")
    ] = "raise",
    none: Annotated[bool, typer.Option("--none", help="Have no limits.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Limit what may wait in a queue. Limits that are left out are none.

    Workers find out within a second or two that a queue is full, or is full no more; so do those who add.
    """
    if none == (max_age is not None or max_bytes is not None):
        raise typer.BadParameter("expected --max-age, --max-bytes or both, or else --none")
    seconds = None if max_age is None else seconds_of(max_age)
    cq.limit(open_store(store), queue, seconds=seconds, size=max_bytes, mode=when_full)
    _tell(queue, json, "without limits" if none else "limited")


def drain(
    queue: Queue,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Give up after so long: exit status 1.")
    ] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """Wait until workers have combined all that is queued, at some moment; `cq worker --drain` combines it itself."""
    db = read_store(store)
    _config(db, queue)
    deadline = None if timeout is None else time.monotonic() + timeout
    _wait(db, queue, "draining", lambda: is_drained(db, queue, _LOOK_SECONDS), deadline)
    _tell(queue, json, "drained")


def _wait(
    db: Any, queue: str, doing: str, is_done: Callable[[], bool], deadline: float | None = None
) -> None:
    """Wait for workers to have done something; raises when they cannot, or have not in time."""
    with progress(counted=False) as display:
        display.add_task(f"{doing} {queue}")
        while not is_done():
            flags = db.transact(lambda tr: read_flags(tr.snapshot, queue))
            if flags.is_paused(time.time()):
                raise ConfigurationError(
                    f"queue {queue!r} is paused ({flags.reason}): workers go on once `cq resume {queue}` was run"
                )
            if deadline is not None and time.monotonic() > deadline:
                raise NotNow(f"queue {queue!r} is not drained in time: are workers running? See `cq status`")
            time.sleep(_LOOK_SECONDS)


def _config(db: Any, queue: str) -> Any:
    return db.transact(lambda tr: read_config(tr.snapshot, queue))


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidConfiguration(f"{question} Say so with --yes, as nobody can be asked here")
    if not typer.confirm(question):
        note("nothing is changed")
        raise typer.Exit(1)


def _tell(queue: str, json: bool, what: str) -> None:
    if json:
        print_json({"queue": queue, "done": what})
    else:
        say(f"queue {queue!r} is {what}")
