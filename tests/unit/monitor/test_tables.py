"""The tables show the services' records, in whatever order and however often these are read."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import MemberStatus, PartitionStatus
from stream.monitor.api import views
from stream.monitor.api.budget_views import build_burn_down
from stream.monitor.api.monitor_state import metrics_text
from stream.monitor.api.source_views import RejectedQuery, list_rejected
from stream.monitor.monitor_tables import MAX_CODES, MAX_RECENT_REJECTED, MonitorTables
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.processing.dead_letters import (
    OVERSIZED_BATCH,
    Rejection,
    UnreadableBatch,
    UnreadableValue,
    dead_letter,
)
from stream.processing.protocol import REPEATED_HEADER, Record
from stream.processing.topic_names import Topics
from tests.unit.monitor.installation import FEED, HIGH, LOW, VIEWER, Installation, bearer, get, spec, status


def installation_with_history() -> Installation:
    """Return an installation with a stream in each state, and with a halted source."""
    installation = Installation()
    installation.open(spec("open"), spec("exhausted"), spec("closed"), spec("halted", cutoff=9), spec("extended"))
    installation.ask("open", LOW, HIGH, LOW)
    installation.ask("exhausted", HIGH, HIGH, HIGH)
    installation.ask("closed", LOW)
    installation.driver.close("feed", "closed")
    installation.ask("extended", HIGH, HIGH, HIGH)
    installation.driver.extend("feed", "extended", 1.0)
    installation.ask("extended", HIGH)
    installation.driver.halt("feed", "halted", reason="audit")
    installation.driver.register({**FEED, "source": "other", "epsilon": 2.0})
    installation.driver.open(spec("elsewhere", source="other"))
    installation.driver.halt("other", reason="leak")
    installation.driver.send(0, b"not json")
    installation.flow()
    return installation


past = cache(installation_with_history)
"""The same installation, made once for tests that do not change it."""


def draw_screen(tables: MonitorTables, now: float) -> dict[str, Any]:
    """Return all figures except those that depend on the time of reading."""
    streams = {
        name: views.stream_row(tables, entry, now).model_dump(exclude={"rates", "dry_in", "updated", "opened"})
        for name, entry in tables.streams.items()
        if entry.grant is not None
    }
    sources = {
        name: views.source_row(tables, entry).model_dump(exclude={"updated"})
        for name, entry in tables.sources.items()
    }
    totals = (tables.totals.answered, tables.totals.tops, +tables.totals.states, tables.totals.nearly_dry)
    return {"streams": streams, "sources": sources, "totals": totals, "rejected": dict(tables.rejected)}


def test_streams_have_state_reason_and_totals() -> None:
    installation = installation_with_history()
    shown = draw_screen(installation.tables, installation.now)["streams"]
    figures = {name: (row["state"], row["answered"], row["tops"], row["tops_left"]) for name, row in shown.items()}
    assert figures == {
        "open": ("open", 3, 1, 1),
        "exhausted": ("exhausted", 2, 2, 0),
        "extended": ("open", 3, 3, 1),
        "closed": ("closed", 1, 0, 2),
        "halted": ("halted", 0, 0, 9),
        "elsewhere": ("halted", 0, 0, 2),
    }
    assert shown["halted"]["reason"] == "audit"
    assert shown["elsewhere"]["reason"] == "leak"
    assert "all 2" in shown["exhausted"]["reason"]


def test_budgets_equal_those_in_ledger() -> None:
    installation = installation_with_history()
    row = views.source_row(installation.tables, installation.tables.sources["feed"])
    record = installation.driver.budget("feed")
    assert (row.granted, row.spent, row.refunded, row.left) == (
        record.granted,
        record.spent,
        record.refunded,
        record.left,
    )
    assert row.total.epsilon == FEED["epsilon"]
    assert row.left_share == pytest.approx(record.left.epsilon / 10.0)
    assert row.refunded.epsilon > 0
    assert row.streams.model_dump() == {"open": 2, "exhausted": 1, "halted": 1, "closed": 1}
    assert views.source_row(installation.tables, installation.tables.sources["other"]).state == "halted"


@given(st.integers(0, 2**32), st.booleans())
def test_figures_are_independent_of_order_of_partitions(seed: int, again: bool) -> None:
    installation = past()
    queues: dict[tuple[str, int], list[Record]] = {}
    for record in installation.records():
        queues.setdefault((record.topic, record.partition), []).append(record)
    order = [place for place, records in queues.items() for _ in records]
    random.Random(seed).shuffle(order)
    tables = MonitorTables(installation.driver.topics)
    for place in order:
        tables.add_record(queues[place].pop(0))
    if again:
        for record in installation.records():
            tables.add_record(record)
    assert draw_screen(tables, installation.now) == draw_screen(installation.tables, installation.now)


@given(st.integers(0, 2**32))
def test_figures_are_equal_after_compaction_and_retention(seed: int) -> None:
    installation = past()
    topics, generator = installation.driver.topics, random.Random(seed)
    records = installation.records()
    latest = {(one.topic, one.partition, one.key): one for one in records}
    charged = generator.choice([0, generator.randrange(20), 1000])
    tables = MonitorTables(topics)
    for record in records:
        if record.topic == topics.charges:
            kept = record.offset >= charged
        elif record.topic == topics.rejected:
            kept = True
        else:
            kept = latest[record.topic, record.partition, record.key] is record or generator.random() < 0.5
        if kept:
            tables.add_record(record)
    assert draw_screen(tables, installation.now) == draw_screen(installation.tables, installation.now)


def test_digests_add_free_answers() -> None:
    installation = Installation()
    installation.open(spec("ward", cutoff=10))
    installation.show(status(installation, "ward", 40, 2, 55))
    row = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now)
    assert (row.answered, row.tops, row.tops_left) == (40, 2, 8)
    detail = views.build_stream_detail(installation.tables, installation.tables.streams["ward"], installation.now)
    assert detail.position is not None
    assert detail.position.offset == 55


@pytest.mark.parametrize("status_first", [True, False])
def test_lost_grant_is_spent_in_full_whatever_its_worker_reports(status_first: bool) -> None:
    installation = Installation()
    installation.open(spec("ward", cutoff=10))
    grant = installation.driver.grant("feed", "ward")
    lost = {"lost": True, "settled": True, "state": "halted", "ending": "halted", "spent": grant.cost}
    value = grant.model_copy(update=lost).model_dump_json().encode()
    record = Record(installation.driver.topics.ledger, 0, 10**6, 0, b"grant|feed|ward", value)
    digest = status(installation, "ward", 40, 2, 55).model_copy(update={"state": "halted"})
    steps: list[Callable[[], None]] = [
        lambda: installation.show(digest),
        lambda: installation.tables.add_record(record),
    ]
    for step in steps if status_first else reversed(steps):
        step()
    row = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now)
    assert (row.state, row.answered, row.spent) == ("halted", 40, grant.cost)


@pytest.mark.parametrize("status_first", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
def test_restored_stream_has_no_time_of_its_last_answer(is_lost: bool, status_first: bool) -> None:
    """Records of an import, and its worker's later reports, say neither when a stream was asked nor how often."""
    installation = Installation()
    installation.open(spec("ward", cutoff=10))
    driver, moment = installation.driver, int(installation.now * 1000)
    ending = "halted" if is_lost else "closed"
    changed = {"lost": is_lost, "ending": ending, "state": ending, "settled": True, "answered": 40, "tops": 2}
    value = driver.grant("feed", "ward").model_copy(update=changed).model_dump_json().encode()
    headers = () if is_lost else [(REPEATED_HEADER, b"")]  # after a rollback, lost grants are written without it
    restored = Record(driver.topics.ledger, 0, 10**6, moment, b"grant|feed|ward", value, headers)
    digest = status(installation, "ward", 40, 2, 55)
    if status_first:
        installation.show(digest)
    installation.tables.add_record(restored)
    if not status_first:
        installation.show(digest)
    row = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now + 9.0)
    assert (row.state, row.answered, row.last_answered) == (ending, 40, None)
    assert all(rate.above == rate.below == 0.0 for rate in row.rates)


