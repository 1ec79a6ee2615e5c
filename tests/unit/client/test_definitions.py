"""A client's view of the ledger: it is read once, then only its new records, and questions do not wait for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from schemas import WaitingRequest, ledger_codec
from stream.client import ledger_reader, ledger_view
from stream.client.ledger_reader import FollowedLedger, OpeningReader
from stream.client.ledger_view import LedgerView
from stream.errors import Unknown, Unreachable
from stream.processing.protocol import Record
from stream.sql.select_statements import parse_statement
from stream.sql.statement_questions import MAX_QUESTIONS
from stream.sql.stream_choice import choose_stream
from tests import builders
from tests.unit.client.outside import DOCUMENT, ROWS


class Ledger:
    """A ledger topic as a consumer reads it, and a connection to it."""

    def __init__(self) -> None:
        self.driver = builders.installation(sources=[DOCUMENT], rows={"people": ROWS}, partitions=4)
        self.topics = self.driver.topics
        self.settings = SimpleNamespace(batch_events=100)
        self.read: list[int] = []
        self.refusal: Exception | None = None
        self.slow = asyncio.Event()
        self.slow.set()
        self.more: list[Record] = []
        self.dropped: bytes | None = None
        self._at = 0

    def open(self, stream: str) -> None:
        self.driver.open(builders.stream(stream, "people", "laplace", mechanism={"answers": 2}))

    @property
    def records(self) -> list[Any]:
        records = self.driver.records(self.topics.ledger) + self.more
        return [one._replace(key=b"receipt|kept-place") if one.key == self.dropped else one for one in records]

    def delete(self, key: bytes) -> None:
        self.more.append(Record(self.topics.ledger, 0, len(self.records), 0, key, None))

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    def require_open(self) -> None:
        return

    async def topics_of_broker(self) -> set[str]:
        if self.refusal is not None:
            self.read.append(-1)
            raise self.refusal
        await self.slow.wait()
        return {self.topics.ledger}

    def pause(self, _partition: TopicPartition) -> None:
        return

    def assign(self, _partitions: list[TopicPartition]) -> None:
        return

    async def seek_to_beginning(self, _partition: TopicPartition) -> None:
        self._at = 0
        self.read.append(0)

    def seek(self, _partition: TopicPartition, offset: int) -> None:
        self._at = offset
        self.read.append(offset)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, len(self.records))

    async def beginning_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def position(self, _partition: TopicPartition) -> int:
        return self._at

    async def getmany(self, partition: TopicPartition, **_: Any) -> dict[TopicPartition, list[Any]]:
        found = self.records[self._at :]
        self._at += len(found)
        return {partition: found}


async def _require_visible(consumer: Ledger, topic: str) -> None:
    assert topic in await consumer.topics_of_broker()


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger()
    monkeypatch.setattr(ledger_reader, "create_reader", lambda *_, **__: made)
    monkeypatch.setattr(ledger_reader, "require_visible", _require_visible)
    made.open("first")
    made.open("second")
    return made


def definitions_of(ledger: Ledger) -> FollowedLedger:
    connection: Any = ledger
    return FollowedLedger(connection)


async def test_ledger_view_reads_ledger_once_then_new_records(ledger: Ledger) -> None:
    known = definitions_of(ledger)
    found = await asyncio.gather(*(known.find_source(name) for name in ("first", "second", "first")))
    assert [one is not None and one.source for one in found] == ["people"] * 3
    assert ledger.read == [0]
    before = len(ledger.records)
    ledger.open("third")
    assert await known.find_source("third") is found[0]
    assert ledger.read == [0, before]


async def test_ledger_view_does_not_reread_for_unknown_stream(ledger: Ledger) -> None:
    known = definitions_of(ledger)
    assert [await known.find_source("nobody") for _ in range(5)] == [None] * 5
    assert len(ledger.read) == 1


async def test_ledger_view_without_read_access_finds_nothing_and_asks_once(ledger: Ledger) -> None:
    ledger.refusal = TopicAuthorizationFailedError({"ledger"})
    known = definitions_of(ledger)
    assert [await known.find_source("first") for _ in range(3)] == [None] * 3
    assert len(ledger.read) == 1


async def test_ledger_view_is_read_later_after_failure(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_reader, "_RETRY_ABSENT_SECONDS", 0.0)
    ledger.refusal = OSError("the network is gone")
    known = definitions_of(ledger)
    assert await known.find_source("first") is None
    ledger.refusal = None
    assert await known.find_source("first") is not None


async def test_ledger_view_does_not_delay_questions(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_reader, "MAX_LEDGER_WAIT_SECONDS", 0.01)
    ledger.slow.clear()
    known = definitions_of(ledger)
    assert [await known.find_source("first") for _ in range(3)] == [None] * 3
    ledger.slow.set()
    reading = known._reading
    assert reading is not None
    await reading
    assert await known.find_source("first") is not None
    assert ledger.read == [0]
    await known.stop()


@pytest.fixture
def second_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event; when it is set, the ledger's second page comes, which has the source's record."""
    come = asyncio.Event()

    async def pages(*_: Any) -> AsyncIterator[list[Any]]:
        sources = [record for record in ledger.records if record.key.startswith(b"source|")]
        yield [record for record in ledger.records if record not in sources]
        await come.wait()
        if ledger.refusal is not None:
            raise ledger.refusal
        yield sources

    monkeypatch.setattr(ledger_reader, "read_to_end", pages)
    monkeypatch.setattr(ledger_reader, "_RETRY_ABSENT_SECONDS", 0.0)
    return come


