"""`cq demo`: the options and the help of its commands.

Each command imports its demo when it runs: every other command would wait for these imports.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from cq.cli.shared.help import CommandSet
from cq.cli.shared.options import Json, argument, duration_option, number_option, option

DEMO_URL: Final = "embedded:cq-demo.db"
"""The store of the demos. `$CQ_STORE` and the settings file do not change it: they may name a production store."""

DemoStore = Annotated[
    str, option("URL", "URL of the demo's store; $CQ_STORE and cq.toml have no effect.", "--store")
]
Seed = Annotated[int | None, option("NUMBER", "Seed of the load and of the kills. Default: random.")]
KillEvery = Annotated[float, duration_option("Average time between two kills of a process.", least=0.1)]
Workers = Annotated[int, number_option("Number of worker processes.")]
Servers = Annotated[int, number_option("Number of web server processes.")]


commands = CommandSet("demo", "Run a demonstration on real data.")


@commands.command("words", examples=["cq demo words docs --top 10"])
def words(
    paths: Annotated[list[str], argument("PATH", "Text files, or folders of text files.")],
    workers: Workers = 2,
    loaders: Annotated[int, number_option("Number of loader threads.")] = 4,
    top: Annotated[int, number_option("Number of the most frequent words to show.", 0)] = 20,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Count the words of all files below PATH.

    Shows the most frequent words, with their weights in the published cloud. Each file is a document: one transaction
    stores its counts, and adds their difference from the stored ones to the queue `demo_words`. So a second run gives
    exact counts, also after files have changed or vanished, or after the first run was killed. Files that are not UTF-8
    are skipped; one line has their number.

    All counts are exported to the table `demo_word_counts` of the SQL database of $CQ_DEMO_REPORTING_URL, by default an
    SQLite file next to the store.
    """
    from cq.cli.demos.words import run_words

    run_words(paths, store, workers=workers, loaders=loaders, top=top, json=json)


