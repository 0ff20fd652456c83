"""`cq configure`, `cq pause` and `cq resume`: the configuration of queues.

The version of a combiner changes before all other settings: its former version has to do its part first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

import typer

from cq import admin
from cq.admin.configure import RequestedSettings, change, repeated_reports, requested
from cq.admin.conversion import is_raised
from cq.admin.levels import is_level
from cq.admin.rebucketing import finish_rebucket
from cq.admin.repeated_reports import count_values
from cq.app import App
from cq.cli.queues.manage import Yes, config_of, confirm
from cq.cli.queues.waiting import AwaitedWork, wait_for_workers
from cq.cli.shared import completion
from cq.cli.shared.help import CommandSet, HelpCommand
from cq.cli.shared.options import (
    AppOptions,
    Options,
    Queue,
    argument,
    duration_option,
    flag,
    option,
    option_set,
)
from cq.cli.shared.output import note, quantity, say, with_levels
from cq.config.queue import Named, QueueConfig
from cq.keys import QueueKeys, check_name
from cq.keys.link import OBSERVER
from cq.observer import ObserverSpec
from cq.observers.feeds.observer import feed_spec
from cq.observers.links import spec as links
from cq.observers.links.spec import unread_variables
from cq.observers.top.index import DEFAULT_N, LAST_PART
from cq.observers.top.index import top as top_spec
from cq.store import OpenDatabase
from cq.store.api import Transaction
from cq.store.sizes import count_rows
from cq.store.transact import transact

commands = CommandSet()


_SHORT_FORMS: Final[Mapping[str, Callable[[str], ObserverSpec]]] = {
    "export": links.table,
    "forward": links.queue,
    "webhook": links.webhook,
    "kafka": links.kafka,
}
"""{option: makes the link of this name}."""


@option_set
class ConfigureOptions(AppOptions):
    """The options of `cq configure`: what a queue is, who receives its changes, and what of its past is kept."""

    key: str | None = option(
        "TYPE", "Type of the keys: str (default), int, bytes, or a tuple such as '(str, int)'."
    )
    value: str | None = option(
        "TYPE",
        "Type of the values: int (default), float, decimal, str, bytes, bool, list, dict, set, "
        "datetime or any.",
    )
    combiner: str | None = option(
        "NAME",
        "Combiner: sum (default), minimum, maximum, last, first, union, counter, decaying, a sketch (distinct, "
        "theta, quantiles, frequent, or of another size, such as 'distinct(lg_k=14)'), or one of --app.",
        autocompletion=completion.combiners,
    )
    decider: str | None = option(
        "NAME:ARGUMENTS",
        "Let workers decide requests, as of `cq ask`: bounded:LO:HI (with :start=VALUE and :clamp=true), unique, "
        "bucket:CAPACITY:PER_SECOND or budget:CAP; :keep=SECONDS for the answers. Without --value, a new queue has "
        "the type of its states.",
        autocompletion=completion.deciders,
    )
    buckets: int | None = option(
        "NUMBER", "Number of buckets, 1 to 4,096. Default: 1 in an embedded store, 4 on a cluster."
    )
    priority: int | None = option(
        "NUMBER",
        "Share of the workers' time relative to other queues, 1 to 100 (default 10). Levels get the same.",
    )
    audit: bool | None = flag(
        "--audit/--no-audit",
        "Keep sums for a check that no update is lost or repeated. Only for sums of int.",
        default=None,
    )
    top: int | None = option(
        "[NUMBER]", "Keep a top, and publish a cloud of the highest values (default 100)."
    )
    keep_clouds: str | None = option(
        "TIME[/STEP]",
        "With --top: keep each version of the cloud for this time after its replacement: 1h, or 30d/1h for the "
        "last version of each hour.",
    )
    no_top: bool = flag("--no-top", "Remove the top and the cloud.")
    link: list[str] | None = option(
        "NAME=KIND:TARGET",
        "Send all changes to another system by a link of this name: report=sql:TABLE, hook=webhook:URL_ENV, "
        "topic=kafka:TOPIC, there=queue:QUEUE or own=app:TARGET of --app; with settings after commas, such as "
        "url_env=NAME. Repeat it for several links.",
    )
    no_link: list[str] | None = option("NAME", "Remove the link of this name; what its target has stays.")
    export: str | None = option(
        "TABLE", "Link it to this table of a SQL database: short for --link export=sql:TABLE."
    )
    forward: str | None = option(
        "QUEUE", "Link it to this queue of another store: short for --link forward=queue:QUEUE."
    )
    webhook: str | None = option(
        "NAME", "Link it to the URL in this environment variable: short for --link webhook=webhook:NAME."
    )
    kafka: str | None = option("TOPIC", "Link it to this topic of Kafka: short for --link kafka=kafka:TOPIC.")
    feed: str | None = option(
        "FEED",
        "Append all changes to this feed; the receiver is the name of the queue.",
        autocompletion=completion.feeds,
    )
    no_feed: bool = flag("--no-feed", "Stop appending changes to a feed.")
    rebuild: str | None = option(
        "OBSERVER",
        "Report all values to this observer again: top, a link, or an observer of --app.",
        autocompletion=completion.observers,
    )
    window: str | None = option(
        "WIDTH/SLICE",
        "Keep values of the last WIDTH, too, which move by SLICE: 10m/10s. "
        "`cq get QUEUE.window KEY` reads them. none: delete them; the queue stays.",
    )
    expire: float | None = duration_option(
        "Delete keys without an update for this time: 90s, 12h, 30d. At most a 60th later."
    )
    no_expire: bool = flag("--no-expire", "Keep keys without updates.")
    rollup: str | None = option(
        "PERIOD:RETENTION,...",
        "Keep values by these periods, too, each for this time: 1m:2d,1h:60d,1d:forever. "
        "`cq series` reads them. none: as --no-rollup.",
    )
    no_rollup: bool = flag("--no-rollup", "Delete the values by periods; the queue stays.")

    def settings(self) -> dict[str, Any]:
        """The settings of a queue that the options give, by the names of `cq.configure`."""
        names = ("key", "value", "combiner", "decider", "buckets", "audit", "window")
        found = {name: getattr(self, name) for name in names}
        found["expire"] = _either("expire", self.expire, self.no_expire, removal=False)
        found["rollup"] = _either("rollup", self.rollup, self.no_rollup, removal="none")
        return {name: setting for name, setting in found.items() if setting is not None}

    def removed(self) -> list[str]:
        """The names of the observers and links to remove."""
        others = [name for name, is_removed in (("top", self.no_top), ("feed", self.no_feed)) if is_removed]
        return [*others, *(f"{OBSERVER}{name}" for name in self.no_link or ())]

    def put(self) -> list[ObserverSpec]:
        """The observers and links to add or to change; raises `typer.BadParameter` for one that is also removed."""
        if self.keep_clouds is not None and self.top is None:
            raise typer.BadParameter("--keep-clouds needs the top: add --top")
        found = []
        if (number := _either("top", self.top, self.no_top)) is not None:
            found.append(top_spec(number, keep=self.keep_clouds))
        if (feed := _either("feed", self.feed, self.no_feed)) is not None:
            found.append(feed_spec(feed))
        given = {make: getattr(self, name) for name, make in _SHORT_FORMS.items()}
        short = [make(target) for make, target in given.items() if target is not None]
        linked = [*short, *map(links.parse_link, self.link or ())]
        for both in {each.name for each in linked}.intersection(self.removed()):
            raise typer.BadParameter(
                f"give either --link {links.link_name(both)}=... or --no-link {links.link_name(both)}"
            )
        return [*found, *linked]


class _ConfigureCommand(HelpCommand):
    """Accepts `--top` without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with the default number inserted after a bare `--top`."""
        if "--top" in args:
            following = args.index("--top") + 1
            if following == len(args) or not args[following].lstrip("+").isdigit():
                args = [*args[:following], str(DEFAULT_N), *args[following:]]
        return super().parse_args(ctx, args)


@commands.command(
    "configure",
    cls=_ConfigureCommand,
    examples=[
        "cq configure words --key str --value int --combiner sum",
        "cq configure words --top --export word_counts",
        "cq configure words --link report=sql:word_counts --link hook=webhook:CQ_WORDS_URL",
        "cq configure hits --window 10m/10s --rollup 1h:30d,1d:forever --expire 90d",
        "cq configure hits.window --top",
        "cq configure --app shop:app",
        "cq configure stock --decider bounded:0:100:start=100",
    ],
)
def configure(
    options: ConfigureOptions,
    queue: Annotated[
        str | None, argument("QUEUE", "Name of the queue. Default: all that --app declares.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Create a queue, or change its configuration.

    Without a name it creates all queues and feeds that --app declares, and changes those that have other settings.

    Omitted options keep their values; the defaults are for a new queue. Without any option it creates no queue, and
    shows the settings of an existing one. The types, combiner and buckets of an existing queue cannot be changed here,
    except for the version of a combiner of --app. A top, links and a feed can be added to a
    queue with values: workers first report all values to them. An audit can be added, too: this command then
    reads the whole queue.

    A queue has the values of all time. For those of the last ten minutes, add --window 10m/10s; by hour for a month,
    --rollup 1h:30d; to forget what is old, --expire 30d. A queue can have all of these, and each can be added, changed
    and removed at any time: updates from then on count in a new window or period, and keys that have values when
    --expire is first given count as updated soon after it.

    A top, an export and so on of hits have its values of all time. Those of hits.window have the totals of the window:
    sums of int or decimal, and counters. A top of a level, such as hits.1h, is kept for each period. With these tops,
    `cq top hits --by 10m` and --by 1h also show the ranks before.

    A new version of an observer of --app receives all values again, each as new. The command says how many, and whether
    the observer clears what it has written, and asks.

    A later version of the combiner of --app takes over when workers with the former one have combined the updates that
    are queued now; the command waits for them, and then changes the observers. Workers with the new version first
    convert the values, if the combiner has a function `convert`. Adds and reads continue all the time.
    """
    app = options.load_app() or App()
    if queue is not None:
        _configure(options, app, queue, yes)
        return
    if options != replace(type(options)(), store=options.store, json=options.json, app_path=options.app_path):
        raise typer.BadParameter("expected the name of a queue for these options")
    if not app.queues and not app.feeds:
        raise typer.BadParameter("expected the name of a queue, or --app with a cq.App that declares queues")
    for name, configure_feed in app.feeds.items():  # first: queues may report to them
        configured = configure_feed(options.make_store())
        options.answer(f"feed {name!r} is configured", **asdict(configured))
    for name in app.queues:
        _configure(options, app, name, yes)