def test_digest_of_other_incarnation_is_ignored() -> None:
    installation = Installation()
    installation.open(spec("ward"))
    digest = status(installation, "ward", 40, 2, 55)
    installation.show(digest.model_copy(update={"incarnation": "f" * 32}))
    assert (
        views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now).answered == 0
    )


def test_rates_are_growth_of_totals_over_window() -> None:
    installation = Installation()
    installation.open(spec("ward", cutoff=1000))
    for second in range(120):
        installation.now += 1.0
        installation.show(status(installation, "ward", 10 * (second + 1), second + 1, second))
    row = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now)
    minute, ten_minutes, hour = row.rates
    assert minute.above == pytest.approx(1.0, rel=0.1)
    assert minute.below == pytest.approx(9.0, rel=0.1)
    assert ten_minutes.above == pytest.approx(120 / 600)
    assert hour.above == pytest.approx(120 / 3600)
    installation.now += 3700.0
    quiet = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now)
    assert [(rate.above, rate.below) for rate in quiet.rates] == [(0.0, 0.0)] * 3
    assert quiet.dry_in is None


def test_dry_in_uses_rate_since_recent_opening() -> None:
    """A stream that was opened two minutes ago and is charged each second will be exhausted after a second per answer left."""
    installation = Installation()
    installation.open(spec("ward", cutoff=1000))
    for second in range(1, 901):
        installation.now += 1.0
        installation.show(status(installation, "ward", second, second, second))
        left = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now).dry_in
        if second in {120, 900}:
            assert left == pytest.approx(1000 - second, rel=0.05)


