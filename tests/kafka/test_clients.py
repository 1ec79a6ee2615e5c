"""Both clients have the same calls, results with labels, and errors of one class in a real installation."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic

from sotto import (
    AsyncClient,
    Client,
    DeadLetter,
    Driver,
    Halted,
    Invalid,
    Refused,
    Rejected,
    Result,
    Settings,
    Timeout,
    Unknown,
    Unreachable,
)
from stream.client import answer_reader
from stream.client.answer_history import AnswerLog
from stream.engine.restore import create_reader
from stream.kafka.client.broker_connections import admin_client, connection_options
from stream.kafka.client.client_patches import BrokerClient
from stream.processing.topic_names import partition_of
from stream.tables.demo_tables import adult_source
from tests.builders import source, stream
from tests.chaos.checker import committed
from tests.conftest import StartService
from tests.patience import SECONDS

pytestmark = pytest.mark.kafka

FEED = source(epsilon=5.0)
WARD = stream("ward", mechanism={"cutoff": 100})

COUNTS: dict[str, Any] = {
    "stream": "counts",
    "source": "adult",
    "epsilon": 1.0,
    "mechanism": {"kind": "laplace", "answers": 4, "dimensions": 2},
}


def make_all_calls(settings: Settings) -> None:
    """Use all calls of the client in a program without asyncio."""
    with Client(settings) as client:
        client.register(FEED)
        client.register(adult_source(epsilon=4.0).model_copy(update={"source": "adult"}))
        client.open(WARD)
        client.open(COUNTS)
        assert client.ask("ward", value=1e9).outcome == "above"
        results = client.ask_many([{"stream": "ward", "value": -1e9}] * 50)
        assert {one.outcome for one in results} == {"below"}
        counts = client.ask("counts", group_by=["sex"])
        assert [group["sex"] for group in counts.groups or ()] == ["F", "M"]
        assert counts.to_polars()["estimate"].sum() == pytest.approx(48_842, abs=1000)
        with pytest.raises(Rejected):
            client.ask("nobody", value=1.0)
        with pytest.raises(Refused, match="cannot pay"):
            client.open({**WARD, "stream": "dear", "epsilon": 100.0})
        with pytest.raises(Invalid, match="give exactly one question"):
            client.ask("ward")
        assert sorted(one.source.source for one in client.list_sources()) == ["adult", "feed"]
        assert [one.spec.stream for one in client.list_streams("feed")] == ["ward"]
        assert client.budget("feed").granted.epsilon == 1.0
        client.publish("ward", value=-1e9, id="published")
        client.flush()
        each = client.answers(from_beginning=True)
        assert next(one for one in each if one.id == "published").outcome == "below"
        each.close()
        client.halt("feed", "ward", reason="enough")
        while client.ask("ward", value=-1e9, outcomes=True).outcome != "halted":
            continue  # the worker may not know the stream yet
        with pytest.raises(Halted, match="enough"):
            client.ask("ward", value=-1e9)


async def test_ledger_view_sees_each_confirmed_opening(
    client: AsyncClient, settings: Settings, start: StartService
) -> None:
    """A client that has read the ledger sees the streams that another client opens later, and pages of all streams."""
    start("budget")
    await client.register(FEED)
    assert await client.list_streams("feed") == []
    names = [f"ward-{number}" for number in range(5)]
    async with AsyncClient(settings) as other:
        for number, name in enumerate(names):
            await other.open({**WARD, "stream": name})
            grant, record = await asyncio.gather(client.grant("feed", name), client.budget("feed"))
            assert (grant.state, record.streams) == ("open", number + 1)
    first = await client.list_streams(limit=3)
    second = await client.list_streams(limit=3, after=first[-1].spec.stream)
    assert [one.spec.stream for one in first + second] == names


async def test_client_makes_all_calls_without_asyncio(settings: Settings, start: StartService) -> None:
    start("budget")
    start("worker")
    await asyncio.to_thread(make_all_calls, settings)


async def test_ask_many_iterates_as_answers_come(client: AsyncClient, start: StartService) -> None:
    start("budget")
    await client.register(FEED)
    await client.open(WARD)
    with pytest.raises(
        Timeout, match=r"no answer to 'early' from stream 'ward' within 0\.5 s: it may still come"
    ) as late:
        await client.ask("ward", value=1.0, id="early", timeout=0.5)
    assert [query.id for query in late.value.unanswered] == ["early"]
    start("worker")

    async def questions() -> AsyncIterator[dict[str, Any]]:
        for number in range(3000):
            yield {"id": str(number), "stream": "ward", "value": -1e9}

    seen = [result.id async for result in client.ask_many(questions())]
    assert seen == [str(number) for number in range(3000)]


def followed_partitions(client: AsyncClient) -> set[int]:
    return {one.partition for one in client._listener._followed}


async def test_client_reads_only_the_partitions_of_its_own_streams(
    client: AsyncClient, start: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads a partition from its first question on, and stops some time after the answer to its last question."""
    start("budget")
    start("worker")
    await client.register(FEED)
    monkeypatch.setattr("stream.client.answer_reader.IDLE_PARTITION_SECONDS", 300.0)
    partitions = client.topics.partitions
    names = {partition_of(name.encode(), partitions): name for name in map("ward-{}".format, range(50))}
    for name in names.values():
        await client.open({**WARD, "stream": name, "epsilon": 0.5})
    for count, name in enumerate(names.values(), start=1):
        assert (await client.ask(name, value=-1e9)).outcome == "below"
        assert followed_partitions(client) == set(list(names)[:count])
    monkeypatch.setattr("stream.client.answer_reader.IDLE_PARTITION_SECONDS", 0.5)
    stop = asyncio.Event()

    async def keep_asking() -> None:
        while not stop.is_set():
            await client.ask(names[0], value=-1e9)

    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_asking())
        while followed_partitions(client) != {0}:
            await asyncio.sleep(0.1)
        stop.set()
    assert (await client.ask(names[1], value=-1e9)).outcome == "below"
    assert 1 in followed_partitions(client)


