"""`cq demo words`: loader threads count the words of text files, and worker processes combine the counts.

Each file is a document, see `Documents`. The ancestor's word count: words are the runs of letters in the lower-cased
text.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, TypeVar

import cq
from cq.admin.configure import change, requested
from cq.cli.demos.command import WordOptions
from cq.cli.demos.harness import published, run_role, workers
from cq.cli.shared.options import make_store
from cq.cli.shared.output import note, print_json, print_table, progress, quantity, say
from cq.cli.shared.processes import Crew
from cq.config.flags import read_flags
from cq.config.queue import read_config
from cq.errors import ConfigurationError, TooLarge
from cq.intake.documents import Documents
from cq.observers.links import spec as links
from cq.observers.links.registry import opened_link
from cq.observers.top.index import top
from cq.observers.top.ranking import Ranking
from cq.observers.worker.worker import Worker

T = TypeVar("T")
R = TypeVar("R")

QUEUE: Final = "demo_words"
TABLE: Final = "demo_word_counts"
WORD: Final = re.compile(r"(?<![^\W_])[^\W\d_]++(?!\d)")
"""Letters that are not next to a digit: the hashes in a list of packages are no words."""
_AT_ONCE: Final = 100
_CHUNK: Final = 1 << 20
REPORTING_ENV: Final = "CQ_DEMO_REPORTING_URL"
"""The environment variable with the URL of the demo's own reporting database."""


def run_words(options: WordOptions, paths: list[str]) -> None:
    """Count the words, and print the most frequent ones."""
    store = options.store
    db = make_store(store)
    cq.configure(db, QUEUE, key=str, value=int, combiner="sum")
    _refuse_paused(db, store)  # before files are read, which may take long
    _observe(db, store)
    with Crew(workers(options.workers, store, [QUEUE]), run_role):
        loaded = _load(db, paths, options.loaders)
        with progress(counted=False) as display:
            display.add_task("combining")
            # Together with the workers; it also finishes the export and the cloud.
            Worker(db, queues=[QUEUE]).drain()
    distinct = sum(1 for _ in cq.CombineQueue(QUEUE).scan(db))
    ranking: Ranking[str, int] = Ranking(QUEUE)
    most = [(entry.key, entry.score) for entry in islice(ranking.scan(db), options.top)]
    if options.json:
        print_json({**loaded, "distinct": distinct, "top": [[word, count] for word, count in most]})
    else:
        _print_result(db, options, loaded, distinct, most)


def _print_result(
    db: Any, options: WordOptions, loaded: dict[str, int], distinct: int, most: list[tuple[str, int]]
) -> None:
    """Print the table, what was counted before it, and after it what its columns are and what ran."""
    cloud = published(db, QUEUE)
    weights = {entry.key: entry.weight for entry in cloud.entries} if cloud else {}
    others = f" ({quantity(loaded['skipped'], 'other')} not UTF-8)" if loaded["skipped"] else ""
    say(
        f"{quantity(distinct, 'different word')} in {quantity(loaded['documents'], 'file')}{others}, by their counts:"
    )
    rows = ([word, f"{count:,}", weights.get(word, "")] for word, count in most)
    print_table(["word", "count", "weight"], rows, right=["count", "weight"])
    say(
        "count: how often the word is in all files; weight: its size in a cloud of the top words, from 1 to 9"
    )
    say(
        f"ran: a transaction for each new or changed file, with {quantity(loaded['updates'], 'update')} in all; "
        f"{quantity(options.workers, 'worker')}, which combined them"
    )
    say(f"the counts stay in the store: cq top {QUEUE} --store {options.store}")


def _observe(db: Any, store: str) -> None:
    """Enable a cloud and a link to a table, unless the queue has them, and create the tables."""
    # For the worker processes, too, which inherit it.
    os.environ.setdefault(REPORTING_ENV, _reporting_url(store))
    config = db.transact(lambda tr: read_config(tr.snapshot, QUEUE))
    enabled = {observer.name for observer in config.observers}
    specs = (top(), links.table(TABLE, url_env=REPORTING_ENV))
    change(db, QUEUE, requested(put=[spec for spec in specs if spec.name not in enabled]))
    with opened_link(db, QUEUE) as opened:
        opened.target.create()


