"""Sources with periods in memory: each period has a separate account, and is begun once, asked once and closed automatically."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import BeginPeriod, CloseStream, Query
from schemas.windows import format_moment, moment_ms, span_ms
from sotto import Driver, Refused
from stream.dev.ledger_restoration import RestoredLedger
from stream.privacy.accuracy.source_facts import questions_in_period
from stream.processing.protocol import PERIOD_OVER_REASON
from tests.builders import KEY, installation
from tests.unit.budget.budget_service import request_codec
from tests.unit.periods import (
    AIRPORTS,
    DAYS,
    FLIGHTS,
    LATE,
    event,
    events,
    findings,
    grants,
    ledger,
    played,
    ready,
    sources,
)


def queries(driver: Driver) -> list[Query]:
    return [Query.model_validate_json(record.value or b"") for record in driver.records(driver.topics.queries)]


def asked_values(driver: Driver) -> dict[tuple[str, str], int | float | None]:
    """Return the value of each stream's questions by the question's id, each once."""
    found = queries(driver)
    assert len({(one.stream, one.id) for one in found}) == len(found)
    return {(one.stream, one.id): one.value for one in found}


def test_each_period_is_an_account_with_separate_streams() -> None:
    driver = played(ready())

    periods = [name for name in sources(driver) if name != "flights"]
    assert periods == [f"flights@{day}" for day in DAYS[:4]]
    opened = grants(driver)
    assert opened.keys() == {"late", *(f"late@{day}" for day in DAYS[:4])}
    assert len({one.identity.incarnation for one in opened.values()}) == 5
    for day in DAYS[:4]:
        record = sources(driver)[f"flights@{day}"]
        assert record.granted.epsilon == opened["late"].cost.epsilon
        assert (record.source.epsilon, record.source.model_dump()["starts"]) == (10.0, day)
        assert opened[f"late@{day}"].calibration == opened["late"].calibration
    assert (opened["late"].answered, sources(driver)["flights"].spent.epsilon) == (0, 0.0)
    assert findings(driver) == []


def test_windows_across_an_edge_are_not_asked() -> None:
    driver = played(ready())

    starts = {(one.stream, one.window.start) for one in queries(driver) if one.window is not None}
    for stream, start in starts:
        day = moment_ms(stream.partition("@")[2])
        assert day <= moment_ms(start) <= day + 18 * 3_600_000
    assert len(starts) == 4 * 7
    assert len(list(driver.answers(from_beginning=True))) == 4 * 7 * 3


def test_edge_of_a_period_belongs_to_the_next_period() -> None:
    """An event in a period's last millisecond counts in that period, and one a millisecond later in the next, each up to the bound."""
    driver = ready()
    edges = ["2013-01-01T23:59:59.999Z", "2013-01-02T00:00:00.000Z", "2013-01-02T23:59:59.999Z"]
    driver.publish("flights", [event("A", at) for at in edges for _ in range(3)])
    driver.advance("flights", DAYS[2])
    found = {
        (one.stream, one.window.start): one.value
        for one in queries(driver)
        if one.window is not None and one.value
    }
    assert found == {
        ("late@2013-01-01T00:00:00Z", "2013-01-01T18:00:00Z"): 2,
        ("late@2013-01-02T00:00:00Z", "2013-01-02T00:00:00Z"): 2,
        ("late@2013-01-02T00:00:00Z", "2013-01-02T18:00:00Z"): 2,
    }


@pytest.mark.parametrize("day", range(4))
def test_events_of_one_period_move_its_numbers_alone(day: int) -> None:
    one, other = ready(), ready()
    extra = [event("Nobody", f"2013-01-0{day + 1}T{hour:02}:15:00Z", AIRPORTS[hour % 3]) for hour in range(24)]
    one.publish("flights", events(4))
    other.publish("flights", [*extra, *events(4)])
    for driver in (one, other):
        for until in DAYS[1:5]:
            driver.advance("flights", until)

    here, there = asked_values(one), asked_values(other)
    assert here.keys() == there.keys()
    moved = {key for key in here if here[key] != there[key]}
    assert moved
    assert {stream for stream, _ in moved} == {f"late@{DAYS[day]}"}
    assert [r.value for r in one.records(one.topics.requests)] == [
        r.value for r in other.records(other.topics.requests)
    ]
    windows: dict[str, float] = {}
    for (stream, name), value in here.items():
        start = f"{stream}/{name.partition('/')[0]}"
        windows[start] = windows.get(start, 0) + abs((value or 0) - (there[stream, name] or 0))
    assert max(windows.values()) <= 2


