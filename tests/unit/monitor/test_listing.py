"""Lists of 10,000 streams work: the monitor searches, filters, sorts and pages them."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import pytest

from schemas import Amount, GrantRecord
from stream.monitor.api.models import StreamRow
from stream.monitor.api.source_views import (
    SourceQuery,
    SourceSort,
    StreamQuery,
    StreamSort,
    list_sources,
    list_streams,
)
from stream.monitor.monitor_tables import MonitorTables
from stream.processing.protocol import Record
from tests.unit.monitor.installation import FEED, HIGH, LOW, Installation, get, spec

MANY = 10_000


def small() -> Installation:
    installation = Installation()
    installation.driver.register({**FEED, "source": "Other", "epsilon": 4.0})
    installation.open(spec("ward-b", cutoff=5), spec("Ward-a", cutoff=1), spec("icu", cutoff=9))
    installation.driver.open(spec("away", source="Other"))
    installation.ask("ward-b", LOW, LOW, HIGH)
    installation.now += 30.0
    installation.ask("Ward-a", HIGH)
    installation.flow()
    return installation


def test_retired_stream_is_removed_and_its_answers_stay_counted() -> None:
    installation = small()
    tables, topic = installation.tables, installation.driver.topics.ledger
    answered = tables.totals.answered
    tables.add_record(Record(topic, 0, 10_000, 0, b"grant|feed|ward-b", None))
    assert [one.stream for one in list_streams(tables, StreamQuery(), 0.0).items] == ["Ward-a", "away", "icu"]
    assert (tables.shown_streams, tables.totals.answered) == (3, answered)
    tables.add_record(Record(topic, 0, 10_001, 0, b"grant|feed|ward-b", None))
    assert tables.shown_streams == 3


def test_deleted_definition_removes_a_stream_without_a_grant() -> None:
    """A monitor that starts after the retirement reads control and charges, but no grant."""
    installation = Installation()
    installation.open(spec("ward"))
    tables, topic = MonitorTables(installation.driver.topics), installation.driver.topics.control
    [opened] = installation.driver.records(topic)
    for offset, (key, value) in enumerate(
        [(b"ward", opened.value), (b"@retired|00", b'{"kind":"retired"}'), (b"ward", None), (b"ward", None)]
    ):
        tables.add_record(Record(topic, 0, offset, 0, key, value))
    tables._streams_lacking_input[0].add("ward")
    tables._clear_missing_inputs(0)  # a worker restarts
    assert (tables.streams, tables.unreadable) == ({}, 0)


@cache
def large() -> Installation:
    """Return an installation with many streams, made from one grant's record."""
    installation = Installation()
    installation.open(spec("model"))
    topic = installation.driver.topics.ledger
    record = next(one for one in installation.driver.records(topic) if (one.key or b"").startswith(b"grant|"))
    model = GrantRecord.model_validate_json(record.value or b"")
    for number in range(MANY):
        own = model.spec.model_copy(update={"stream": f"stream-{number:05}"})
        grant = model.model_copy(
            update={"spec": own, "answered": number, "tops": number % 3, "spent": Amount(epsilon=0.1, delta=0.0)}
        )
        key, value = f"grant|feed|{own.stream}".encode(), grant.model_dump_json().encode()
        installation.tables.add_record(Record(topic, 0, 1000 + number, int(installation.now * 1000), key, value))
    return installation


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["Ward-a", "away", "icu", "ward-b"]),
        ({"search": "WARD"}, ["Ward-a", "ward-b"]),
        ({"search": "other"}, ["away"]),
        ({"search": "ß"}, []),
        ({"state": "exhausted"}, ["Ward-a"]),
        ({"state": "open,exhausted", "source": "feed"}, ["Ward-a", "icu", "ward-b"]),
        ({"source": "Other"}, ["away"]),
        ({"mechanism": "above_threshold", "limit": "2", "offset": "1"}, ["away", "icu"]),
        ({"mechanism": "other"}, []),
        ({"sort": "answered", "descending": "true", "limit": "2"}, ["ward-b", "Ward-a"]),
        ({"sort": "tops_left"}, ["Ward-a", "away", "ward-b", "icu"]),
        ({"offset": "99"}, []),
    ],
)
async def test_streams_are_searched_filtered_sorted_and_paged(query: dict[str, str], expected: list[str]) -> None:
    async with small().web() as client:
        page = await get(client, "/api/streams", **query)
    assert [row["stream"] for row in page["items"]] == expected
    assert page["total"] == 4
    assert page["matching"] >= len(expected)


def missing_last(rows: list[StreamRow], field: str) -> bool:
    values: list[Any] = [getattr(row, field) for row in rows]
    known = [value for value in values if value is not None]
    return values == known + [None] * (len(values) - len(known))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", get_args(StreamSort))
def test_list_streams_has_every_stream_in_every_order(sort: StreamSort, descending: bool) -> None:
    installation = small()
    query = StreamQuery(sort=sort, descending=descending)
    rows = list_streams(installation.tables, query, installation.now).items
    assert sorted(row.stream for row in rows) == ["Ward-a", "away", "icu", "ward-b"]
    if sort in StreamRow.model_fields:
        values = [value for value in (getattr(row, sort) for row in rows) if value is not None]
        assert missing_last(rows, sort)
        if sort != "state":
            assert values == sorted(values, reverse=descending)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("sort", get_args(SourceSort))
def test_list_sources_has_every_source_in_every_order(sort: SourceSort, descending: bool) -> None:
    rows = list_sources(small().tables, SourceQuery(sort=sort, descending=descending)).items
    assert sorted(row.source for row in rows) == ["Other", "feed"]


async def test_sources_are_searched_and_filtered() -> None:
    installation = small()
    installation.driver.halt("Other")
    installation.flow()
    async with installation.web() as client:
        halted = await get(client, "/api/sources", state="halted")
        found = await get(client, "/api/sources", search="FEE")
    assert [row["source"] for row in halted["items"]] == ["Other"]
    assert [row["source"] for row in found["items"]] == ["feed"]
    assert (found["total"], found["matching"]) == (2, 1)


def test_pages_of_streams_make_up_whole_list() -> None:
    installation = large()
    found: list[str] = []
    for offset in range(0, MANY + 1, 500):
        query = StreamQuery(sort="tops", descending=True, offset=offset, limit=500, search="stream-")
        page = list_streams(installation.tables, query, installation.now)
        assert (page.total, page.matching) == (MANY + 1, MANY)
        found += [row.stream for row in page.items]
    assert len(found) == len(set(found)) == MANY


def test_totals_of_many_streams_are_their_sums() -> None:
    totals = large().tables.totals
    assert totals.answered == sum(range(MANY))
    assert totals.tops == sum(number % 3 for number in range(MANY))
    dry = sum(number % 3 == 2 for number in range(MANY))
    assert (totals.states["open"], totals.states["exhausted"]) == (MANY + 1 - dry, dry)
