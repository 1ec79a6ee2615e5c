"""The monitor's API lists each source and stream with periods in one line with its latest period, and all periods on request."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.periods import TOPICS, Year, shown
from schemas import STREAM_STATES, EventsSource, StreamState
from schemas.windows import moment_ms
from stream.monitor.api import views
from stream.monitor.api.monitor_state import metrics_text
from stream.monitor.api.source_views import SourceQuery, StreamQuery, list_sources, list_streams
from stream.monitor.monitor_tables import MonitorTables
from stream.processing.protocol import Record
from tests.unit.monitor.installation import get
from tests.unit.monitor.periods import installation
from tests.unit.periods import DAYS, calls


async def test_source_line_has_figures_of_latest_period() -> None:
    async with installation().web() as client:
        page = await get(client, "/api/sources")
        overview = await get(client, "/api/overview")
    assert [row["source"] for row in page["items"]] == ["feed", "flights"]
    assert page["total"] == page["matching"] == overview["sources"] == 2
    line = page["items"][1]
    assert line["period"] == "1d"
    assert line["periods"] == {"count": 4, "latest": f"flights@{DAYS[3]}"}
    assert (line["spent"]["epsilon"], line["current"]["spent"]["epsilon"]) == (0.0, pytest.approx(0.63))
    assert (line["current"]["period_of"], line["current"]["starts"]) == ("flights", DAYS[3])
    assert page["items"][0]["current"] is None
    assert line["meaning"].startswith("privacy is by period: ε = 10 for a person's events in one period of 1d; ")


async def test_source_line_counts_models_by_their_latest_period() -> None:
    """A model itself is never exhausted, so its source would seem to have an open stream."""
    found = installation()
    entry = found.tables.streams[f"late@{DAYS[3]}"]
    found.tables._count_stream(entry, -1)
    entry.state = "exhausted"
    found.tables._count_stream(entry, 1)
    async with found.web() as client:
        line = (await get(client, "/api/sources"))["items"][1]
        overview = await get(client, "/api/overview")
    states = {"open": 0, "exhausted": 1, "halted": 0, "closed": 0}
    assert line["streams"] == line["current"]["streams"] == overview["streams"] == states


async def test_stream_line_has_figures_of_latest_period() -> None:
    async with installation().web() as client:
        page = await get(client, "/api/streams")
        overview = await get(client, "/api/overview")
        detail = await get(client, "/api/streams/late")
    [line] = page["items"]
    assert page["total"] == page["matching"] == overview["streams"]["open"] == 1
    assert overview["streams"]["closed"] == 0
    assert line["periods"] == {"count": 4, "latest": f"late@{DAYS[3]}"}
    assert (line["answered"], line["current"]["answered"], line["current"]["state"]) == (0, 21, "open")
    assert (line["current"]["period_of"], line["current"]["starts"]) == ("late", DAYS[3])
    assert detail["row"]["current"]["stream"] == f"late@{DAYS[3]}"
    assert (detail["row"]["refused"], detail["row"]["current"]["refused"]) == (None, None)
    assert overview["answered"] == 4 * 21


async def test_periods_are_listed_in_pages() -> None:
    async with installation().web() as client:
        for path, of, name in (("sources", "flights", "source"), ("streams", "late", "stream")):
            latest = await get(client, f"/api/{path}", of=of, descending="true", limit="3")
            assert [row[name] for row in latest["items"]] == [f"{of}@{day}" for day in DAYS[3:0:-1]]
            assert (latest["total"], latest["matching"]) == (4, 4)
            rest = await get(client, f"/api/{path}", of=of, descending="true", limit="3", offset="3")
            assert [row[name] for row in rest["items"]] == [f"{of}@{DAYS[0]}"]
            oldest = await get(client, f"/api/{path}", of=of, limit="2", offset="1")
            assert [row[name] for row in oldest["items"]] == [f"{of}@{day}" for day in DAYS[1:3]]
            one = await get(client, f"/api/{path}", of=of, search="01-02")
            assert [row[name] for row in one["items"]] == [f"{of}@{DAYS[1]}"]
            assert (await get(client, f"/api/{path}", of="nobody"))["items"] == []
        closed = await get(client, "/api/streams", of="late", state="closed")
        assert [row["stream"] for row in closed["items"]] == [f"late@{day}" for day in DAYS[:3]]
        halted = await get(client, "/api/sources", of="flights", state="halted", sort="left")
        assert halted["matching"] == 0
        on_one = await get(client, "/api/streams", source=f"flights@{DAYS[0]}")
        assert [row["stream"] for row in on_one["items"]] == [f"late@{DAYS[0]}"]
        on_all = await get(client, "/api/streams", source="flights")
        assert [row["stream"] for row in on_all["items"]] == ["late"]


async def test_period_has_own_detail_page() -> None:
    found = installation()
    async with found.web() as client:
        detail = await get(client, f"/api/sources/flights@{DAYS[1]}")
        budget = await get(client, f"/api/budgets/flights@{DAYS[1]}")
        stream = await get(client, f"/api/streams/late@{DAYS[1]}")
    assert detail["declaration"]["source"]["source"] == "flights"
    assert budget["source"]["spent"]["epsilon"] == pytest.approx(0.63)
    assert stream["row"]["state"] == "closed"
    tables = found.tables
    for name in ("flights", f"flights@{DAYS[1]}"):
        source = views.decode_definition(tables, tables.sources[name])
        kept = {one.key: one.value for one in found.driver.records(found.driver.topics.ledger)}
        assert isinstance(source, EventsSource)
        assert source.model_dump_json().encode() in (kept[f"source|{name}".encode()] or b"")


async def test_spending_and_metrics_name_latest_period_only() -> None:
    found = installation()
    async with found.web() as client:
        spending = await get(client, "/api/spending")
        assert (await get(client, "/api/spending", source="flights"))["costliest"] == spending["costliest"]
        before = await get(client, "/api/spending", source=f"flights@{DAYS[0]}")
    assert [one["stream"] for one in spending["costliest"]] == [f"late@{DAYS[3]}"]
    assert spending["analysts"][0]["sources"][0]["share"]["spent"]["epsilon"] == pytest.approx(0.63)
    assert [one["stream"] for one in before["costliest"]] == [f"late@{DAYS[0]}"]
    text = metrics_text(found.monitor).decode()
    assert 'source_left_ratio{source="flights"}' in text
    latest = found.driver.budget(f"flights@{DAYS[3]}")
    assert f'source_epsilon{{part="spent",source="flights"}} {latest.spent.epsilon}' in text
    assert "flights@" not in text
    assert 'sotto_monitor_streams{state="closed"} 0.0' in text
    assert "sotto_monitor_streams_not_answering 0.0" in text


async def test_alert_continues_across_periods_under_registered_source() -> None:
    found = installation()
    starts = [moment_ms(day) // 1000 for day in DAYS[:3]]
    hour = 3600

    async def firing() -> list[tuple[str, str, int]]:
        async with found.web() as client:
            view = await get(client, "/api/alerts", source="flights")
            assert [one["source"] for one in view["sources"]] == ["flights"]
        return [(one["latest"]["stream"], one["latest"]["source"], one["alerts"]) for one in view["firing"]]

    found.answer_window(f"late@{DAYS[0]}", starts[1] - hour, {"EWR": "above", "JFK": "above"})
    assert await firing() == [(f"late@{DAYS[0]}", "flights", 1)] * 2
    found.answer_window(f"late@{DAYS[1]}", starts[1], {"EWR": "above", "JFK": "below"})
    assert await firing() == [(f"late@{DAYS[1]}", "flights", 2)]
    found.answer_window(f"late@{DAYS[2]}", starts[2], {"EWR": "below"})
    assert await firing() == []


async def test_alert_of_an_exhausted_period_is_exhausted() -> None:
    """Until the next period answers, no window resolves the alert; then the model's state holds."""
    found = installation()
    period = f"late@{DAYS[3]}"
    found.answer_window(period, moment_ms(DAYS[3]) // 1000, {"EWR": "above"})
    expected: list[tuple[StreamState, int]] = [("open", 1), ("exhausted", 0)]
    for state, firing in expected:
        found.tables.streams[period].state = state
        async with found.web() as client:
            view = await get(client, "/api/alerts")
        assert (view["firing"][0]["state"], view["firing_total"]) == (state, firing)


past = cache(installation)
"""The same installation, made once for tests that do not change it."""


MODEL_GRANT = b"grant|flights|late"


@given(st.integers(0, 2**32), st.integers(0, 5), st.booleans())
def test_states_are_those_of_listed_streams(seed: int, retired: int, compacted: bool) -> None:
    """A model has the state of its latest period, in any order of partitions and retirements.

    If the model retired before the monitor started, the ledger may have only its periods' grants.
    """
    generator = random.Random(seed)
    records = [one for one in past().records() if not compacted or one.key != MODEL_GRANT]
    order = [(record.topic, record.partition) for record in records]
    generator.shuffle(order)
    queues = {place: [one for one in records if (one.topic, one.partition) == place] for place in set(order)}
    tables = MonitorTables(past().driver.topics)
    for place in order:
        tables.add_record(queues[place].pop(0))
    keys = [MODEL_GRANT, *(f"grant|flights@{day}|late@{day}".encode() for day in DAYS[:4])]
    for offset, key in enumerate(generator.sample(keys, retired), start=10**6):
        tables.add_record(Record(past().driver.topics.ledger, 0, offset, 0, key, None))
    left = sum(entry.grant is not None for entry in tables.streams.values())
    assert tables.totals.states.total() == min(left, 1)
    assert tables.totals.listed_of["flights"] == tables.totals.states  # the counter equals also with zeros
    for state in STREAM_STATES:
        page = list_streams(tables, StreamQuery(state=(state,)), 0.0)
        assert (page.total, page.matching) == (min(left, 1), tables.totals.states[state])
    if not retired:
        assert tables.totals.states["open"] == 1


def test_latest_period_is_listed_without_its_model() -> None:
    found = installation()
    tables = MonitorTables(found.driver.topics)
    for record in found.records():
        if record.key not in {b"source|flights", b"grant|flights|late", b"late"}:
            tables.add_record(record)
    assert [row.source for row in list_sources(tables, SourceQuery()).items] == ["feed", f"flights@{DAYS[3]}"]
    assert [row.stream for row in list_streams(tables, StreamQuery(), 0.0).items] == [f"late@{DAYS[3]}"]


@pytest.fixture(scope="module")
def years() -> list[MonitorTables]:
    found = []
    for periods in (5, 60):
        year = Year(streams=2, categories=3)
        year.pass_by(periods)
        found.append(shown(year))
    return found


LISTS: list[Any] = [
    lambda tables: list_sources(tables, SourceQuery()),
    lambda tables: list_sources(tables, SourceQuery(sort="left_share", state="open")),
    lambda tables: list_streams(tables, StreamQuery(), 0.0),
    lambda tables: list_streams(tables, StreamQuery(sort="dry_in", state=("open",)), 0.0),
    lambda tables: list(tables.streams_of()),
]


@pytest.mark.parametrize("work", LISTS)
def test_lists_do_not_grow_with_ended_periods(years: list[MonitorTables], work: Any) -> None:
    few, many = years
    assert calls(lambda: work(few)) == calls(lambda: work(many))


def test_record_takes_time_independent_of_earlier_records() -> None:
    """The time for a record does not depend on earlier ones, so a restart takes time proportional to the records."""

    def calls_per_period(periods: int) -> int:
        year = Year(streams=1, categories=3)
        year.pass_by(periods)
        return calls(lambda: shown(year)) // periods

    assert calls_per_period(120) < 1.5 * calls_per_period(30)


def test_period_keeps_no_copy_of_definition(years: list[MonitorTables]) -> None:
    many = years[1]
    kept = sum(len(entry.raw) for entry in many.sources.values())
    assert kept == len(many.sources["live"].raw) > 0
    assert TOPICS.ledger in many.inputs