def test_past_period_is_closed_and_refunded_after_the_next_is_asked() -> None:
    driver = played(ready(), days=2)
    first, second = (f"late@{day}" for day in DAYS[:2])
    assert (grants(driver)[first].state, grants(driver)[second].state) == ("closed", "open")
    refunded = sources(driver)[f"flights@{DAYS[0]}"].refunded.epsilon
    assert 0 < refunded < grants(driver)[first].cost.epsilon
    assert grants(driver)[first].answered == 21
    assert findings(driver) == []


@pytest.mark.parametrize(
    "mechanism", [LATE["mechanism"], {"kind": "histogram", "attributes": ["origin"], "answers": 20}]
)
def test_questions_of_a_period_are_as_many_as_its_worker_expects(mechanism: dict[str, Any]) -> None:
    driver = installation(
        {**LATE, "mechanism": mechanism, "standing": {**LATE["standing"], "begins": "2013-01-01T07:00:00Z"}},
        sources=[FLIGHTS],
        partitions=2,
    )
    played(driver, days=3)
    for day in DAYS[:3]:
        grant = grants(driver)[f"late@{day}"]
        source = sources(driver)[f"flights@{day}"].source
        wanted = questions_in_period(source, grant.spec.mechanism, grant.spec.standing)
        assert grant.answered == wanted == sum(stream == f"late@{day}" for stream, _ in asked_values(driver))


def test_stream_of_a_past_period_answers_before_it_is_closed() -> None:
    """It answers all its questions first."""
    driver = ready()
    driver.request(BeginPeriod(request="begin", source="flights", start=DAYS[0]))
    driver.close(f"flights@{DAYS[0]}", f"late@{DAYS[0]}", PERIOD_OVER_REASON)
    quarter = span_ms("6h")
    for place in range(21):
        start = moment_ms(DAYS[0]) + place * quarter
        question: dict[str, Any] = {
            "window": {"start": format_moment(start), "end": format_moment(start + quarter)},
            "group": {"origin": "EWR"},
        }
        assert grants(driver)[f"late@{DAYS[0]}"].state == "open"
        driver.crash()
        driver.ask(f"late@{DAYS[0]}", id=f"question-{place}", value=place, **question)
    assert grants(driver)[f"late@{DAYS[0]}"].state == "open"
    driver.wait(1)
    driver.publish("flights", [])
    assert grants(driver)[f"late@{DAYS[0]}"].state == "closed"
    assert grants(driver)[f"late@{DAYS[0]}"].answered == 21


def test_closing_a_model_closes_its_streams_in_all_periods() -> None:
    """Nothing more is asked after that."""
    driver = played(ready(), days=2)
    driver.close("flights", "late")
    assert {one.state for one in grants(driver).values()} == {"closed"}
    assert sources(driver)["flights"].left.epsilon == 10.0
    before = asked_values(driver)
    driver.advance("flights", DAYS[5])
    assert asked_values(driver) == before
    assert findings(driver) == []


def test_source_is_halted_with_its_periods() -> None:
    driver = played(ready(), days=2)
    driver.halt("flights")
    assert {one.state for one in sources(driver).values()} == {"halted"}
    assert {one.state for one in grants(driver).values()} == {"halted", "closed"}
    driver.advance("flights", DAYS[5])
    assert len(sources(driver)) == 3


def test_periods_survive_crashes_and_redelivery() -> None:
    whole = played(ready())
    broken = ready()
    broken.publish("flights", events(4))
    broken.crash()
    for day in DAYS[1:5]:
        broken.advance("flights", day)
        broken.redeliver()
        broken.crash()
    assert asked_values(broken) == asked_values(whole)
    assert broken.snapshot_streams() == whole.snapshot_streams()
    assert grants(broken).keys() == grants(whole).keys()
    assert findings(broken) == []
    begun = [
        record
        for record in (request_codec.decode(one.value or b"") for one in broken.records(broken.topics.requests))
        if isinstance(record, BeginPeriod | CloseStream)
    ]
    model = grants(broken)["late"].identity.incarnation
    assert {one.request for one in begun} == {
        *(f"begin/{model}@{day}" for day in DAYS[:4]),
        *(f"end/late@{day}" for day in DAYS[:3]),
    }


