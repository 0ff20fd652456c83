"""A bucket as a pass opens it: the reads that every pass begins with."""

from __future__ import annotations

from functools import cached_property

from cq.app import QueueCode
from cq.config.queue import read_config
from cq.errors import CodeMismatch
from cq.expiry.index import index_cost
from cq.keys import QueueKeys
from cq.passes.bucket_cache import BucketCache
from cq.passes.plan import PassPlan
from cq.queue.bucket_state import BucketState
from cq.store.api import Transaction
from cq.store.sizes import SET_COPIES, WRITE_BYTES


class OpenBucket:
    """A bucket in the transaction of a pass.

    Only the reads of its state and of the queue's configuration conflict: of two passes over the bucket one aborts, and
    adds abort none.

    Args:
        tr: a fresh transaction.
        code: the queue's configuration and code as this worker has them.
        number: number of the bucket.
        plan: what the runner of passes has decided.
        cache: the worker's cache of the bucket.

    Attributes:
        is_former: whether the bucket is of the queue's former shape; the current one may then have later updates.
        read_version: the read version of the pass.
        state_key: the key of the bucket's state.
        rows: the bounds of the bucket's rows.

    Raises `CodeMismatch` if the stored configuration asks for other code.
    """

    def __init__(
        self, tr: Transaction, code: QueueCode, number: int, plan: PassPlan, cache: BucketCache
    ) -> None:
        config = code.config
        self.tr, self.code, self.config = tr, code, config
        self.number, self.plan, self.cache = number, plan, cache
        self.keys = QueueKeys(config.name)
        self.state_key = self.keys.state(config.generation, number)
        self.rows = self.keys.rows(config.generation, number)
        version = tr.get_read_version()
        self._state = tr.get(self.state_key)
        stored = read_config(tr, config.name)
        if config not in (stored, stored.under_former_shape()):
            raise CodeMismatch(f"the configuration of queue {config.name!r} has changed")
        self.is_former = config != stored
        self.read_version = version.wait()

    @cached_property
    def state(self) -> BucketState:
        """The bucket's state. It is read while the first rows are, so do not use it before these are requested."""
        return BucketState.from_bytes(self._state.value)

    @cached_property
    def value_cost(self) -> tuple[int, int]:
        """Bytes of writing a value: times the length of the encoded key, and in addition; without the value's own."""
        copies, each = index_cost(self.config)
        return SET_COPIES + copies, SET_COPIES * len(self.keys.value(b"")) + WRITE_BYTES + each

    @property
    def is_observed(self) -> bool:
        """Whether the queue has observers."""
        return bool(self.code.observers)

    @property
    def is_cached(self) -> bool:
        """Whether no other worker has run a pass over the bucket since the cache was updated."""
        return self.cache.is_valid(self.state.token)

    def write_state(self, state: BucketState) -> None:
        """Write the state, which must have a fresh token."""
        self.tr.set(self.state_key, state.to_bytes())