def test_dry_in_counts_charged_answers_by_their_prices() -> None:
    """Each answer of this stream has cost as much as ten ordinary answers."""
    installation = Installation()
    installation.open(spec("ward", cutoff=2000))
    for second in range(1, 121):
        installation.now += 1.0
        shown = status(installation, "ward", second, second, second)
        installation.show(shown.model_copy(update={"surplus": 9 * second * PARTS_PER_CHARGE}))
    left = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now).dry_in
    assert left == pytest.approx((2000 - 1200) / 10, rel=0.05)


def test_dry_in_is_unknown_after_a_burst_or_few_charges() -> None:
    """It takes five charges in ten minutes, over at least a minute; a burst of questions is no rate."""
    for charges, seconds, is_known in ((100, 0.5, False), (4, 60.0, False), (6, 60.0, True)):
        installation = Installation()
        installation.open(spec("ward", cutoff=1000))
        for number in range(1, charges + 1):
            installation.now += seconds
            installation.show(status(installation, "ward", number, number, number))
        installation.now += 200.0
        row = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now)
        assert (row.dry_in is not None) == is_known


def test_timeline_starts_at_opening_and_ends_with_totals() -> None:
    installation = Installation()
    installation.open(spec("ward", cutoff=1000))
    opened = installation.now
    for second in range(500):
        installation.now += 60.0
        installation.show(status(installation, "ward", 2 * second + 1, second, second))
    timeline = views.build_stream_detail(
        installation.tables, installation.tables.streams["ward"], installation.now
    ).timeline
    assert 16 <= len(timeline) <= 64
    assert (timeline[0].time, timeline[0].answered) == (opened, 0)
    assert (timeline[-1].time, timeline[-1].answered, timeline[-1].tops) == (installation.now, 999, 499)


