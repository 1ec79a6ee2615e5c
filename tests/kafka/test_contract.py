"""The contract holds on a real Kafka for producers, consumers and operators."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.admin import DeleteGroupsRequest

from schemas import MAX_EVENT_BYTES, Answer, OpenStream, Query, StreamSpec
from sotto import AsyncClient, Refused
from stream.kafka.topic_creation import create_topics, require_topics
from stream.kafka.topic_layouts import TopicsError, budget_group
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import partition_of
from stream.services.runner import build_worker_engine
from stream.settings import Settings
from tests.chaos.checker import check, committed
from tests.conftest import StartService
from tests.kafka.wards import FEED, ward

pytestmark = pytest.mark.kafka


async def test_faulty_event_costs_nothing_and_affects_no_other(
    settings: Settings,
    client: AsyncClient,
    start: StartService,
) -> None:
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(ward())
    home = partition_of(b"ward", client.topics.partitions)
    elsewhere = (home + 1) % client.topics.partitions
    long_where = b"x" * (MAX_EVENT_BYTES + 1)
    events = {
        b"not json": (home, "malformed", None),
        b'{"id": "both", "stream": "ward", "value": 1, "where": "a = 1"}': (home, "malformed", "both"),
        b'{"id": "extra", "stream": "ward", "value": 1, "note": 2}': (home, "malformed", "extra"),
        b'{"id": "table", "stream": "ward", "where": "age > 3"}': (home, "malformed", "table"),
        b'{"id": "nobody", "stream": "nobody", "value": 1}': (
            partition_of(b"nobody", client.topics.partitions),
            "unknown-stream",
            "nobody",
        ),
        b'{"id": "lost", "stream": "unheard-of", "value": 1}': (
            (partition_of(b"unheard-of", client.topics.partitions) + 1) % client.topics.partitions,
            "wrong-partition",
            "lost",
        ),
        b'{"id": "astray", "stream": "ward", "value": 1}': (elsewhere, "wrong-partition", "astray"),
        b'{"id": "long", "stream": "ward", "where": "' + long_where + b'"}': (home, "too-large", "long"),
    }
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap) as producer:
        for value, (partition, _, _) in events.items():
            await producer.send_and_wait(client.topics.queries, value, partition=partition)
    answer = await client.ask({"stream": "ward", "value": 5.0}, outcomes=True)
    assert (answer.outcome, answer.index) == ("below", 0)
    await client.ask({"stream": "nobody", "value": 5.0}, outcomes=True)
    dead = [
        record
        for partition in range(client.topics.partitions)
        for record in await committed(settings, client.topics.rejected, partition)
    ]
    found = {record.value: dict(record.headers) for record in dead}
    for value, (partition, code, _) in events.items():
        headers = found[value]
        assert headers["__connect.errors.exception.class.name"].decode() == code
        assert int(headers["__connect.errors.partition"]) == partition
        assert headers["__connect.errors.topic"].decode() == client.topics.queries
    answers = await _answers(client, len(events) + 1)
    outcomes = {one.id: one.outcome for one in answers}
    assert all(outcomes[name] == "rejected" for _, _, name in events.values() if name)
    record, grants = await client.budget("feed"), await client.list_streams("feed")
    assert record.granted.epsilon == 1.0
    assert grants[0].spec.stream == "ward"


async def test_stream_answers_as_soon_as_it_is_granted(client: AsyncClient, start: StartService) -> None:
    """The receipt may be visible before the control event's commit marker has reached the workers' partition."""
    start("budget")
    start("worker")
    await client.register({**FEED, "epsilon": 100.0})
    for number in range(40):
        await client.open(ward(f"stream-{number}"))
        answer = await client.ask({"stream": f"stream-{number}", "value": 1.0}, outcomes=True)
        assert answer.outcome == "below", answer


async def test_refusal_of_exhausted_source_has_asked_and_remaining_amounts(
    client: AsyncClient, start: StartService
) -> None:
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(ward("first", 2.5))
    with pytest.raises(Refused, match=r"ε = 1 asked, ε = 0\.5 left") as refused:
        await client.open(ward("second", 1.0))
    assert refused.value.asked is not None
    assert refused.value.left is not None
    assert (refused.value.asked.epsilon, refused.value.left.epsilon) == (1.0, 0.5)
    await client.open(ward("third", 0.5))


async def test_closed_stream_is_refunded_unspent_budget(client: AsyncClient, start: StartService) -> None:
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(ward("unused"))
    await client.open(ward("used"))
    answer = await client.ask({"stream": "used", "value": 1.0}, outcomes=True)
    assert answer.spent is not None
    for stream in ("unused", "used"):
        await client.close("feed", stream)
    async with asyncio.timeout(120):
        while True:
            if all(grant.state == "closed" for grant in await client.list_streams("feed")):
                break
            await asyncio.sleep(0.1)
    record = await client.budget("feed")
    assert record.spent == answer.spent
    assert record.left.epsilon == pytest.approx(3.0 - answer.spent.epsilon)
    assert (await client.ask({"stream": "used", "value": 1.0}, outcomes=True)).outcome == "halted"


async def test_halted_source_halts_its_streams_and_refuses_new_ones(
    client: AsyncClient, start: StartService
) -> None:
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(ward())
    await client.ask({"stream": "ward", "value": 1.0}, outcomes=True)
    await client.halt("feed", reason="audit")
    async with asyncio.timeout(120):
        while (answer := await client.ask({"stream": "ward", "value": 1.0}, outcomes=True)).outcome != "halted":
            await asyncio.sleep(0.1)
    assert answer.reason == "audit"
    with pytest.raises(Refused, match="halted: audit"):
        await client.open(ward("another"))


async def test_repeated_request_is_granted_once(client: AsyncClient, start: StartService) -> None:
    start("budget")
    await client.register(FEED)
    request = OpenStream(request="the same", stream=StreamSpec.model_validate(ward()))
    first = await client.request(request)
    assert await client.request(request) == first
    record = await client.budget("feed")
    assert record.granted.epsilon == 1.0


async def test_expired_group_offsets_cause_no_second_answer(
    settings: Settings,
    client: AsyncClient,
    key: NoiseKey,
    start: StartService,
) -> None:
    """Without the group's offsets, the changelog tells which queries of the partition are answered."""
    start("budget")
    first = start("worker")
    await client.register(FEED)
    await client.open(ward())
    asked = []
    for number in range(20):
        asked.append(f"before-{number}")
        await client.ask({"id": asked[-1], "stream": "ward", "value": 1.0}, outcomes=True)
    first.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    group = f"{settings.prefix}-workers"
    assert await admin.list_consumer_group_offsets(group)
    response = await admin._send_request(DeleteGroupsRequest([group]))
    assert [code for _, code in response.results] == [0]
    assert not await admin.list_consumer_group_offsets(group)
    await admin.close()
    start("worker")
    asked.append("after")
    answer = await client.ask({"id": "after", "stream": "ward", "value": 1.0}, outcomes=True)
    assert (answer.outcome, answer.index) == ("below", 20)
    assert (await check(settings, client.topics, key, asked)).violations == []


