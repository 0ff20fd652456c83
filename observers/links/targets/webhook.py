"""A webhook as a target: signed requests to a URL, exactly once in effect if the receiver stores positions.

Each request has a position and the position before it. A receiver applies the entries and stores the position in one
transaction, if its stored position is the one before; otherwise it answers 409 with its position. A receiver without
positions accepts every request, and gets some entries again after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from cq.app import App
from cq.config.queue import QueueConfig
from cq.observers.links.target import (
    CannotSend,
    Changes,
    LinkFailed,
    Source,
    Target,
    TargetRefuses,
    in_json,
    refuse_late_sweep,
)
from cq.observers.links.targets.receiver import Answer, HttpReceiver
from cq.plain_text import printable

CHANGES: Final = "cq.changes"
SWEEP: Final = "cq.sweep"
"""The types of messages."""
_CONFLICT: Final = 409
_RETRIED: Final = frozenset((401, 408, 425, 429))
"""Answers of the range 4xx after which a later try may succeed: wrong signature, timeout, too early, too many requests.

A signature is wrong while the two sides have different secrets, or clocks that differ by minutes.
"""
_FAULTY: Final = frozenset((413, 422))
"""Answers that refuse the content: too large, or not processable. The worker halves the batch."""
_PAUSED: Final = frozenset((429, 503))
"""Answers whose header `Retry-After` says when to try again."""
LONGEST_RETRY_SECONDS: Final = 600.0
"""The longest pause that a receiver can ask for: after it the worker tries again, in case the header was wrong."""
_SHOWN: Final = 200


def make_target(source: Source, config: QueueConfig, settings: Mapping[str, Any], app: App) -> Target:
    """The receiver at the URL in the variable of the settings."""
    return WebhookTarget(source, HttpReceiver(settings["url_env"], settings["secret_env"]))


class WebhookTarget(Target):
    """A receiver of webhooks; thread-safe."""

    noun = "the receiver of the webhook"
    # A request's JSON is larger than the stored entries. Many servers accept a body of 1 MB at most.
    batch_bytes = 100_000
    batch_entries = 1_000

    def __init__(self, source: Source, receiver: HttpReceiver) -> None:
        self._source = {"store": source.store.hex(), "queue": source.queue, "link": source.link}
        self._receiver = receiver

    def apply(self, changes: Changes) -> str | None:
        answer = self._send(
            CHANGES,
            bucket=changes.bucket,
            previous=changes.previous,
            position=changes.position,
            entries=in_json(changes.entries),
        )
        self.signal("delivered")
        return self._position(answer) if answer.status == _CONFLICT else None

    def sweep(self, epoch: int, below: bytes) -> int:
        """Send the message that keys last sent below this sequence have no value; returns 0.

        A receiver with positions answers 409, with a position that shows it, if the message is late.
        """
        answer = self._send(SWEEP, epoch=epoch, below=below.hex())
        if answer.status == _CONFLICT:
            refuse_late_sweep([self._position(answer)], epoch, below)
            raise TargetRefuses(self._said(answer))
        return 0

    def check_settings(self) -> str:
        return f"the receiver at {self._receiver.check()} accepts signed requests"

    def close(self) -> None:
        self._receiver.close()

    def _send(self, kind: str, **data: Any) -> Answer:
        """Send a message; returns an answer of success, or 409. Raises for all others."""
        body = json.dumps({"type": kind, "data": self._source | data}, separators=(",", ":")).encode()
        answer = self._receiver.post(message_id(body), body)
        status = answer.status
        if 200 <= status < 300 or status == _CONFLICT:
            return answer
        if status in _FAULTY:
            raise CannotSend(self._said(answer))
        if status >= 500 or status in _RETRIED:
            pause = answer.retry_seconds if status in _PAUSED else 0.0
            raise LinkFailed(self._said(answer), min(pause, LONGEST_RETRY_SECONDS))
        raise TargetRefuses(self._said(answer))

    def _position(self, answer: Answer) -> str:
        try:
            content: Any = json.loads(answer.text)
        except (ValueError, RecursionError):
            # A proxy may answer so, and a connection may break in the answer.
            raise LinkFailed(self._said(answer)) from None
        found = content.get("position", 0) if isinstance(content, dict) else 0
        if found is not None and not isinstance(found, str):
            raise TargetRefuses(self._said(answer))
        return found or ""

    def _said(self, answer: Answer) -> str:
        text = printable(" ".join(answer.text.split())[:_SHOWN])
        why = ", a redirect, which is not followed" if 300 <= answer.status < 400 else ""
        return f"{self.noun} answered {answer.status}{why}{f': {text}' if text else ''}"


def message_id(body: bytes) -> str:
    """The id of a message, which is the same for each repetition of it."""
    return f"msg_{blake2b(body, digest_size=16).hexdigest()}"
