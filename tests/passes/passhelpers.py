"""Single passes, and the calls that they make on the store."""

from __future__ import annotations

from typing import Any, Final

import cq
from cq.app import QueueCode
from cq.passes.bucket_cache import BucketCache
from cq.passes.combine_pass import Pass
from cq.passes.effects import PassResult
from cq.passes.plan import PassPlan
from cq.store.transact import transact
from tests.kit.faults import Calls
from tests.kit.queues import begun, code_of

BEGIN: Final = ["get_read_version", "get", "add_read_conflict_key"]
"""The bucket's state, the queue's configuration."""
READ: Final = ["get", "get", "get_range"]
"""By snapshot reads: notification, metadata version, rows."""


def _all_but_bad(key: str, values: Any) -> int:
    if key == "bad":
        raise RuntimeError("no")
    return sum(values)


choosy: Final = cq.Combiner("choosy", 1, _all_but_bad)
"""Sums up, but fails for one key."""


def one_pass(
    db: Any, name: str, app: cq.App | None = None, *, cache: BucketCache | None = None, **plan: Any
) -> PassResult:
    """One committed pass over bucket 0."""
    code = code_of(db, name, app)
    return transact(db, lambda tr: Pass(tr, code, 0, PassPlan(**plan), cache).run())


def calls_of(
    db: Any, code: QueueCode, cache: BucketCache, **plan: Any
) -> tuple[list[str], list[str], PassResult]:
    """The calls of one committed pass, those of snapshot reads first; the cache gets what it may remember."""
    tr = begun(db, code.config.name)
    calls, snapshot = Calls(tr), Calls(tr.snapshot)
    calls.__dict__["snapshot"] = snapshot
    result = Pass(calls, code, 0, PassPlan(**plan), cache).run()
    tr.commit().wait()
    cache.update(result.token, result.values, result.staged, result.runs)
    # The metadata version comes with the read version, which is requested from a cluster only.
    reads = [each for each in snapshot.made if each != "get_read_version"]
    return reads, calls.made, result
