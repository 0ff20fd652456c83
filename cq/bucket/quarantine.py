"""The keys of a bucket that fail: which one to set aside next, and which to report alone from then on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from cq import runtime
from cq.failure import KeyFailure
from cq.passes.effects import PassResult

_MAX_SUSPECTS: Final = 1_000
_TRY_SUSPECT_EVERY: Final = 8
_MAX_TRIED: Final = 20_000
_PATIENCE: Final = 5  # transient errors at one key, after which the key counts as failed


class Quarantine:
    """The failing keys of one bucket.

    Attributes:
        is_any: whether a key has failed of late; if not, a committed pass changes nothing here.
        suspects: encoded keys set aside before: each is reported alone, so that it does not delay the others.
        rejected: {encoded key: failure} of the key to set aside next.
        rejected_at: the token of the bucket's state in the pass that has failed; None before the first failure.
        rejected_in_backfill: the same for a key whose value an observer cannot receive.
        rejected_in_expiry: the same for a due key whose deletion an observer cannot receive.
    """

    def __init__(self) -> None:
        self.is_any = False
        self.suspects: dict[bytes, None] = {}
        self.rejected: dict[bytes, KeyFailure] = {}
        self.rejected_at: bytes | None = None
        self.rejected_in_backfill: dict[bytes, KeyFailure] = {}
        self.rejected_in_expiry: dict[bytes, KeyFailure] = {}
        self._errors: Counter[bytes] = Counter()
        self._tried: dict[bytes, tuple[float, int]] = {}  # time of the first failed try, and number of tries

    @property
    def rejects(self) -> bool:
        """Whether the next pass sets a key aside, so that it calls no observer."""
        return bool(self.rejected or self.rejected_in_backfill or self.rejected_in_expiry)

    def count_tries(self, encoded_keys: Sequence[bytes]) -> None:
        """Count a failed pass for each key that it has reported."""
        now = runtime.time()
        self.is_any = True
        for encoded in encoded_keys:
            first, tries = self._tried.get(encoded, (now, 0))
            self._tried[encoded] = first, tries + 1
        while len(self._tried) > _MAX_TRIED:
            del self._tried[next(iter(self._tried))]

    def reject(
        self, encoded: bytes, failure: KeyFailure, token: bytes, *, in_backfill: bool, in_expiry: bool
    ) -> None:
        """Set a key aside in the next pass; `token` is that of the bucket's state in the pass that has failed."""
        self.is_any = True
        if encoded in self._tried:
            failure = failure.after(*self._tried[encoded])
        if in_backfill:
            self.rejected_in_backfill = {encoded: failure}
        elif in_expiry:
            self.rejected_in_expiry = {encoded: failure}
        else:
            self.rejected, self.rejected_at = {encoded: failure}, token

    def is_failed(self, encoded: bytes) -> bool:
        """Count a transient error at a key; return whether there were too many in a row."""
        self.is_any = True
        self._errors[encoded] += 1
        return self._errors[encoded] >= _PATIENCE

    def is_turn_of_suspect(self, passes: int) -> bool:
        """Whether to report a suspect in the pass with this number although other keys have work."""
        return passes % _TRY_SUSPECT_EVERY == 0

    def committed(self, result: PassResult) -> None:
        """Add the keys that the committed pass has set aside, and remove those that it has reported."""
        self._errors.clear()
        if self._tried:  # else nothing per key: a pass may report thousands
            self._tried = {
                encoded: tried
                for encoded, tried in self._tried.items()
                if encoded not in result.values and encoded not in result.aside
            }
        self.rejected, self.rejected_in_backfill, self.rejected_in_expiry = {}, {}, {}
        for encoded in self.suspects.keys() & result.values.keys():
            del self.suspects[encoded]
        for encoded in result.aside:
            self.suspects[encoded] = None
            if len(self.suspects) > _MAX_SUSPECTS:
                del self.suspects[next(iter(self.suspects))]
        self.is_any = bool(self.suspects or self._tried)
