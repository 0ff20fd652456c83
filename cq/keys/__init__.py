"""Every key of the database, one module for each keyspace.

Numbers are big-endian, so that keys sort in the order of the numbers. Other rooms neither build nor parse keys. They
import the keys of the store and of queues from here, and the other keyspaces from their modules. This room may import
`cq.encoding` and `cq.errors`.
"""

from cq.keys.queue import (
    CHANGED,
    EMITTER_ID_BYTES,
    INCOMPLETE_VERSIONSTAMP,
    QUEUES,
    ROOT,
    STORE_ID,
    VERSIONSTAMP_BYTES,
    GenerationRanges,
    QueueKeys,
    after,
    below,
    bucket_range,
    check_name,
    new_flush,
    parse_flush,
    place,
    places,
    prefix_end,
    queue_entry,
    queue_of_entry,
    version_of,
)

__all__ = [
    "CHANGED",
    "EMITTER_ID_BYTES",
    "INCOMPLETE_VERSIONSTAMP",
    "QUEUES",
    "ROOT",
    "STORE_ID",
    "VERSIONSTAMP_BYTES",
    "GenerationRanges",
    "QueueKeys",
    "after",
    "below",
    "bucket_range",
    "check_name",
    "new_flush",
    "parse_flush",
    "place",
    "places",
    "prefix_end",
    "queue_entry",
    "queue_of_entry",
    "version_of",
]
