"""Ten schedules of the three simulations: the part of their suite that is run before each commit."""

from __future__ import annotations

import pytest

from tests.simulation import live, periods, schedule


@pytest.mark.parametrize("seed", range(4))
def test_query_schedule_keeps_every_promise(seed: int) -> None:
    assert schedule.play(seed).violations == []


@pytest.mark.parametrize("seed", range(3))
def test_live_schedule_keeps_every_promise(seed: int) -> None:
    assert live.play(seed).violations == []


@pytest.mark.parametrize("seed", range(3))
def test_period_schedule_keeps_every_promise(seed: int) -> None:
    assert periods.play(seed).violations == []
