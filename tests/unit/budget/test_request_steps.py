"""The number of requests in a step: requests that share a plan are handled together, and few of those that may take long."""

from __future__ import annotations

from typing import Any

import pytest

from stream.budget.waiting_requests import MAX_PLANS_PER_STEP, MAX_REQUESTS_PER_STEP, count_requests_of_step
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.dead_letters import OVERSIZED_BATCH, UnreadableBatch, UnreadableValue
from stream.processing.protocol import Record
from tests.builders import installation, parse_source, source
from tests.unit.budget.budget_service import TOPICS, Service, ending, opening, receipts_in, register
from tests.unit.installation import messages_to

MANY = range(2 * MAX_REQUESTS_PER_STEP)


def ledger_with_sources() -> Ledger:
    """Return a ledger with feeds of different budgets, and with tables."""
    ledger = Ledger()
    for number in MANY:
        ledger.register(parse_source(source(f"feed-{number}", epsilon=1.0 + number)), None)
        ledger.register(parse_source(source(f"table-{number}", "table")), None)
    return ledger


def at_once(values: list[Any]) -> int:
    records = [Record(TOPICS.requests, 0, at, 0, b"", value) for at, value in enumerate(values)]
    return count_requests_of_step(records, LEDGER)


LEDGER = ledger_with_sources()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b'{"kind":"open","request":"r","stream":{"stream":"\xff"}}', id="no UTF-8"),
        pytest.param(b'{"kind":"open","request":"r","stream":{"stream":"\\ud800"}}', id="half a character"),
        *(
            pytest.param(b'{"kind":"open","stream":{"x":' + b"[" * deep + b"]" * deep + b"}}", id=f"{deep} deep")
            for deep in (150, 480, 900, 980, 2000)
        ),
    ],
)
def test_unreadable_request_is_rejected_and_delays_nothing(value: bytes) -> None:
    service = Service()
    assert count_requests_of_step([Record(TOPICS.requests, 0, 0, 0, b"", value)], LEDGER) == 1
    outputs = service.send(value, register())
    assert [receipt.outcome for receipt in receipts_in(outputs)] == ["registered"]
    assert [rejected for _, rejected, _ in messages_to(outputs, TOPICS.rejected)] == [value]


@pytest.mark.parametrize(
    "values",
    [
        [opening(f"r-{number}", f"s-{number}", threshold=float(number)) for number in MANY],
        [opening(f"r-{number}", f"s-{number}", source=f"feed-{number}") for number in MANY],
        [ending("close", f"r-{number}", f"s-{number}") for number in MANY],
        [register(f"r-{number}", source=f"feed-{number}") for number in MANY],
        [register(f"r-{number}", **source(f"people-{number}", "table")) for number in MANY],
        [b"{" for _ in MANY],
        [None for _ in MANY],
        [UnreadableValue(b"", OVERSIZED_BATCH, UnreadableBatch(0, 0, "zstd", 1, "")) for _ in MANY],
    ],
    ids=["one plan", "one plan on many feeds", "endings", "feeds", "tables", "malformed", "empty", "unread"],
)
def test_quick_requests_are_handled_by_the_hundred(values: list[Any]) -> None:
    assert at_once(values) == MAX_REQUESTS_PER_STEP
    assert at_once(values[:3]) == 3


@pytest.mark.parametrize(
    "values",
    [
        [opening(f"r-{number}", "s", epsilon=0.001 * (number + 1)) for number in range(40)],
        [opening(f"r-{number}", "s", source=f"table-{number}") for number in range(40)],
        [opening(f"r-{number}", "s", source=f"unheard-of-{number}") for number in range(40)],
        [ending("extend", f"r-{number}", "s", epsilon=1.0) for number in range(40)],
        [ending("halt_source", f"r-{number}", "s") for number in range(40)],
    ],
    ids=["plans", "on tables", "on what is not known", "extensions", "sources halted"],
)
def test_slow_requests_are_handled_a_few_at_once(values: list[bytes]) -> None:
    assert at_once(values) == MAX_PLANS_PER_STEP
    assert at_once(values[:1]) == 1


def test_division_of_requests_into_steps_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(most: int) -> list[list[Any]]:
        monkeypatch.setattr(
            "stream.budget.budget_processor.count_requests_of_step", lambda records, _: min(most, len(records))
        )
        driver = installation(sources=[source(epsilon=4.0)], partitions=2)
        requests = [opening(f"r-{number % 9}", f"s-{number}", threshold=float(number)) for number in range(20)]
        for value in [*requests, ending("close", "c", "s-0"), ending("halt_source", "h", "s")]:
            driver._append((driver.topics.requests, 0), b"feed", value)
        driver._process_all()
        latest = {one.key: one.value for one in driver.records(driver.topics.ledger) if one.key != b"@progress"}
        control = {one.key: one.value for one in driver.records(driver.topics.control)}
        return [[latest, control, [one.value for one in driver.records(driver.topics.trail)]]]

    assert written(1) == written(7) == written(400)
