"""Conversion of the values of a bucket to a new version of the combiner, piece by piece in hash order.

Passes convert all values of a bucket before they combine any update of it. A piece is converted, reported and marked as
converted in one transaction, which reads and writes the bucket's state. So each value is converted exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cq.app import QueueCode
from cq.encoding import codec
from cq.errors import CodeMismatch, CqError, InvalidData
from cq.failure import KeyFailure
from cq.keys import place
from cq.observer import CONVERSION, Change
from cq.passes.open_bucket import OpenBucket
from cq.passes.reporting import note_unreported
from cq.plain_text import describe
from cq.queue.bounded_reads import read_values
from cq.queue.bucket_state import BucketState
from cq.queue.missed_reports import MissedReports


class ConversionFailed(CqError):
    """A value cannot be converted: the bucket waits for another `convert`, as its updates need the converted value."""


@dataclass(frozen=True, slots=True)
class ConvertedPiece:
    """Some values of a bucket that a pass converts.

    Attributes:
        state: the new state of the bucket, except for its token.
        values: {encoded key: encoded new value}.
        changes: the changes to report, each with the key's position in hash order.
        unreported: {encoded key: (encoded former value, failure)} of keys that observers rejected.
    """

    state: BucketState
    values: dict[bytes, bytes] = field(default_factory=dict)
    changes: list[tuple[bytes, Change]] = field(default_factory=list)
    unreported: dict[bytes, tuple[bytes, KeyFailure]] = field(default_factory=dict)

    @property
    def reported(self) -> list[bytes]:
        """The encoded keys to report."""
        return [encoded for encoded in self.values if encoded not in self.unreported]

    def note_missed(
        self, missed: MissedReports, positions: Mapping[int, bytes | None]
    ) -> dict[bytes, KeyFailure]:
        """Write the missed reports of rejected keys, and clear those of all others; return {rejected key: failure}."""
        changed = {where for where, _ in self.changes}
        reported = [encoded for encoded in self.reported if place(encoded) in changed]
        missed.read_all(list(self.values))
        missed.check(reported)
        missed.clear(reported)
        return note_unreported(missed, self.unreported, positions)


def convert_some(bucket: OpenBucket, limit: int, limit_bytes: int) -> ConvertedPiece:
    """Convert the next values of a bucket, and write them; raises `ConversionFailed`."""
    tr, config, rejected = bucket.tr, bucket.config, bucket.plan.rejected
    values, reached = read_values(
        tr, config, bucket.number, bucket.state.converting or b"", limit, limit_bytes
    )
    found = ConvertedPiece(replace(bucket.state, converting=reached))
    for encoded, value in values:
        key = config.key.decode(encoded)
        new = _convert(bucket.code, key, value)
        before, data = codec.encode(value), codec.encode_values([new])[0]
        found.values[encoded] = data
        if data == before:
            continue
        tr.set(bucket.keys.value(encoded), data)
        if encoded in rejected:
            found.unreported[encoded] = before, rejected[encoded]
        else:
            found.changes.append((place(encoded), Change(key, value, new, complete=False, cause=CONVERSION)))
    return found


def _convert(code: QueueCode, key: Any, value: Any) -> Any:
    """The value of the new version; raises `ConversionFailed`."""
    conversion, convert = code.config.conversion, code.combiner.convert
    if conversion is None or convert is None:
        raise CodeMismatch(f"the combiner of queue {code.config.name!r} has no function `convert`")
    try:
        new = convert(key, value, conversion.version)
        if new is None or code.value_combiner.is_empty(new):
            raise InvalidData("convert returned an empty value")
        code.config.value.check(new)
        codec.encode_values([new])
    except Exception as error:
        failure = KeyFailure.of(error)
        where = f" ({failure.trace[-1]})" if failure.trace else ""
        raise ConversionFailed(
            f"key {codec.brief(key)} of queue {code.config.name!r} cannot be converted from {conversion.former} to "
            f"{code.config.combiner}: {describe(error)}{where}"
        ) from error
    return new
