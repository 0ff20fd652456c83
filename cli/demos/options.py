"""The options of the demos, as one dataclass for each command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

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
class WordOptions:
    """Options of `cq demo words`."""

    workers: Workers = 2
    loaders: int = number_option("Number of loader threads.", default=4)
    top: int = number_option("Number of the most frequent words to show.", 0, default=20)
    store: DemoStore = _URL
    json: Json = False


@option_set
class DemoOptions:
    """Options of the demos whose processes are killed."""

    kill_every: KillEvery = 1.0
    seed: int | None = option("NUMBER", "Seed of the load and of the kills. Default: random.")
    json: Json = False


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
    store: DemoStore = _URL


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
    store: str | None = option(
        "URL", "Store for the directory and the totals. Default: a file in the folder."
    )


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
    store: DemoStore = _URL


@option_set
class StockOptions(DemoOptions):
    """Options of `cq demo stock`."""

    processes: int = number_option("Number of processes that buy.", default=8)
    workers: Workers = 2
    cap: int = number_option("Budget of a day, in steps of 4.", 4, default=1_000)
    kill_every: KillEvery = 2.0
    seconds: float = duration_option("Buy for this time.", "--for", least=0.1, default=20.0)
    store: DemoStore = _URL


@option_set
class TagOptions(DemoOptions):
    """Options of `cq demo tags`."""

    events: Path | None = option("FILE", "File of events to count. Default: generated events.", "--events")
    number: int = number_option("Number of events to generate.", default=100_000)
    servers: Servers = 3
    collectors: int = number_option("Number of collector processes.", default=2)
    top: int = option("NUMBER", "Number of tags in the cloud.", min=1, max=10_000, default=20)
    store: DemoStore = _URL


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
    window: str = option(
        "WIDTH/SLICE", "Width and slice of the window, in seconds of the log's time.", default="10m/10s"
    )
    servers: Servers = 2
    workers: Workers = 2
    kill_every: KillEvery = 2.0
    look_every: float = duration_option(
        "Time between two comparisons of all numbers with a recount.", least=0.1, default=0.5
    )
    top: int = number_option("Number of pages to show.", default=5)
    chart: Path | None = option(
        "FILE", "Write charts of the compared numbers over time to this file, as SVG."
    )
    store: DemoStore = _URL
