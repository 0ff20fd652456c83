"""Notes of workers' attempts, which find keys whose code kills the process: a dead process leaves no exception.

A worker that runs foreign code over a bucket keeps a note there as long as it lives. A worker that finds an old note is
cautious: it begins with one key, doubles the number with each success, and before each pass notes the keys that the
code is about to see, in a separate transaction. Each death narrows down the key, until several workers have died with
that key alone, or more of them with it among others. Notes of live workers make others cautious for a moment only.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from cq import runtime
from cq.config.queue import QueueConfig
from cq.encoding import codec
from cq.errors import CorruptData, CqError
from cq.keys import INCOMPLETE_VERSIONSTAMP, VERSIONSTAMP_BYTES, QueueKeys, version_of
from cq.store.api import Database, Transaction
from cq.store.transact import transact, transact_versioned
from cq.store.version_clock import clock_of

_DEATHS_ALONE: Final = 3
_DEATHS_AMONG: Final = 6
_MAX_NOTED: Final = 1_000
_MAX_NOTED_BYTES: Final = 50_000
_OFFSET: Final = INCOMPLETE_VERSIONSTAMP[VERSIONSTAMP_BYTES:]


class PoisonKey(CqError):
    """A key with which too many workers have died; it is not tried again."""

    def __init__(self, encoded_key: bytes, deaths: int) -> None:
        super().__init__(encoded_key, deaths)
        self.encoded_key = encoded_key
        self.deaths = deaths

    def __str__(self) -> str:
        return f"{self.deaths} workers have died with this key"


class Attempts:
    """One worker's access to the notes of a bucket.

    Attributes:
        begun: whether this worker has a note.
        cautious: whether a worker seems to have died here, so that passes must be small and noted.
    """

    def __init__(self, db: Database, config: QueueConfig, bucket: int) -> None:
        keys = QueueKeys(config.name)
        self._db = db
        self._key = keys.attempt(config.generation, bucket, runtime.token_bytes(8))
        self._range = keys.attempts(config.generation, bucket)
        self._stale: dict[bytes, list[bytes]] = {}
        self.begun = False
        self.cautious = False

    def begin(self, stale_seconds: float) -> None:
        """Write a note, unless this worker has one, and find old ones."""
        if self.begun:
            return
        began, clock = runtime.monotonic(), clock_of(self._db)
        others, now = transact_versioned(self._db, self._begin)
        clock.observe(now, began)
        # After a jump of versions that this process has not seen, notes of live workers seem old. This is harmless: the
        # worker is cautious without need.
        ages = {key: clock.age(version, now) for key, (version, _) in others.items()}
        self._stale = {key: noted for key, (_, noted) in others.items() if ages[key] >= stale_seconds}
        self.cautious = bool(self._stale)
        self.begun = True

    def note(self, encoded_keys: list[bytes]) -> None:
        """Note that code will see these keys; raises `PoisonKey` if too many workers have died with one of them."""
        if not self.cautious:
            return
        self._check_deaths(encoded_keys)
        few = len(encoded_keys) <= _MAX_NOTED and sum(map(len, encoded_keys)) <= _MAX_NOTED_BYTES
        noted = encoded_keys if few else []
        transact(self._db, lambda tr: self._write(tr, noted))

    def forget_deaths(self) -> None:
        """Clear the notes of dead workers; called when the bucket has no more work."""
        if self.cautious:
            transact(self._db, self._clear_stale)
            self._stale = {}
            self.cautious = False

    def end(self, tr: Transaction) -> None:
        """Clear this worker's note, as it leaves the bucket alive."""
        tr.clear(self._key)

    def _check_deaths(self, encoded_keys: list[bytes]) -> None:
        """Raise `PoisonKey` if enough workers have died with one key, alone or more than with others."""
        alone = [noted[0] for noted in self._stale.values() if len(noted) == 1]
        deaths = Counter(encoded for noted in self._stale.values() for encoded in noted)
        most = max((deaths[encoded] for encoded in encoded_keys), default=0)
        leaders = [encoded for encoded in encoded_keys if deaths[encoded] == most]
        if len(leaders) == 1 and (most >= _DEATHS_AMONG or alone.count(leaders[0]) >= _DEATHS_ALONE):
            raise PoisonKey(leaders[0], most)

    def _begin(self, tr: Transaction) -> dict[bytes, tuple[int, list[bytes]]]:
        found = {row.key: _parse(row.value) for row in tr.snapshot.get_range(*self._range)}
        self._write(tr, [])
        return {key: note for key, note in found.items() if key != self._key}

    def _write(self, tr: Transaction, noted: list[bytes]) -> None:
        value = INCOMPLETE_VERSIONSTAMP[:VERSIONSTAMP_BYTES] + codec.encode(noted)
        tr.set_versionstamped_value(self._key, value + _OFFSET)

    def _clear_stale(self, tr: Transaction) -> None:
        for key in self._stale:
            tr.clear(key)
        self._write(tr, [])


def parse_note(value: bytes) -> tuple[int, list[bytes]]:
    """Return the version and the encoded keys of a note; raises `CorruptData`."""
    noted: Any = codec.decode(value[VERSIONSTAMP_BYTES:])
    if not isinstance(noted, list) or not all(type(encoded) is bytes for encoded in noted):
        raise CorruptData(f"a note of an attempt is not one that cq wrote: {value!r}")
    return version_of(value), noted


def _parse(value: bytes) -> tuple[int, list[bytes]]:
    """Do the same, but return no keys for a note that cq has not written."""
    try:
        return parse_note(value)
    except CorruptData:
        return version_of(value), []
