"""Variants of sorted runs that are broken on purpose, see `canaries`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final
from unittest.mock import patch

from cq.admin.purge import needs_purge
from cq.passes import merge_pass, repacking
from cq.passes.merge_pass import MergePass
from cq.passes.pass_result import PassResult
from cq.passes.runs import CannotMerge, SortBacklog


def sorts_again_what_others_have_sorted() -> Any:
    """A worker whose runs another one has touched sorts the backlog from its beginning."""
    run = MergePass.run

    def again(self: MergePass) -> PassResult:
        try:
            return run(self)
        except CannotMerge:
            if self.cache.runs.remaining and not self.result.cache_is_valid:
                raise SortBacklog from None
            raise

    return patch.object(MergePass, "run", again)


def believes_its_runs() -> Any:
    """A worker merges the runs that it remembers though another one has passed."""

    def is_for_runs(self: MergePass) -> bool:
        return not (self.state.staged or needs_purge(self.config, self.state))

    return patch.object(MergePass, "_allows_runs", is_for_runs)


def merges_before_the_former_shape() -> Any:
    """Runs are made and merged though older updates are in the former shape."""
    return patch.object(merge_pass, "is_blocked", lambda snapshot, config, bucket: False)


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
    merges_before_the_former_shape: 60,
    leaves_rows_at_the_end: 60,
}
"""{canary: within how many seeds, from 0 on, it is caught}."""
