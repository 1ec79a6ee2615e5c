"""The simulation finds every engine with one mistake, so it can fail."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, SCHEDULES, found
from tests.simulation.replacements import Mutation
from tests.simulation.schedule import play

FOUND_BY = {
    "fence_after_restore": 112,
    "tables_followed_from_the_high_watermark": 22,
    "versions_of_a_latest_definition_only": 30,
    "warm_copies_read_uncommitted": 252,
    "streams_that_ran_dry_stay_so": 40,
    "restore_reads_uncommitted": 23,
    "trail_outside_the_transaction": 16,
    "refused_times_written_again": 15,
    "no_fencing": 14,
    "membership_left_to_the_client_library": 12,
    "a_late_opening_undoes_a_halt": 11,
    "extensions_of_a_latest_definition_only": 11,
    "state_kept_after_a_failed_commit": 9,
    "waits_that_an_order_to_stop_does_not_end": 9,
    "requests_granted_again": 4,
    "old_fetches_not_filtered": 2,
    "offsets_before_the_transaction": 25,
    "a_late_opening_revives_a_retired_stream": 69,
    "heads_anchored_before_their_commit": 26,
}
"""For mutations that few schedules find, a schedule that finds them."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_broken_engine_is_found(mutation: Mutation) -> None:
    assert found(mutation, play, SCHEDULES, FOUND_BY)
