"""The budget service retires streams some time after their end, and decides afterwards as before."""

from __future__ import annotations

import json

import pytest

from schemas import Receipt, SourceRecord, format_moment
from stream.budget.trail_verification import TrailCheck
from stream.processing.protocol import Outputs
from tests.unit.budget.budget_service import (
    TOPICS,
    Service,
    charge,
    ending,
    grant_in,
    ledger_codec,
    ledger_in,
    opening,
    receipts_in,
    register,
)
from tests.unit.installation import messages_to
from tests.unit.periods import FLIGHTS, LATE

DAY = 86_400_000


class VerifiedService(Service):
    """A service whose trail can be verified against its ledger."""

    def __init__(self, retire_after_ms: int) -> None:
        self.trail: list[bytes | None] = []
        super().__init__(retire_after_ms)

    def _keep(self, outputs: Outputs) -> None:
        self.trail += [value for _, value, _ in messages_to(outputs, TOPICS.trail)]
        super()._keep(outputs)

    def findings(self, ledger: dict[bytes, bytes] | None = None) -> list[str]:
        check = TrailCheck()
        for entry in self.trail:
            check.add_entry(entry)
        records = (self.changelog if ledger is None else ledger).values()
        return [*check.findings(), *check.compare_ledger(list(map(ledger_codec.decode, records)))]


def service_with(*streams: str, end: str = "close") -> VerifiedService:
    """A service with streams that have ended, each after two answers."""
    service = VerifiedService(retire_after_ms=7 * DAY)
    service.now = DAY
    service.send(register(epsilon=100.0))
    for stream in streams:
        incarnation = grant_in(service.send(opening(f"open-{stream}", stream))).identity.incarnation
        service.send(ending(end, f"end-{stream}", stream))
        state = {"close": "closed", "halt": "halted"}[end]
        service.send(charge(stream, incarnation, answered=2, state=state), topic=TOPICS.charges)
    return service


def pass_days(service: Service, days: float) -> Outputs:
    """Let time pass by the ledger's clock, which only records advance."""
    service.now += round(days * DAY)
    service.send(ending("halt", f"tick-{service.now}", "no-such-stream"))
    return service.collect_due_outputs()


def source_record(service: Service) -> SourceRecord:
    record = ledger_codec.decode(service.changelog[b"source|feed"])
    assert isinstance(record, SourceRecord)
    return record


def refusal(outputs: Outputs) -> str:
    [receipt] = receipts_in(outputs)
    assert receipt.outcome == "refused"
    return receipt.reason or ""


@pytest.mark.parametrize("end", ["close", "halt"])
def test_ended_stream_leaves_a_digest_and_its_sums(end: str) -> None:
    service = service_with("one", "two", end=end)
    budget = source_record(service)
    pass_days(service, 6.9)
    assert b"grant|feed|one" in service.changelog
    service.restart()
    outputs = pass_days(service, 1.1)
    assert {key for key, value, _ in messages_to(outputs, TOPICS.ledger) if value is None} == {
        b"grant|feed|one",
        b"grant|feed|two",
    }
    assert [one.kind for one in ledger_in(outputs)] == ["retired", "retired_names"]
    assert not [key for key in service.changelog if key.startswith(b"grant|")]
    for _ in range(2):
        assert source_record(service).left == budget.left
        assert service.processor.ledger.account("feed").to_record() == budget
        service.restart()


def test_open_and_exhausted_streams_are_not_retired() -> None:
    service = service_with()
    incarnation = grant_in(service.send(opening("1", "alarms"))).identity.incarnation
    service.send(opening("2", "other"))
    service.send(charge("alarms", incarnation, tops=1, state="exhausted"), topic=TOPICS.charges)
    pass_days(service, 100)
    service.restart()
    pass_days(service, 100)
    assert set(service.processor.ledger.source_of_stream) == {"alarms", "other"}


def test_halted_stream_without_settlement_is_not_retired() -> None:
    service = service_with()
    service.send(opening("1", "alarms"), ending("halt", "2", "alarms"))
    pass_days(service, 100)
    assert "alarms" in service.processor.ledger.source_of_stream


def test_no_stream_is_retired_without_a_retention_time() -> None:
    service = service_with("one")
    service._retire_after_ms = 0
    service.restart()
    pass_days(service, 1000)
    assert b"grant|feed|one" in service.changelog


def test_requests_to_a_retired_stream_grant_nothing() -> None:
    service = service_with("one", "two", end="halt")
    pass_days(service, 8)
    before = service.processor.ledger.account("feed").to_record()
    for _ in range(2):
        assert "'one' was used before; choose another" in refusal(
            service.send(opening(f"a{service.offset}", "one"))
        )
        for kind, more in (("close", {}), ("halt", {}), ("extend", {"epsilon": 0.5})):
            reason = refusal(service.send(ending(kind, f"b{service.offset}", "one", **more)))
            assert reason == "stream 'one' has ended and is retired; its charge is final"
        service.restart()
    assert service.processor.ledger.account("feed").to_record() == before


