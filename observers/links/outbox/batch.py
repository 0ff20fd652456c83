"""From rows of an outbox to a batch that fits into one transaction of the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Final

from cq.config.queue import QueueConfig
from cq.encoding.codec import encode_operation
from cq.encoding.json_values import key_from_json, value_from_json
from cq.errors import InvalidData
from cq.observers.links.outbox.table import LONGEST_ROW, OutboxRow
from cq.plain_text import printable
from cq.queue.checks import AddCheck
from cq.queue.combine_queue import CombineQueue
from cq.store.api import Transaction
from cq.store.sizes import PREDICTED_BYTES

_ROW_BYTES: Final = 20  # of a row's id in the state


@dataclass(slots=True)
class OutboxBatch:
    """Rows of an outbox, in their order.

    Attributes:
        adds: for each add: the updates, and the operation id.
        ids: of the rows in `adds`, including rows that repeat an operation id.
        errors: {id: error} of the rows that the queue refuses.
    """

    adds: list[tuple[list[tuple[Any, Any]], bytes | None]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def add_to(self, tr: Transaction, queue: CombineQueue) -> None:
        """Add all updates; raises `QueueFull`, and `InvalidData` if the queue refuses one that `batch_of` takes."""
        for updates, operation in self.adds:
            queue.add(tr, updates, once=operation)


def batch_of(config: QueueConfig, rows: Sequence[OutboxRow]) -> OutboxBatch:
    """The first rows of these that fit into one transaction; at least one."""
    batch = OutboxBatch()
    adds = AddCheck(config)
    seen: set[bytes] = set()
    size = 0
    for row in rows:
        try:
            key, update = _parsed(config, row)
            pair = adds.check(key, update)
            operation = None if row.operation is None else _operation(row.operation, pair.encoded)
        except InvalidData as error:
            batch.errors[row.id] = printable(str(error))
            continue
        size += pair.size + _ROW_BYTES + (0 if operation is None else adds.operation)
        if batch.ids and size > PREDICTED_BYTES:
            break
        batch.ids.append(row.id)
        if operation is None:
            if not batch.adds or batch.adds[-1][1] is not None:
                batch.adds.append(([], None))
            batch.adds[-1][0].append((key, update))
        elif operation not in seen:  # within one transaction, the queue would count both
            seen.add(operation)
            batch.adds.append(([(key, update)], operation))
    return batch


def _parsed(config: QueueConfig, row: OutboxRow) -> tuple[Any, Any]:
    """Key and update of a row; raises `InvalidData`."""
    if row.key_json is None:
        raise InvalidData(f"the row has more than {LONGEST_ROW:,} bytes")
    key = key_from_json(config.key, _json(row.key_json, "key_json"))
    # Without this, a float in between would round a decimal.
    decimals = Decimal if config.value.name == "decimal" else None
    return key, value_from_json(config.value, _json(row.update_json, "update_json", decimals))


def _json(text: str, column: str, floats: Any = None) -> Any:
    try:
        return json.loads(text, parse_float=floats)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InvalidData(f"{column} is not JSON: {error}") from None


def _operation(given: str, encoded_key: bytes) -> bytes:
    """The operation id in the queue: one for each id and key, as rows of one id can be moved in several transactions.

    Raises `InvalidData`.
    """
    digest = blake2b(encode_operation(given), digest_size=16, key=blake2b(encoded_key).digest())
    return b"outbox " + digest.digest()