async def test_ledger_view_knows_stream_after_grant_and_source(ledger: Ledger, second_page: asyncio.Event) -> None:
    known = definitions_of(ledger)
    asked = [asyncio.create_task(known.find_source("first"))]
    await asyncio.sleep(0.01)
    asked.append(asyncio.create_task(known.find_source("first")))
    await asyncio.sleep(0.01)
    second_page.set()
    assert [one is not None and one.source for one in await asyncio.gather(*asked)] == ["people"] * 2


async def test_ledger_view_restarts_read_broken_between_grant_and_source(
    ledger: Ledger, second_page: asyncio.Event
) -> None:
    known = definitions_of(ledger)
    broken = asyncio.create_task(known.find_source("first"))
    await asyncio.sleep(0.01)
    ledger.refusal = KafkaConnectionError("gone for a moment")
    second_page.set()
    assert await broken is None
    ledger.refusal = None
    assert await known.find_source("first") is not None


async def test_view_has_records_committed_before_each_call(ledger: Ledger) -> None:
    known = definitions_of(ledger)
    assert [one.spec.stream for one in (await known.read()).grants(None, None, None)] == ["first", "second"]
    ledger.open("third")
    assert (await known.read()).grant("people", "third").state == "open"
    assert ledger.read.count(0) == 1


async def test_view_loses_records_whose_key_is_deleted(ledger: Ledger) -> None:
    """If the budget service deletes a stream's record, the view drops the stream, and the name is unknown."""
    known = definitions_of(ledger)
    await known.read()
    ledger.delete(b"grant|people|second")
    view = await known.read()
    assert [one.spec.stream for one in view.grants("people", None, None)] == ["first"]
    with pytest.raises(Unknown, match=r"^stream 'second' of source 'people' is not known; see 'sotto source show"):
        view.grant("people", "second")
    assert view.source_name_of("second") is None


async def test_view_is_read_again_if_the_topic_was_recreated(ledger: Ledger) -> None:
    known = definitions_of(ledger)
    await known.read()
    ledger.driver = builders.installation(sources=[DOCUMENT], rows={"people": ROWS}, partitions=4)
    assert (await known.read()).grants(None, None, None) == []


