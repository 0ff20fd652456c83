"""The ledger of a queue's audit: sums of added and of dropped updates, which adds and passes write.

An audit divides the range of hashes into buckets, as the queue's shape does when the audit begins. It keeps them when
the number of the queue's buckets changes: values never move, so no sum has to. For each of these buckets

    added = stored + staged + waiting + set aside + dropped

holds in every commit. Adds and passes change the two sums by atomic additions, which conflict with no transaction. A
check of the audit, by `cq.admin.audit`, computes the other sums from the stored data.

Each update has a weight that depends on its key, so the audit also finds a sum that is stored at the wrong key. Sums
are modulo 2**128; the lower half is the plain sum, which is shown modulo 2**64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from cq import combiners
from cq.config.parts import Audit
from cq.config.queue import Named, QueueConfig
from cq.encoding.hashing import bucket_at, key_hash
from cq.errors import InvalidConfiguration
from cq.keys.audit import AuditKeys
from cq.store.api import Transaction, Writer

MODULUS: Final = 1 << 128
_PLAIN_BITS: Final = 64
_BYTES: Final = 16
_COMBINER: Final = Named(combiners.sum_.name, combiners.sum_.version)


def weigh(encoded_key: bytes, amount: object) -> int:
    """The weight of an update or a value in a sum; 0 if it is not an int, since cq did not write it then.

    >>> plain(weigh(b"a", 3) + weigh(b"b", -5))
    -2
    """
    return _weigh(key_hash(encoded_key), amount)


def _weigh(hashed: int, amount: object) -> int:
    return amount * (1 + (hashed << _PLAIN_BITS)) if type(amount) is int else 0


def plain(total: int) -> int:
    """The plain sum in a sum of weights, modulo 2**64, from -2**63 up to 2**63."""
    half = 1 << _PLAIN_BITS - 1
    return (total + half) % (2 * half) - half


def to_bytes(total: int) -> bytes:
    """The stored bytes of a sum, and the operand of `Transaction.add`."""
    return (total % MODULUS).to_bytes(_BYTES, "little")


def from_bytes(stored: bytes | None) -> int:
    """The inverse of `to_bytes`; 0 for None, a sum not stored yet."""
    return int.from_bytes(stored or b"", "little") % MODULUS


def count_added(
    tr: Writer, config: QueueConfig, pairs: Iterable[tuple[bytes, Any]], *, again: bool = False
) -> None:
    """Count updates as added, if the queue has an audit: one atomic addition for each bucket that they touch.

    `pairs` are encoded keys and updates. With `again` the count is reversed, since the caller adds them again.
    """
    if config.audit is not None:
        keys = AuditKeys(config.name)
        for bucket, total in _sums(config.audit, pairs).items():
            tr.add(keys.added(config.audit.generation, bucket), to_bytes(-total if again else total))


def count_dropped(tr: Writer, config: QueueConfig, pairs: Iterable[tuple[bytes, Any]]) -> None:
    """Count updates as dropped, if the queue has an audit, as `count_added` does."""
    if config.audit is not None:
        keys = AuditKeys(config.name)
        for bucket, total in _sums(config.audit, pairs).items():
            tr.add(keys.dropped(config.audit.generation, bucket), to_bytes(total))


def _sums(audit: Audit, pairs: Iterable[tuple[bytes, Any]]) -> dict[int, int]:
    """{bucket of the audit: weighted sum}, without sums of 0."""
    sums: defaultdict[int, int] = defaultdict(int)
    for encoded, amount in pairs:
        hashed = key_hash(encoded)
        sums[bucket_at(hashed, audit.buckets)] += _weigh(hashed, amount)
    return {bucket: total for bucket, total in sums.items() if total}


# Turn an audit on and off


def with_audit(config: QueueConfig, *, whole: bool) -> QueueConfig:
    """The configuration with a new audit; raises `InvalidConfiguration` if the queue cannot have one.

    `whole`: the queue has no data from before the audit.
    """
    refuse_unless_summed(config, "an audit")
    return replace(config, audit=Audit(config.audits + 1, config.buckets, whole), audits=config.audits + 1)


def refuse_unless_summed(config: QueueConfig, what: str) -> None:
    """Raise `InvalidConfiguration` unless values are sums of int, which are exact in any order."""
    if str(config.value) != "int" or config.combiner != _COMBINER:
        raise InvalidConfiguration(
            f"expected values of int and the combiner sum for {what}, queue {config.name!r} has values of "
            f"{config.value} and the combiner {config.combiner.name}"
        )


def without_audit(tr: Transaction, config: QueueConfig) -> QueueConfig:
    """The configuration without an audit; clears the audit's sums."""
    if config.audit is not None:
        tr.clear_range(*AuditKeys(config.name).of_generation(config.audit.generation))
    return replace(config, audit=None)
