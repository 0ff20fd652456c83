"""`cq demo words`: the ancestor's word count on real text, with loader threads and worker processes."""

from __future__ import annotations

import heapq
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from typing import Annotated, Any, Final, TypeVar

import typer

import cq
from cq.cli.demoing import DEMO_URL, DemoStore
from cq.cli.options import Json, make_store
from cq.cli.output import note, print_json, print_table, progress, quantity
from cq.cli.worker import stop_on_signals
from cq.config import read_flags
from cq.documents import Documents
from cq.errors import ConfigurationError, NotReady, TooLarge
from cq.observers.builtin import put_built_in
from cq.observers.cloud import CloudReader
from cq.observers.exports import export_spec, find_export
from cq.observers.spawning import keep_no_semaphores, starting
from cq.observers.top import top as top_spec
from cq.observers.worker import Worker
from cq.status import is_drained
from cq.wordcount import count_words, files_below

T = TypeVar("T")
R = TypeVar("R")

QUEUE: Final = "demo_words"
TABLE: Final = "demo_word_counts"
REPORTING_ENV: Final = "CQ_DEMO_REPORTING_URL"
"""The reporting database of the demo, which is not the application's."""
demo = typer.Typer(help="Examples on real data.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    demo.command("words", epilog="Example: cq demo words docs --top 10")(words)
    app.add_typer(demo, name="demo")


@demo.callback()
def _group() -> None:
    pass


@dataclass(slots=True)
class _Loaded:
    """What loading has done."""

    documents: int = 0
    updates: int = 0


def words(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Text files, or folders of them.")],
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Worker processes.")] = 2,
    loaders: Annotated[int, typer.Option(min=1, metavar="N", help="Loader threads.")] = 4,
    top: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many of the most frequent words to show.")
    ] = 20,
    store: DemoStore = DEMO_URL,
    json: Json = False,
) -> None:
    """Count the words of all files below PATH, show the most frequent ones, and export all counts.

    Each file is a document: its counts are stored in the transaction that adds the difference between old and new to
    the queue `demo_words`. So running it again after files have changed or vanished, or after it was killed, gives the
    exact counts. Files that are not UTF-8 are named and skipped.

    The weights of the cloud that is published are shown, too. The counts are exported to the table `demo_word_counts`
    of the SQL database of $CQ_DEMO_REPORTING_URL, by default an SQLite file beside the store.
    """
    db = make_store(store)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum")
    _refuse_paused(db, store)
    _observe(db, store)
    with _worker_processes(workers, store) as processes:
        loaded = _load(db, paths, loaders)
        _drain(db, store, processes)
        Worker(db, queues=[QUEUE]).drain()  # also finishes the export and the cloud
    distinct, most = _top(cq.CombineQueue(QUEUE).scan(db), top)
    if json:
        counts = {"documents": loaded.documents, "updates": loaded.updates, "distinct": distinct}
        print_json({**counts, "top": [[word, count] for word, count in most]})
        return
    weights = _weights(db)
    rows = ([word, f"{count:,}", weights.get(word, "")] for word, count in most)
    print_table(["word", "count", "weight"], rows, right=["count", "weight"])
    note(
        f"{quantity(loaded.documents, 'document')}, {quantity(loaded.updates, 'update')}, "
        f"{quantity(distinct, 'distinct word')}, in queue {QUEUE!r} of {store}"
    )


def _observe(db: Any, store: str) -> None:
    """Switch on a cloud and an export, unless the queue has them, and make the tables."""
    from cq.observers.sqlcheck import init  # SQLAlchemy takes long to import: not for every command

    os.environ.setdefault(REPORTING_ENV, _reporting_url(store))
    config = cq.configure(db, QUEUE)
    enabled = {observer.name for observer in config.observers}
    for spec in (top_spec(), export_spec(TABLE, url_env=REPORTING_ENV)):
        if spec.name not in enabled:
            config = put_built_in(db, config, spec)
    export = find_export(db, QUEUE)
    init(export.reporting, export.definition)


def _reporting_url(store: str) -> str:
    """The URL of an SQLite file beside the store, or in the current folder if the store is a cluster."""
    url = store if store.startswith("embedded:") else DEMO_URL
    path = url.removeprefix("embedded:")
    return f"sqlite:///{os.path.abspath(os.path.expanduser(path)).removesuffix('.db')}-reporting.db"