def _configure(options: ConfigureOptions, app: App, queue: str, yes: bool) -> None:
    """Create a queue, or change its configuration, and print it."""
    put, removed = options.put(), options.removed()
    given = app.settings(queue, options.settings())
    given_again = {each.name for each in put}.union(removed)
    put += [each for each in given.pop("links", None) or () if each.name not in given_again]
    # A name without a setting may be a mistake: it is looked up, and creates nothing.
    is_set = bool(put) or options.priority is not None or any(map(_is_given, given.values()))
    creates = is_set and options.rebuild is None
    check_name(queue)
    # Checked before a store is created: a mistake must not leave an empty one.
    changes = requested(**given, put=put, removed=removed, priority=options.priority, creates=creates)
    db = options.make_store() if creates else options.open_store()
    if options.top is not None and transact(db, lambda tr: is_level(tr.snapshot, queue)):
        top = top_spec(options.top, ranks=True, group=LAST_PART, keep=options.keep_clouds)
        changes = replace(changes, put=[top, *changes.put[1:]])
    changes = replace(changes, rebuilt=_rebuilt(db, queue, options.rebuild))
    unknown = _unknown(db, queue, options.no_link or ())
    combined = combiner_change(db, queue, changes)
    again = repeated_reports(db, queue, changes)
    for question in (combined, again):
        if question is not None:
            confirm(f"{question}. Go on?", yes)
    if combined is not None:
        make_change(db, combined, changes)
    config = change(db, queue, replace(changes, report_again=True))
    settings = config.settings()
    options.answer(f"queue {queue!r}: {_described(settings)}", queue=queue, **settings)
    for line in [] if options.json else _levels_described(config):
        say(line)
    for warning in [*unknown, *unread_variables(changes.put)]:
        note(f"cq: {warning}")


