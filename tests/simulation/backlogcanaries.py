"""Variants of sorted runs that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final
from unittest.mock import patch

from cq.passes import combine_pass, merge_pass, repacking
from cq.passes.merge_pass import MergePass
from cq.passes.pass_result import PassResult
from cq.passes.runs import FIRST_RUN
from cq.queue.bucket_state import needs_purge


def sorts_again_what_others_have_sorted() -> Any:
    """A worker whose runs another one has touched sorts the backlog from its beginning."""
    run = MergePass.run

    def again(self: MergePass) -> PassResult | None:
        if self.runs.remaining and not self.bucket.is_cached:
            self.runs = FIRST_RUN
        if (
            self.runs == FIRST_RUN
        ):  # after a conflict it sorts at once, so that it is as fast as the other worker
            self.bucket.cache.runs = FIRST_RUN
        return run(self)

    return patch.object(MergePass, "run", again)


def believes_its_runs() -> Any:
    """A worker merges the runs that it remembers though another one has passed."""

    def is_for_runs(self: MergePass) -> bool:
        return not (self.bucket.state.staged or needs_purge(self.config, self.bucket.state))

    return patch.object(MergePass, "_allows_runs", is_for_runs)


def merges_before_the_former_shape() -> Any:
    """Runs are made and merged though older updates are in the former shape."""
    return patch.object(combine_pass, "is_blocked", lambda snapshot, config, bucket: False)


def leaves_rows_at_the_end() -> AbstractContextManager[object]:
    """Rows that are written again take the keys of the last rows that they replace."""
    pack_into_rows = repacking.pack_into_rows

    def last(pairs: Any, rows: Sequence[Any]) -> dict[bytes, bytes]:
        found = pack_into_rows(pairs, rows)
        keys = [row.key for row in rows][len(rows) - len(found) :]
        return dict(zip(keys, found.values(), strict=True))

    stack = ExitStack()
    for module in (repacking, merge_pass):
        stack.enter_context(patch.object(module, "pack_into_rows", last))
    return stack


BACKLOGS: Final[dict[Callable[[], Any], int]] = {
    sorts_again_what_others_have_sorted: 20,
    believes_its_runs: 60,
    merges_before_the_former_shape: 150,
    leaves_rows_at_the_end: 60,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
