"""Topics are deleted and created again while services read them; no service ignores this."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import UnknownTopicOrPartitionError

from schemas import format_moment
from sotto import AsyncClient
from stream.engine.restore import create_reader
from stream.kafka.client.adapter import Consumer
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_creation import inspect_live_topic
from stream.processing.topic_names import partition_of
from stream.settings import Settings
from tests.chaos.checker import committed
from tests.chaos.loaded_installation import LoadedInstallation
from tests.chaos.windows import YESTERDAY, live_source, standing_specs
from tests.kafka.test_feeds import fetch

pytestmark = pytest.mark.kafka

SECONDS = 120.0
PEOPLE = 40


async def recreate(settings: Settings, topic: str, partitions: int) -> None:
    """Delete a topic, and create it again as soon as the broker allows it.

    The controller confirms the new topic before its broker has it. Until then the broker still takes events for the old
    topic, which feeds rightly count, so wait until the broker shows the new id.
    """
    place = TopicPartition(topic, 0)
    async with create_reader(settings) as reader, admin_client(settings) as admin, asyncio.timeout(SECONDS):
        reader.assign([place])
        before = await reader.topic_id(place)
        await admin.delete_topics([topic])
        while (await admin.create_topics([NewTopic(topic, partitions, 1)])).topic_errors[0][1] != 0:
            await asyncio.sleep(0.05)
        while await id_of(reader, place) in {before, None}:
            await asyncio.sleep(0.05)


async def send_people(producer: AIOKafkaProducer, topic: str, partitions: int, moment: int) -> None:
    """Send an event of each person with a time near ``moment``, and a mark that closes earlier windows."""
    for number in range(PEOPLE):
        person = f"person-{number}"
        event = {"who": {"id": person}, "at": moment, "group": "a", "value": 9}
        key = person.encode()
        home = partition_of(key, partitions)
        await producer.send(topic, json.dumps(event).encode(), key=key, partition=home)
    mark = [("sotto-mark", format_moment(moment + 4000).encode())]
    for home in range(partitions):
        await producer.send(topic, b"", partition=home, headers=mark)
    await producer.flush()


async def counts_of(installation: LoadedInstallation, stream: str) -> dict[str, list[int]]:
    """Return the counts in the questions of each window of a stream."""
    topics = installation.client.topics
    home = partition_of(stream.encode(), topics.partitions)
    asked = [json.loads(one.value or b"") for one in await committed(installation.settings, topics.queries, home)]
    return {one["id"]: one.get("values", [one.get("value")]) for one in asked if one["stream"] == stream}


@pytest.mark.parametrize("partitions", [1, 3, 4])
async def test_feeds_refuse_recreated_live_topic(
    installation: LoadedInstallation, partitions: int, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """Two feeds refuse the topic with the reason, although it has grown past the old offsets, and publish no window from it."""
    ports = [unused_tcp_port_factory(), unused_tcp_port_factory()]
    installation.start("budget")
    installation.start("worker")
    feeds = [
        installation.start("feed", settings=installation.settings.model_copy(update={"metrics_port": port}))
        for port in ports
    ]
    topic, stream = f"{installation.settings.prefix}-visits", "visits-all"
    async with admin_client(installation.settings) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    await installation.client.register(live_source(topic, "marks"))
    [spec] = [one for one in standing_specs("4s", "2s", YESTERDAY) if one.stream == stream]
    await installation.client.open(spec)
    async with AIOKafkaProducer(bootstrap_servers=installation.settings.bootstrap) as producer:
        await send_people(producer, topic, partitions, YESTERDAY + 500)
        async with asyncio.timeout(SECONDS):
            while len(await counts_of(installation, stream)) < 2:
                await asyncio.sleep(0.1)
        before = await counts_of(installation, stream)
        assert sum(before[format_moment(YESTERDAY)]) == PEOPLE
        await recreate(installation.settings, topic, partitions)
        for step in range(3, 9):
            await send_people(producer, topic, partitions, YESTERDAY + 2000 * step + 500)
        await wait_until_refused(ports, f"{topic}: was deleted and created again")
        report = await inspect_live_topic(installation.settings, live_source(topic, "marks"))
        assert f"{topic}: was deleted and created again" in (report.problem or "")
    assert await counts_of(installation, stream) == before
    logs = "".join(feed.log.read_text() for feed in feeds)
    assert '"event": "input recreated"' in logs
    assert "TopicRecreatedError" in logs


async def test_empty_topic_that_is_recreated_is_no_problem(installation: LoadedInstallation) -> None:
    """A feed reads the new topic, because it has read no event of the earlier one."""
    installation.start("budget")
    installation.start("feed")
    topic = f"{installation.settings.prefix}-visits"
    source = live_source(topic, "marks")
    async with admin_client(installation.settings) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    await installation.client.register(source)
    [spec] = [one for one in standing_specs("4s", "2s", YESTERDAY) if one.stream == "visits-all"]
    await installation.client.open(spec)
    changelog = installation.client.topics.feed_state(source.source)
    async with asyncio.timeout(SECONDS):
        while not await committed_or_none(installation.settings, changelog):
            await asyncio.sleep(0.1)
    await recreate(installation.settings, topic, 1)
    async with asyncio.timeout(SECONDS):
        while (report := await inspect_live_topic(installation.settings, source)).is_missing:
            await asyncio.sleep(0.1)
    assert report.problem is None


async def committed_or_none(settings: Settings, topic: str) -> bool:
    """Return True if a topic exists and has records."""
    try:
        return bool(await committed(settings, topic, 0))
    except UnknownTopicOrPartitionError:
        return False


async def wait_until_refused(ports: list[int], reason: str) -> None:
    """Wait until a feed shows the reason at /readyz, and the recreated topic in its metrics."""
    said: list[str] = []
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        said = [await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/readyz") for port in ports]
        figures = [await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/metrics") for port in ports]
        if any(reason in one for one in said):
            assert any("sotto_feed_input_recreated_total" in one for one in figures)
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"/readyz says {said}")


async def test_recreated_topic_has_another_id(settings: Settings, client: AsyncClient) -> None:
    """The id is the one that Kafka's tools show; it changes only when the topic is created again."""
    place = TopicPartition(client.topics.queries, 0)
    async with create_reader(settings) as consumer:
        consumer.assign([place])
        first = await consumer.topic_id(place)
        assert len(first) == 22
        assert await consumer.topic_id(place) == first
        await recreate(settings, place.topic, client.topics.partitions)
        now = await consumer.topic_id(place)
        assert now != first
        assert len(now) == 22


async def id_of(consumer: Consumer, place: TopicPartition) -> str | None:
    """Return the id of a topic; None while the asked broker knows no such topic."""
    try:
        return await consumer.topic_id(place)
    except UnknownTopicOrPartitionError:
        return None