@commands.command(
    "pause", examples=["cq pause words --reason 'observers are being moved'", "cq pause words --for 10m"]
)
def pause(
    options: Options,
    queue: Queue,
    reason: Annotated[str, option("TEXT", "Reason, which `cq status` and workers show.")] = "by hand",
    seconds: Annotated[
        float | None,
        duration_option("Duration of the pause: 90s, 10m, 2h ... Default: until `cq resume`.", "--for"),
    ] = None,
) -> None:
    """Stop workers from combining a queue and its levels.

    Adds and reads continue. The name of a level, such as hits.1h, pauses this level alone.
    """
    db = options.open_store()
    admin.pause(db, queue, reason, duration=seconds)
    _print_state(options, db, queue, is_paused=True)


@commands.command("resume", examples=["cq resume words"])
def resume(options: Options, queue: Queue) -> None:
    """Let workers combine a queue and its levels again.

    The levels continue, whatever paused them. The name of a level, such as hits.1h, resumes this level alone.
    """
    db = options.open_store()
    admin.resume(db, queue)
    _print_state(options, db, queue, is_paused=False)


def _print_state(options: Options, db: OpenDatabase, queue: str, *, is_paused: bool) -> None:
    levels = config_of(db, queue).level_names
    text = with_levels(f"queue {queue!r} is {'paused' if is_paused else 'active'}", levels)
    options.answer(text, queue=queue, paused=is_paused, levels=levels)


