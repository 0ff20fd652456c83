"""Names for layers on cq: what `cq.cells` and `cq.feeds` use beside the names of `cq`, `cq.store` and `cq.errors`.

A layer keeps data of its own below a prefix of its own, in transactions that may also add to queues. Its waits, clocks
and threads go through `runtime`, and its values through `codec`: so it also works in `cq.aio`, and a simulation can run
it. The room may import keys, configuration, encoding and the store.
"""

from cq import runtime
from cq.arguments import check_limit, repeatable
from cq.backoff import delay_after
from cq.config.queue import MAX_SUGGESTED, ConfigCache, invalidate_configs
from cq.config.store_id import ensure_store_id
from cq.durations import Span, positive_seconds, span_of, timeout_of
from cq.encoding import codec
from cq.encoding.hashing import bucket_of
from cq.encoding.stored import StoredRecord
from cq.keys import INCOMPLETE_VERSIONSTAMP, after, below, check_name, prefix_end
from cq.plain_text import describe
from cq.queue.byte_sizes import bytes_of
from cq.store.api import ACCESSED_UNREADABLE, KeyValue, Value, Void, error_code
from cq.store.bounded_reads import scan_rows
from cq.store.own_writes import hides_writes, makes_unreadable, note_writes, recorded
from cq.store.reads import snapshot_of
from cq.store.sizes import fitting
from cq.store.transact import transact_removal
from cq.store.watch import wait_until

__all__ = [
    "ACCESSED_UNREADABLE",
    "INCOMPLETE_VERSIONSTAMP",
    "MAX_SUGGESTED",
    "ConfigCache",
    "KeyValue",
    "Span",
    "StoredRecord",
    "Value",
    "Void",
    "after",
    "below",
    "bucket_of",
    "bytes_of",
    "check_limit",
    "check_name",
    "codec",
    "delay_after",
    "describe",
    "ensure_store_id",
    "error_code",
    "fitting",
    "hides_writes",
    "invalidate_configs",
    "makes_unreadable",
    "note_writes",
    "positive_seconds",
    "prefix_end",
    "recorded",
    "repeatable",
    "runtime",
    "scan_rows",
    "snapshot_of",
    "span_of",
    "timeout_of",
    "transact_removal",
    "wait_until",
]
