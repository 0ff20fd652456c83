"""Answers to requests: what passes store, and the waits for them.

A caller waits by a watch of the answer's key, set in the transaction that does not find the answer. An answer can be
read again by its ticket for as long as the queue keeps answers.

A request is withdrawn by a mark that passes read together with their rows. A pass that began before the mark may still
decide the request. So `withdraw` returns only when no such pass can commit any more: it waits until a pass over the
bucket has committed, as this aborts all passes that began before, or rewrites the bucket's state itself if none does.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from cq import runtime
from cq.config.flags import read_flags
from cq.config.queue import QueueConfig, read_config
from cq.encoding import codec
from cq.encoding.hashing import bucket_at
from cq.errors import CorruptData, DecisionFailed, NoAnswer, Withdrawn
from cq.keys import INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, QueueKeys, version_of
from cq.keys.answers import AnswerKeys
from cq.keys.membership import workers
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import renewed
from cq.queue.requests import parse_ticket, refuse_without_decider
from cq.store.api import Database, Transaction, Void
from cq.store.transact import transact
from cq.store.version_clock import clock_of
from cq.store.watch import wait_until

DECIDED: Final = 0
FAILED: Final = 1
WITHDRAWN: Final = 2
MAX_ANSWER_BYTES: Final = 10_000
_VERSION_BYTES: Final = 8
GRACE_SECONDS: Final = 1.0
"""How long a withdrawal waits for a pass before it aborts those under way."""
_ALIVE_SECONDS: Final = 40.0
"""A worker without a beat for this time is not alive: an idle one beats every four seconds."""


class StoredAnswer(NamedTuple):
    """A stored answer: the read version of the pass that decided, the outcome, and the answer or the error."""

    version: int
    outcome: int
    content: Any


def stored_answer(version: int, outcome: int, content: object) -> bytes:
    """The stored form of an answer; raises `InvalidData` or `TooLarge` for one that cannot be stored."""
    head = version.to_bytes(_VERSION_BYTES, "big") + bytes((outcome,))
    return head + codec.encode_value(content, MAX_ANSWER_BYTES)


def parse_answer(stored: bytes) -> StoredAnswer:
    """The inverse of `stored_answer`; raises `CorruptData`."""
    if len(stored) <= _VERSION_BYTES or stored[_VERSION_BYTES] not in (DECIDED, FAILED, WITHDRAWN):
        raise CorruptData(f"an answer is not one that cq wrote: {stored[:40]!r}")
    content = codec.decode(stored[_VERSION_BYTES + 1 :])
    return StoredAnswer(int.from_bytes(stored[:_VERSION_BYTES], "big"), stored[_VERSION_BYTES], content)


# Reading and waiting


def wait_for_answer(db: Database, name: str, ticket: str, timeout: float | None) -> Any:
    """Wait for the answer to a request, and return it; see `CombineQueue.answer`."""
    wanted = parse_ticket(ticket)
    found = wait_until(db, partial(_read_or_watch, name, wanted), timeout)
    if found is None:
        raise NoAnswer(transact(db, lambda tr: _why_none(tr, name, ticket)), ticket)
    if found.outcome == FAILED:
        raise DecisionFailed(f"the decider of queue {name!r} has failed: {found.content}", ticket)
    if found.outcome == WITHDRAWN:
        raise Withdrawn(f"the request to queue {name!r} was withdrawn before it was decided", ticket)
    return found.content


def _read_or_watch(name: str, ticket: bytes, tr: Transaction) -> tuple[StoredAnswer | None, Void | None]:
    key = AnswerKeys(name).answer(ticket)
    version, stored = tr.get_read_version(), tr.get(key)
    config = read_config(tr.snapshot, name)
    refuse_without_decider(config)
    if stored.value is None:
        return None, tr.watch(key)
    found = parse_answer(stored.value)
    if config.decider is not None and found.version < clock_of(tr.db).before(
        version.wait(), config.decider.keep
    ):
        raise NoAnswer(
            f"the answer of queue {name!r} is older than {config.decider.keep:,} s and no longer kept",
            ticket.hex(),
        )
    return found, None


def _why_none(tr: Transaction, name: str, ticket: str) -> str:
    """The message for a request without an answer."""
    config, flags = read_config(tr.snapshot, name), read_flags(tr.snapshot, name)
    version = tr.get_read_version().wait()
    alive = [
        row.key
        for row in tr.snapshot.get_range(*workers())
        if clock_of(tr.db).age(version_of(row.value[:VERSIONSTAMP_BYTES]), version) < _ALIVE_SECONDS
    ]
    keep = config.decider.keep if config.decider is not None else 0
    if flags.is_paused(runtime.time()):
        why = f"the queue is paused ({flags.reason}): run `cq resume {name}`"
    elif not alive:
        why = "no worker is alive: run `cq worker`"
    else:
        why = f"it is not decided yet, or its answer was kept for {keep:,} s and is removed; see `cq status`"
    return f"request {ticket} of queue {name!r} has no answer: {why}"


# Withdrawal


def withdraw(db: Database, name: str, ticket: str) -> bool:
    """Withdraw a request; returns whether it will never be decided. See `CombineQueue.withdraw`."""
    wanted = parse_ticket(ticket)
    found = transact(db, lambda tr: _mark(tr, name, wanted))
    if found is not None:
        return found.outcome == WITHDRAWN
    # At a later version than that of the mark.
    before = transact(db, lambda tr: _states(tr, read_config(tr.snapshot, name), wanted))
    found, is_settled = wait_until(db, partial(_settled_or_watch, name, wanted, before), GRACE_SECONDS)
    if not is_settled:
        found = transact(db, lambda tr: _abort_passes(tr, name, wanted))
    return found is None or found.outcome == WITHDRAWN


_States = dict[bytes, bytes | None]
"""{key of a bucket's state: the state as stored}."""


def _mark(tr: Transaction, name: str, ticket: bytes) -> StoredAnswer | None:
    """Mark a request as withdrawn; if it has an answer, return this instead."""
    config = read_config(tr, name)
    refuse_without_decider(config)
    keys, queue = AnswerKeys(name), QueueKeys(name)
    stored = tr.snapshot.get(keys.answer(ticket)).value
    if stored is not None:
        return parse_answer(stored)
    tr.set(keys.withdrawn(ticket), b"")
    for shape, bucket in _buckets(config, ticket):
        tr.set_versionstamped_value(queue.notification(shape.generation, bucket), INCOMPLETE_VERSIONSTAMP)
    return None


def _buckets(config: QueueConfig, ticket: bytes) -> list[tuple[QueueConfig, int]]:
    """The shapes of the queue, the present and the former one, each with the bucket that may have the request."""
    shapes = [config, config.under_former_shape()]
    hashed = int.from_bytes(ticket[:4], "big")
    return [(each, bucket_at(hashed, each.buckets)) for each in shapes if each is not None]


def _states(tr: Transaction, config: QueueConfig, ticket: bytes) -> _States:
    queue = QueueKeys(config.name)
    keys = [queue.state(shape.generation, bucket) for shape, bucket in _buckets(config, ticket)]
    return {key: state.value for key, state in {key: tr.get(key) for key in keys}.items()}


def _settled_or_watch(
    name: str, ticket: bytes, before: _States, tr: Transaction
) -> tuple[tuple[StoredAnswer | None, bool], Void | None]:
    """The answer, and whether it is final that there is none: a pass has committed since the states were `before`."""
    stored = tr.get(AnswerKeys(name).answer(ticket))
    now = _states(tr, read_config(tr.snapshot, name), ticket)
    if stored.value is not None:
        return (parse_answer(stored.value), True), None
    same = [key for key, state in now.items() if key not in before or state == before[key]]
    return (None, not same), tr.watch(same[0]) if same else None


def _abort_passes(tr: Transaction, name: str, ticket: bytes) -> StoredAnswer | None:
    """Abort the passes under way over the request's bucket by a new token; returns the answer if there is one."""
    config, queue = read_config(tr, name), QueueKeys(name)
    stored = tr.get(AnswerKeys(name).answer(ticket)).value
    if stored is not None:
        return parse_answer(stored)
    for shape, bucket in _buckets(config, ticket):
        key = queue.state(shape.generation, bucket)
        # A conflicting read: passes over the bucket write this key.
        tr.set(key, renewed(shape, BucketState.from_bytes(tr.get(key).value)).to_bytes())
    return None