async def test_view_is_read_again_after_twelve_hours(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka may have removed a record and its deletion before the view read the deletion."""
    known = definitions_of(ledger)
    await known.read()
    ledger.dropped = b"grant|people|second"
    assert (await known.read()).grant("people", "second")
    monkeypatch.setattr(ledger_reader, "MAX_VIEW_AGE_SECONDS", 0.0)
    assert [one.spec.stream for one in (await known.read()).grants(None, None, None)] == ["first"]


async def test_ledger_view_shares_read_between_concurrent_calls(ledger: Ledger) -> None:
    known = definitions_of(ledger)
    ledger.slow.clear()
    calls = [asyncio.create_task(known.read()) for _ in range(5)]
    await asyncio.sleep(0.01)
    ledger.slow.set()
    assert len({id(view) for view in await asyncio.gather(*calls)}) == 1
    assert len(ledger.read) == 2  # one read that had begun, and one that began after all other calls


async def test_ledger_view_continues_cancelled_read(ledger: Ledger, second_page: asyncio.Event) -> None:
    known = definitions_of(ledger)
    cancelled = asyncio.create_task(known.read())
    await asyncio.sleep(0.01)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    second_page.set()
    assert (await known.read()).source("people").source.source == "people"


async def test_openings_of_retired_streams_leave_their_reader(ledger: Ledger) -> None:
    """The reader drops a stream and a source that leave the ledger, but late answers still have an opening."""
    connection: Any = ledger
    openings = OpeningReader(connection, lambda _, stream: stream != "second")
    assert [one.stream for one in await openings.read()] == ["first"]
    assert openings.sources.keys() == {"people"}
    for key in (b"grant|people|first", b"grant|people|second", b"source|people"):
        ledger.delete(key)
    assert await openings.read() == openings.openings() == []
    assert openings.sources == {}
    late = await openings.find_opening("first")
    assert late is not None
    assert late.source == "people"
    assert await openings.find_opening("second") is None


async def test_latest_records_are_read_without_the_earlier_ones(ledger: Ledger) -> None:
    """Reading from the end stops when its caller stops; a complete reading has each record once."""

    @asynccontextmanager
    async def open_reader(_: str) -> AsyncIterator[Ledger]:
        yield ledger

    ledger.settings.batch_events = 3
    connection: Any = SimpleNamespace(reader=open_reader, settings=ledger.settings)
    batches = ledger_reader.read_latest_first(connection, ledger.topics.ledger)
    offsets = [record.offset for record in ledger.records]
    assert [record.offset for record in await anext(batches)] == offsets[:-4:-1]
    assert ledger.read == [len(offsets) - 3]
    assert [record.offset async for batch in batches for record in batch] == offsets[-4::-1]


class CompactedLedger(Ledger):
    """A ledger of which compaction has kept every thousandth record."""

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 1000 * len(self.records))

    async def getmany(self, partition: TopicPartition, **_: Any) -> dict[TopicPartition, list[Any]]:
        found = [one._replace(offset=1000 * one.offset) for one in self.records]
        found = [one for one in found if one.offset >= self._at]
        self._at = 1000 * len(self.records)
        return {partition: found}


async def test_latest_records_are_read_past_the_gaps_of_compaction() -> None:
    """Each range of offsets with few records doubles the next one."""
    ledger = CompactedLedger()

    @asynccontextmanager
    async def open_reader(_: str) -> AsyncIterator[Ledger]:
        yield ledger

    ledger.settings.batch_events = 2
    connection: Any = SimpleNamespace(reader=open_reader, settings=ledger.settings)
    batches = ledger_reader.read_latest_first(connection, ledger.topics.ledger)
    found = [record.offset // 1000 async for batch in batches for record in batch]
    assert found == [record.offset for record in ledger.records][::-1]
    assert len(ledger.read) < 10 * len(ledger.records)


def test_view_ignores_deleted_receipts() -> None:
    """There is one for each request beyond the latest, and a view has none of them."""
    view, statements = LedgerView(), list[str]()
    view._database.set_trace_callback(statements.append)
    view.add(Record("ledger", 0, at, 0, b"%s|1" % kind, None) for at, kind in enumerate((b"receipt", b"grant")))
    assert sum(one.startswith("DELETE") for one in statements) == 1


async def test_pages_of_streams_meet_and_survive_deletions(ledger: Ledger) -> None:
    """The cursor is a name, so a page begins behind it even if its stream has left the ledger."""
    for name in ("fifth", "fourth", "third"):
        ledger.open(name)
    known = definitions_of(ledger)
    view = await known.read()
    for source in ("people", None):
        assert [one.spec.stream for one in view.grants(source, 2, None)] == ["fifth", "first"]
        assert [one.spec.stream for one in view.grants(source, 2, "first")] == ["fourth", "second"]
        assert [one.spec.stream for one in view.grants(source, 2, "second")] == ["third"]
    ledger.delete(b"grant|people|second")
    assert [one.spec.stream for one in (await known.read()).grants("people", 2, "second")] == ["third"]


def test_statement_needs_its_source_and_open_streams_only(ledger: Ledger) -> None:
    view = LedgerView()
    ledger.driver.close("people", "second")
    view.add(ledger.records)
    sources, grants = view.records_of("people")
    assert ([one.source.source for one in sources], [one.spec.stream for one in grants]) == (["people"], ["first"])
    sources, grants = view.records_of("second")
    assert ([one.source.source for one in sources], [one.spec.stream for one in grants]) == (
        ["people"],
        ["second"],
    )


def test_statement_reads_one_of_the_streams_that_cost_the_same() -> None:
    """The first of several equal streams is read, and chosen as if all were read."""
    assert ledger_view.MANY_ANSWERS >= MAX_QUESTIONS
    made = builders.installation(sources=[DOCUMENT], rows={"people": ROWS}, partitions=4)

    def open_streams(*names: str, answers: int) -> None:
        for name in names:
            made.open(builders.stream(name, "people", "laplace", epsilon=5.0, mechanism={"answers": answers}))

    open_streams("few-begun", "few-c", "few-b", "few-ended", answers=2)
    open_streams("many-c", "many-b", "many-more", "many-a", "many-d", answers=400)
    for name in ("few-begun", "few-ended", "few-ended", "many-a", "many-d", "many-d"):
        made.ask(name, where="age >= 30")
    made.extend("people", "many-more", 1.0)
    view = LedgerView()
    view.add(made.records(made.topics.ledger))
    sources, grants = view.records_of("people")
    groups = ["few-b", "few-begun", "many-a", "many-b", "many-more"]
    assert sorted(one.spec.stream for one in grants) == groups
    for statement in (
        "SELECT COUNT(*) FROM people",
        "SELECT sex, SUM(age) AS n, COUNT(*) AS m FROM people GROUP BY sex",
    ):
        read = parse_statement(statement)
        chosen = choose_stream(read, sources, view.grants("people", None, None)).target.grant
        assert choose_stream(read, sources, grants).target.grant == chosen


def test_source_whose_registration_waits_is_named_as_waiting(ledger: Ledger) -> None:
    """The advice to register it would send a second request. The decision deletes the record."""
    request = {"kind": "register", "request": "later", "source": {**DOCUMENT, "source": "later"}}
    waiting = WaitingRequest(number=0, value=json.dumps(request))
    kept = ledger.records[0]._replace(key=b"waiting|0|later", value=ledger_codec.encode(waiting))
    view = LedgerView()
    view.add([*ledger.records, kept])
    with pytest.raises(
        Unknown, match="'later' is not registered yet: its registration waits until its table is read"
    ):
        view.source("later")
    view.add([kept._replace(value=None)])
    for name in ("later", "elsewhere"):
        with pytest.raises(Unknown, match="is not registered; register it with 'sotto source add'"):
            view.source(name)


def test_view_reports_full_disk_and_keeps_its_records(ledger: Ledger) -> None:
    view = LedgerView()
    view.add(ledger.records)
    grant = next(record for record in ledger.records if record.key.startswith(b"grant|"))
    more = [grant._replace(key=b"grant|people|%d" % number) for number in range(500)]
    pages = view._database.execute("PRAGMA page_count").fetchone()[0]
    view._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unreachable, match=r"database or disk is full\); set SQLITE_TMPDIR to a writable folder"):
        view.add(more)
    assert len(view.grants(None, None, None)) == 2
    view._database.execute("PRAGMA max_page_count = 100000")
    view.add(more)
    assert len(view.grants("people", 300, None)) == 300
