"""`cq demo`: its commands, their options and their help.

Each command imports its demo when it runs: every other command would wait for these imports.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Json, argument, duration_option, flag, number_option, option, option_set

_URL: Final = "embedded:cq-demo.db"
"""The store of the demos. `$CQ_STORE` and the settings file do not change it: they may name a production store."""

DemoStore = Annotated[
    str, option("URL", "URL of the demo's store; $CQ_STORE and cq.toml have no effect.", "--store")
]
KillEvery = Annotated[float, duration_option("Average time between two kills of a process.", least=0.1)]
Workers = Annotated[int, number_option("Number of worker processes.")]
Servers = Annotated[int, number_option("Number of web server processes.")]


@option_set
class DemoOptions:
    """Options of the demos whose processes are killed."""

    kill_every: KillEvery = 1.0
    seed: int | None = option("NUMBER", "Seed of the load and of the kills. Default: random.")
    store: DemoStore = _URL
    json: Json = False


commands = CommandSet("demo", "Run a demonstration on real data.")


def _run(name: str, options: DemoOptions) -> None:
    demo = import_module(f"cq.cli.demos.{name}")
    import_module("cq.cli.demos.harness").run_demo(options, demo.run, demo.show)


@option_set
class WordOptions:
    """Options of `cq demo words`."""

    workers: Workers = 2
    loaders: int = number_option("Number of loader threads.", default=4)
    top: int = number_option("Number of the most frequent words to show.", 0, default=20)
    store: DemoStore = _URL
    json: Json = False


@commands.command("words", examples=["cq demo words docs --top 10"])
def words(
    options: WordOptions,
    paths: Annotated[list[str], argument("PATH", "Text files, or folders of text files.")],
) -> None:
    """Count the words of all files below PATH.

    Shows the most frequent words, with their weights in the published cloud. Each file is a document: one transaction
    stores its counts, and adds their difference from the stored ones to the queue `demo_words`. So a second run gives
    exact counts, also after files have changed or vanished, or after the first run was killed. Files that are not UTF-8
    are skipped; one line has their number.

    All counts are exported to the table `demo_word_counts` of the SQL database of $CQ_DEMO_REPORTING_URL, by default an
    SQLite file next to the store.
    """
    import_module("cq.cli.demos.words").run_words(options, paths)


@option_set
class LiveOptions(DemoOptions):
    """Options of `cq demo live`."""

    adders: int = number_option("Number of processes that add.", default=2)
    workers: Workers = 2
    kill_every: KillEvery = 3.0
    seconds: float = duration_option("End after this time.", "--for", least=0.1, default=600.0)
    listen: str = option(
        "[HOST:]PORT", "Address of the dashboard; port 0 is a free port.", "--listen", default="127.0.0.1:0"
    )
    browser: bool = flag("--browser/--no-browser", "Open a browser if there is a display.", default=True)


@commands.command("live", examples=["cq demo live", "cq demo live --no-browser --for 1m"])
def live(options: LiveOptions) -> None:
    """Watch counts equal a recount while processes are killed.

    Adders store baskets of fruit and count the fruit, workers combine the counts, and one of these processes is killed
    by SIGKILL every few seconds and started again. Twice a second the counts must equal a recount of all baskets, at
    one version of the store; otherwise the exit status is 4. A page of the dashboard opens and shows both; its other
    pages show the workers and the queues.

    The dashboard only reads. The address has its token: other users of this machine may see the arguments of a browser,
    so use --no-browser where they must not see the store. ^C ends the demo with a last comparison. The
    queues `demo_live` and `demo_live_compared` are deleted first.
    """
    _run("live", options)


@option_set
class CellOptions(DemoOptions):
    """Options of `cq demo cells`."""

    number: int = number_option("Number of writes of each writer.", default=1_000)
    users: int = number_option("Number of users.", default=40)
    stores: int = option("NUMBER", "Number of cells.", "--cells", min=2, default=3)
    writers: int = number_option("Number of processes that write.", default=2)
    movers: int = number_option("Number of processes that move users.", 0, default=2)
    deletions: int = number_option("Number of users that are deleted meanwhile.", 0, default=5)
    kill_every: KillEvery = 2.0
    folder: Path | None = option(
        "PATH", "Folder for the stores, which are kept. Default: a temporary folder."
    )
    store: str = option(
        "URL", "Store for the directory and the totals. Default: a file in the folder.", default=""
    )


@commands.command("cells", examples=["cq demo cells --seed 7"])
def cells(options: CellOptions) -> None:
    """Move and delete users in cells while processes write and are killed.

    The data of each user are in one of several stores. The first one is that of a site before it had cells: its users
    are adopted, and moved out. Writers write data of users, movers move users, another process deletes some of them,
    and workers forward the counts of each cell to the store with the directory, and a table from there to all cells.
    Processes are killed by SIGKILL at random moments and started again. At the end each user must be in exactly one
    cell, with all written data, under ids without gaps, deleted users in none, and the totals must be the sum over all
    users; otherwise the exit status is 4.
    """
    _run("cells", options)


@option_set
class ChatOptions(DemoOptions):
    """Options of `cq demo chat`."""

    users: int = number_option("Number of users, each with two terminals.", 2, default=16)
    groups: int = number_option("Number of groups.", default=4)
    messages: int = number_option("Number of the senders' actions: messages, joins and leaves.", default=800)
    flood: int = number_option(
        "Number of additional messages to one user, sent as fast as possible.", 0, default=10_000
    )
    senders: int = number_option("Number of processes that send.", default=2)
    workers: Workers = 2


@commands.command("chat", examples=["cq demo chat --seed 7"])
def chat(options: ChatOptions) -> None:
    """Run a chat while processes are killed and one user is flooded.

    Senders write to users and groups, edit and recall, users join and leave groups, and terminals are offline at times.
    Processes are killed by SIGKILL at random moments and started again. At the end every user must have exactly the
    messages of a recount, in order and with numbers without a gap, and every terminal must have seen each message once
    and in order; otherwise the exit status is 4. The output shows how long messages took to reach an online terminal.
    The feed `demo_chat` is deleted first. Afterwards `cq feed read demo_chat 'user 1' --store embedded:cq-demo.db`
    shows messages.
    """
    _run("chat", options)


@option_set
class StockOptions(DemoOptions):
    """Options of `cq demo stock`."""

    processes: int = number_option("Number of processes that buy.", default=8)
    workers: Workers = 2
    cap: int = number_option("Budget of a day, in steps of 4.", 4, default=1_000)
    kill_every: KillEvery = 2.0
    seconds: float = duration_option("Buy for this time.", "--for", least=0.1, default=20.0)


@commands.command("stock", examples=["cq demo stock", "cq demo stock --processes 50 --for 10m"])
def stock(options: StockOptions) -> None:
    """Buy from two shops with one budget while processes are killed.

    Each buyer reserves the price in the budget of the day, takes a piece from a shop, and settles the price. The shop
    north is sold out before the budget is spent; when it is spent, the buyers go on with the next day. Buyers and
    workers are killed by SIGKILL at random moments and started again; the hold of a buyer that was killed expires
    after two seconds. At any time no shop may be oversold and no budget exceeded. At the end the stocks and budgets
    must equal the sums of all answers, all that was sold must be paid, and at least 99 % of the budgets must have been
    usable three seconds after the last purchase; otherwise the exit status is 4. The queues `demo_stock` and
    `demo_stock_budget` are deleted first.
    """
    _run("stock", options)


@option_set
class TagOptions(DemoOptions):
    """Options of `cq demo tags`."""

    events: Path | None = option("FILE", "File of events to count. Default: generated events.", "--events")
    number: int = number_option("Number of events to generate.", default=100_000)
    servers: Servers = 3
    collectors: int = number_option("Number of collector processes.", default=2)
    top: int = option("NUMBER", "Number of tags in the cloud.", min=1, max=10_000, default=20)


@commands.command("tags", examples=["cq demo tags --seed 7"])
def tags(options: TagOptions) -> None:
    """Keep a cloud of tags while processes are killed.

    Web servers count the events of a log, 50 in a transaction, which also stores the position in the log. Collectors,
    which are workers, combine the counts and publish the cloud. Processes are killed by SIGKILL at random moments and
    started again. At the end all counts, the number of entities with each tag, scores that decay, the number of
    increments and the cloud must equal a recount. The versions of the cloud must have been seen in ascending order, and
    be kept; otherwise the exit status is 4. The queues `demo_tags`, `demo_tags_entities`, `demo_tags_uses` and
    `demo_tags_hot` are deleted first. Afterwards `cq cloud demo_tags --store embedded:cq-demo.db` shows the cloud.

    A line of FILE says that an entity gets a tag or, with -1, loses it:
    {"entity": "article 17", "tag": "python", "by": 1}
    """
    _run("tags", options)


@option_set
class VisitOptions(DemoOptions):
    """Options of `cq demo visits`."""

    logs: Annotated[
        list[Path] | None,
        argument(
            "ACCESS_LOG", "Access logs in common or combined format, plain or gzip. Default: a generated log."
        ),
    ] = None
    number: int = number_option("Number of visits to generate.", default=10_000)
    speed: float = option(
        "NUMBER", "About how many seconds of the log are replayed per second.", min=0.01, default=100.0
    )
    servers: Servers = 2
    workers: Workers = 2
    kill_every: KillEvery = 2.0
    chart: Path | None = option("FILE", "Write a chart of the window over time to this file, as SVG.")


@commands.command(
    "visits",
    examples=["cq demo visits --seed 7", "cq demo visits access.log.1.gz access.log --chart visits.svg"],
)
def visits(options: VisitOptions) -> None:
    """Count views and visitors of the last ten minutes of an access log.

    The log is replayed by its own times, but faster: at 100 times the speed, the window of ten minutes takes 6 s. Web
    servers write each visit into their logs when it happens, and rotate these. Followers count the visits, as
    `cq add --access-log --follow` does. Workers combine the visits and remove those that have left the window.
    Followers and workers are killed by SIGKILL at random moments and started again. Twice a second the views and unique
    visitors of every page must equal a recount of the visits counted so far, at the same moment. At the end the window
    must be empty, and views, readers and sessions of all time must be as recounted; otherwise the exit status is 4. The
    queues `demo_visits.*` are deleted first.

    A visit is a GET with an answer of status 2xx or 304. Address and browser identify the visitor, and those of bots do
    not count. Lines in another format are skipped with a message. Visits are counted later while a follower is down:
    after the end of their window they count for all time only. A session ends after 30 minutes of the log without a
    visit, and at least a minute of the replay. ^C ends the replay early: the visits until then are recounted, and the
    chart is written.
    """
    _run("visits", options)