def test_burn_down_has_every_step_of_budget() -> None:
    installation = Installation()
    installation.open()
    for number in range(5):
        installation.now += 100.0
        installation.driver.open(spec(f"s{number}"))
        installation.flow()
    points = build_burn_down(installation.tables, installation.tables.sources["feed"], installation.now).points
    assert [point.left.epsilon for point in points] == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0]
    assert points[-1].granted.epsilon == 5.0


def test_zcdp_source_keeps_rho() -> None:
    installation = Installation()
    source = {**FEED, "accountant": "zcdp", "delta": 1e-6}
    installation.driver.register(source)
    installation.driver.open(spec("ward"))
    installation.flow()
    row = views.source_row(installation.tables, installation.tables.sources["feed"])
    assert row.total.rho is not None
    assert row.left.rho is not None
    assert row.left_share == pytest.approx(max(row.left.rho / row.total.rho, row.left.epsilon / row.total.epsilon))
    points = build_burn_down(installation.tables, installation.tables.sources["feed"], installation.now).points
    assert points[-1].left == row.left


def test_refused_stream_is_shown_until_answered_again() -> None:
    installation = Installation()
    installation.open(spec("ward", cutoff=10))
    for refused in (None, "table: differs", None):
        installation.show(status(installation, "ward", 20, 1, 7).model_copy(update={"refused": refused}))
        row = views.stream_row(installation.tables, installation.tables.streams["ward"], installation.now)
        assert (row.state, row.refused) == ("open", refused)


def test_refused_streams_are_counted_until_answered_or_restored() -> None:
    installation = Installation()
    installation.open(spec("one"), spec("two"), spec("three"))
    digests = {name: status(installation, name, 20, 1, 7) for name in ("one", "two", "three")}

    def refuse(name: str, reason: str | None) -> None:
        installation.show(digests[name].model_copy(update={"refused": reason}))

    def restored(role: Literal["worker", "feed"]) -> None:
        installation.show_restore(
            PartitionStatus(role=role, partition=0, member="next", phase="ready", records=3, total=3, seconds=0.1)
        )

    def counted() -> int:
        assert (
            f"sotto_monitor_streams_not_answering {installation.tables.totals.not_answering}.0"
            in metrics_text(installation.monitor).decode()
        )
        return installation.tables.totals.not_answering

    for name in digests:
        refuse(name, "this worker lacks noise key 0123456789abcdef; give it that key")
    assert counted() == 3
    refuse("one", None)
    installation.driver.halt("feed", "two")
    installation.flow()
    assert counted() == 1
    restored("feed")
    assert counted() == 1
    restored("worker")
    assert counted() == 0
    assert (
        views.stream_row(installation.tables, installation.tables.streams["three"], installation.now).refused
        is None
    )
    refuse("three", "table: differs")
    assert counted() == 1


def test_nearly_dry_streams_are_counted_until_exhausted() -> None:
    installation = Installation()
    installation.open(spec("ward", cutoff=10))
    for tops, expected in ((8, 0), (9, 1), (10, 0)):
        installation.show(status(installation, "ward", 20 + tops, tops, 30 + tops))
        assert installation.tables.totals.nearly_dry == expected
    installation.driver.halt("feed", "ward")
    installation.flow()
    assert installation.tables.totals.nearly_dry == 0


def letter(installation: Installation, offset: int, code: str) -> Record:
    topics = installation.driver.topics
    forged = (("__connect.errors.exception.class.name", b"forged"),)
    original = Record(topics.queries, 1, offset, 0, b"key", b"private", forged)
    key, value, headers = dead_letter(original, Rejection(code, "value: must be a number"))
    return Record(topics.rejected, 1, offset, int(installation.now * 1000), key, value, headers)


