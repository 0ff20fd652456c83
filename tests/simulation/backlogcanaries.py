"""Canaries of sorted runs, see `canary`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cq.passes.bucket_cache import FIRST_RUN, Runs
from cq.passes.effects import Effects
from cq.passes.view import View, ViewReader
from cq.queue.bucket_state import needs_purge
from tests.simulation.canary import Canaries

backlogs = Canaries("backlogs")


@backlogs.replaces("cq.passes.combine_pass.sort", seed=1003)
def sorts_again_what_others_have_sorted(
    sort: Any, view: View, reader: ViewReader, runs: Runs
) -> Effects | None:
    """A worker whose runs another one has touched sorts the backlog from its beginning."""
    if runs.remaining and not view.cache.is_valid(view.state.token):
        runs = FIRST_RUN
    if runs == FIRST_RUN:  # after a conflict it sorts at once, so that it is as fast as the other worker
        view.cache.runs = FIRST_RUN
    found: Effects | None = sort(view, reader, runs)
    return found


@backlogs.replaces("cq.passes.sorting._allows_runs", seed=130)
def believes_its_runs(_: Any, view: View, runs: Runs) -> bool:
    """A worker merges the runs that it remembers though another one has passed."""
    return not (view.state.staged or needs_purge(view.config, view.state))


@backlogs.replaces("cq.passes.combine_pass.is_blocked", seed=228, only={"rebucket", "calls are late"})
def merges_before_the_former_shape(*_: Any) -> bool:
    """Runs are made and merged though older updates are in the former shape."""
    return False


@backlogs.replaces("cq.passes.repacking.pack_into_rows", "cq.passes.sorting.pack_into_rows", seed=5)
def leaves_rows_at_the_end(pack_into_rows: Any, pairs: Any, rows: Sequence[Any]) -> dict[bytes, bytes]:
    """Rows that are written again take the keys of the last rows that they replace."""
    found = pack_into_rows(pairs, rows)
    keys = [row.key for row in rows][len(rows) - len(found) :]
    return dict(zip(keys, found.values(), strict=True))
