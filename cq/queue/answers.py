"""Answers to requests: what passes store, and the waits for them.

The answers to a group of requests are one row. A pass that answers a part of a group adds to its row, which it reads
with a conflict: passes over another bucket answer requests that were set aside and retried under another shape.

A caller waits by a watch of the row, set in the transaction that does not find the answer. An answer can be read again
by its ticket for as long as the queue keeps answers.

A request is withdrawn by a mark that passes read together with their rows. A pass that began before the mark may still
decide the request. So `withdraw` returns only when no such pass can commit any more: it waits until a pass over the
bucket has committed, as this aborts all passes that began before, or rewrites the bucket's state itself if none does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import cbor2

from cq import runtime
from cq.config.flags import read_flags
from cq.config.queue import QueueConfig, notify, read_config
from cq.durations import Span
from cq.encoding import codec
from cq.encoding.hashing import bucket_at
from cq.errors import CorruptData, DecisionFailed, InvalidData, NoAnswer, TooLarge, Withdrawn
from cq.keys import VERSIONSTAMP_BYTES, QueueKeys, version_of
from cq.keys.answers import AnswerKeys, group_of, position_of
from cq.keys.membership import alive_seconds, workers
from cq.plain_text import message_of
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import renewed
from cq.queue.requests import decider_of, parse_ticket
from cq.queue.rows import first_tries
from cq.store.api import Database, Transaction, TransactionRead, Value, Void, error_code
from cq.store.transact import transact
from cq.store.version_clock import clock_of
from cq.store.watch import wait_until

DECIDED: Final = 0
FAILED: Final = 1
WITHDRAWN: Final = 2
GONE: Final = 3
"""The outcome of a request whose answer is no longer kept; it is never stored."""
MAX_ANSWER_BYTES: Final = 10_000
_VERSION_BYTES: Final = 8
_INLINE_BYTES: Final = 200
"""Larger answers have rows of their own, so that whoever reads another one of the group does not read them."""
GRACE_SECONDS: Final = 1.0
"""How long a withdrawal waits for a pass before it aborts those under way."""

_WHY_MILLISECONDS: Final = 2_000
"""How long the reads for the message may take after the timeout of a wait."""


class StoredAnswer(NamedTuple):
    """A stored answer: the read version of the pass that decided, the outcome, and the answer or the error."""

    version: int
    outcome: int
    content: Any


Encoded = tuple[int, bytes]
"""The outcome of a request, and the answer or the error as `encoded_answer` returns it."""


def encoded_answer(content: object) -> bytes:
    """An answer in bytes; raises `InvalidData` or `TooLarge` for one that cannot be stored."""
    try:
        return codec.encode_value(content, MAX_ANSWER_BYTES)
    except (InvalidData, TooLarge) as error:
        raise type(error)(f"the answer cannot be stored: {error}") from None


def set_answers(
    sets: dict[bytes, Any], keys: AnswerKeys, group: bytes, version: int, answers: Mapping[int, Encoded]
) -> None:
    """Add to `sets` what is stored of the answers to a group, `{position: answer}`; `version` is that of the pass."""
    flat: list[Any] = []
    for position, (outcome, content) in answers.items():
        is_large = len(content) > _INLINE_BYTES
        if is_large:
            sets[keys.large(group, position)] = content
        flat += (position, outcome, b"" if is_large else content)
    sets[keys.answers(group)] = version.to_bytes(_VERSION_BYTES, "big") + cbor2.dumps(flat)


def parse_answers(stored: bytes) -> tuple[int, dict[int, Encoded]]:
    """The version and `{position: answer}` of a stored group; empty for a large answer. Raises `CorruptData`."""
    flat = codec.decode(stored[_VERSION_BYTES:])
    if isinstance(flat, list) and len(flat) % 3 == 0:
        parts = flat[::3], flat[1::3], flat[2::3]
        if [set(map(type, part)) for part in parts] == [{int}, {int}, {bytes}]:
            answers = zip(parts[1], parts[2], strict=True)
            return int.from_bytes(stored[:_VERSION_BYTES], "big"), dict(zip(parts[0], answers, strict=True))
    raise CorruptData(f"the answers of a group are none that cq wrote: {stored[:40]!r}")


def read_answers(tr: TransactionRead, name: str, tickets: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
    """{ticket: answer} of the tickets that have one; its reads are in flight together."""
    keys = AnswerKeys(name)
    found: dict[bytes, tuple[int, int, bytes]] = {}
    large: dict[bytes, Value] = {}
    rows = {group: tr.get(keys.answers(group)) for group in dict.fromkeys(map(group_of, tickets))}
    parsed = {group: parse_answers(row.value) for group, row in rows.items() if row.value is not None}
    for ticket in tickets:
        group, position = group_of(ticket), position_of(ticket)
        version, answers = parsed.get(group, (0, {}))
        if position in answers:
            found[ticket] = version, *answers[position]
            if not found[ticket][2]:
                large[ticket] = tr.get(keys.large(group, position))
    return {
        ticket: StoredAnswer(version, outcome, codec.decode(data))
        for ticket, (version, outcome, content) in found.items()
        if (data := content or large[ticket].value) is not None  # else it is being removed
    }


def kept_answers(tr: Transaction, name: str, tickets: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
    """As `read_answers`, with the outcome `GONE` of those no longer kept; raises `InvalidConfiguration`."""
    horizon = _horizon(tr, name)
    return {
        ticket: each if each.version >= horizon else each._replace(outcome=GONE)
        for ticket, each in read_answers(tr, name, tickets).items()
    }


def is_older_than_answers(tr: Transaction, name: str, operation: bytes) -> bool:
    """Whether the first request with an operation id was committed before the oldest answers that are kept."""
    keys, horizon = QueueKeys(name), _horizon(tr, name)
    return any(version_of(each) < horizon for each in first_tries(tr.snapshot, keys, [operation]).values())


def _horizon(tr: Transaction, name: str) -> int:
    """The version of the oldest answers that are kept."""
    version, config = tr.get_read_version(), read_config(tr.snapshot, name)
    return clock_of(tr.db).before(version.wait(), decider_of(config).keep)


def bucket_of_ticket(ticket: bytes, buckets: int) -> int:
    """The bucket of the request with this ticket, which begins with the hash of its key."""
    return bucket_at(int.from_bytes(ticket[:4], "big"), buckets)


def watch_answer(tr: Transaction, name: str, ticket: bytes) -> Void:
    """A watch of the row that gets the answer to a request."""
    return tr.watch(AnswerKeys(name).answers(group_of(ticket)))


# Reading and waiting


def wait_for_answer(db: Database, name: str, ticket: str, timeout: Span | None) -> Any:
    """Wait for the answer to a request, and return it; see `CombineQueue.answer`."""
    wanted = parse_ticket(ticket)
    found = wait_until(db, partial(_read_or_watch, name, wanted), timeout)
    if found is None:
        raise no_answer(db, name, ticket)
    return content_of(found, name, ticket)


def content_of(found: StoredAnswer, name: str, ticket: str) -> Any:
    """The content of an answer; raises `DecisionFailed`, `Withdrawn`, or `NoAnswer` if it is no longer kept."""
    if found.outcome == GONE:
        raise NoAnswer(f"the answer to request {ticket} of queue {name!r} is no longer kept", ticket)
    if found.outcome == FAILED:
        raise DecisionFailed(f"the decider of queue {name!r} has failed: {found.content}", ticket)
    if found.outcome == WITHDRAWN:
        raise Withdrawn(f"the request to queue {name!r} was withdrawn before it was decided", ticket)
    return found.content


def no_answer(db: Database, name: str, ticket: str) -> NoAnswer:
    """The error for a request without an answer; raises `InvalidConfiguration` without a decider."""
    try:
        why = transact(db, lambda tr: _why_none(tr, name))
    except Exception as error:
        if error_code(error) is None:
            raise
        why = f"the store does not answer either: {message_of(error)}"
    return NoAnswer(f"request {ticket} of queue {name!r} has no answer: {why}", ticket)


def _read_or_watch(name: str, ticket: bytes, tr: Transaction) -> tuple[StoredAnswer | None, Void | None]:
    found = kept_answers(tr, name, [ticket]).get(ticket)
    return found, watch_answer(tr, name, ticket) if found is None else None


def _why_none(tr: Transaction, name: str) -> str:
    """Why a request may have no answer, and what to do."""
    tr.options.set_timeout(_WHY_MILLISECONDS)
    config, flags = read_config(tr.snapshot, name), read_flags(tr.snapshot, name)
    version = tr.get_read_version().wait()
    if flags.is_paused(runtime.time()):
        return f"the queue is paused ({flags.reason}): run `cq resume {name}`"
    alive = [each for row in tr.snapshot.get_range(*workers()) if (each := _alive(row.value, tr, version))]
    if not alive:
        return "no worker is alive: run `cq worker`"
    if all(name not in (each.get("queues") or [name]) or name in each.get("lacking", ()) for each in alive):
        return "the live workers are for other queues, or lack its decider: run `cq worker`, if need be with --app"
    return (
        f"it is not decided yet, or a purge has dropped it, or its answer was kept for {decider_of(config).keep:,} s "
        "and is removed; see `cq status`"
    )


def _alive(row: bytes, tr: Transaction, now: int) -> dict[str, Any]:
    """The parts of a worker's row; empty if it has not beaten lately, or is unreadable."""
    try:
        found: dict[str, Any] = codec.decode(row[VERSIONSTAMP_BYTES:])
        is_alive = clock_of(tr.db).age(version_of(row), now) <= alive_seconds(found["every"])
    except (CorruptData, KeyError, TypeError):
        return {}
    return found if is_alive else {}