def test_repeated_begin_of_a_period_changes_nothing() -> None:
    driver = played(ready(), days=2)
    control, before = driver.records(driver.topics.control), grants(driver)
    driver.request(BeginPeriod(request="by hand", source="flights", start=DAYS[1]))
    assert (driver.records(driver.topics.control), grants(driver)) == (control, before)
    assert findings(driver) == []


def test_later_stream_is_asked_from_the_next_period_on() -> None:
    driver = played(ready(), days=2)
    more = {**LATE, "stream": "more", "epsilon": 4.0}
    with pytest.raises(
        Refused, match=r"standing\.begins: the periods up to 2013-01-03T00:00:00Z have already begun"
    ):
        driver.open(more)
    driver.open({**more, "standing": {**LATE["standing"], "begins": DAYS[2]}})
    with pytest.raises(Refused, match="cannot pay"):
        driver.open({**more, "stream": "too-much", "standing": {**LATE["standing"], "begins": DAYS[2]}})
    played(driver, days=4)
    assert {f"late@{DAYS[2]}", f"more@{DAYS[2]}"} <= grants(driver).keys()
    assert f"more@{DAYS[1]}" not in grants(driver)
    assert sources(driver)[f"flights@{DAYS[3]}"].granted.epsilon <= 10.0
    assert findings(driver) == []


def test_late_period_begins_for_another_stream() -> None:
    """A stream requested the period just before the stream was closed, and the ledger processed the closing first."""
    ahead = ready()
    ahead.advance("flights", DAYS[1])
    asked_for = [request_codec.decode(one.value or b"") for one in ahead.records(ahead.topics.requests)]
    begin = next(one for one in asked_for if isinstance(one, BeginPeriod))

    driver = ready()
    assert grants(driver)["late"].identity == grants(ahead)["late"].identity
    driver.close("flights", "late")
    with pytest.raises(Refused, match="has no open stream with questions about this period"):
        driver.request(begin)
    driver.open({**LATE, "stream": "more"})
    played(driver, days=2)
    assert {f"more@{day}" for day in DAYS[:2]} <= {stream for stream, _ in asked_values(driver)}
    assert findings(driver) == []


def test_period_that_begins_after_its_end_is_closed_too() -> None:
    """One stream waits for events that are days late; another stream, without a window in the first period, is then far ahead."""
    driver = installation(
        {**LATE, "epsilon": 4.0, "standing": {**LATE["standing"], "lateness": "3d"}},
        sources=[FLIGHTS],
        partitions=3,
    )
    begins = "2013-01-01T21:00:00Z"
    driver.open({**LATE, "stream": "ahead", "epsilon": 4.0, "standing": {**LATE["standing"], "begins": begins}})
    driver.advance("flights", DAYS[3])
    assert f"ahead@{DAYS[1]}" in grants(driver)
    assert f"flights@{DAYS[0]}" not in sources(driver)
    driver.advance("flights", "2013-01-04T12:00:00Z")
    assert (grants(driver)[f"late@{DAYS[0]}"].state, grants(driver)[f"ahead@{DAYS[0]}"].state) == (
        "open",
        "closed",
    )
    assert findings(driver) == []


def test_stream_begins_within_a_period_at_its_begin() -> None:
    driver = installation(
        {**LATE, "standing": {**LATE["standing"], "begins": "2013-01-01T12:00:00Z"}},
        sources=[FLIGHTS],
        partitions=2,
    )
    played(driver, days=2)
    first = {one.window.start for one in queries(driver) if one.stream == f"late@{DAYS[0]}" and one.window}
    assert min(first) == "2013-01-01T12:00:00Z"


def test_broker_clock_begins_no_period_ahead_of_itself() -> None:
    driver = ready(clock="broker")
    driver.advance("flights", DAYS[1])
    with pytest.raises(Refused, match="start: the period has not begun yet"):
        driver.request(BeginPeriod(request="early", source="flights", start="2013-06-01T00:00:00Z"))
    driver.wait(3 * 86_400)
    assert {f"late@{day}" for day in DAYS[:3]} <= grants(driver).keys()


