"""The progress of a live topic's feed, computed from public records."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaConnectionError

from schemas import MemberStatus
from schemas.windows import format_moment, moment_ms
from stream.monitor import monitor_service
from stream.monitor.api import views
from stream.monitor.api.service_models import MemberRow, PartitionRow, Restore, WorkersView
from stream.monitor.entries import MemberEntry
from stream.monitor.monitor_service import GroupWatch, _readiness
from stream.monitor.reader_watch import ReaderWatch
from stream.processing.dead_letters import Rejection, dead_letter
from stream.processing.protocol import Record
from stream.settings import Settings
from tests.unit.monitor.installation import ANALYST, OPERATOR, VIEWER, Installation, bearer, get, spec, status
from tests.unit.monitor.screen_data import partial_view
from tests.unit.periods import DAYS, FLIGHTS, LATE, event

WHOLE: dict[str, Any] = {name: value for name, value in FLIGHTS.items() if name not in {"unit", "period"}}
MECHANISMS: list[dict[str, Any]] = [
    {"kind": "laplace", "answers": 200},
    {"kind": "above_threshold", "threshold": 1e6, "cutoff": 1, "monotone": True},
    {"kind": "histogram", "answers": 60, "attributes": ["origin"]},
]


def member(role: str, name: str) -> MemberRow:
    return MemberRow.model_validate(
        {
            "member": name,
            "role": role,
            "host": "h",
            "partitions": [0],
            "lag": 7,
            "events_per_second": 3.5,
            "version": "1",
            "started": 10.0,
            "memory": 1000,
            "heard": 20.0,
        }
    )


def open_installation(mechanism: dict[str, Any], source: dict[str, Any] = WHOLE) -> Installation:
    found = Installation()
    found.driver.register(source)
    by = [] if mechanism["kind"] == "histogram" else ["origin"]
    found.driver.open(LATE | {"mechanism": mechanism, "standing": {**LATE["standing"], "by": by}})
    found.open()
    return found


async def feed(found: Installation, source: str = "flights") -> dict[str, Any]:
    found.flow()
    async with found.web() as client:
        view: dict[str, Any] = (await get(client, f"/api/budgets/{source}"))["feed"]
    return view


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: str(one["kind"]))
async def test_feed_view_shows_last_asked_window(mechanism: dict[str, Any]) -> None:
    found = open_installation(mechanism)
    assert (await feed(found))["asked_to"] is None
    # A window of six hours begins every three hours, so by the ninth hour two are asked, which end at hours six and nine.
    for hour, end in (("06", "06"), ("08", "06"), ("09", "09"), ("23", "21")):
        found.driver.publish("flights", [event(f"N{hour}", f"2013-01-01T{hour}:00:00Z")])
        found.driver.advance("flights", f"2013-01-01T{hour}:30:00Z")
        found.now += 10.0  # digests come every few seconds
        digests = [worker.collect_due_outputs(found.now) for worker in found.driver._workers]
        for digest in digests:
            found.driver.write(digest)
        view = await feed(found)
        assert format_moment(int(view["asked_to"] * 1000)) == f"2013-01-01T{end}:00:00Z", hour
    assert view["asked_at"] == found.now
    found.now += 60.0
    for digest in digests:  # a restarted worker repeats its totals
        found.driver.write(digest)
    assert (await feed(found))["asked_at"] == found.now - 60.0
    assert (view["topic"], view["clock"], view["idle"]) == ("ops.departures", "marks", None)


async def test_feed_view_has_no_window_if_the_latest_is_of_an_extended_stream() -> None:
    """The last window of an extended stream is unknown; a stream that stopped earlier has not asked the latest window."""
    found = Installation()
    found.driver.register(WHOLE | {"clock": "broker"})
    for name in ("stopped", "extended"):
        found.driver.open(LATE | {"stream": name, "epsilon": 2.0}, acknowledge=True)
    found.driver.extend("flights", "extended", 1.0)
    found.flow()
    for at in (0.0, 3.0, 60.0):
        for name, late in (("stopped", 0.0), ("extended", at)):
            entry = found.tables.streams[name]
            entry.answered, entry.last_answered, entry.updated = 4, late, late
        view = await feed(found)
        assert (view["asked_to"] is None, view["asked_at"]) == (at == 60.0, at)


async def test_answers_of_later_streams_warn_of_missing_events() -> None:
    """Those of a source's only stream have no such warning."""
    found = open_installation(MECHANISMS[0])
    found.driver.publish("flights", [event("N1", "2013-01-01T05:00:00Z")])
    found.driver.advance("flights", "2013-01-01T12:00:00Z")
    found.flow()
    async with found.web() as client:
        only = (await get(client, "/api/streams/late/answers"))["items"]
        found.driver.open(LATE | {"stream": "later", "epsilon": 4.0}, acknowledge=True)
        found.driver.advance("flights", "2013-01-01T23:00:00Z")
        found.flow()
        later = (await get(client, "/api/streams/later/answers"))["items"]
    for rows, is_later in ((only, False), (later, True)):
        assert rows
        for row in rows:
            assert any(text.startswith("of each ") for text in row["warnings"])
            assert any("may lack the events" in text for text in row["warnings"]) == is_later