# Withdrawal


def withdraw(db: Database, name: str, ticket: str) -> bool:
    """Withdraw a request; returns whether it will never be decided. See `CombineQueue.withdraw`."""
    wanted = parse_ticket(ticket)
    found = transact(db, lambda tr: _withdraw(tr, name, wanted, aborts=False))
    if found is None:
        found, is_settled = wait_until(db, partial(_settled_or_watch, name, wanted, {}), GRACE_SECONDS)
        if not is_settled:
            found = transact(db, lambda tr: _withdraw(tr, name, wanted, aborts=True))
    return found is None or found.outcome == WITHDRAWN


def _withdraw(tr: Transaction, name: str, ticket: bytes, *, aborts: bool) -> StoredAnswer | None:
    """Mark a request as withdrawn; if it has an answer, return this instead.

    `aborts` aborts the passes under way over its bucket, by a new token in the state that they write.
    """
    config = read_config(tr, name)
    decider_of(config)
    found = read_answers(tr, name, [ticket]).get(ticket)
    if found is not None:
        return found
    tr.set(AnswerKeys(name).withdrawn(ticket), b"")
    for shape, bucket in _buckets(config, ticket):
        notify(tr, shape, [bucket])
        if aborts:
            key = QueueKeys(name).state(shape.generation, bucket)
            tr.set(key, renewed(shape, BucketState.from_bytes(tr.get(key).value)).to_bytes())
    return None


def _buckets(config: QueueConfig, ticket: bytes) -> list[tuple[QueueConfig, int]]:
    """The shapes of the queue, the present and the former one, each with the bucket that may have the request."""
    shapes = [config, config.under_former_shape()]
    return [(each, bucket_of_ticket(ticket, each.buckets)) for each in shapes if each is not None]


def _settled_or_watch(
    name: str, ticket: bytes, first: dict[bytes, bytes | None], tr: Transaction
) -> tuple[tuple[StoredAnswer | None, bool], Void | None]:
    """The answer, and whether it is final that there is none: a pass has committed since the first of these calls.

    `first` has the bucket's states as that call has read them, at a later version than that of the mark.
    """
    found = read_answers(tr, name, [ticket]).get(ticket)
    if found is not None:
        return (found, True), None
    queue = QueueKeys(name)
    buckets = _buckets(read_config(tr.snapshot, name), ticket)
    keys = [queue.state(shape.generation, bucket) for shape, bucket in buckets]
    states = {key: state.value for key, state in {key: tr.get(key) for key in keys}.items()}
    same = [key for key, state in states.items() if state == first.setdefault(key, state)]
    return (None, not same), tr.watch(same[0]) if same else None