def test_model_of_a_standing_stream_answers_no_question() -> None:
    driver = ready()
    result = driver.ask(
        "late",
        value=3,
        window={"start": DAYS[0], "end": "2013-01-01T06:00:00Z"},
        group={"origin": "EWR"},
        outcomes=True,
    )
    assert result.outcome == "halted"
    assert grants(driver)["late"].answered == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "size": (
        {"standing": {"window": {"size": "2d"}}},
        "standing.window: each period",
    ),
    "every": (
        {"standing": {"window": {"size": "7h"}}},
        "standing.window: each period",
    ),
    "running count": (
        {"mechanism": {"kind": "running_count", "steps": 5}, "standing": {"window": {"size": "6h"}}},
        "mechanism.steps: 5 windows do not fit in one period of 1d, which has 4",
    ),
    "long name": ({"stream": "x" * 97}, "stream: must have at most 96"),
    "a period's name": ({"stream": f"other@{DAYS[0]}"}, "stream: the name ends like that of a period's stream"),
    "a period": (
        {"stream": "other", "source": f"flights@{DAYS[0]}"},
        "source: this is one period of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_questions_unfit_for_periods_are_refused(name: str) -> None:
    driver = ready()
    driver.request(BeginPeriod(request="begun", source="flights", start=DAYS[0]))
    changed, message = REFUSED[name]
    standing = {**LATE["standing"], "begins": DAYS[3], **changed.get("standing", {})}
    with pytest.raises(Refused, match=message):
        driver.open({**LATE, "stream": "another", "epsilon": 1.0, **changed, "standing": standing})


def test_sources_that_cannot_have_periods_are_refused() -> None:
    driver = played(ready(), days=1)
    period = {"period_of": "flights", "starts": DAYS[2], "source": f"flights@{DAYS[2]}"}
    for changed, message in (
        ({"source": "y" * 97}, "source: must have at most 96"),
        ({"source": "other", "population": "people"}, "population: "),
        ({"source": f"flights@{DAYS[2]}"}, "source: the name ends like that of a period"),
        (period, "source: the name ends like that of a period"),
    ):
        with pytest.raises(Refused, match=message):
            driver.register(FLIGHTS | changed)
    with pytest.raises(ValueError, match="period_of, starts: are set by Sotto"):
        driver.register(FLIGHTS | {"period_of": "flights"})
    for source, stream in (("flights", "late"), (f"flights@{DAYS[0]}", f"late@{DAYS[0]}")):
        with pytest.raises(Refused, match="its streams are not extended"):
            driver.extend(source, stream, 1.0)


@pytest.mark.parametrize(
    ("source", "start", "message"),
    [
        ("nobody", DAYS[0], "is not registered"),
        ("flights", "2013-01-01T06:00:00Z", "start: periods of 1d begin at multiples"),
        ("flights", "2012-12-31T00:00:00Z", "has no open stream with questions about this period"),
        (f"flights@{DAYS[0]}", DAYS[0], "has no periods"),
    ],
)
def test_periods_that_no_stream_needs_are_not_begun(source: str, start: str, message: str) -> None:
    driver = played(ready(), days=1)
    with pytest.raises(Refused, match=message):
        driver.request(BeginPeriod(request="mine", source=source, start=start))
    assert len(sources(driver)) == 2


def test_ledger_from_a_backup_begins_no_more_streams_in_periods() -> None:
    driver = played(ready(), days=2)
    returning = RestoredLedger(driver.topics, ledger(driver))
    assert list(returning.make_outputs("nothing", "0" * 64))
    kept = returning.ledger
    streams = {name: grant for account in kept.accounts.values() for name, grant in account.grants.items()}
    assert streams.keys() == grants(driver).keys()
    assert {name for name, one in streams.items() if one.ending == "halted"} == {"late", f"late@{DAYS[1]}"}
    # The possible charges of a new stream in a period, and those of the lost stream, fit into one budget.
    assert (
        kept.accounts["flights"].budget.left == kept.accounts["flights"].budget.total - streams["late"].claim.cost
    )


def test_receipt_names_one_period_as_the_unit_of_the_budget() -> None:
    driver = Driver(KEY)
    meanings = [
        driver.register(FLIGHTS).meaning,
        driver.register({**FLIGHTS, "source": "more", "delta": 1e-06}).meaning,
    ]
    further = "a person with events in k periods may lose k times as much"
    assert meanings == [
        f"ε = 10 for a person's events in one period of 1d; {further}",
        f"ε = 10, δ = 1e-06 for a person's events in one period of 1d; {further}",
    ]


def test_window_over_an_edge_would_reveal_two_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker finds merging that asks such windows of the period in which they begin."""
    monkeypatch.setattr("stream.feeds.merge_state.lies_in_one_period", lambda *_: True)
    with pytest.raises(AssertionError):
        test_events_of_one_period_move_its_numbers_alone(1)
