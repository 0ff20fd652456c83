"""The value of one key, for an operator who looks it up: one read for each request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cq
from cq.config.queue import read_config
from cq.encoding.json_values import key_from_word
from cq.errors import CqError
from cq.plain_text import printable
from cq.store import OpenDatabase
from cq.store.api import Transaction, error_code
from cq.store.transact import transact


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to a lookup.

    Attributes:
        word: the key as the operator typed it.
        value: the value; None if the key has none.
        problem: why the value is unknown; else empty.
    """

    word: str
    value: Any = None
    problem: str = ""


def look_up(db: OpenDatabase, queue: str, word: str) -> Lookup:
    """The value of a key, as `cq get` reads it; `word` has the syntax of keys on the command line."""

    def read(tr: Transaction) -> Any:
        config = read_config(tr.snapshot, queue)
        key = key_from_word(config.key, word)
        if config.window is not None:
            return cq.Window[Any](queue).get(tr.snapshot, key)
        return cq.CombineQueue[Any, Any](queue).get(tr.snapshot, key)

    try:
        return Lookup(word, transact(db, read))
    except CqError as error:
        return Lookup(word, problem=printable(str(error)))
    except Exception as error:
        if error_code(error) is None:
            raise
        return Lookup(word, problem=printable(f"the store does not answer: {error}"))
