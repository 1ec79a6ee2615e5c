"""The audit trail: one entry per request, a chain that continues across restarts, and entries of the spent amounts."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from schemas import (
    LedgerProgress,
    TrailBeginning,
    TrailEvent,
    TrailHead,
    TrailPoint,
    TrailRecord,
    TrailRequest,
    TrailStanding,
)
from stream.budget.decision_records import POINT_INTERVAL_MS, QUIET_SECONDS
from stream.budget.receipts import EMPTY_TRAIL_HEAD, BrokenTrailError, check_next_entry
from stream.budget.trail_verification import TrailCheck
from stream.cli.manage.record_rows import summary_row
from stream.processing.protocol import PROGRESS_KEY, Outputs, Record
from tests.processing import process_records
from tests.unit.budget.budget_service import (
    TOPICS,
    Service,
    charge,
    ending,
    grant_in,
    ledger_codec,
    opening,
    ready,
    receipts_in,
    register,
)
from tests.unit.installation import messages_to


class ServiceWithTrail(Service):
    """A budget service with all entries that it ever wrote into its trail."""

    def __init__(self) -> None:
        self.trail: list[bytes] = []
        self.now = 1_000_000
        super().__init__()

    def send(self, *values: bytes | None, topic: str = TOPICS.requests) -> Outputs:
        start, self.offset = self.offset, self.offset + len(values)
        outputs = process_records(
            self.processor,
            [Record(topic, 0, start + number, self.now, b"feed", value) for number, value in enumerate(values)],
        )
        self.take(outputs)
        return outputs

    def take(self, outputs: Outputs) -> None:
        for key, value, _ in messages_to(outputs, TOPICS.ledger):
            if value is None:
                del self.changelog[key]
            else:
                self.changelog[key] = value
        self.trail += [value or b"" for _, value, _ in messages_to(outputs, TOPICS.trail)]

    @property
    def head(self) -> TrailHead | None:
        progress = ledger_codec.decode(self.changelog[PROGRESS_KEY])
        assert isinstance(progress, LedgerProgress)
        return progress.trail

    def entries(self) -> list[TrailRecord]:
        """Return the trail after a check that its end is the ledger's head."""
        head, entries = checked(self.trail)
        assert head == self.head
        return entries


def checked(trail: Iterable[bytes]) -> tuple[TrailHead, list[TrailRecord]]:
    head, entries = EMPTY_TRAIL_HEAD, []
    for value in trail:
        head, entry = check_next_entry(head, value)
        entries.append(entry)
    return head, entries


def opened(service: ServiceWithTrail) -> str:
    """Open a stream and return its incarnation."""
    service.send(register())
    return grant_in(service.send(opening("r-1", "s"))).identity.incarnation


def test_each_request_has_one_trail_entry() -> None:
    service = ServiceWithTrail()
    receipts = [
        receipt
        for value in (
            register(),
            opening("r-1", "s"),
            opening("r-2", "t", epsilon=999.0),
            ending("halt", "r-3", "s"),
            ending("close", "r-4", "nowhere"),
        )
        for receipt in receipts_in(service.send(value))
    ]
    beginning, *entries = service.entries()
    assert isinstance(beginning, TrailBeginning)
    assert (beginning.sources, beginning.streams) == (0, 0)
    requests = [one for one in entries if isinstance(one, TrailRequest)]
    assert [(one.request, one.digest, one.outcome, one.reason, one.asked, one.left) for one in requests] == [
        (one.request, one.digest, one.outcome, one.reason, one.asked, one.left) for one in receipts
    ]
    assert [one.action for one in requests] == ["register", "open", "open", "halt", "close"]
    first, second, third, *_ = requests
    assert (first.epsilon, second.mechanism, second.stream) == (10.0, "above_threshold", "s")
    assert second.granted is not None
    assert second.totals is not None
    assert second.totals.granted == second.granted
    assert (third.outcome, third.epsilon, third.granted) == ("refused", 999.0, None)
    assert all(one.time == service.now for one in entries)


def test_trail_notes_an_allotment_with_its_owner() -> None:
    service = ServiceWithTrail()
    service.send(register())
    asked = {"kind": "allot", "source": "feed", "epsilon": 0.5}
    for other in (
        {"request": "a-1", "allotment": "study", "analysts": ["ada", "bob"], "by": "olga"},
        {"request": "a-2", "allotment": "ada"},
        {"request": "a-3", "allotment": "study"},
    ):
        service.send(json.dumps({**asked, **other}).encode())
    team, alone, changed = (
        one for one in service.entries() if isinstance(one, TrailRequest) and one.action == "allot"
    )
    assert (team.allotment, team.analysts, team.epsilon, team.source) == ("study", ("ada", "bob"), 0.5, "feed")
    assert (team.by, team.outcome) == ("olga", "registered")
    assert (alone.allotment, alone.analysts, alone.by) == ("ada", ("ada",), None)
    assert (changed.allotment, changed.analysts) == ("study", ("ada", "bob"))
    assert summary_row(alone)[4] == "ada: ε 0.5 and the budget's δ of feed"


def test_repeated_request_has_no_second_trail_entry() -> None:
    """A different request under a used id is noted."""
    service = ServiceWithTrail()
    opened(service)
    before = len(service.trail)
    service.send(opening("r-1", "s"))
    assert len(service.trail) == before
    service.send(opening("r-1", "other"))
    last = service.entries()[-1]
    assert isinstance(last, TrailRequest)
    assert (last.request, last.stream, last.outcome) == ("r-1", "other", "refused")
    assert "another id" in (last.reason or "")


