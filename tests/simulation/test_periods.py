"""In every schedule, each period of a source begins, is asked and is closed once, and services with a mistake are found."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.faults import STRIKES
from tests.simulation.mutations import found
from tests.simulation.period_mutations import MUTATIONS
from tests.simulation.periods import play
from tests.simulation.replacements import Mutation

SCHEDULES = 70
"""The number of schedules within which each mutation is found; with unchanged services, no schedule fails."""
FOUND_BY = {
    "requests_outside_of_the_transaction": 67,
    "periods_never_end": 18,
    "closed_before_all_is_answered": 1,
    "periods_end_early": 2,
    "asked_before_the_account_is_there": 1,
}
"""For mutations that few schedules find, a schedule that finds them."""


def test_every_schedule_begins_asks_and_ends_each_period_once() -> None:
    """Its questions have the numbers of a plain count."""
    reports = [play(seed) for seed in range(SCHEDULES)]
    broken = [str(report) for report in reports if report.violations]
    assert not broken, "\n".join(broken)
    injected = sum((report.injected + report.figures for report in reports), Counter[str]())
    upsets = ("kill", "zombie", "join", "leave", "another worker joins", "broker outage", "compaction")
    events = ("silent period", "model opened in the middle", "model closed")
    assert all(injected[name] >= 3 for name in (*STRIKES, *upsets, *events)), injected
    assert injected["questions"] > 100 * SCHEDULES


def test_seed_replays_the_same_run_of_periods() -> None:
    assert play(7).digest == play(7).digest != play(8).digest


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_broken_handling_of_periods_is_found(mutation: Mutation) -> None:
    assert found(mutation, play, SCHEDULES, FOUND_BY)
