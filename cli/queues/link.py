"""`cq link`: the links of queues to other systems: SQL tables, webhooks, topics of Kafka, queues of other stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cq import admin
from cq.cli.queues.manage import Yes, config_of, confirm
from cq.cli.queues.verify import Wait, report
from cq.cli.queues.waiting import report_unsent, reported_interrupt
from cq.cli.shared.exit_status import DIFFERENT, FAILED
from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import AppOptions, Options, Queue, argument
from cq.cli.shared.output import age, as_word, quantity, rough
from cq.cli.shared.table import NO_VALUE, ShownColumn
from cq.encoding.json_values import to_json
from cq.errors import NotInStore
from cq.keys.link import OUTBOX, LinkKeys
from cq.observers.links.log import decoded_keys
from cq.observers.links.operate import OpenLink
from cq.observers.links.registry import opened_link, opened_outbox, pause_link, table_check
from cq.observers.links.spec import find_link, link_name
from cq.observers.links.state import AsideEntry, entries_aside
from cq.observers.links.target import LinkStopped
from cq.observers.monitoring.link_status import LinkStatus, link_status
from cq.observers.monitoring.store_overview import link_overview
from cq.observers.verify.queue import WAIT_SECONDS
from cq.plain_text import utc_time
from cq.store import OpenDatabase
from cq.verify.verification import Verification

if TYPE_CHECKING:
    from cq.observers.links.outbox.operate import OpenOutbox

commands = CommandSet("link", "Send changes of queues to SQL tables, webhooks, Kafka, stores.")

_COLUMNS: Final = (
    ShownColumn("queue", lambda each: each.queue, is_number=False),
    ShownColumn("link", lambda each: each.link, is_number=False),
    ShownColumn("target", lambda each: each.target or NO_VALUE, is_number=False),
    ShownColumn("waiting", lambda each: f"{each.waiting_buckets} of {each.buckets}"),
    ShownColumn("rows", lambda each: rough(each.rows, each.exact)),
    ShownColumn("bytes", lambda each: rough(each.bytes, each.exact)),
    ShownColumn("oldest", lambda each: age(each.oldest_seconds)),
    ShownColumn("entries/s", lambda each: f"{each.entries_per_second:,.1f}"),
    ShownColumn("set aside", lambda each: NO_VALUE if each.aside is None else f"{each.aside:,}"),
    ShownColumn("state", lambda each: each.state, is_number=False),
)
Link = Annotated[
    str | None, argument("LINK", "The name of the link, or outbox. Default: the queue's only link.")
]


@commands.command("list", examples=["cq link list", "cq link list words --json"])
def show_list(
    options: Options,
    queue: Annotated[str | None, argument("QUEUE", "The queue. Default: all queues with links.")] = None,
) -> None:
    """List the links with their backlog, its age, and their errors.

    States: `filling`: the target is receiving all values, or rows without a value are not yet deleted. `failing`:
    workers try again. `stopped`: the operator must make a decision; the error describes the options. `paused`: by
    `cq link pause`. `unreadable`: its stored data were not written by cq. With --json one line per link.
    """
    statuses = link_overview(options.read_store(), queue)
    which = "no queue has a link" if queue is None else f"queue {queue!r} has no link"
    empty = f"{which}: begin with `cq configure {queue or 'QUEUE'} --link NAME=KIND:TARGET`"
    options.print_list(statuses, _COLUMNS, empty)
    options.note_errors((each.name, _error(each)) for each in statuses)


@commands.command("init", examples=["cq link init words", "cq link init words report"])
def init(options: AppOptions, queue: Queue, link: Link = None) -> None:
    """Create what the target of a link lacks, and check it.

    For SQL: the table of the queue, and two tables of cq. Existing tables are compared with the expected ones; a
    difference is an error that names it. For a webhook, this sends signed requests without changes, to check that the
    receiver accepts them. For Kafka, it checks that the topic exists; for a queue, the other store and its queue.
    """
    with _opened_link(queue, link, options, options.open_store) as opened:
        created = opened.target.create()
        try:
            accepted = opened.check()
        except LinkStopped as error:
            raise LinkStopped(f"created {', '.join(created)}; {error}" if created else str(error)) from None
    text = f"created {', '.join(created)}" if created else accepted
    options.answer(text, queue=queue, link=opened.keys.link, created=created)


@commands.command("check", examples=["cq link check words report"])
def check(options: AppOptions, queue: Queue, link: Link = None) -> None:
    """Check that the target answers, and that both sides agree."""
    with _opened(queue, link, options, options.read_store) as opened:
        accepted = opened.check()
    options.answer(accepted, queue=queue, link=opened.keys.link)


@commands.command("verify", examples=["cq link verify words --json"])
def verify(options: AppOptions, queue: Queue, link: Link = None, wait: Wait = WAIT_SECONDS) -> None:
    """Compare a link's table with the current values of the queue.

    Both may be in use. Each difference is printed as a line; the exit status is then 4. The command waits for changes
    that are not sent yet, unless the link is stopped: workers must be running. With --json one line per difference, and
    one line of totals. cq cannot read what other targets keep.
    """
    with _opened_link(queue, link, options, options.read_store) as opened:
        table = table_check(opened)  # refuses a link without a table before anything is reported
        seconds = report_unsent(opened.db, opened.keys, wait)
        with reported_interrupt("nothing was changed"):
            found = Verification(opened.db, queue, {"table": partial(table.run, wait_seconds=seconds)})
            advice = f"`cq link rebuild {queue} {opened.keys.link}` sends all values again"
            counts = report("cq link verify", found, options.json, advice=advice)
    if counts["differences"]:
        raise typer.Exit(DIFFERENT)
    if table.undecided:
        raise typer.Exit(FAILED)


@commands.command("rebuild", examples=["cq link rebuild words report"])
def rebuild(options: AppOptions, queue: Queue, link: Link = None) -> None:
    """Send all values again, and delete rows without a value.

    Use it for a target that differs, was emptied or restored, or after a restore of the store. It takes over a table
    that another link feeds. Workers do it while everything is in use; `cq link list` shows `filling` until it is done.
    It also lets a stopped link continue.
    """
    with _opened_link(queue, link, options, options.open_store) as opened:
        generation = opened.rebuild()
    text = f"workers send all values of queue {queue!r} again: `cq link list {queue}` shows their progress"
    options.answer(text, queue=queue, link=opened.keys.link, generation=generation)


@commands.command("rebase", examples=["cq link rebase words report"])
def rebase(options: AppOptions, queue: Queue, link: Link = None) -> None:
    """Continue a link from the current state of the store.

    Use it only if both sides agree, for example after a restore from backups of the same moment. No value is sent
    again: rows that a table lacks stay missing. For a target that has refused changes, use it once the cause is
    repaired: the queued changes follow. The outbox of a queue is its link `outbox`: workers then add each row that the
    table has now.
    """
    with _opened(queue, link, options, options.open_store) as opened:
        is_changed = opened.rebase()
    text = f"link {opened.keys.link!r} of queue {queue!r} continues from the current state"
    options.answer(
        text if is_changed else "both databases agree: nothing is changed",
        queue=queue,
        link=opened.keys.link,
        rebased=bool(is_changed),
    )


@commands.command("pause", examples=["cq link pause words report"])
def pause(options: Options, queue: Queue, link: Link = None) -> None:
    """Stop a link from sending its changes; they stay queued.

    A batch under way ends. The link `outbox` stops adding the rows of the queue's outbox.
    """
    _set_paused(options, queue, link, paused=True)


@commands.command("resume", examples=["cq link resume words report"])
def resume(options: Options, queue: Queue, link: Link = None) -> None:
    """Let workers continue a paused link or outbox."""
    _set_paused(options, queue, link, paused=False)


@commands.command("remove", examples=["cq link remove words report"])
def remove(options: Options, queue: Queue, link: Link = None, yes: Yes = False) -> None:
    """Remove a link with its queued changes.

    What its target has stays. `cq outbox remove` removes an outbox.
    """
    db = options.open_store()
    _refuse_outbox(queue, link)
    observer = find_link(config_of(db, queue), link)
    name = link_name(observer.name)
    rows = sum(each.rows or 0 for each in link_status(db, queue) if each.link == name)
    if rows:
        confirm(f"link {name!r} has {quantity(rows, 'row')} of changes that are not sent. Go on?", yes)
    admin.remove_observer(db, queue, observer.name)
    options.answer(f"queue {queue!r} has no link {name!r} any more", queue=queue, link=name)


@commands.command("aside", examples=["cq link aside words --json"])
def aside(options: Options, queue: Queue, link: Link = None) -> None:
    """List the entries that could not be sent, with the error.

    After you have repaired the cause, `cq link rebuild` sends the current values, and drops these entries. With --json
    one line per entry.
    """
    db = options.read_store()
    _refuse_outbox(queue, link)
    link = link_name(find_link(config_of(db, queue), link).name)

    def key_of(each: AsideEntry) -> Any:
        return None if each.encoded_key is None else decoded_keys([each.encoded_key])[0]

    columns = (
        ShownColumn("key", lambda each: as_word(key_of(each)), is_number=False),
        ShownColumn("value", lambda each: as_word(each.value), is_number=False),
        ShownColumn("error", lambda each: each.error, is_number=False),
    )
    options.print_list(
        entries_aside(db, LinkKeys(queue, link)),
        columns,
        f"nothing is set aside in link {link!r} of queue {queue!r}",
        lambda each: {"key": to_json(key_of(each)), "value": to_json(each.value), "error": each.error},
    )


def _refuse_outbox(queue: str, link: str | None) -> None:
    if link == OUTBOX:
        raise NotInStore(
            f"the outbox of queue {queue!r} sends nothing: `cq outbox --help` lists what can be done"
        )


def _opened_link(
    queue: str, link: str | None, options: AppOptions, opener: Callable[[], OpenDatabase]
) -> AbstractContextManager[OpenLink]:
    """The link; closes the connections to its target at exit."""
    _refuse_outbox(queue, link)
    app = options.load_app()  # its code declares targets, and columns of tables
    return opened_link(opener(), queue, link, app=app)


def _opened(
    queue: str, link: str | None, options: AppOptions, opener: Callable[[], OpenDatabase]
) -> AbstractContextManager[OpenLink | OpenOutbox]:
    """The link or the outbox; closes the connections to the other system at exit."""
    if link == OUTBOX:
        return opened_outbox(opener(), queue)
    return _opened_link(queue, link, options, opener)


def _set_paused(options: Options, queue: str, link: str | None, *, paused: bool) -> None:
    name = pause_link(options.open_store(), queue, link, paused=paused)
    text = f"link {name!r} of queue {queue!r} is {'paused' if paused else 'active'}"
    options.answer(text, queue=queue, link=name, paused=paused)


def _error(each: LinkStatus) -> str:
    """The latest error of a link, with the time of the first one in a row; empty without one."""
    since = "" if each.failing_since is None else f"failing since {utc_time(each.failing_since)}: "
    return f"{since}{each.error}" if each.error else ""
