"""`cq demo words`: the ancestor's word count on real text, with loader threads and worker processes."""

from __future__ import annotations

import heapq
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final

import typer

import cq
from cq.cli.options import Json, Store
from cq.cli.output import note, print_json, print_table, progress
from cq.documents import Documents
from cq.observers.worker import Worker
from cq.status import is_drained
from cq.wordcount import count_words, files_below

QUEUE: Final = "words"
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
    paths: Annotated[list[str], typer.Argument(metavar="PATH ...", help="Text files, or folders of them.")],
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    loaders: Annotated[int, typer.Option(min=1, help="Loader threads.")] = 4,
    top: Annotated[int, typer.Option(min=0, help="How many of the most frequent words to show.")] = 20,
    store: Store = None,
    json: Json = False,
) -> None:
    """Count the words of all files below PATH, and show the most frequent ones.

    Each file is a document: its counts are stored in the transaction that adds the difference between old and new to
    the queue `words`. So running it again after files have changed or vanished, or after it was killed, gives the
    exact counts. Files that are not UTF-8 are named and skipped.
    """
    db = cq.open(store)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum")
    with _worker_processes(workers, store) as processes:
        loaded = _load(db, paths, loaders)
        _drain(db, processes)
    distinct, most = _top(cq.CombineQueue(QUEUE).scan(db), top)
    if json:
        counts = {"documents": loaded.documents, "updates": loaded.updates, "distinct": distinct}
        print_json({**counts, "top": [[word, count] for word, count in most]})
        return
    print_table(["word", "count"], ([word, f"{count:,}"] for word, count in most), right=["count"])
    note(f"{loaded.documents:,} documents, {loaded.updates:,} updates, {distinct:,} distinct words")


def _load(db: Any, paths: list[str], loaders: int) -> _Loaded:
    """Store every file as a document, and forget the documents of files that are there no more."""
    documents = Documents(cq.CombineQueue(QUEUE))
    loaded, seen = _Loaded(), set[bytes]()
    with progress() as display, ThreadPoolExecutor(loaders) as pool:
        files = list(files_below(paths))
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
        loaded.updates += sum(pool.map(lambda document: documents.remove(db, document), gone))
    return loaded


def _store(db: Any, documents: Documents, path: str) -> int | None:
    """Store one file; returns how many updates that took, None when it is skipped."""
    try:
        counts = count_words(path)
    except UnicodeDecodeError:
        note(f"skipped, not UTF-8: {path}")
    except OSError as error:
        note(f"skipped, {error.strerror}: {path}")
    else:
        return documents.put(db, os.fsencode(path), counts)
    return None


def _in_threads(
    pool: ThreadPoolExecutor, limit: int, work: Any, files: Iterable[str]
) -> Iterator[tuple[str, Any]]:
    """(path, result) of each file as they are done, with few files under way: results must not pile up."""
    waiting = iter(files)
    running: dict[Future[Any], str] = {pool.submit(work, path): path for path in islice(waiting, 2 * limit)}
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            yield running.pop(future), future.result()
        running.update({pool.submit(work, path): path for path in islice(waiting, len(done))})


def _is_below(document: bytes, paths: list[str]) -> bool:
    roots = [os.fsencode(os.path.abspath(path)) for path in paths]
    return any(document == root or document.startswith(root.rstrip(b"/") + b"/") for root in roots)


@contextmanager
def _worker_processes(number: int, store: str | None) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many `cq worker` processes, stopped in the end."""
    command = [sys.executable, "-m", "cq.cli", "worker", QUEUE]
    environment = os.environ | ({"CQ_STORE": store} if store else {})
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        for _ in range(number)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _drain(db: Any, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until everything queued is combined; if no worker is left to do it, do it here."""
    with progress(counted=False) as display:
        display.add_task("combining")
        while not is_drained(db, QUEUE, wait_seconds=0.5):
            if all(process.poll() is not None for process in processes):
                note("no worker process is left: combining here")
                Worker(db, queues=[QUEUE]).drain()


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