async def test_recreated_input_topic_halts_streams(
    settings: Settings,
    client: AsyncClient,
    start: StartService,
) -> None:
    start("budget")
    first = start("worker")
    await client.register(FEED)
    await client.open(ward())
    for _ in range(5):
        await client.ask({"stream": "ward", "value": 1.0}, outcomes=True)
    first.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    await admin.delete_topics([client.topics.queries])
    await asyncio.sleep(1.0)
    await admin.create_topics([NewTopic(client.topics.queries, client.topics.partitions, 1)])
    await admin.close()
    start("worker")
    async with AsyncClient(settings) as later:
        answer = await later.ask({"stream": "ward", "value": 1.0}, outcomes=True)
        assert answer.outcome == "halted"
        assert answer.reason is not None
        assert "replayed" in answer.reason
        await later.open(ward("afresh"))
        assert (await later.ask({"stream": "afresh", "value": 1.0})).outcome == "below"


async def test_budget_service_with_lost_ledger_grants_nothing(
    settings: Settings,
    client: AsyncClient,
    start: StartService,
) -> None:
    first = start("budget")
    await client.register(FEED)
    await client.open(ward())
    topics, group = client.topics, budget_group(settings)
    requests = TopicPartition(topics.requests, 0)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        while (offsets := await admin.list_consumer_group_offsets(group)).get(requests) is None:
            await asyncio.sleep(0.1)
        assert offsets[requests].offset > 0
        first.stop()
        await admin.delete_topics([topics.ledger])
        await asyncio.sleep(1.0)
    finally:
        await admin.close()
    await create_topics(settings)
    second = start("budget")
    async with asyncio.timeout(120):
        while "StateLostError" not in second.log.read_text():
            await asyncio.sleep(0.1)
    async with AsyncClient(settings) as later:
        again = OpenStream(request="again", stream=StreamSpec.model_validate(ward("ward-again")))
        with pytest.raises(TimeoutError, match="1 request has no receipt"):
            await later.requests([again], timeout=5)
    assert await committed(settings, topics.ledger, 0) == []


