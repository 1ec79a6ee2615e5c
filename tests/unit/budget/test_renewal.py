"""A renewing budget grants again in each period, once; the amounts for streams' possible later answers are carried over."""

from __future__ import annotations

from typing import Any

import pytest

from sotto import Driver, Refused
from stream.budget.budget_processor import LedgerClock
from stream.processing.protocol import Outputs
from tests.builders import KEY, installation, source, stream
from tests.unit.budget.budget_service import Service, opening, receipts_in, register
from tests.unit.installation import HIGH, LOW, spec

HOUR = 3600.0
LAPLACE: dict[str, Any] = stream("counts", "people", "laplace", mechanism={"answers": 10})


def hourly(**changes: Any) -> Driver:
    driver = Driver(KEY, partitions=1)
    driver.wait(1000.0)
    fields: dict[str, Any] = {"epsilon": 1.0, "renews": "1h", **changes}
    driver.register(source(**fields))
    return driver


def budget_left(driver: Driver) -> float:
    return driver.budget("feed").left.epsilon


def closed(driver: Driver, stream: str) -> None:
    driver.ask(stream, value=LOW)
    driver.close("feed", stream)


def test_budget_renews_in_the_next_period_and_not_before() -> None:
    driver = hourly()
    driver.open(spec("a"))
    closed(driver, "a")
    spent = driver.budget("feed").spent.epsilon
    assert spent > 0.0
    driver.wait(HOUR - 1)
    assert budget_left(driver) == pytest.approx(1.0 - spent)
    with pytest.raises(Refused, match="source 'feed' cannot pay"):
        driver.open(spec("b"))
    driver.wait(1)
    assert budget_left(driver) == 1.0
    driver.open(spec("b"))
    assert budget_left(driver) == 0.0


def test_renewal_is_shown_as_a_period_with_its_meaning() -> None:
    driver = hourly()
    receipt = driver.register(source(epsilon=1.0, renews="1h"))
    words = "privacy is per period, not for ever: every hour a person may lose ε = 1 again, so that k periods may cost k times"
    assert (receipt.meaning or "").startswith(words)
    driver.open(spec("a", epsilon=0.25))
    driver.wait(2.5 * HOUR)
    period = driver.budget("feed").period
    assert period is not None
    assert (period.number, period.starts, period.ends) == (3, 8_200_000, 11_800_000)
    assert period.counted.epsilon == 0.25
    assert "this is period 3, so at its end they may have cost 3 times as much" in period.meaning


def test_stream_open_at_the_edge_is_carried_over_until_closed() -> None:
    driver = hourly()
    driver.open(spec("a", epsilon=0.7))
    driver.ask("a", value=LOW)
    driver.wait(HOUR)
    # One threshold is used for all its answers, so the answers of this period are composed with the earlier ones.
    assert budget_left(driver) == pytest.approx(0.3)
    closed(driver, "a")
    assert budget_left(driver) == pytest.approx(1.0 - driver.grant("feed", "a").spent.epsilon)
    driver.wait(HOUR)
    assert budget_left(driver) == 1.0


def test_answers_with_separate_noise_are_not_carried_over() -> None:
    driver = installation(
        LAPLACE,
        sources=[source("people", "table", epsilon=1.0, renews="1d")],
        rows={"people": {"age": [1, 2, 3], "sex": ["F", "M", "F"]}},
    )
    for _ in range(4):
        driver.ask("counts", where="age < 2")
    driver.wait(24 * HOUR)
    assert driver.budget("people").left.epsilon == pytest.approx(0.4)
    driver.ask("counts", where="age < 2")
    assert driver.budget("people").left.epsilon == pytest.approx(0.4)
    driver.close("people", "counts")
    assert driver.budget("people").left.epsilon == pytest.approx(0.9)


def test_exhausted_stream_reserves_nothing_until_its_extension() -> None:
    """After an extension it counts from its opening on."""
    driver = hourly()
    driver.open(spec("a"))
    driver.ask("a", value=HIGH)
    driver.wait(HOUR)
    assert budget_left(driver) == 1.0
    driver.open(spec("b", epsilon=0.5))
    # It keeps its threshold, so with the extension it counts from its opening on.
    with pytest.raises(Refused, match=r"source 'feed' cannot pay: ε = 1\.\d+ asked, ε = 0\.5 left"):
        driver.extend("feed", "a", 0.9)


def test_stream_halted_before_the_edge_reserves_nothing_after_it() -> None:
    driver = hourly()
    driver.open(spec("a"))
    driver.halt("feed", "a")
    driver.wait(HOUR)
    assert budget_left(driver) == 1.0


def test_populations_and_allotments_renew_by_their_own_budget() -> None:
    driver = Driver(KEY, partitions=1)
    driver.register_population({"population": "patients", "epsilon": 1.0, "renews": "2h"})
    driver.register(source(epsilon=5.0, renews="1h", population="patients"))
    driver.allot("ada", 0.5, source="feed")
    driver.open(spec("a", epsilon=0.5), analyst="ada")
    driver.close("feed", "a")
    driver.open(spec("b", epsilon=0.5), analyst="ada")
    driver.ask("b", value=HIGH)
    driver.wait(HOUR)
    assert driver.list_allotments(source="feed")[0].left.epsilon == 0.5
    assert driver.population("patients").left.epsilon == 0.5
    driver.open(spec("c", epsilon=0.5), analyst="ada")
    with pytest.raises(Refused, match="population 'patients' cannot pay"):
        driver.open(spec("d", epsilon=0.1))
    driver.ask("c", value=HIGH)
    driver.wait(HOUR)
    assert driver.population("patients").left.epsilon == 1.0


