"""Completion by shells: the names of queues, feeds, cells, combiners, deciders, observers and links.

typer writes the scripts for the shells. A script runs `cq` with the words of the command line in environment variables,
and the functions here return the candidates. They only read the store. A shell that completes a word has no place for
an error, so after any error there are no candidates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import typer

import cq
from cq.cli.shared.settings import store_in_file
from cq.combiners import BUILT_IN
from cq.config.queue import ObserverConfig, queue_names, read_config
from cq.deciders import DECIDERS
from cq.keys import cell as keys
from cq.keys.link import OBSERVER
from cq.keys.queue import valid_name
from cq.store import OpenDatabase, close, located, space_at
from cq.store.api import TransactionRead
from cq.store.transact import transact

ANSWER_SECONDS: Final = 1.0
"""Seconds that the store has for its answer, and a cluster also for being opened."""

_BREAKS: Final = frozenset(":=")
"""Characters at which bash breaks words; no name contains them."""


def queues(ctx: typer.Context) -> list[str]:
    """The names of all queues."""
    return _read(ctx, queue_names)


def feeds(ctx: typer.Context) -> list[str]:
    """The names of all feeds."""
    return _read(ctx, _feed_names)


def queues_and_feeds(ctx: typer.Context) -> list[str]:
    """The names of all queues and feeds."""
    return _read(ctx, lambda tr: [*queue_names(tr), *_feed_names(tr)])


def cells(ctx: typer.Context) -> list[str]:
    """The names of all cells of the directory."""
    return _read(ctx, lambda tr: [keys.cell_of(row.key) for row in tr.get_range(*keys.cells())])


def observers(ctx: typer.Context) -> list[str]:
    """The names of the observers and links of the queue that precedes on the command line."""
    return _read(ctx, lambda tr: [each.name.removeprefix(OBSERVER) for each in _observers(ctx, tr)])


def links(ctx: typer.Context) -> list[str]:
    """The names of the links of the queue that precedes on the command line."""
    prefix = len(OBSERVER)
    return _read(
        ctx, lambda tr: [each.name[prefix:] for each in _observers(ctx, tr) if each.name.startswith(OBSERVER)]
    )


def combiners() -> list[str]:
    """The names of the built-in combiners."""
    return list(BUILT_IN)


def deciders() -> list[str]:
    """The names of the built-in deciders."""
    return list(DECIDERS)


ARGUMENTS: Final[Mapping[str, Callable[[typer.Context], list[str]]]] = {
    "QUEUE": queues,
    "FEED": feeds,
    "CELL": cells,
    "LINK": links,
}
"""{metavar of an argument: function that returns its candidates}."""


def _observers(ctx: typer.Context, tr: TransactionRead) -> Sequence[ObserverConfig]:
    # An option without its value, such as the one being completed, leaves the arguments unparsed.
    return read_config(tr, ctx.params.get("queue") or ctx.args[0]).observers


def _feed_names(tr: TransactionRead) -> list[str]:
    from cq.feeds.config import feed_names  # its import takes time, and most commands need no feeds

    return feed_names(tr)


def _read(ctx: typer.Context, read: Callable[[TransactionRead], list[str]]) -> list[str]:
    """The names that `read` returns for the store of the command line; after any error none."""

    def in_time(tr: cq.Transaction) -> list[str]:
        tr.options.set_timeout(int(ANSWER_SECONDS * 1000))
        return read(tr.snapshot)

    try:
        db = _opened(ctx.params.get("directory") or ctx.params.get("store") or store_in_file())
        try:
            # zsh and fish evaluate candidates: one from a store that others write must be a plain name.
            return [name for name in transact(db, in_time) if valid_name(name.encode()) is not None]
        finally:
            close(db)
    except Exception:  # noqa: BLE001 - whatever fails: the shell would show a message amid the line being typed
        return []


def _opened(url: str | None) -> OpenDatabase:
    """Open a store to read it; it is never created."""
    scheme, path = located(url)
    if scheme == "embedded":
        return cq.open(url, read_only=True)
    from cq.store.foundationdb import open_cluster

    # cq.open waits longer for a cluster than a person waits for a completion.
    opened: OpenDatabase = space_at(url).database(open_cluster(path or None, answer_within=ANSWER_SECONDS))
    return opened


def join_words() -> None:
    """Join the words that bash has broken, in the environment: it breaks `--store embedded:cq.db` at the colon.

    Without effect unless bash asks for candidates.
    """
    words, current = os.environ.get("COMP_WORDS"), os.environ.get("COMP_CWORD", "")
    if os.environ.get("_CQ_COMPLETE") != "complete_bash" or not words or not current.isdecimal():
        return
    broken = words.split("\n")[: int(current) + 1]
    joined: list[str] = []
    previous = ""
    for word in broken:
        if joined and word and (set(word) <= _BREAKS or (previous and set(previous) <= _BREAKS)):
            joined[-1] += word
        else:
            joined.append(word)
        previous = word
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