def _rebuilt(db: OpenDatabase, queue: str, name: str | None) -> str | None:
    """The name of the observer to rebuild, which may be given as the name of a link."""
    if name is None:
        return None
    observers = {each.name for each in config_of(db, queue).observers}
    linked = f"{OBSERVER}{name}"
    return linked if linked in observers and name not in observers else name


def _unknown(db: OpenDatabase, queue: str, removed: Sequence[str]) -> list[str]:
    """A warning for each link to remove that an existing queue lacks: its name may be a mistake."""
    config = transact(db, lambda tr: _stored(tr, queue)) if removed else None
    if config is None:
        return []
    present = {each.name for each in config.observers}
    return [f"queue {queue!r} has no link {name!r}" for name in removed if f"{OBSERVER}{name}" not in present]


def _is_given(setting: object) -> bool:
    """Whether this is a setting of a new queue: not one that only removes something."""
    return setting is not None and setting is not False and setting not in ("none", ())


def _either(name: str, given: object, is_removed: bool, *, removal: object = None) -> Any:
    """The setting of an option, or `removal` for its option --no-...; raises `typer.BadParameter` for both."""
    if given is not None and is_removed:
        raise typer.BadParameter(f"give either --{name} or --no-{name}")
    return removal if is_removed else given


def _described(settings: dict[str, object]) -> str:
    shown = {**settings, "audit": "on" if settings["audit"] else []}
    shown |= {what: settings[what] or [] for what in ("window", "expire", "rollup")}
    return ", ".join(
        f"{what} {', '.join(value) if isinstance(value, list) else value}"
        for what, value in shown.items()
        if value != []
    )