@commands.command("cells", examples=["cq demo cells --seed 7"])
def cells(
    number: Annotated[int, number_option("Number of writes of each writer.")] = 1_000,
    users: Annotated[int, number_option("Number of users.")] = 40,
    stores: Annotated[int, option("NUMBER", "Number of cells.", "--cells", min=1)] = 3,
    writers: Annotated[int, number_option("Number of processes that write.")] = 2,
    movers: Annotated[int, number_option("Number of processes that move users.", 0)] = 2,
    kill_every: KillEvery = 2.0,
    seed: Seed = None,
    folder: Annotated[
        Path | None, option("PATH", "Folder for the stores, which are kept. Default: a temporary folder.")
    ] = None,
    store: Annotated[
        str | None, option("URL", "Store for the directory and the totals. Default: a file in the folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Move users between cells while processes write and are killed.

    The data of each user are in one of several stores. Writers write data of users, movers move users, and a worker per
    cell forwards its counts to the store with the directory. Processes are killed by SIGKILL at random moments and
    started again. At the end each user must be in exactly one cell, with all written data, under ids without gaps, and
    the totals must be the sum over all users; otherwise the exit status is 4.
    """
    from cq.cli.demos.cells import CellDemo
    from cq.cli.demos.harness.demo import run_demo

    run_demo(CellDemo(number, users, stores, writers, movers, folder, store), seed, kill_every, json=json)


@commands.command("chat", examples=["cq demo chat --seed 7"])
def chat(
    users: Annotated[int, number_option("Number of users, each with two terminals.", 2)] = 16,
    groups: Annotated[int, number_option("Number of groups.")] = 4,
    messages: Annotated[
        int, number_option("Number of the senders' actions: messages, joins and leaves.")
    ] = 800,
    flood: Annotated[
        int, number_option("Number of additional messages to one user, sent as fast as possible.", 0)
    ] = 10_000,
    senders: Annotated[int, number_option("Number of processes that send.")] = 2,
    workers: Workers = 2,
    kill_every: KillEvery = 1.0,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Run a chat while processes are killed and one user is flooded.

    Senders write to users and groups, users join and leave groups, and terminals are offline at times. Processes are
    killed by SIGKILL at random moments and started again. At the end every user must have exactly the messages of a
    recount, in order and with numbers without a gap, and every terminal must have seen each message once and in order;
    otherwise the exit status is 4. The output shows how long messages took to reach an online terminal. The
    feed `demo_chat` is deleted first. Afterwards `cq feed read demo_chat 'user 1' --store embedded:cq-demo.db` shows
    messages.
    """
    from cq.cli.demos.chat import ChatDemo
    from cq.cli.demos.harness.demo import run_demo

    run_demo(ChatDemo(store, users, groups, messages, flood, senders, workers), seed, kill_every, json=json)


@commands.command("tags", examples=["cq demo tags --seed 7"])
def tags(
    events: Annotated[
        Path | None, option("FILE", "File of events to count. Default: generated events.", "--events")
    ] = None,
    number: Annotated[int, number_option("Number of events to generate.")] = 100_000,
    servers: Servers = 3,
    collectors: Annotated[int, number_option("Number of collector processes.")] = 2,
    kill_every: KillEvery = 1.0,
    top: Annotated[int, option("NUMBER", "Number of tags in the cloud.", min=1, max=10_000)] = 20,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Keep a cloud of tags while processes are killed.

    Web servers gather increments in memory and commit many together. Collectors combine them and publish the cloud.
    Processes are killed by SIGKILL at random moments and started again. At the end all counts, the number of increments
    and the cloud must equal a recount, and the versions of the cloud must have been seen in ascending order; otherwise
    the exit status is 4. The queue `demo_tags` is deleted first.
    Afterwards `cq cloud demo_tags --store embedded:cq-demo.db` shows the cloud.

    A line of FILE says that an entity gets a tag or, with -1, loses it:
    {"entity": "article 17", "tag": "python", "by": 1}
    """
    from cq.cli.demos.harness.demo import run_demo
    from cq.cli.demos.tags import TagDemo, from_file

    given = from_file(events) if events else None
    run_demo(TagDemo(store, given, number, servers, collectors, top), seed, kill_every, json=json)


@commands.command(
    "visits",
    examples=["cq demo visits --seed 7", "cq demo visits access.log.1.gz access.log --chart visits.svg"],
)
def visits(
    logs: Annotated[
        list[Path] | None,
        argument(
            "ACCESS_LOG", "Access logs in common or combined format, plain or gzip. Default: a generated log."
        ),
    ] = None,
    number: Annotated[int, number_option("Number of visits to generate.")] = 10_000,
    speed: Annotated[
        float, option("NUMBER", "About how many seconds of the log are replayed per second.", min=0.01)
    ] = 100.0,
    window: Annotated[
        str, option("WIDTH/SLICE", "Width and slice of the window, in seconds of the log's time.")
    ] = "600/10",
    servers: Servers = 2,
    workers: Workers = 2,
    kill_every: KillEvery = 2.0,
    look_every: Annotated[
        float, duration_option("Time between two comparisons of all numbers with a recount.", least=0.1)
    ] = 0.5,
    top: Annotated[int, number_option("Number of pages to show.")] = 5,
    chart: Annotated[
        Path | None, option("FILE", "Write charts of the compared numbers over time to this file, as SVG.")
    ] = None,
    seed: Seed = None,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Count views and visitors of the last ten minutes of an access log.

    The log is replayed by its own times, but faster. Web servers count each visit when it happens. Workers combine the
    visits and remove those that have left the window. Processes are killed by SIGKILL at random moments and started
    again. Several times the views and unique visitors of every page must equal a recount of the visits counted so far,
    at the same moment. At the end the window must be empty, and all views must be in the lifetime counts; otherwise the
    exit status is 4. The queues `demo_visits.*` are deleted first.

    In addition the demo shows the pages of the present five minutes of the log with their ranks in the five minutes
    before, from a roll-up, and, with the extra `sketches`, distinct visitors of all time and quantiles of the sizes and
    times of responses, by sketches. The ranks must equal the recount, and the sketches must be near it.

    A visit is a GET with an answer of status 2xx or 304. Address and browser identify the visitor. Lines in another
    format are skipped with a message. A last field with the time of the response is in seconds with a decimal point, or
    in whole microseconds. Visits of a server that is down are counted later: after the end of their window
    they count in the lifetime counts only. At 100 times the speed, a window of 600 s takes 6 s. ^C ends the replay
    early: the visits counted until then are recounted, and the chart is written.
    """
    from cq.cli.demos.harness.demo import run_demo
    from cq.cli.demos.visits.demo import VisitDemo
    from cq.config.window import WindowSpec
    from cq.errors import InvalidConfiguration

    spec = WindowSpec.parse(window)
    if not spec:
        raise InvalidConfiguration("expected the width and slice of a window, such as 600/10")
    for path in logs or []:
        path.open("rb").close()  # report a missing file before the first line of output
    run_demo(
        VisitDemo(store, logs or [], number, speed, spec, servers, workers, look_every, top, chart),
        seed,
        kill_every,
        json=json,
    )