def _reporting_url(store: str) -> str:
    """The URL of an SQLite file next to the store, or in the current folder if the store is a cluster."""
    path = store.removeprefix("embedded:") if store.startswith("embedded:") else "cq-demo.db"
    return f"sqlite:///{os.path.abspath(os.path.expanduser(path)).removesuffix('.db')}-reporting.db"


def _load(db: Any, paths: list[str], loaders: int) -> dict[str, int]:
    """Store every file as a document, and remove those of deleted files; returns the numbers of these."""
    documents = Documents(cq.CombineQueue(QUEUE))
    loaded, seen, binary = Counter(documents=0, updates=0), set[bytes](), list[str]()
    with progress() as display, ThreadPoolExecutor(loaders) as pool:
        files = files_below(paths, _skip)
        task = display.add_task("files loaded", total=len(files))
        for path, updates in _run_in_threads(pool, lambda path: _store(db, documents, path, binary), files):
            display.advance(task)
            if updates is not None:
                seen.add(os.fsencode(path))
                loaded["documents"] += 1
                loaded["updates"] += updates
        # After all files: a document below the paths that no file has stored now has no file any more.
        deleted = [
            document for document in documents.ids(db) if document not in seen and _is_below(document, paths)
        ]
        for _, updates in _run_in_threads(pool, lambda document: documents.remove(db, document), deleted):
            loaded["updates"] += updates
    return loaded | {"skipped": len(binary)}


def _store(db: Any, documents: Documents, path: str, binary: list[str]) -> int | None:
    """Store one file; returns the number of updates for it, None if it is skipped. Appends it to `binary` if it is."""
    try:
        counts = count_words(path)
    except UnicodeDecodeError:
        binary.append(path)
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


def _run_in_threads(
    pool: ThreadPoolExecutor, work: Callable[[T], R], tasks: Iterable[T]
) -> Iterator[tuple[T, R]]:
    """Yield (task, result) of each task; some tasks at a time: results must not pile up in memory."""
    left = iter(tasks)
    while some := list(islice(left, _AT_ONCE)):
        yield from zip(some, pool.map(work, some), strict=True)


def _is_below(document: bytes, paths: list[str]) -> bool:
    roots = [os.fsencode(os.path.abspath(path)) for path in paths]
    return any(document == root or document.startswith(root.rstrip(b"/") + b"/") for root in roots)


def _refuse_paused(db: Any, store: str) -> None:
    """Raise `ConfigurationError` if the queue is paused: waiting for it would never end."""
    flags = db.transact(lambda tr: read_flags(tr.snapshot, QUEUE))
    if flags.is_paused(time.time()):
        raise ConfigurationError(
            f"queue {QUEUE!r} is paused ({flags.reason}): resume it by `cq resume {QUEUE} --store {store}`"
        )


# Files and their words


def files_below(
    paths: Iterable[str], unreadable: Callable[[OSError], object] = lambda error: None
) -> list[str]:
    """The absolute paths of all files that the paths are or have below them, each once, in a stable order.

    Links to folders are not followed; folders that cannot be read are told to `unreadable`. Raises `OSError` for a
    path that does not exist.
    """
    found: dict[str, None] = {}
    for path in map(os.path.abspath, paths):
        if not os.path.isdir(path):
            os.stat(path)  # raises when there is nothing
            found[path] = None
            continue
        for parent, folders, files in os.walk(path, onerror=unreadable):
            folders.sort()
            found |= dict.fromkeys(
                filter(os.path.isfile, (os.path.join(parent, file) for file in sorted(files)))
            )
    return list(found)


def count_words(path: str) -> Counter[str]:
    """How often each word occurs in a file; raises `UnicodeDecodeError` unless it is UTF-8, and `OSError`.

    Reads many lines at a time, so that memory grows with the number of different words, not with the file. No word
    and no lower-casing goes beyond a line.
    """
    counts: Counter[str] = Counter()
    with open(path, encoding="utf-8") as stream:
        while lines := stream.readlines(_CHUNK):
            counts.update(WORD.findall("".join(lines).lower()))
    return counts