async def test_feed_view_of_periods_shows_window_of_latest_period() -> None:
    found = open_installation(MECHANISMS[0], FLIGHTS)
    for moment in (f"{DAYS[1][:10]}T01:00:00Z", f"{DAYS[1][:10]}T06:00:00Z"):
        found.driver.advance("flights", moment)
        for worker in found.driver._workers:
            found.driver.write(worker.collect_due_outputs(found.now))
        view = await feed(found)
        reached = max(moment_ms(DAYS[1]), moment_ms(moment) - 3_600_000 * (moment_ms(moment) // 3_600_000 % 6))
        assert view["asked_to"] * 1000 == reached
    assert (await feed(found, f"flights@{DAYS[0]}")) is None


async def test_feed_view_lists_processes_and_nothing_private() -> None:
    found = open_installation(MECHANISMS[0], WHOLE | {"clock": "broker", "idle": "9s"})
    members = [member("feed", "feed-1"), member("worker", "worker-1"), member("feed", "feed-2")]
    found.monitor.set_workers(WorkersView(time=0.0, members=members, partitions=[]))
    view = await feed(found)
    assert (view["clock"], view["idle"]) == ("broker", "9s")
    assert view["processes"] == [{"member": f"feed-{n}", "started": 10.0, "memory": 1000} for n in (1, 2)]
    assert view.keys() == {"topic", "clock", "idle", "asked_to", "asked_at", "is_asked", "processes"}


async def test_feed_view_exists_for_live_topics_only() -> None:
    assert (await feed(open_installation(MECHANISMS[0]), "feed")) is None


async def stalled(found: Installation, at: float, *members: MemberRow) -> list[dict[str, Any]]:
    found.now = at
    found.monitor.set_workers(WorkersView(time=1.0, members=list(members), partitions=[]))
    found.flow()
    async with found.web() as client:
        rows: list[dict[str, Any]] = (await get(client, "/api/overview"))["stalled"]
        async with client.get("/metrics", headers=bearer(VIEWER)) as response:
            figures = re.findall(r'topic_stalled{source="(\w+)"} 1.0', await response.text())
    assert figures == [one["source"] for one in rows]
    return rows


async def test_stalled_sources_name_a_topic_whose_window_is_overdue() -> None:
    """A source is stalled if a window should have been answered, with or without a feed; a missing feed alone is no alarm."""
    found = Installation()
    found.driver.register(WHOLE | {"clock": "broker", "idle": "5s"})
    standing = {"window": {"size": "1m"}, "lateness": "10s", "begins": "2013-01-01T00:00:00Z"}
    found.driver.open(LATE | {"standing": standing})
    found.open()
    begins = moment_ms("2013-01-01T00:00:00Z") / 1000
    assert await stalled(found, begins + 80) == []
    overdue = {"source": "flights", "since": None, "feed_runs": False}
    assert await stalled(found, begins + 91) == [overdue]
    assert await stalled(found, begins + 91, member("feed", "feed-1")) == [overdue | {"feed_runs": True}]
    entry = found.tables.streams["late"]
    entry.answered, entry.updated = 3, begins + 196
    assert await stalled(found, begins + 260) == []
    assert await stalled(found, begins + 271) == [overdue | {"since": begins + 180}]
    entry.last_answered = entry.updated = (
        begins + 430
    )  # windows in between were answered halted, which are not counted
    assert await stalled(found, begins + 520) == []
    assert (await feed(found))["asked_to"] is None
    assert await stalled(found, begins + 521) == [overdue | {"since": begins + 430}]
    found.now = begins + 521  # extended, it is asked again about windows that begin 5 s later, or after that
    found.driver.extend("flights", "late", 2.0)
    found.flow()
    assert await stalled(found, begins + 630) == []
    assert await stalled(found, begins + 631) == [overdue | {"since": entry.last_answered}]
    found.driver.close("flights", "late")
    assert await stalled(found, begins + 271) == []


async def test_stalled_sources_with_watermarks_lack_a_feed() -> None:
    """With watermarks, the time at which a window is due is unknown, so only a missing feed is an alarm."""
    found = open_installation(MECHANISMS[0])
    assert await stalled(found, 2e9, member("feed", "feed-1")) == []
    assert [one["source"] for one in await stalled(found, 2e9, member("worker", "worker-1"))] == ["flights"]
    found.monitor.set_workers(WorkersView(time=0.0, members=[], partitions=[]))
    assert found.monitor.overview().stalled == []


def test_dry_in_of_windows_ignores_that_a_feed_catches_up() -> None:
    """A day of windows of three hours that is answered within a minute says nothing about the next day."""
    found = open_installation(MECHANISMS[0], WHOLE | {"clock": "broker"})
    for second in range(1, 9):
        found.now += 1.0
        found.show(status(found, "late", 3 * second, 3 * second, second))
    row = views.stream_row(found.tables, found.tables.streams["late"], found.now)
    assert row.dry_in == pytest.approx((200 - 24) / 3 * 3 * 3600)


def test_dry_in_of_rare_charges_is_their_rate_in_ten_minutes() -> None:
    """The charges of an evening's alarms say nothing about the night, although windows are asked steadily."""
    mechanism = {"kind": "above_threshold", "threshold": 25.0, "cutoff": 8, "monotone": True}
    found = open_installation(mechanism, WHOLE | {"clock": "broker"})
    known = []
    for minute in range(1, 20):
        found.now += 60.0
        found.show(status(found, "late", 3 * minute, min(minute, 7), minute))
        known.append(views.stream_row(found.tables, found.tables.streams["late"], found.now).dry_in)
    assert known[6] == pytest.approx(60.0, rel=0.1)
    assert known[-1] is None


def test_dry_in_is_unknown_while_a_window_is_overdue() -> None:
    """A feed that refuses the topic asks nothing more; windows of three hours follow each other within 3 h 15 s + 30 s."""
    found = open_installation(MECHANISMS[0], WHOLE | {"clock": "broker", "idle": "30s"})
    found.show(status(found, "late", 3, 3, 1))
    for passed, is_known in ((3 * 3600.0 + 45.0, True), (3 * 3600.0 + 46.0, False)):
        row = views.stream_row(found.tables, found.tables.streams["late"], found.now + passed)
        assert (row.dry_in is not None) == is_known


def test_lag_leaves_out_transaction_markers_of_feeds() -> None:
    """The marker after a feed's question is no waiting question. It may be one if it is unknown who asked."""
    for found, marker in ((open_installation(MECHANISMS[0]), 0), (Installation(), 1)):
        found.flow()
        topics = found.driver.topics
        groups = GroupWatch(found.settings, topics, found.tables, lambda _: None)
        lags = [groups._split_lag(TopicPartition(topics.queries, 0), 7, offsets) for offsets in (0, 1, 2)]
        assert lags == [(0, 0), (marker, 1 - marker), (1 + marker, 1 - marker)]
        assert groups._split_lag(TopicPartition(topics.queries, 0), 0, 1) == (1, 0)
        assert groups._split_lag(TopicPartition(topics.partials, 0), 7, topics.partitions) == (0, 0)
        assert groups._split_lag(TopicPartition(topics.requests, 0), 7, 1) == (1, 0)


def test_lag_is_clear_after_an_answered_question_of_a_feed() -> None:
    """The question that precedes the last offset decides; if it was halted, this offset may be a question."""
    found = open_installation(MECHANISMS[0])
    found.show(status(found, "late", 1, 1, 6))
    groups = GroupWatch(found.settings, found.driver.topics, found.tables, lambda _: None)
    queries = TopicPartition(found.driver.topics.queries, 0)
    assert [groups._split_lag(queries, position, 1) for position in (7, 8)] == [(0, 0), (0, 1)]
    assert groups._split_lag(queries, 7, 2) == (1, 0)
    row = partial_view(PartitionRow, role="worker", lag=0, hidden_lag=1)
    found.monitor.set_workers(WorkersView(time=0.0, members=[], partitions=[row]))
    overview = found.monitor.overview()
    assert (overview.lag, overview.hidden_lag) == (0, 1)


def test_lag_counts_question_after_question_of_client() -> None:
    """No marker follows a client's question, so one offset after it is a waiting question."""
    found = open_installation(MECHANISMS[0])
    found.open(spec("ward"))
    found.show(status(found, "ward", 1, 1, 6))
    groups = GroupWatch(found.settings, found.driver.topics, found.tables, lambda _: None)
    queries = TopicPartition(found.driver.topics.queries, 0)
    assert [groups._split_lag(queries, position, 1)[0] for position in (6, 7, 8)] == [0, 1, 0]


def test_lag_has_the_question_after_a_rejected_question() -> None:
    """Feeds' questions are not rejected, so no marker follows a rejected question."""
    found = open_installation(MECHANISMS[0])
    topics = found.driver.topics
    record = Record(topics.queries, 0, 6, 0, b"nowhere", b'{"id": "a", "stream": "nowhere"}', ())
    found.tables.add_record(
        Record(topics.rejected, 0, 0, 0, *dead_letter(record, Rejection("unknown stream", "stream: unknown")))
    )
    groups = GroupWatch(found.settings, topics, found.tables, lambda _: None)
    queries = TopicPartition(topics.queries, 0)
    assert [groups._split_lag(queries, position, 1)[0] for position in (6, 7, 8)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GroupAuthorizationFailedError, "'sotto topics acl --role monitor'"),
        (KafkaConnectionError, "does not answer"),
    ],
)
async def test_readiness_tells_a_missing_right_from_a_silent_kafka(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], reason: str
) -> None:
    def fail(_: Settings) -> None:
        raise error

    monkeypatch.setattr(monitor_service, "admin_client", fail)
    found = Installation()
    groups = GroupWatch(found.settings, found.driver.topics, found.tables, lambda _: None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(groups.run(), 0.01)
    reader: Any = SimpleNamespace(unread_offsets=0)
    assert reason in str(_readiness(reader, reader, groups, ReaderWatch(found.settings, [])).reason)


async def test_refused_share_is_for_operators_only() -> None:
    """Operators see the share and its cause; no route and no live view shows them to others."""
    found = open_installation(MECHANISMS[0])
    found.driver.register(WHOLE | {"source": "again"})
    found.now = 1_700_000_000.0
    found.driver.publish("flights", [b"{", event("N1", "2013-01-01T01:00:00Z")])
    found.flow()
    async with found.web() as client:
        [refused] = (await get(client, "/api/refusals", OPERATOR))["items"]
        assert sorted(refused["sources"]) == ["again", "flights"]  # dead letters do not name the source
        assert (refused["topic"], refused["last"]) == ("ops.departures", found.now)
        assert (refused["share"], refused["reason"].partition(":")[0]) == ("90 to 100 %", "malformed")
        for token in (VIEWER, ANALYST):
            for path in ("/api/refusals", "/api/events?views=refusals"):
                async with client.get(path, headers=bearer(token)) as response:
                    assert response.status == 403
        found.now += 86_401
        assert await get(client, "/api/refusals", OPERATOR) == {"items": []}


def test_restore_of_the_process_before_is_not_shown() -> None:
    """A process that refuses its partition has not restored it, and writes no status of a restore."""
    found = Installation()
    groups = GroupWatch(found.settings, found.driver.topics, found.tables, lambda _: None)
    restore = Restore(phase="ready", records=9, total=9, seconds=0.1, updated=100.0)
    found.tables.restores[("worker", 0)] = restore
    for started, shown in ((50.0, restore), (150.0, None)):
        record = MemberStatus(role="worker", member="worker-1", version="1", started=started, memory=1)
        found.tables.members["worker-1"] = MemberEntry(record, started)
        assert groups._restore_of("worker", 0, "worker-1") is shown
    assert groups._restore_of("worker", 0, "worker-2") is restore
    assert groups._restore_of("worker", 0, None) is None
