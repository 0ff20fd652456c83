"""Canaries of sorted runs, see `canary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cq.passes.merge_pass import MergePass
from cq.passes.pass_result import PassResult
from cq.passes.runs import FIRST_RUN
from cq.queue.bucket_state import needs_purge
from tests.simulation.canary import Canaries

backlogs = Canaries("backlogs")


@backlogs.replaces("cq.passes.merge_pass.MergePass.run", seed=1)
def sorts_again_what_others_have_sorted(run: Any, self: MergePass) -> PassResult | None:
    """A worker whose runs another one has touched sorts the backlog from its beginning."""
    if self.runs.remaining and not self.bucket.is_cached:
        self.runs = FIRST_RUN
    if self.runs == FIRST_RUN:  # after a conflict it sorts at once, so that it is as fast as the other worker
        self.bucket.cache.runs = FIRST_RUN
    found: PassResult | None = run(self)
    return found


@backlogs.replaces("cq.passes.merge_pass.MergePass._allows_runs", seed=96)
def believes_its_runs(_: Any, self: MergePass) -> bool:
    """A worker merges the runs that it remembers though another one has passed."""
    return not (self.bucket.state.staged or needs_purge(self.config, self.bucket.state))


@backlogs.replaces("cq.passes.combine_pass.is_blocked", seed=43)
def merges_before_the_former_shape(*_: Any) -> bool:
    """Runs are made and merged though older updates are in the former shape."""
    return False


@backlogs.replaces("cq.passes.repacking.pack_into_rows", "cq.passes.merge_pass.pack_into_rows", seed=5)
def leaves_rows_at_the_end(pack_into_rows: Any, pairs: Any, rows: Sequence[Any]) -> dict[bytes, bytes]:
    """Rows that are written again take the keys of the last rows that they replace."""
    found = pack_into_rows(pairs, rows)
    keys = [row.key for row in rows][len(rows) - len(found) :]
    return dict(zip(keys, found.values(), strict=True))