def test_refused_events_are_counted_by_reason_without_content() -> None:
    installation = Installation()
    for offset in range(MAX_RECENT_REJECTED + 20):
        installation.tables.add_record(letter(installation, offset, "malformed" if offset % 3 else "too-large"))
    view = list_rejected(installation.tables, RejectedQuery())
    assert view.total == MAX_RECENT_REJECTED + 20
    assert {one.code: one.count for one in view.reasons} == {"malformed": 80, "too-large": 40}
    assert len(view.recent) == MAX_RECENT_REJECTED
    assert (view.recent[0].offset, view.recent[0].partition) == (MAX_RECENT_REJECTED + 19, 1)
    text = view.model_dump_json()
    assert "private" not in text
    assert "forged" not in text


def test_refused_live_events_are_neither_shown_nor_counted() -> None:
    installation = Installation()
    event = b'{"id": "visit-77", "stream": "ann", "at": "2013-03-08T05:15:00Z", "ward": "nowhere"}'
    original = Record("ops.visits", 1, 12_345, 0, b"ann", event, ())
    topic = installation.driver.topics.rejected
    before = metrics_text(installation.monitor), dict(installation.tables.changes)
    for offset in range(3):
        key, value, headers = dead_letter(original, Rejection("unknown category", "ward: not in its domain"))
        installation.tables.add_record(Record(topic, 1, offset, 7_000, key, value, headers))
    view = list_rejected(installation.tables, RejectedQuery())
    assert (view.total, view.reasons, view.recent) == (0, [], [])
    assert (metrics_text(installation.monitor), dict(installation.tables.changes)) == before
    assert installation.tables.position(topic, 1) == 3


def test_refused_questions_are_found_by_stream_and_id() -> None:
    installation = Installation()
    installation.open(spec("ward/7"))
    asked: list[dict[str, Any]] = [
        {"id": "late-1", "stream": "nowhere", "value": 1234.5},
        {"id": "late-2", "stream": "nowhere", "value": 1234.5},
        {"id": "wrong", "stream": "ward/7", "where": "age >= 77"},
    ]
    installation.driver.ask_many(asked)
    installation.driver.send(0, b"no JSON at all")
    installation.flow()
    everything = list_rejected(installation.tables, RejectedQuery())
    assert {(one.stream, one.id) for one in everything.recent} == {
        ("nowhere", "late-1"),
        ("nowhere", "late-2"),
        ("ward/7", "wrong"),
        (None, None),
    }
    assert "1234.5" not in everything.model_dump_json()
    assert "77" not in everything.model_dump_json().replace("ward/7", "")
    assert len({(one.topic, one.partition, one.offset) for one in everything.recent}) == 4

    def ids(**query: Any) -> list[str | None]:
        return [one.id for one in list_rejected(installation.tables, RejectedQuery(**query)).recent]

    assert sorted(map(str, ids(search="NOWH"))) == ["late-1", "late-2"]
    assert ids(search="late-2") == ["late-2"]
    code = next(one.code for one in everything.recent if one.id == "late-1")
    assert sorted(map(str, ids(code=code))) == ["late-1", "late-2"]
    assert list_rejected(installation.tables, RejectedQuery(limit=1)).matching == 4


def test_frequent_reason_does_not_displace_rare_one() -> None:
    installation = Installation()
    installation.tables.add_record(letter(installation, 0, "rare"))
    for offset in range(1, 3 * MAX_RECENT_REJECTED):
        installation.tables.add_record(letter(installation, offset, "frequent"))
    rare = list_rejected(installation.tables, RejectedQuery(code="rare"))
    assert [one.offset for one in rare.recent] == [0]


def test_service_process_is_listed_until_it_leaves() -> None:
    installation = Installation()
    status = MemberStatus(role="worker", member="worker-a-1", version="1.2.3", started=900.0, memory=1 << 28)
    key, topic = b"@member|worker-a-1", installation.driver.topics.status
    installation.tables.add_record(Record(topic, 0, 0, 5000, key, status.model_dump_json().encode()))
    entry = installation.tables.members["worker-a-1"]
    assert (entry.record.version, entry.record.started, entry.record.memory, entry.last_heartbeat_at) == (
        "1.2.3",
        900.0,
        1 << 28,
        5.0,
    )
    assert not installation.tables.restores
    installation.tables.add_record(Record(topic, 0, 1, 6000, key, None))
    assert not installation.tables.members