def _weights(db: Any) -> dict[str, int]:
    """The weights of the words in the cloud as it is published."""
    try:
        cloud = db.transact(lambda tr: CloudReader(QUEUE).read(tr.snapshot))
    except NotReady:
        return {}
    return {entry.key: entry.weight for entry in cloud.entries}


def _load(db: Any, paths: list[str], loaders: int) -> _Loaded:
    """Store every file as a document, and forget the documents of files that are there no more."""
    documents = Documents(cq.CombineQueue(QUEUE))
    loaded, seen = _Loaded(), set[bytes]()
    with progress() as display, ThreadPoolExecutor(loaders) as pool:
        files = list(files_below(paths, _skip))
        task = display.add_task("files loaded", total=len(files))
        for path, updates in _in_threads(pool, loaders, lambda path: _store(db, documents, path), files):
            display.advance(task)
            if updates is not None:
                seen.add(os.fsencode(path))
                loaded.documents += 1
                loaded.updates += updates
        gone = [
            document for document in documents.ids(db) if document not in seen and _is_below(document, paths)
        ]
        for _, updates in _in_threads(pool, loaders, lambda document: documents.remove(db, document), gone):
            loaded.updates += updates
    return loaded


def _store(db: Any, documents: Documents, path: str) -> int | None:
    """Store one file; returns how many updates that took, None when it is skipped."""
    try:
        counts = count_words(path)
    except UnicodeDecodeError:
        note(f"skipped, not UTF-8: {path}")
    except OSError as error:
        _skip(error, path)
    else:
        try:
            return documents.put(db, os.fsencode(path), counts)
        except TooLarge as error:
            note(f"skipped, {error}: {path}")
    return None


def _skip(error: OSError, path: str = "") -> None:
    note(f"skipped, {error.strerror}: {error.filename or path}")


def _in_threads(
    pool: ThreadPoolExecutor, limit: int, work: Callable[[T], R], tasks: Iterable[T]
) -> Iterator[tuple[T, R]]:
    """(task, result) of each task as they are done, with few of them under way: results must not pile up."""
    waiting = iter(tasks)
    running = {pool.submit(work, task): task for task in islice(waiting, 2 * limit)}
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield running.pop(future), future.result()
        running.update({pool.submit(work, task): task for task in islice(waiting, len(done))})


def _is_below(document: bytes, paths: list[str]) -> bool:
    roots = [os.fsencode(os.path.abspath(path)) for path in paths]
    return any(document == root or document.startswith(root.rstrip(b"/") + b"/") for root in roots)


@contextmanager
def _worker_processes(number: int, store: str) -> Iterator[list[SpawnProcess]]:
    """So many processes that combine, stopped in the end."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_combine, args=(store,)) for _ in range(number)]
    with starting():
        for process in processes:
            process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _combine(store: str) -> None:
    """In a process of its own: combine until told to stop, or until the process that has started this one is gone."""
    keep_no_semaphores()
    runner = Worker(cq.open(store), queues=[QUEUE])
    stop_on_signals(runner.stop)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_stop_with, args=(parent, runner), daemon=True).start()
    runner.run()


def _stop_with(parent: BaseProcess, runner: Worker) -> None:
    parent.join()
    runner.stop()


def _drain(db: Any, store: str, processes: list[SpawnProcess]) -> None:
    """Wait until everything queued is combined; if no worker is left to do it, do it here."""
    with progress(counted=False) as display:
        display.add_task("combining")
        while not is_drained(db, QUEUE, wait_seconds=0.5):
            _refuse_paused(db, store)
            if not any(process.is_alive() for process in processes):
                note("no worker process is left: combining here")
                Worker(db, queues=[QUEUE]).drain()


def _refuse_paused(db: Any, store: str) -> None:
    """Say why nothing would ever be combined, instead of waiting for it."""
    flags = db.transact(lambda tr: read_flags(tr.snapshot, QUEUE))
    if flags.is_paused(time.time()):
        raise ConfigurationError(
            f"queue {QUEUE!r} is paused ({flags.reason}): resume it by `cq resume {QUEUE} --store {store}`"
        )


def _top(items: Iterable[tuple[str, int]], number: int) -> tuple[int, list[tuple[str, int]]]:
    """How many words there are, and the most frequent ones; equal counts in the order of the alphabet."""
    distinct = 0

    def counted() -> Iterator[tuple[str, int]]:
        nonlocal distinct
        for item in items:
            distinct += 1
            yield item

    most = heapq.nsmallest(number, counted(), key=lambda item: (-item[1], item[0]))
    return distinct, most
