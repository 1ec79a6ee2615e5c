"""Live topics: in every schedule each window is asked once with what a plain count finds, and feeds with one thing wrong are found out."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.faults import STRIKES
from tests.simulation.live import play
from tests.simulation.live_mutations import MUTATIONS, Mutation

SCHEDULES = 100
WITHIN = 60
"""Within so many schedules each mutation is found; none of them fails with feeds as they are."""


def test_in_every_schedule_each_window_is_asked_once_with_what_a_plain_count_finds() -> None:
    reports = [play(seed) for seed in range(SCHEDULES)]
    broken = [str(report) for report in reports if report.violations]
    assert not broken, "\n".join(broken)
    injected = sum((report.injected + report.figures for report in reports), Counter[str]())
    upsets = (
        "kill",
        "zombie",
        "join",
        "leave",
        "outage",
        "compact",
        "expire",
        "unreadable batch",
        "stream closed",
    )
    assert all(injected[name] >= 3 for name in (*STRIKES, *upsets)), injected
    assert injected["questions"] > 50 * SCHEDULES
    assert min(injected["aborted"], injected["expired"], injected["fenced"]) > 3


def test_a_seed_replays_the_same_run() -> None:
    assert play(7).digest == play(7).digest != play(8).digest


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_feed_with_one_thing_wrong_is_found_out(mutation: Mutation) -> None:
    with mutation():
        for seed in range(WITHIN):
            report = play(seed)
            if report.violations:
                print(f"{mutation.__name__}: found by seed {seed}: {report.violations[0]}")  # noqa: T201
                return
    pytest.fail(f"not found within {WITHIN} schedules")
