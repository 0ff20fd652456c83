"""The options of the demos, as one dataclass for each command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cq.cli.shared.options import Json, argument, duration_option, flag, number_option, option

_URL: Final = "embedded:cq-demo.db"
"""The store of the demos. `$CQ_STORE` and the settings file do not change it: they may name a production store."""

DemoStore = Annotated[
    str, option("URL", "URL of the demo's store; $CQ_STORE and cq.toml have no effect.", "--store")
]
KillEvery = Annotated[float, duration_option("Average time between two kills of a process.", least=0.1)]
Workers = Annotated[int, number_option("Number of worker processes.")]
Servers = Annotated[int, number_option("Number of web server processes.")]


@dataclass(frozen=True)
class WordOptions:
    """Options of `cq demo words`."""

    workers: Workers = 2
    loaders: Annotated[int, number_option("Number of loader threads.")] = 4
    top: Annotated[int, number_option("Number of the most frequent words to show.", 0)] = 20
    store: DemoStore = _URL
    json: Json = False


@dataclass(frozen=True)
class DemoOptions:
    """Options of the demos whose processes are killed."""

    kill_every: KillEvery = 1.0
    seed: Annotated[int | None, option("NUMBER", "Seed of the load and of the kills. Default: random.")] = (
        None
    )
    json: Json = False


@dataclass(frozen=True)
class LiveOptions(DemoOptions):
    """Options of `cq demo live`."""

    adders: Annotated[int, number_option("Number of processes that add.")] = 2
    workers: Workers = 2
    kill_every: KillEvery = 3.0
    seconds: Annotated[float, duration_option("End after this time.", "--for", least=0.1)] = 600.0
    listen: Annotated[
        str, option("[HOST:]PORT", "Address of the dashboard; port 0 is a free port.", "--listen")
    ] = "127.0.0.1:0"
    browser: Annotated[bool, flag("--browser/--no-browser", "Open a browser if there is a display.")] = True
    store: DemoStore = _URL


@dataclass(frozen=True)
class CellOptions(DemoOptions):
    """Options of `cq demo cells`."""

    number: Annotated[int, number_option("Number of writes of each writer.")] = 1_000
    users: Annotated[int, number_option("Number of users.")] = 40
    stores: Annotated[int, option("NUMBER", "Number of cells.", "--cells", min=2)] = 3
    writers: Annotated[int, number_option("Number of processes that write.")] = 2
    movers: Annotated[int, number_option("Number of processes that move users.", 0)] = 2
    deletions: Annotated[int, number_option("Number of users that are deleted meanwhile.", 0)] = 5
    kill_every: KillEvery = 2.0
    folder: Annotated[
        Path | None, option("PATH", "Folder for the stores, which are kept. Default: a temporary folder.")
    ] = None
    store: Annotated[
        str | None, option("URL", "Store for the directory and the totals. Default: a file in the folder.")
    ] = None


@dataclass(frozen=True)
class ChatOptions(DemoOptions):
    """Options of `cq demo chat`."""

    users: Annotated[int, number_option("Number of users, each with two terminals.", 2)] = 16
    groups: Annotated[int, number_option("Number of groups.")] = 4
    messages: Annotated[int, number_option("Number of the senders' actions: messages, joins and leaves.")] = (
        800
    )
    flood: Annotated[
        int, number_option("Number of additional messages to one user, sent as fast as possible.", 0)
    ] = 10_000
    senders: Annotated[int, number_option("Number of processes that send.")] = 2
    workers: Workers = 2
    store: DemoStore = _URL


@dataclass(frozen=True)
class StockOptions(DemoOptions):
    """Options of `cq demo stock`."""

    processes: Annotated[int, number_option("Number of processes that buy.")] = 8
    workers: Workers = 2
    cap: Annotated[int, number_option("Budget of a day, in steps of 4.", 4)] = 1_000
    kill_every: KillEvery = 2.0
    seconds: Annotated[float, duration_option("Buy for this time.", "--for", least=0.1)] = 20.0
    store: DemoStore = _URL


@dataclass(frozen=True)
class TagOptions(DemoOptions):
    """Options of `cq demo tags`."""

    events: Annotated[
        Path | None, option("FILE", "File of events to count. Default: generated events.", "--events")
    ] = None
    number: Annotated[int, number_option("Number of events to generate.")] = 100_000
    servers: Servers = 3
    collectors: Annotated[int, number_option("Number of collector processes.")] = 2
    top: Annotated[int, option("NUMBER", "Number of tags in the cloud.", min=1, max=10_000)] = 20
    store: DemoStore = _URL


@dataclass(frozen=True)
class VisitOptions(DemoOptions):
    """Options of `cq demo visits`."""

    logs: Annotated[
        list[Path] | None,
        argument(
            "ACCESS_LOG", "Access logs in common or combined format, plain or gzip. Default: a generated log."
        ),
    ] = None
    number: Annotated[int, number_option("Number of visits to generate.")] = 10_000
    speed: Annotated[
        float, option("NUMBER", "About how many seconds of the log are replayed per second.", min=0.01)
    ] = 100.0
    window: Annotated[
        str, option("WIDTH/SLICE", "Width and slice of the window, in seconds of the log's time.")
    ] = "600/10"
    servers: Servers = 2
    workers: Workers = 2
    kill_every: KillEvery = 2.0
    look_every: Annotated[
        float, duration_option("Time between two comparisons of all numbers with a recount.", least=0.1)
    ] = 0.5
    top: Annotated[int, number_option("Number of pages to show.")] = 5
    chart: Annotated[
        Path | None, option("FILE", "Write charts of the compared numbers over time to this file, as SVG.")
    ] = None
    store: DemoStore = _URL