async def test_client_without_pending_question_stops_reading_others(
    client: AsyncClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a question of the client waits, answers to other clients do not end its reading of the partition."""
    monkeypatch.setattr("stream.client.answer_reader.IDLE_PARTITION_SECONDS", 300.0)
    number = partition_of(b"ward", client.topics.partitions)
    waiting = asyncio.create_task(client.ask("ward", value=1.0, id="awaited"))

    async def publish_others(producer: AIOKafkaProducer) -> None:
        batch = producer.create_batch()
        for _ in range(answer_reader.IDLE_PARTITION_RECORDS + 1):
            batch.append(timestamp=None, key=b"other", value=b'{"id":"1","stream":"other"}')
        await (await producer.send_batch(batch, client.topics.answers, partition=number))

    async with AIOKafkaProducer(**connection_options(settings)) as producer, asyncio.timeout(SECONDS):
        while followed_partitions(client) != {number}:
            await asyncio.sleep(0.05)
        await publish_others(producer)
        own = b'{"id":"awaited","stream":"ward","outcome":"below"}'
        await producer.send_and_wait(client.topics.answers, key=b"ward", value=own, partition=number)
        assert (await waiting).outcome == "below"
        while followed_partitions(client):
            await publish_others(producer)
            await asyncio.sleep(0.05)


async def test_client_passes_batches_of_other_answers_unread(
    client: AsyncClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []

    def note(records: Iterable[Any]) -> Iterable[Any]:
        read.extend(records)
        return records

    monkeypatch.setattr(answer_reader, "select_readable", note)
    waiting = asyncio.create_task(client.ask("ward", value=1.0, id="awaited"))
    topic, number = client.topics.answers, partition_of(b"ward", client.topics.partitions)
    async with AIOKafkaProducer(**connection_options(settings)) as producer, asyncio.timeout(SECONDS):
        while followed_partitions(client) != {number}:
            await asyncio.sleep(0.05)

        async def write(identifier: str, stream: str) -> None:
            answer = json.dumps({"id": identifier, "stream": stream, "outcome": "below"}).encode()
            await producer.send_and_wait(topic, answer, stream.encode(), partition=number)

        for other in range(50):
            await write(f"other-{other}", "ward" if other % 2 else "elsewhere")
        consumer: Any = client._listener._consumer
        while await consumer.position(TopicPartition(topic, number)) < 50:
            await asyncio.sleep(0.05)
        assert read == []
        await write("awaited", "ward")
        assert (await waiting).outcome == "below"
        assert [record.offset for record in read] == [50]


async def test_answer_log_pages_back_over_batches_and_transactions(
    client: AsyncClient, settings: Settings
) -> None:
    """Pages begin in the middle of batches; offsets without records and aborted answers are passed."""
    topic, number = client.topics.answers, partition_of(b"ward", client.topics.partitions)
    expected: list[str] = []
    async with AIOKafkaProducer(**connection_options(settings), transactional_id="pages") as producer:
        for transaction in range(30):
            aborted = transaction % 5 == 4
            await producer.begin_transaction()
            for place in range(40):
                stream, identifier = ("ward" if place % 3 else "elsewhere"), f"{transaction}-{place}"
                value = json.dumps({"id": identifier, "stream": stream, "outcome": "below"}).encode()
                await producer.send(topic, value, stream.encode(), partition=number)
                expected += [identifier] if stream == "ward" and not aborted else []
            await (producer.abort_transaction() if aborted else producer.commit_transaction())
    log = AnswerLog(settings, client.topics)
    assert [one.id for one in await log.read_all("ward")] == expected
    found: list[str] = []
    before, until = None, time.time() + 3600.0
    while True:
        page = await log.read_page("ward", 70, before=before, since=0.0, until=until)
        found += [one.result.id for one in page.answers]
        if (before := page.before) is None:
            break
        assert len(page.answers) == 70
    assert found == expected[::-1]


async def test_client_error_without_broker_names_setting() -> None:
    with pytest.raises(Unreachable, match="SOTTO_BOOTSTRAP"):
        await AsyncClient(bootstrap="127.0.0.1:1").connect()
    with pytest.raises(Invalid, match="partitions"):
        Client(partitions=-1)


VISITS: dict[str, Any] = {
    "source": "visits",
    "kind": "events",
    "neighbors": "add-remove",
    "epsilon": 100.0,
    "person": "who",
    "time": "at",
    "attributes": {"ward": ["a", "b"]},
    "ahead": "2h",
}
CROWDED: dict[str, Any] = {
    "stream": "crowded",
    "source": "visits",
    "epsilon": 50.0,
    "expected_queries": 4,
    "mechanism": {"kind": "above_threshold", "threshold": 50.0, "cutoff": 4},
    "standing": {"by": ["ward"], "window": {"size": "1h"}, "begins": "2026-01-01T00:00:00Z"},
}
TOLD = [
    {"who": f"p{number}", "at": f"2026-01-01T0{hour}:30:00Z", "ward": "ab"[hour]}
    for hour in (0, 1)
    for number in range(100)
]
PARTITIONS = 3


async def topic_for(settings: Settings, name: str) -> str:
    topic = f"{settings.prefix}-{name}"
    async with admin_client(settings) as admin:
        stamps = {"message.timestamp.type": "LogAppendTime"}
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1, topic_configs=stamps)])
    return topic


def outcomes(results: Iterable[Result]) -> list[tuple[str, dict[str, Any] | None, str]]:
    return [(one.id, one.group, one.outcome) for one in results]


def publish_two_hours(settings: Settings, topic: str, silent: str) -> list[Result]:
    """Publish two hours of events, and return the answers."""
    with Client(settings) as client:
        client.register({**VISITS, "topic": topic, "clock": "marks"})
        client.register({**VISITS, "source": "stamped", "topic": silent})
        client.open(CROWDED)
        client.advance("visits", "2026-01-01T00:00:00Z")
        client.publish("visits", TOLD[:100])
        client.publish("visits", [b"no event", json.dumps(TOLD[0] | {"ward": "c"}).encode()])
        client.advance("visits", datetime(2026, 1, 1, 1, tzinfo=UTC))
        client.publish("visits", iter(TOLD[100:]))
        client.advance("visits", 1767232800)
        client.publish("stamped", TOLD)
        client.flush()
        with pytest.raises(Invalid, match="source 'stamped' has the broker's clock"):
            client.advance("stamped", "2026-01-01T00:00:00Z")
        with pytest.raises(Invalid, match="headers: belongs to a question"):
            client.publish("visits", TOLD, headers=(("traceparent", b"00"),))
        with pytest.raises(Unknown, match="source 'nobody'"):
            client.publish("nobody", TOLD)
        each = client.answers(from_beginning=True)
        try:
            return list(islice(each, 4))
        finally:
            each.close()


async def test_client_publishes_events_and_marks_like_driver(settings: Settings, start: StartService) -> None:
    for role in ("budget", "worker", "feed"):
        start(role)
    topic, stamped = await topic_for(settings, "visits"), await topic_for(settings, "stamped")
    answers = await asyncio.wait_for(asyncio.to_thread(publish_two_hours, settings, topic, stamped), 240)
    driver = Driver(bytes(32))
    driver.register({**VISITS, "topic": "visits", "clock": "marks"})
    driver.open(CROWDED)
    driver.advance("visits", "2026-01-01T00:00:00Z")
    driver.publish("visits", TOLD)
    expected = outcomes(driver.advance("visits", "2026-01-01T02:00:00Z"))
    assert sorted(outcomes(answers), key=str) == sorted(expected, key=str)
    assert [one[2] for one in sorted(expected, key=str)] == ["above", "below", "below", "above"]
    written = [await committed(settings, stamped, number) for number in range(PARTITIONS)]
    assert all(records for records in written)
    for number, records in enumerate(written):
        assert {partition_of(record.key or b"", PARTITIONS) for record in records} == {number}
        assert all(not record.headers for record in records)
    assert sum(map(len, written)) == len(TOLD)
    async with AsyncClient(settings) as client:
        refused = [letter async for letter in client.dead_letters("visits")]
        assert refused == await asyncio.to_thread(_dead_letters, settings)
        assert [letter async for letter in client.dead_letters("stamped")] == []
    no_category = json.dumps(TOLD[0] | {"ward": "c"}).encode()
    assert {(letter.value, letter.code) for letter in refused} == {
        (b"no event", "malformed"),
        (no_category, "unknown category"),
    }
    assert {(letter.topic, letter.headers) for letter in refused} == {(topic, ())}


def _dead_letters(settings: Settings) -> list[DeadLetter]:
    """Return all dead letters, read with the blocking client."""
    with Client(settings) as client:
        return list(client.dead_letters())


async def test_publish_refuses_missing_live_topic_in_words(client: AsyncClient, start: StartService) -> None:
    start("budget")
    await client.register({**VISITS, "topic": f"{client.topics.prefix}-absent"})
    with pytest.raises(Unknown, match=r"topic '.*-absent' does not exist"):
        await client.publish("visits", TOLD)
    await client.register(FEED)
    with pytest.raises(Invalid, match="source 'feed' is not a live topic"):
        await client.publish("feed", TOLD)


@contextmanager
def no_open_connection() -> Iterator[None]:
    """Fail if the block leaves a connection open."""
    gc.collect()
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(leak.message) for leak in leaks] == []


async def test_consumer_closes_its_connection_if_its_start_is_cancelled(settings: Settings) -> None:
    """No cancellation, however early or late in a consumer's start, leaves a connection open."""
    with no_open_connection():
        for step in range(100):
            consumer = create_reader(settings)
            starting = asyncio.create_task(consumer.start())
            for _ in range(step // 4):
                await asyncio.sleep(0.0003)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await consumer.stop()


async def test_client_closes_a_connection_that_it_is_opening(settings: Settings) -> None:
    """A client that is closed while it connects to a broker leaves no connection open."""
    with no_open_connection():
        for step in range(40):
            kafka = BrokerClient(**connection_options(settings))
            await kafka.bootstrap()
            opening = asyncio.create_task(kafka._get_conn(kafka.get_random_node()))
            for _ in range(step // 4):
                await asyncio.sleep(0.0003)
            await kafka.close()
            await asyncio.gather(opening, return_exceptions=True)
