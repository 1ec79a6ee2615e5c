"""The monitor's alerts: the firing ones by each group's latest window, and a bounded history."""

from __future__ import annotations

import json
from itertools import permutations
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Answer
from schemas.windows import format_moment
from stream.monitor.api.models import Readiness
from stream.monitor.api.service_models import AlertQuery
from stream.monitor.monitor_alerts import MAX_KEPT_ALERTS, Alerts
from stream.processing.protocol import Record
from stream.questions.alert_states import Alarm, AlarmTable
from tests.unit.monitor.installation import ANALYST, FEED, HIGH, LOW, OPERATOR, VIEWER, Installation, get, spec

HOUR = 3600
ALL = AlertQuery()


def installation() -> Installation:
    made = Installation()
    made.driver.register({**FEED, "source": "other", "epsilon": 4.0})
    made.open(spec("late", cutoff=50), spec("early", cutoff=1))
    made.driver.open(spec("else", source="other"))
    made.flow()
    return made


def firing(made: Installation, **query: Any) -> list[tuple[str, str, float, int]]:
    rows = made.alerts.view(AlertQuery(**query)).firing
    return [(row.latest.stream, str(row.latest.group.get("zone", "")), row.since, row.alerts) for row in rows]


def test_alert_fires_if_latest_window_is_above() -> None:
    made = installation()
    made.answer_window("late", 0, {"EWR": "above", "JFK": "below", "LGA": "above"}, tops_left=49)
    assert firing(made) == [("late", "EWR", HOUR, 1), ("late", "LGA", HOUR, 1)]
    made.answer_window("late", HOUR, {"EWR": "above", "JFK": "above", "LGA": "below"}, tops_left=47)
    assert firing(made) == [("late", "EWR", HOUR, 2), ("late", "JFK", 2 * HOUR, 1)]
    made.answer_window("late", 2 * HOUR, {"EWR": "halted", "JFK": "rejected"})
    assert firing(made) == [("late", "EWR", HOUR, 2), ("late", "JFK", 2 * HOUR, 1)]
    made.answer_window("late", 3 * HOUR, {"EWR": "below", "JFK": "below"})
    assert firing(made) == []
    view = made.alerts.view(ALL)
    assert [(row.group["zone"], row.window and row.window.start) for row in view.recent] == [
        ("JFK", "1970-01-01T01:00:00Z"),
        ("EWR", "1970-01-01T01:00:00Z"),
        ("LGA", "1970-01-01T00:00:00Z"),
        ("EWR", "1970-01-01T00:00:00Z"),
    ]
    assert {row.source for row in view.recent} == {"feed"}


def test_alert_begins_again_after_windows_that_were_not_asked() -> None:
    """An exhausted stream asks no window until it is extended, and these windows may have been quiet."""
    made = installation()
    for start, since, alerts in ((0, 1, 1), (1, 1, 2), (4, 5, 1), (5, 5, 2)):
        made.answer_window("late", start * HOUR, {"EWR": "above"})
        assert firing(made) == [("late", "EWR", since * HOUR, alerts)]


def test_stream_without_windows_fires_from_its_answer() -> None:
    made = installation()
    made.ask("late", LOW, HIGH)
    made.flow()
    assert firing(made) == [("late", "", made.now, 1)]
    made.ask("late", LOW)
    made.flow()
    assert firing(made) == []


def test_exhausted_stream_is_marked_in_alerts() -> None:
    made = installation()
    made.ask("early", HIGH, HIGH)
    made.flow()
    view = made.alerts.view(ALL)
    assert [row.state for row in view.firing] == ["exhausted"]
    assert (view.firing_total, view.exhausted_total, view.sources[0].firing) == (0, 1, 0)


@pytest.mark.parametrize("end", ["close", "halt"])
def test_ended_stream_does_not_fire(end: str) -> None:
    """A closed or halted stream does not fire any more, but its alerts stay in the history."""
    made = installation()
    made.ask("late", HIGH)
    made.flow()
    assert [row.state for row in made.alerts.view(ALL).firing] == ["open"]
    getattr(made.driver, end)("feed", "late")
    made.flow()
    view = made.alerts.view(ALL)
    assert (view.firing_total, view.firing, len(view.recent)) == (0, [], 1)
    del made.tables.streams["late"]
    assert made.alerts.view(ALL, known=True).firing == []