@pytest.mark.parametrize("every", [1, 2, 3])
def test_trail_chain_continues_across_restarts(every: int) -> None:
    calm, stormy = ServiceWithTrail(), ServiceWithTrail()
    incarnation = opened(calm)
    assert opened(stormy) == incarnation
    for number in range(1, 12):
        value = charge("s", incarnation, answered=number, tops=number > 4)
        for service in (calm, stormy):
            service.now += POINT_INTERVAL_MS // 3
            service.send(value, topic=TOPICS.charges)
        if number % every == 0:
            stormy.restart()
    assert stormy.trail == calm.trail
    stormy.entries()


def test_uncommitted_step_leaves_no_trail_entry() -> None:
    service = ServiceWithTrail()
    opened(service)
    trail, changelog = list(service.trail), dict(service.changelog)
    service.send(opening("r-2", "t"))
    once = list(service.trail)
    service.trail, service.changelog, service.offset = trail, changelog, service.offset - 1
    service.restart()
    service.send(opening("r-2", "t"))
    assert service.trail == once


def test_spent_amounts_are_noted_at_most_once_a_minute() -> None:
    service = ServiceWithTrail()
    incarnation = opened(service)
    begun = service.now
    for number in range(1, 31):
        service.now += 10_000
        service.send(charge("s", incarnation, answered=number, tops=1), topic=TOPICS.charges)
    points = [one for one in service.entries() if isinstance(one, TrailPoint)]
    assert [one.time - begun for one in points] == [POINT_INTERVAL_MS * number for number in range(1, 6)]
    assert all(one.totals.spent.epsilon > 0 for one in points)


def test_spent_amounts_are_noted_after_the_last_answer() -> None:
    service = ServiceWithTrail()
    incarnation = opened(service)
    service.send(charge("s", incarnation, answered=1, tops=1), topic=TOPICS.charges)
    assert not service.processor.collect_due_outputs(5.0)
    service.restart()
    assert not service.processor.collect_due_outputs(7.0)
    assert not service.processor.collect_due_outputs(7.0 + QUIET_SECONDS - 1)
    service.take(service.processor.collect_due_outputs(7.0 + QUIET_SECONDS))
    assert isinstance(service.entries()[-1], TrailPoint)
    assert not service.processor.collect_due_outputs(9.0 + 2 * QUIET_SECONDS)
    service.restart()
    assert not service.processor.collect_due_outputs(0.0)
    assert not service.processor.collect_due_outputs(2 * QUIET_SECONDS)


def test_automatic_endings_are_noted_with_their_refund() -> None:
    service = ServiceWithTrail()
    incarnation = opened(service)
    service.send(ending("close", "r-2", "s"))
    service.send(charge("s", incarnation, state="closed", answered=5, tops=0), topic=TOPICS.charges)
    last = service.entries()[-1]
    assert isinstance(last, TrailEvent)
    assert (last.event, last.stream) == ("closed", "s")
    assert last.refunded is not None
    assert last.refunded.epsilon > 0
    assert last.totals is not None
    assert last.totals.refunded == last.refunded
    service.send(charge("s", incarnation, state="closed", answered=5, tops=0), topic=TOPICS.charges)
    assert service.entries()[-1] == last


def test_trail_clock_never_goes_back() -> None:
    service = ServiceWithTrail()
    opened(service)
    high = service.now
    service.now -= 500
    service.send(opening("r-2", "t"))
    service.restart()
    service.send(opening("r-3", "u"))
    assert [one.time for one in service.entries()][-2:] == [high, high]


def test_ledger_without_a_trail_begins_one_with_its_state() -> None:
    old = ready()
    old.send(opening("r-1", "s"))
    service = ServiceWithTrail()
    service.changelog, service.offset = dict(old.changelog), old.offset
    progress = json.loads(service.changelog[PROGRESS_KEY])
    del progress["trail"]
    source = json.loads(service.changelog[b"source|feed"])
    del source["noted"]
    service.changelog |= {PROGRESS_KEY: json.dumps(progress).encode(), b"source|feed": json.dumps(source).encode()}
    service.restart()
    service.send(opening("r-2", "t"))
    beginning, standing, request = service.entries()
    assert isinstance(beginning, TrailBeginning)
    assert (beginning.sources, beginning.streams) == (1, 1)
    assert isinstance(standing, TrailStanding)
    assert (standing.source, standing.streams) == ("feed", 1)
    assert standing.totals.granted.epsilon > 0
    assert isinstance(request, TrailRequest)
    assert request.request == "r-2"


@pytest.mark.parametrize(
    "damage",
    [
        lambda trail: trail[:1] + trail[2:],
        lambda trail: trail[1:],
        lambda trail: [trail[0], trail[2], trail[1], *trail[3:]],
        lambda trail: [*trail[:2], trail[2].replace(b'"epsilon":1.0', b'"epsilon":2.0', 1), *trail[3:]],
        lambda trail: [*trail, trail[-1]],
        lambda trail: [trail[0], *trail],
        lambda trail: [*trail[:-1], b"{"],
    ],
    ids=["left out", "beginning gone", "swapped", "changed", "repeated", "begun twice", "unreadable"],
)
def test_damage_to_the_chain_is_found(damage: object) -> None:
    service = ServiceWithTrail()
    opened(service)
    service.send(ending("halt", "r-2", "s"))
    assert callable(damage)
    with pytest.raises(BrokenTrailError, match=r"^entry \d+: "):
        checked(damage(service.trail))


def test_shortened_trail_does_not_match_its_head() -> None:
    service = ServiceWithTrail()
    opened(service)
    assert checked(service.trail[:-1])[0] != service.head


def test_installation_without_requests_is_not_verified() -> None:
    [finding] = TrailCheck().compare_ledger([])
    assert finding.startswith("the ledger has no trail yet, so nothing was compared; ")