def test_repeated_request_gets_its_receipt_after_retirement() -> None:
    service = service_with("one")
    first = [value for key, value in service.changelog.items() if key == b"receipt|open-one"]
    pass_days(service, 8)
    [repeated] = receipts_in(service.send(opening("open-one", "one")))
    assert [repeated] == [one for one in map(ledger_codec.decode, first) if isinstance(one, Receipt)]
    assert "one" not in service.processor.ledger.source_of_stream


def test_late_charge_of_a_retired_stream_changes_nothing() -> None:
    service = service_with("one")
    pass_days(service, 8)
    before = service.accounts()
    outputs = service.send(charge("one", "f" * 32, answered=9, state="closed"), topic=TOPICS.charges)
    assert not list(messages_to(outputs, TOPICS.rejected))
    assert service.accounts() == before


def test_halted_stream_that_is_closed_waits_again() -> None:
    service = service_with("one", end="halt")
    incarnation = service.processor.ledger.account("feed").grants["one"].identity.incarnation
    pass_days(service, 6)
    service.send(ending("close", "c", "one"))
    pass_days(service, 2)
    assert b"grant|feed|one" in service.changelog  # its worker has not reported yet
    service.send(charge("one", incarnation, answered=2, state="closed"), topic=TOPICS.charges)
    refunded = source_record(service).refunded
    pass_days(service, 6)
    assert b"grant|feed|one" in service.changelog
    pass_days(service, 2)
    assert b"grant|feed|one" not in service.changelog
    assert source_record(service).refunded == refunded
    assert refunded.epsilon > 0


def test_trail_proves_the_ledger_after_retirement() -> None:
    service = service_with("one", "two", "three")
    service.send(opening("4", "open-still"))
    assert service.findings() == []
    pass_days(service, 8)
    assert service.findings() == []
    service.restart()
    pass_days(service, 1)
    assert service.findings() == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"retired_names|0", "but the ledger does not have the stream"),
        (b"retired|feed|", "is not the sum over its grants"),
        (b"grant|feed|open-still", "but the ledger does not have the stream"),
    ],
)
def test_trail_shows_a_change_of_the_retention_time(key: bytes, words: str) -> None:
    service = service_with("one", "two")
    service.send(opening("3", "open-still"))
    pass_days(service, 8)
    found = service.findings({name: value for name, value in service.changelog.items() if name != key})
    assert any(words in one for one in found), found


def begin(service: Service, day: int) -> str:
    """Begin a period, and return the outcome."""
    start = format_moment(day * DAY)
    value = {"kind": "begin_period", "request": f"{service.offset}", "source": "flights", "start": start}
    [receipt] = receipts_in(service.send(json.dumps(value).encode()))
    return receipt.outcome


def test_periods_retire_with_their_streams_and_never_begin_again() -> None:
    service = VerifiedService(retire_after_ms=7 * DAY)
    service.now = DAY
    service.send(json.dumps({"kind": "register", "request": "r", "source": FLIGHTS}).encode())
    standing = {**LATE["standing"], "begins": format_moment(DAY)}
    [opened] = receipts_in(
        service.send(
            json.dumps({"kind": "open", "request": "o", "stream": {**LATE, "standing": standing}}).encode()
        )
    )
    assert opened.outcome == "opened", opened.reason
    names = [f"{format_moment(day * DAY)}" for day in (1, 2, 3)]
    for day in (1, 2, 3):
        assert begin(service, day) == "registered"
        account = service.processor.ledger.account(f"flights@{names[day - 1]}")
        [(stream, grant)] = account.grants.items()
        common = {"source": account.name, "stream": stream}
        service.send(json.dumps({"kind": "close", "request": f"c-{day}", **common}).encode())
        closed = {"answered": 1, "tops": 1, "state": "closed", "spent": {"epsilon": 0.1, "delta": 0.0}}
        fields = {"incarnation": grant.identity.incarnation, **common, **closed}
        service.send(json.dumps(fields).encode(), topic=TOPICS.charges)
    pass_days(service, 30)
    for _ in range(2):
        assert sorted(service.processor.ledger.accounts) == ["flights", f"flights@{names[2]}"]
        assert [begin(service, day) for day in (1, 2, 3)] == ["registered"] * 3
        assert sorted(service.processor.ledger.accounts) == ["flights", f"flights@{names[2]}"]
        assert service.findings() == []
        taken = json.dumps(
            {"kind": "register", "request": f"t-{service.offset}", "source": FLIGHTS | {"source": "late"}}
        )
        assert refusal(service.send(taken.encode())).startswith(
            "a retired stream has a name that a period of 'late' would get"
        )
        service.restart()
    assert list(service.processor.ledger.source_of_stream) == ["late"]