def test_alerts_are_found_by_stream_group_and_source() -> None:
    made = installation()
    made.answer_window("late", 0, {"EWR": "above", "JFK": "above"})
    made.answer_window("else", 0, {"LGA": "above"})
    assert [row[1] for row in firing(made, search="ewr")] == ["EWR"]
    assert [row[0] for row in firing(made, search="LATE")] == ["late", "late"]
    assert [row[1] for row in firing(made, source="other")] == ["LGA"]
    view = made.alerts.view(AlertQuery(source="other", limit=1))
    assert (view.firing_total, view.firing_matching, view.total, view.matching) == (3, 1, 3, 1)
    assert [(one.source, one.firing, one.alerts) for one in view.sources] == [("feed", 2, 2), ("other", 1, 1)]


def test_alert_history_is_limited_and_skips_unreadable_answers() -> None:
    made = installation()
    for number in range(MAX_KEPT_ALERTS + 5):
        made.answer_window("late", number * HOUR, {"EWR": "above"})
    view = made.alerts.view(ALL)
    assert (view.total, len(view.recent)) == (MAX_KEPT_ALERTS, ALL.limit)
    # Partitions are read one after the other; an alert that is older than all kept alerts is dropped.
    made.now -= 60
    made.answer_window("else", 0, {"LGA": "above"})
    assert {row.stream for row in made.alerts.view(AlertQuery(limit=500)).recent} == {"late"}
    alerts = Alerts(made.tables)
    alerts.add_answer(Record("answers", 0, 0, 0, b"late", b'{"outcome":"above"'))
    alerts.add_answer(Record("answers", 0, 1, 0, b"late", None))
    assert alerts.unreadable == 1
    assert not alerts.view(ALL).complete


@pytest.mark.parametrize("token", [VIEWER, ANALYST, OPERATOR])
async def test_alerts_route_is_open_to_each_role(token: str) -> None:
    made = installation()
    made.answer_window("late", 0, {"EWR": "above"}, estimate=31.5, alpha=4.0, tops_left=49)
    async with made.web() as client:
        answer = await get(client, "/api/alerts", token)
        assert answer["shown"] is True
        assert answer["firing"] == [
            {
                "since": HOUR,
                "alerts": 1,
                "latest": {
                    "time": made.now,
                    "stream": "late",
                    "source": "feed",
                    "group": {"zone": "EWR"},
                    "window": {"start": "1970-01-01T00:00:00Z", "end": "1970-01-01T01:00:00Z"},
                    "estimate": 31.5,
                    "alpha": 4.0,
                    "tops_left": 49,
                    "threshold": 0.0,
                    "condition": None,
                    "counted": "",
                    "warnings": [],
                },
                "state": "open",
            }
        ]
        response = await client.get("/api/alerts")
        assert response.status == 401


async def test_alerts_are_incomplete_before_monitor_is_ready() -> None:
    made = installation()
    made.readiness = Readiness(ready=False, behind=3)
    made.answer_window("late", 0, {"EWR": "above"})
    async with made.web() as client:
        assert (await get(client, "/api/alerts"))["complete"] is False
        made.readiness = Readiness(ready=True, behind=0)
        view = await get(client, "/api/alerts")
        assert view["complete"] is True
        assert [one["source"] for one in view["sources"]] == ["feed"]


async def test_alerts_view_says_if_monitor_reads_no_answers() -> None:
    made = installation()
    made.monitor.alerts = None
    async with made.web() as client:
        assert (await get(client, "/api/alerts"))["shown"] is False


PERIODS = [f"late@{format_moment(day * 24 * HOUR * 1000)}" for day in range(3)]


