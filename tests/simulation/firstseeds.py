"""The seed at which the search for a run that catches a canary begins."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FIRST: Final[Mapping[str, int]] = MappingProxyType(
    {
        "ignores_the_fence": 1,
        "deletes_rows_before_they_are_moved": 9,
        "moves_without_comparing_the_state": 2,
        "deletes_rows_by_their_ids_only": 34,
        "forgets_the_batch_under_way_at_a_rebase": 14,
        "removes_an_outbox_whatever_was_moved": 2,
        "starts_at_a_used_position": 7,
        "stops_at_a_row_that_the_add_refuses": 1,
        "stops_for_batches_that_others_have_cleared": 10,
        "does_not_read_the_lock": 10,
        "believes_its_memory": 13,
        "reports_unfinished_buckets": 2,
        "does_not_wait_for_the_former_shape": 128,
        "runs_other_code": 6,
        "looks_for_no_missed_reports": 354,
        "forgets_to_tell_new_observers": 3,
        "tells_beyond_the_cursor": 7,
        "forgets_what_observers_missed": 29,
        "clears_notifications_blindly": 3,
        "purges_what_came_later": 4,
        "purges_no_staged_updates": 4,
        "exports_without_a_fence": 184,
        "clears_exports_first": 2,
        "leaves_old_scores": 1,
        "never_misses_the_dead": 1,
        "sleeps_for_ever": 1,
        "flushes_without_a_conflict": 7,
        "tells_callers_too_early": 15,
        "drops_what_fails": 12,
        "holds_more_than_was_said": 9,
        "sweeps_before_all_is_exported": 9,
        "ignores_staged_updates_of_the_former_shape": 120,
        "publishes_clouds_of_old_generations": 73,
        "goes_on_after_a_set_back": 107,
        "forgets_ids_of_queued_rows": 1,
        "replaces_documents_side_by_side": 20,
        "deletes_without_a_word": 2,
        "retries_without_clearing": 6,
        "includes_updates_twice": 36,
        "shows_the_cloud_it_knows": 39,
        "leaves_times_of_unchanged_values": 6,
        "gives_times_without_the_lock": 163,
        "takes_out_what_it_has_not_read": 79,
        "takes_out_side_by_side": 16,
        "takes_out_all_tries": 12,
        "purges_no_window": 6,
        "clears_notes_blindly": 18,
        "reads_where_a_user_is_without_a_conflict": 22,
        "switches_a_user_again": 11,
        "believes_its_runs": 75,
        "merges_before_the_former_shape": 43,
        "leaves_rows_at_the_end": 5,
        "sorts_again_what_others_have_sorted": 1,
        "misses_a_store_set_back": 4,
        "misses_a_table_set_back": 4,
        "clears_exports_by_their_epoch_only": 120,
        "leaves_old_epochs_open": 110,
        "reads_without_staged_updates": 38,
        "reads_updates_of_the_shape_now": 66,
        "changes_configurations_by_snapshot": 57,
        "forgets_ids_without_a_conflict": 46,
        "adds_minutes_again": 25,
        "adds_under_old_shapes": 3,
        "aborts_for_changes_of_others": 23,
        "flushes_without_looking": 11,
        "adds_lines_whatever_the_position": 2,
        "subtracts_what_expires": 17,
        "expires_periods_early": 28,
        "derives_beside_the_pass": 8,
        "derives_whole_values": 8,
        "adds_to_levels_beside": 3,
        "misses_deletions": 17,
        "loses_a_maximum_of_zero": 4,
        "purges_no_levels": 20,
    }
)
"""{canary: first seed}; 0 for the others.

Each is a seed that caught the canary, so one run suffices. After a change of cq or of the simulation, other seeds may
catch it: `python -m tests.simulation --seeds 0 --canaries` prints them. An outdated seed costs time, and nothing else:
the search goes on from there.
"""
