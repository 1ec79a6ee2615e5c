"""The timestamps of records after Kafka has refused this machine's time."""

from __future__ import annotations

import pytest

from stream.engine import writer
from stream.engine.writer import SET_BACK_SECONDS, UNSTAMPED, RecordClock


class Clocks:
    """A wall clock that can be set, and a monotonic one that cannot."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.ahead = 0.0

    def time(self) -> float:
        return 1_750_000_000.0 + self.passed + self.ahead

    def monotonic(self) -> float:
        return self.passed


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(writer, "time", made)
    return made


def test_record_clock_omits_time_until_clock_is_set_back(clocks: Clocks) -> None:
    written = RecordClock()
    clocks.ahead = 7200.0
    assert written.now() == int(clocks.time() * 1000)
    written.refuse()
    for hours in range(48):
        clocks.passed = 3600.0 * hours
        assert written.now() == UNSTAMPED
    clocks.ahead -= SET_BACK_SECONDS / 2
    assert written.now() == UNSTAMPED
    clocks.ahead = 0.0
    assert written.now() == int(clocks.time() * 1000)


def test_record_clock_retries_after_clock_goes_back_slowly(clocks: Clocks) -> None:
    written = RecordClock()
    clocks.ahead = 7200.0
    written.refuse()
    clocks.ahead -= SET_BACK_SECONDS
    assert written.now() != UNSTAMPED
    written.refuse()
    assert written.now() == UNSTAMPED