def hours(day: int, hour: int, outcome: str, group: str = "EWR") -> Record:
    """Return an hour's answer of a stream with periods of a day."""
    at = (day * 24 + hour) * HOUR
    window = {"start": format_moment(at * 1000), "end": format_moment((at + HOUR) * 1000)}
    answer = {
        "id": f"{at}",
        "stream": PERIODS[day],
        "outcome": outcome,
        "window": window,
        "group": {"zone": group},
    }
    return Record("answers", day, hour, (at + HOUR) * 1000, PERIODS[day].encode(), json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("answers", "latest"),
    [
        ([hours(0, 23, "above"), hours(1, 0, "below")], None),
        ([hours(0, 22, "above"), hours(0, 23, "below"), hours(1, 0, "above")], PERIODS[1]),
        ([hours(0, 23, "below"), hours(1, 0, "above"), hours(1, 1, "below"), hours(2, 0, "above")], PERIODS[2]),
        ([hours(0, 23, "above"), hours(1, 0, "above"), hours(2, 0, "below", "JFK")], PERIODS[1]),
        ([hours(0, 23, "above"), hours(1, 0, "rejected")], PERIODS[0]),
    ],
)
def test_firing_alerts_are_independent_of_order_of_periods(answers: list[Record], latest: str | None) -> None:
    for order in permutations({record.partition for record in answers}):
        alerts = Alerts(Installation().tables)
        for record in sorted(answers, key=lambda one: (order.index(one.partition), one.offset)):
            alerts.add_answer(record)
        assert [row.latest.stream for row in alerts.view(ALL).firing] == ([] if latest is None else [latest])


@st.composite
def days(draw: st.DrawFn) -> list[Record]:
    """Draw hours of three days and two groups in the order of their questions; some have no answer."""
    outcome = st.sampled_from(("above", "above", "above", "below", "halted"))
    return [
        hours(day, hour, draw(outcome), group)
        for day in range(3)
        for hour in range(draw(st.integers(0, 3)))
        for group in ("EWR", "JFK")
    ]


@given(days(), st.permutations(range(3)), st.randoms())
def test_alerts_are_equal_after_restart(answers: list[Record], order: list[int], chance: Random) -> None:
    tables = Installation().tables
    lived = Alerts(tables)
    waiting = {day: [one for one in answers if one.partition == day] for day in range(3)}
    read: list[Record] = []
    while any(waiting.values()):
        # Workers of other partitions may lag: answers are ordered within a partition, but not between partitions.
        read.append(waiting[chance.choice([day for day, left in waiting.items() if left])].pop(0))
        lived.add_answer(read[-1])
        restarted = Alerts(tables)
        for record in sorted(read, key=lambda one: order.index(one.partition)):
            restarted.add_answer(record)
        assert lived.view(ALL) == restarted.view(ALL)
        assert comparable(lived) == by_definition(read)


def comparable(alerts: Alerts) -> list[tuple[float, str, int, float]]:
    return [
        (row.since, str(row.latest.group["zone"]), row.alerts, row.latest.time) for row in alerts.view(ALL).firing
    ]


def by_definition(read: list[Record]) -> list[tuple[float, str, int, float]]:
    """Return the runs by their definition: for each group, the alerts after its last quiet or missing window."""
    runs: dict[str, list[float]] = {"EWR": [], "JFK": []}
    for record in sorted(read, key=lambda one: one.timestamp):
        answer = Answer.model_validate_json(record.value or b"")
        if answer.outcome in {"above", "below"}:
            run = runs[str((answer.group or {})["zone"])]
            at = record.timestamp / 1000
            kept = run if run and at <= run[-1] + HOUR else []
            run[:] = [*kept, at] if answer.outcome == "above" else []
    return sorted((run[0], group, len(run), run[-1]) for group, run in runs.items() if run)


def add_answer(firing: AlarmTable, record: Record) -> Alarm | None:
    return firing.add_answer(Answer.model_validate_json(record.value or b""), "", record.timestamp / 1000)


def test_alarm_table_limits_remembered_periods() -> None:
    firing = AlarmTable(limit=2, over_periods=True)
    quiet = [hours(1, 0, "below", group) for group in ("EWR", "JFK", "LGA")]
    assert [add_answer(firing, one) for one in quiet] == [None] * 3
    late = [hours(0, 23, "above", group) for group in ("JFK", "LGA", "EWR")]
    assert [add_answer(firing, one) is not None for one in late] == [False, False, True]


def test_alarm_table_keeps_beginning_of_long_run() -> None:
    firing = AlarmTable(limit=2, over_periods=True)
    alarms = [add_answer(firing, hours(hour // 24, hour % 24, "above")) for hour in range(23, 49)]
    assert alarms[-1] is not None
    assert (alarms[-1].since, alarms[-1].alerts) == (24 * HOUR, 26)
    # Earlier windows cannot be distinguished any more, and no new window comes before it.
    assert add_answer(firing, hours(0, 1, "below")) is None
    ended = add_answer(firing, hours(2, 1, "below"))
    assert ended is not None
    assert ended.resolved == (2 * 24 + 2) * HOUR