def test_refusal_reasons_are_limited_in_number() -> None:
    installation = Installation()
    for offset in range(3 * MAX_CODES):
        installation.tables.add_record(letter(installation, offset, f"reason-{offset}"))
    assert len(installation.tables.rejected) == MAX_CODES + 1
    assert installation.tables.rejected["other"] == 2 * MAX_CODES


@pytest.mark.parametrize("value", [b"", b"{", b'{"kind": "grant"}', b"\xff", b'{"stream": 1}'])
def test_unreadable_records_are_counted_and_skipped(value: bytes) -> None:
    installation = installation_with_history()
    before = draw_screen(installation.tables, installation.now)
    topics = installation.driver.topics
    places = [(topics.ledger, b"grant|feed|x"), (topics.ledger, b"source|x"), (topics.status, b"@worker|0")]
    places += [(topic, b"x") for topic in (topics.charges, topics.control, topics.status, topics.rejected)]
    for offset, (topic, key) in enumerate(places):
        installation.tables.add_record(Record(topic, 0, 10_000 + offset, 0, key, value))
    assert installation.tables.unreadable == len(places)
    assert draw_screen(installation.tables, installation.now) == before


async def test_mechanism_of_later_version_is_listed_with_explanation() -> None:
    installation = installation_with_history()
    topic = installation.driver.topics.ledger
    grant = next(one for one in installation.driver.records(topic) if one.key == b"grant|feed|open")
    assert grant.value is not None
    later = grant.value.replace(b'"kind":"above_threshold"', b'"kind":"unheard_of"').replace(
        b'"open"', b'"later"', 1
    )
    installation.tables.add_record(Record(topic, 0, 10_000, 0, b"grant|feed|later", later))
    async with installation.web() as client:
        page = await get(client, "/api/streams", mechanism="unheard_of")
        assert [row["stream"] for row in page["items"]] == ["later"]
        async with client.get("/api/streams/later", headers=bearer(VIEWER)) as response:
            assert response.status == 503
            assert "upgrade" in (await response.json())["message"]


def test_deleted_unknown_key_changes_nothing() -> None:
    installation = installation_with_history()
    before = draw_screen(installation.tables, installation.now)
    for topic in installation.tables.inputs[:4]:
        for key in (b"grant|feed|unknown", b"source|unknown", b"receipt|open", b"open"):
            installation.tables.add_record(Record(topic, 0, 10_000, 0, key, None))
    assert draw_screen(installation.tables, installation.now) == before


def test_restores_are_listed_by_service_and_partition() -> None:
    installation = Installation()
    report = PartitionStatus(
        role="worker", partition=3, member="worker-a-1", phase="restoring", records=10, total=40, seconds=2.5
    )
    value = report.model_dump_json().encode()
    installation.tables.add_record(Record(installation.driver.topics.status, 3, 0, 5000, b"@worker|3", value))
    restore = installation.tables.restores["worker", 3]
    assert (restore.phase, restore.records, restore.total, restore.updated) == ("restoring", 10, 40, 5.0)
    assert not installation.tables.streams


def test_unreadable_batch_is_skipped_in_every_topic() -> None:
    tables = MonitorTables(Topics())
    what = UnreadableValue(bytes(8) + b"{}", OVERSIZED_BATCH, UnreadableBatch(0, 5, "zstd", 12_000, "ab" * 32))
    for topic in tables.inputs:
        tables.add_record(Record(topic, 0, 5, 0, None, what))
        assert tables.position(topic, 0) == 6
    assert (tables.sources, tables.streams, tables.restores) == ({}, {}, {})
    assert not tables.rejected