def _levels_described(config: QueueConfig) -> list[str]:
    """Lines that say which queues have the values over time, and how to read them."""
    lines = []
    if config.window is not None:
        name, seconds = config.totals_name, config.window.width / 1000
        top = f", and `cq configure {name} --top` keeps its top" if config.subtracts else ""
        lines.append(f"{name}: values of the last {seconds:g} s; `cq get {name} KEY` reads them{top}")
    if config.rollup is not None:
        names = ", ".join(level.queue_of(config.name) for level in config.rollup.levels)
        lines.append(f"{names}: values by period; `cq series {config.name} KEY` reads them")
    return lines


# The change of the version of a combiner


@dataclass(frozen=True, slots=True)
class CombinerChange:
    """A change of the version of a queue's combiner, to be made or in progress.

    Attributes:
        queue: the queue.
        before, after: the combiners.
        is_begun: whether it is in progress.
        rest: what workers with the later version do.
    """

    queue: str
    before: Named
    after: Named
    is_begun: bool
    rest: str

    def __str__(self) -> str:
        return (
            f"the combiner of queue {self.queue!r} changes from {self.before} to {self.after}: workers with "
            f"{self.before} combine the updates that are queued now; then those with {self.after} {self.rest}"
        )


def combiner_change(db: Any, queue: str, wanted: RequestedSettings) -> CombinerChange | None:
    """The change of a combiner, wanted or in progress; None without a change."""

    def read(tr: Transaction) -> CombinerChange | None:
        config = _stored(tr, queue)
        if config is None or wanted.combiner is None:
            return None
        after = Named(wanted.combiner.name, wanted.combiner.version)
        if config.conversion is not None and config.former is not None and config.combiner == after:
            return CombinerChange(queue, config.conversion.former, after, True, "take over")
        if not is_raised(config, wanted.combiner):
            return None
        found = count_values(tr.snapshot, queue)
        number = f"{'' if found.exact else 'about '}{quantity(found.rows, 'value')}"
        values = f"convert {number}" if wanted.combiner.convert else f"keep the {number} as they are"
        return CombinerChange(queue, config.combiner, after, False, f"{values}, and continue")

    return transact(db, read)


def make_change(db: Any, found: CombinerChange, wanted: RequestedSettings) -> None:
    """Begin the change of the combiner, unless it is begun, and wait until the former version has done its part."""
    if not found.is_begun:
        change(db, found.queue, requested(combiner=wanted.combiner, creates=False))
    awaited = AwaitedWork(
        found.queue,
        f"combine, with {found.before}, the former updates of",
        lambda status: _left(db, found.queue),
        "run this command again to continue",
    )
    wait_for_workers(db, awaited, lambda: not _left(db, found.queue))


def _left(db: Any, queue: str) -> str:
    """The work left to the former version of the combiner for a queue and its levels, as text; empty without any."""

    config = transact(db, lambda tr: _stored(tr, queue))
    for name in config.names if config else []:
        finish_rebucket(db, name)
        if left := transact(db, partial(_left_of, name=name)):
            return left
    return ""


def _left_of(tr: Transaction, name: str) -> str:
    config, keys = _stored(tr, name), QueueKeys(name)
    if config is None or config.former is None:
        return ""
    if tr.snapshot.get_range(*keys.aside(), limit=1).to_list():
        return (
            f"updates of queue {name!r} are set aside, run `cq aside retry {name}` or `cq aside drop {name}`"
        )
    rows = count_rows(tr.snapshot, *keys.of_generation(config.former.generation).rows)
    number = f"{'' if rows.exact else 'about '}{quantity(rows.rows, 'row')}"
    return f"{number} of queue {name!r} to combine"


def _stored(tr: Transaction, name: str) -> QueueConfig | None:
    stored = tr.snapshot.get(QueueKeys(name).config).value
    return None if stored is None else QueueConfig.from_bytes(name, stored)