def test_joining_names_the_cost_that_past_periods_did_not_count() -> None:
    """Answers from before a join count in the period of joining; the receipt says that past periods may exceed ε by their cost."""
    driver = hourly(population=None, renews=None, epsilon=0.2)
    driver.register_population({"population": "patients", "epsilon": 2.0, "renews": "1h"})
    driver.register(source("member", epsilon=9.0, population="patients"))
    driver.register(source("quiet", epsilon=9.0))
    driver.open(spec("before", epsilon=0.2))
    driver.open(spec("counted", "member", epsilon=2.0))
    driver.ask("counted", value=LOW)
    driver.wait(HOUR)
    driver.close("member", "counted")
    receipt = driver.join("feed", "patients")
    assert receipt.meaning == (
        "the grants of 'feed' count from period 2 of population 'patients' on; they did not count in its earlier periods, "
        "so each of these may have cost a person that much more than the population's budget"
    )
    period = driver.population("patients").period
    assert period is not None
    assert period.counted.epsilon >= 0.2
    assert driver.join("feed", "patients").meaning is None
    assert driver.join("quiet", "patients").meaning is None


@pytest.mark.parametrize("seconds", [HOUR - 0.001, HOUR, HOUR + 0.001, 5 * HOUR])
def test_crash_around_the_edge_grants_nothing_twice(seconds: float) -> None:
    driver, other = hourly(), hourly()
    for one in (driver, other):
        one.open(spec("a", epsilon=0.6))
        one.ask("a", value=LOW)
        one.wait(seconds)
    driver.crash()
    assert driver._budget.ledger.accounts == other._budget.ledger.accounts
    assert budget_left(driver) == pytest.approx(0.4)
    driver.open(spec("b", epsilon=0.4))
    driver.crash()
    with pytest.raises(Refused, match="cannot pay"):
        driver.open(spec("c", epsilon=0.1))


def test_clock_set_back_grants_nothing_twice() -> None:
    driver = hourly()
    driver.open(spec("a"))
    driver.ask("a", value=HIGH)
    driver.wait(HOUR)
    driver.open(spec("b"))
    driver.ask("b", value=HIGH)
    for crash in (False, True):
        driver._now -= round(1500 * HOUR)  # the broker's clock is set back
        if crash:
            driver.crash()
        for _ in range(3):
            driver.wait(0.15 * HOUR)
            with pytest.raises(Refused, match="cannot pay"):
                driver.open(spec("c"))
    period = driver.budget("feed").period
    assert period is not None
    assert period.number == 2


def test_first_decision_of_a_period_is_written_with_its_change() -> None:
    driver = hourly()
    driver.open(spec("a", epsilon=0.5))
    driver.ask("a", value=HIGH)
    before = len(driver.records(driver.topics.ledger))
    driver._now += round(1000 * HOUR)
    driver.open(spec("b"))
    written = [one.key for one in driver.records(driver.topics.ledger)[before:]]
    assert written.index(b"source|feed") < written.index(b"@progress")
    trail = [one.value or b"" for one in driver.records(driver.topics.trail)]
    [renewed] = [one for one in trail if b'"event":"renewed"' in one]
    assert b'"source":"feed"' in renewed
    assert b"period 2" in renewed


class TestServiceClock:
    """Between two events, the clock advances like a monotonic clock, independently of the machine's date."""

    def test_ledger_clock_runs_from_the_latest_event(self) -> None:
        clock = LedgerClock()
        assert clock.now(5000, 100.0) == 5000
        assert clock.now(5000, 101.5) == 6500
        assert clock.now(9000, 102.0) == 9000
        assert clock.now(9000, 103.0) == 10_000

    def test_period_ends_without_any_request(self) -> None:
        service = Service()
        service.send(register(epsilon=1.0, renews="1h"))
        assert not service.processor.collect_due_outputs(50.0)
        assert not service.processor.collect_due_outputs(50.0 + 3599)
        outputs = service.processor.collect_due_outputs(50.0 + 3601)
        keys = [key for topic, _, messages in outputs for key, _, _ in messages if topic.endswith("ledger")]
        assert keys == [b"source|feed", b"@progress"]
        assert not service.processor.collect_due_outputs(50.0 + 3602)

    def test_restarted_service_waits_for_the_next_event(self) -> None:
        service = Service()
        service.send(register(epsilon=1.0, renews="1h"))
        service.restart()
        assert service.processor.collect_due_outputs(1e9) == Outputs()
        [receipt] = receipts_in(service.send(opening("open", "a")))
        assert receipt.outcome == "opened"


@pytest.mark.parametrize("renews", ["30", "0d", "1w", "1.5h", "99999d", ""])
def test_invalid_renewal_length_is_refused(renews: str) -> None:
    from sotto import Invalid  # noqa: PLC0415

    driver = Driver(KEY, partitions=1)
    with pytest.raises(Invalid, match="renews"):
        driver.register(source(renews=renews))