async def test_worker_with_other_key_refuses_streams(
    settings: Settings,
    client: AsyncClient,
    start: StartService,
) -> None:
    start("budget")
    await client.register(FEED)
    await client.open(ward())
    engine = build_worker_engine(settings, client.topics, NoiseKey.generate())
    with structlog.testing.capture_logs() as said:
        running = asyncio.create_task(engine.run())
        try:
            answer = await client.ask({"stream": "ward", "value": 1.0}, outcomes=True)
            assert answer.outcome == "halted"
            assert answer.reason is not None
            assert "lacks noise key" in answer.reason
            await _until_refused_for(client, answer.reason)
        finally:
            engine.stop()
            await running
    [line] = [line for line in said if line["event"] == "streams not answered"]
    assert (line["log_level"], line["reason"], line["streams"]) == ("warning", answer.reason, 1)
    start("worker")
    await _until_refused_for(client, None)
    assert (await client.ask({"stream": "ward", "value": 1.0}, outcomes=True)).outcome == "below"


async def _until_refused_for(client: AsyncClient, reason: str | None) -> None:
    """Wait until the stream's view shows this reason for missing answers; None means that its worker answers."""
    async with asyncio.timeout(120):
        while (shown := await client.statuses(["ward"])).get("ward") is None or shown["ward"][0].refused != reason:
            await asyncio.sleep(0.1)


async def test_missing_topics_are_named_with_the_remedy(bootstrap: str) -> None:
    with pytest.raises(TopicsError, match=r"nowhere.queries.*run 'sotto topics create'"):
        await require_topics(Settings(bootstrap=bootstrap, prefix="nowhere"))


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_producers_may_compress(
    settings: Settings,
    client: AsyncClient,
    start: StartService,
    compression: str,
) -> None:
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(ward())
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap, compression_type=compression) as producer:
        value = b'{"id": "small", "stream": "ward", "value": 1}'
        await producer.send_and_wait(client.topics.queries, value, key=b"ward")
    answers = await _answers(client, 1)
    assert [(answer.id, answer.outcome) for answer in answers] == [("small", "below")]


async def test_published_queries_all_get_answers(client: AsyncClient, start: StartService) -> None:
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(ward())
    for number in range(3000):
        await client.publish(Query(id=f"many-{number}", stream="ward", value=float(number % 500)))
    await client.flush()
    answers = await _answers(client, 3000)
    assert [answer.id for answer in answers] == [f"many-{number}" for number in range(3000)]


async def _answers(client: AsyncClient, count: int) -> list[Answer]:
    answers: list[Answer] = []
    async with asyncio.timeout(120):
        async for answer in client.answers(from_beginning=True):
            answers.append(answer)
            if len(answers) >= count:
                break
    return answers
