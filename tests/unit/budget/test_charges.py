"""The ledger counts each report of a worker once, and refunds exactly the unspent amount."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest

from schemas import EstimateCalibration, GrantRecord, SparseVectorCalibration
from sotto import Driver, Refused
from stream.processing.protocol import PROGRESS_KEY
from tests.builders import installation, source, stream
from tests.unit.budget.budget_service import (
    TOPICS,
    charge,
    ending,
    grant_in,
    ledger_codec,
    opening,
    ready,
    receipts_in,
)
from tests.unit.installation import HIGH, LOW, messages_to, query, spec


@pytest.mark.parametrize(
    ("values", "tops"), [([], 0), ([LOW], 0), ([LOW, HIGH, LOW], 1), ([HIGH] * 4, 4), ([HIGH] * 9, 5)]
)
def test_closing_refunds_exactly_the_unspent_amount(values: list[float], tops: int) -> None:
    driver = installation(spec("alarms", cutoff=5))
    driver.ask_many(query(str(number), "alarms", value) for number, value in enumerate(values))
    driver.close("feed", "alarms")
    grant = _grant(driver, "alarms")
    plan = grant.calibration
    assert isinstance(plan, SparseVectorCalibration)
    lost = (
        Fraction(plan.epsilon_threshold) + Fraction(tops, 5) * Fraction(plan.epsilon_query)
        if values
        else Fraction(0)
    )
    units = min(math.ceil(lost * 10**12), 10**12)
    assert (grant.state, grant.tops) == ("closed", tops)
    assert grant.spent.epsilon == units / 10**12
    assert grant.refunded.epsilon == (10**12 - units) / 10**12
    source = driver.budget("feed")
    assert source.refunded == grant.refunded
    assert source.left.epsilon == (10**13 - units) / 10**12


def _grant(driver: Driver, stream: str) -> GrantRecord:
    records = [ledger_codec.decode(record.value or b"") for record in driver.records(driver.topics.ledger)]
    return [one for one in records if isinstance(one, GrantRecord) and one.spec.stream == stream][-1]


def test_refund_can_be_granted_again() -> None:
    driver = installation(spec("first", epsilon=10.0))
    with pytest.raises(Refused):
        driver.open(spec("second", epsilon=10.0))
    driver.close("feed", "first")
    assert driver.open(spec("second", epsilon=10.0)).outcome == "opened"


def test_exhausted_stream_is_halted_and_recorded() -> None:
    driver = installation(spec("alarms"))
    driver.ask_many([query("a", "alarms", HIGH)])
    grant = _grant(driver, "alarms")
    assert (grant.state, grant.ending, grant.settled, grant.tops) == ("exhausted", None, True, 1)
    last = driver.records(driver.topics.control)[-1]
    assert json.loads(last.value or b"")["kind"] == "halted"
    assert driver.budget("feed").spent.epsilon == 1.0


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        (b"{", b"malformed", "Invalid JSON"),
        (None, b"malformed", "has no value"),
        (charge("nobody", "0" * 32), b"refused", "stream 'nobody' is not open"),
        (charge("alarms", "0"), b"malformed", "incarnation: give 32 hexadecimal digits"),
        (charge("alarms", "0" * 32, tops=-1), b"malformed", "tops: is too small"),
    ],
)
def test_invalid_charge_is_a_dead_letter(value: bytes | None, code: bytes, words: str) -> None:
    service = ready()
    service.send(opening("1", "alarms"))
    before = service.accounts()
    outputs = service.send(value, topic=TOPICS.charges)
    [(_, kept, headers)] = messages_to(outputs, TOPICS.rejected)
    assert kept == value
    assert dict(headers)["__connect.errors.exception.class.name"] == code
    assert words in dict(headers)["__connect.errors.exception.message"].decode()
    assert service.accounts() == before


@pytest.mark.parametrize("ended", [None, "halt"])
def test_forged_final_charge_refunds_nothing(ended: str | None) -> None:
    service = ready()
    incarnation = grant_in(service.send(opening("1", "alarms", epsilon=8.0))).identity.incarnation
    if ended is not None:
        service.send(ending(ended, "2", "alarms"))
    before = service.accounts()
    forged = charge("alarms", incarnation, state="closed", answered=0)
    outputs = service.send(forged, topic=TOPICS.charges)
    [(_, kept, headers)] = messages_to(outputs, TOPICS.rejected)
    assert kept == forged
    assert dict(headers)["__connect.errors.exception.class.name"] == b"refused"
    assert service.accounts() == before
    assert receipts_in(service.send(opening("3", "more", epsilon=8.0)))[0].outcome == "refused"


def test_stream_that_a_charge_ends_is_halted() -> None:
    """If the charge were forged, the stream would otherwise continue to answer."""
    # If the charge were forged, the stream would go on answering although the ledger shows it as ended.
    service = ready()
    incarnation = grant_in(service.send(opening("1", "alarms"))).identity.incarnation
    outputs = service.send(charge("alarms", incarnation, state="halted", reason="replayed"), topic=TOPICS.charges)
    [(_, control, _)] = messages_to(outputs, TOPICS.control)
    assert {"kind": "halted", "reason": "replayed"}.items() <= json.loads(control or b"").items()
    assert (grant_in(outputs).state, grant_in(outputs).ending) == ("halted", "halted")


def test_charge_of_another_incarnation_is_ignored() -> None:
    service = ready()
    service.send(opening("1", "alarms"))
    outputs = service.send(charge("alarms", "f" * 32, state="closed"), topic=TOPICS.charges)
    assert [(topic, [key for key, *_ in messages]) for topic, _, messages in outputs] == [
        (TOPICS.ledger, [PROGRESS_KEY])
    ]


def test_spent_amount_never_exceeds_the_grant() -> None:
    # The source's δ is so large that the granted ρ implies an ε of 0, and comparisons have a separate loss.
    driver = installation(sources=[source("people", "table", accountant="zcdp", delta=0.1, epsilon=100.0)])
    pmw = {"kind": "pmw", "attributes": ["age", "sex"], "warm_start": 0, "updates": 5}
    driver.open(stream("q", "people", mechanism=pmw, epsilon=0.05, delta=1e-6))
    answer = driver.ask_many([{"id": "1", "stream": "q", "where": "age < 40"}])[0]
    grant = _grant(driver, "q")
    assert isinstance(grant.calibration, EstimateCalibration)
    assert grant.calibration.noise == "gaussian"
    assert math.copysign(1.0, grant.cost.epsilon) == 1.0
    assert answer.spent == grant.spent
    assert grant.spent.epsilon <= grant.cost.epsilon
    assert grant.spent.delta <= grant.cost.delta
    assert (grant.spent.rho or 0.0) <= (grant.cost.rho or 0.0)
    assert grant.spent.rho
