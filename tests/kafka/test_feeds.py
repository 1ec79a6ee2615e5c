"""On a real broker, each closed window of a live topic is asked once despite kills, and bad events stop no service."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from confluent_kafka import Producer

from schemas import Answer, EventsSource, StreamSpec
from schemas.answers import HEADER_PREFIX
from sotto import Driver
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_creation import inspect_live_topic
from stream.processing.dead_letters import MAX_BATCH_RECORDS
from stream.services.processes import Service
from tests import bombs
from tests.chaos.checker import committed
from tests.chaos.live import PARTITIONS, Live, live_topic
from tests.chaos.loaded_installation import LoadedInstallation
from tests.chaos.replay import answers_codec
from tests.chaos.windows import YESTERDAY, Visits, live_source, standing_specs
from tests.kafka.partitions import add_partitions

pytestmark = pytest.mark.kafka

SECONDS = 180.0


async def test_killed_feeds_and_workers_ask_each_window_once(
    installation: LoadedInstallation,
) -> None:
    services = [installation.start(role) for role in ("budget", "worker", "feed")]
    topic = await live_topic(installation.settings, installation.client, "marks", begins=YESTERDAY)
    topic.services = services
    feed = services[2]
    try:
        for step in range(12):
            now = YESTERDAY + 1000 * step
            await topic.send(now, 6000, 40)
            await topic.mark(now)
            if step in {3, 6, 9}:
                feed.kill()
                feed = installation.start("feed")
                topic.services.append(feed)
            if step == 5:
                services[1].kill()
                topic.services.append(installation.start("worker"))
            if step == 7:
                topic.services.append(installation.start("feed"))  # a rebalance
            await asyncio.sleep(0.3)
        await topic.settled(YESTERDAY + 11_000)
        assert topic.visits.wrong > 5
    finally:
        await topic.producer.stop()


WINDOWS = 8
"""The number of windows; each has two seconds and two batches of events."""


def _batches() -> list[list[dict[str, Any]]]:
    """Return the events of 31 people for each second; each note of one person differs from all other notes."""
    chance = random.Random(3)

    def event(person: str, second: int, note: str) -> dict[str, Any]:
        at = YESTERDAY + 1000 * second + chance.randrange(1000)
        group = chance.choice("abc")
        value = chance.randrange(10) if chance.random() < 0.2 else {"a": 2, "b": 5, "c": 8}[group]
        return {"who": {"id": person}, "at": at, "group": group, "value": value, "note": note}

    return [
        [
            event("recluse", second, f"own {second}"),
            *(event(f"person-{number}", second, f"note {min(number % 3, 1)}") for number in range(30)),
        ]
        for second in range(2 * WINDOWS)
    ]


def _specs() -> list[StreamSpec]:
    """Return streams of medians and of texts with so large an ε that noise, which differs between incarnations, changes no answer."""
    plans = {"visits-typical": (400.0, 3 * WINDOWS), "visits-notes": (96.0, WINDOWS)}
    specs = {spec.stream: spec for spec in standing_specs("2s", "2s", YESTERDAY)}
    return [
        StreamSpec.model_validate(
            {
                **specs[name].model_dump(exclude_none=True),
                "epsilon": epsilon,
                "mechanism": {"kind": specs[name].mechanism.kind, "answers": answers},
            }
        )
        for name, (epsilon, answers) in plans.items()
    ]


def _driver_of(installation: LoadedInstallation, source: EventsSource) -> tuple[Driver, list[Answer]]:
    """Return a Driver with the same streams and events, and its answers."""
    driver = Driver(installation.key, partitions=installation.client.topics.partitions)
    driver.register(source)
    for spec in _specs():
        driver.open(spec)
    answers: list[Answer] = []
    for second, events in enumerate(_batches(), start=1):
        answers += driver.publish(source.source, events)
        answers += driver.advance(source.source, YESTERDAY / 1000 + second)
    return driver, answers


async def test_window_texts_and_medians_equal_drivers_through_kills(
    installation: LoadedInstallation,
) -> None:
    services = {role: installation.start(role) for role in ("budget", "worker", "feed")}
    client, topics, settings = installation.client, installation.client.topics, installation.settings
    source = live_source(f"{settings.prefix}-visits", "marks").model_copy(update={"epsilon": 1000.0})
    async with admin_client(settings) as admin:
        stamp = {"message.timestamp.type": "LogAppendTime"}
        await admin.create_topics([NewTopic(source.topic, PARTITIONS, 1, topic_configs=stamp)])
    await client.register(source)
    for spec in _specs():
        await client.open(spec)
    for second, events in enumerate(_batches(), start=1):
        await client.publish(source.source, events)
        await client.advance(source.source, YESTERDAY / 1000 + second)
        await client.flush()
        if second in {5, 10}:  # in the middle of a window, and at its end
            await installation.logged(services["feed"], "assigned")
            services["feed"].kill()
            services["feed"] = installation.start("feed")
        if second == 7:
            await installation.logged(services["worker"], "assigned")
            services["worker"].kill()
            services["worker"] = installation.start("worker")
        await asyncio.sleep(0.3)
    driver, answers = _driver_of(installation, source)
    wanted = _comparable(answers)
    assert len(wanted) == 4 * WINDOWS  # medians of three groups, and one list of texts
    found: list[Answer] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < len(wanted):
            await asyncio.sleep(0.5)
            found = [answers_codec.decode(value) for value in await _read_values(installation, topics.answers)]
    assert sorted(await _read_values(installation, topics.queries)) == sorted(
        record.value or b"" for record in driver.records(driver.topics.queries)
    )
    assert _comparable(found) == wanted
    lists = {answer.keys for answer in found if answer.stream == "visits-notes"}
    assert lists == {("note 1", "note 0")}
    medians = {(*(one.group or {}).values(), one.estimate) for one in found if one.stream == "visits-typical"}
    assert medians == {("a", 2.0), ("b", 5.0), ("c", 8.0)}


async def _read_values(installation: LoadedInstallation, topic: str) -> list[bytes]:
    """Return the values of all committed records in a topic of the installation."""
    partitions = range(installation.client.topics.partitions)
    logs = [await committed(installation.settings, topic, number) for number in partitions]
    return [record.value or b"" for log in logs for record in log]


def _comparable(answers: list[Answer]) -> list[tuple[Any, ...]]:
    """Return streams, ids, outcomes, windows, keys and medians of answers, in order."""
    return sorted((one.stream, one.id, one.outcome, str(one.window), one.keys, one.estimate) for one in answers)


async def test_windows_close_by_brokers_clock_without_events(
    installation: LoadedInstallation,
) -> None:
    services = [installation.start(role) for role in ("budget", "worker", "feed")]
    begins = int(time.time()) * 1000 - 2000
    topic = await live_topic(installation.settings, installation.client, "broker", begins=begins)
    topic.services = services
    try:
        await topic.send(int(time.time() * 1000), 3000, 60)
        await topic.settled(begins + 8000)
        # Unreadable events have the broker's timestamp too, and a header may have no value.
        for built in (bombs.large_value(9), bombs.large_value(400), bombs.tiny_records(MAX_BATCH_RECORDS + 1)):
            await bombs.send(installation.settings.bootstrap, topic.source.topic, 0, built)
        await topic.producer.send_and_wait(topic.source.topic, b"{", partition=0, headers=[("name", None)])
        # After a pause, a person sends an event.
        await topic.send(int(time.time() * 1000), 3000, 60)
        await topic.settled(int(time.time() * 1000) - 1000)
    finally:
        await topic.producer.stop()


async def test_faulty_live_event_costs_nothing_and_affects_no_other(
    installation: LoadedInstallation,
) -> None:
    services = [installation.start(role) for role in ("budget", "worker", "feed")]
    topic = await live_topic(installation.settings, installation.client, "marks", begins=YESTERDAY)
    topic.services = services
    right = {"who": {"id": "person-1"}, "at": YESTERDAY + 500, "group": "a", "value": 9}
    bad: list[tuple[bytes, bytes]] = [
        (b"person", json.dumps({**right, "at": YESTERDAY + 10**10}).encode()),
        (b"person", json.dumps({**right, "who": {}}).encode()),
        (b"person", json.dumps({**right, "group": "elsewhere"}).encode()),
        (b"person", json.dumps({**right, "more": "x" * 900_000}).encode()),
        (b"person", b"{"),
        (b"person", b"\xff\xfe"),
    ]
    try:
        await topic.mark(YESTERDAY)
        for key, value in bad:
            await topic.producer.send_and_wait(topic.source.topic, value, key=key, partition=0)
        # The same event goes to every partition, but only one of them is its person's partition.
        for number in range(PARTITIONS):
            await topic.producer.send_and_wait(topic.source.topic, json.dumps(right).encode(), partition=number)
        await topic.send(YESTERDAY + 1000, 1000, 50)
        await topic.mark(YESTERDAY + 9000)
        await topic.settled(YESTERDAY + 9000)
        topics = installation.client.topics
        letters = [
            letter
            for number in range(topics.partitions)
            for letter in await committed(installation.settings, topics.rejected, number)
        ]
        codes = [dict(letter.headers)[f"{HEADER_PREFIX}exception.class.name"].decode() for letter in letters]
        assert codes.count("partition") >= PARTITIONS - 1
        assert {"ahead", "person", "unknown category", "oversize", "malformed"} <= set(codes)
        assert not [value for letter in letters for _, value in letter.headers if b"elsewhere" in value]
    finally:
        await topic.producer.stop()


def _start_services(installation: LoadedInstallation, port: int) -> Service:
    """Start all services, and return the feed, whose probes are at ``port``."""
    installation.start("budget")
    installation.start("worker")
    return installation.start("feed", settings=installation.settings.model_copy(update={"metrics_port": port}))


async def test_feed_waits_until_topic_has_brokers_timestamps(
    installation: LoadedInstallation, unused_tcp_port: int
) -> None:
    """An empty topic would be asked and charged by the feed's own clock, until its first event is refused."""
    port, feed = unused_tcp_port, _start_services(installation, unused_tcp_port)
    begins = int(time.time()) * 1000
    topic = await live_topic(installation.settings, installation.client, "broker", begins=begins, stamped=False)
    topic.services = [feed]
    try:
        await _wait_for_readiness(port, "message.timestamp.type=CreateTime, but windows of source")
        async with admin_client(installation.settings) as admin:
            changed = {"message.timestamp.type": "LogAppendTime"}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic.source.topic, changed)])
        await _wait_for_readiness(port, "")
    finally:
        await topic.producer.stop()


async def test_feed_reports_missing_topic_and_serves_it_once_created(
    installation: LoadedInstallation, unused_tcp_port: int
) -> None:
    port, feed = unused_tcp_port, _start_services(installation, unused_tcp_port)
    await _wait_for_readiness(port, "")
    topic = f"{installation.settings.prefix}-visits"
    source, [spec, *_] = live_source(topic, "marks"), standing_specs("4s", "2s", YESTERDAY)
    await installation.client.register(source)
    await installation.client.open(spec, acknowledge=True)
    await _wait_for_readiness(
        port, f"topic {topic} of source 'visits' does not exist; 'sotto events topic visits' creates it"
    )
    async with admin_client(installation.settings) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    await _wait_for_readiness(port, "")
    producer = AIOKafkaProducer(bootstrap_servers=installation.settings.bootstrap)
    await producer.start()
    made = Live(
        installation.settings, installation.client, source, [spec], producer, Visits(PARTITIONS, seed=1), [feed]
    )
    try:
        await made.send(YESTERDAY + 1000, 1000, 20)
        await made.mark(YESTERDAY + 5000)
        await made.settled(YESTERDAY + 5000)
        read = ('sotto_feed_lag_events{source="visits"} 0.0', 'sotto_feed_lag_seconds{source="visits"} 0.0')
        figures = ""
        async with asyncio.timeout(SECONDS):
            while not all(one in figures for one in read):
                await asyncio.sleep(0.2)
                figures = await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/metrics")
        assert "sotto_feed_counted_total" in figures
        assert "sotto_feed_member 1.0" in figures
    finally:
        await producer.stop()


async def test_feed_stops_counting_a_topic_with_more_partitions(
    installation: LoadedInstallation, unused_tcp_port: int
) -> None:
    """Otherwise windows would be answered, and charged, without most of the events."""
    port, feed = unused_tcp_port, _start_services(installation, unused_tcp_port)
    topic = await live_topic(installation.settings, installation.client, "marks", begins=YESTERDAY)
    topic.services = [feed]
    try:
        await topic.send(YESTERDAY + 1000, 1000, 20)
        await topic.mark(YESTERDAY + 5000)
        await topic.settled(YESTERDAY + 5000)
        await add_partitions(installation.settings, topic.source.topic, PARTITIONS + 1)
        refusal = f"has {PARTITIONS + 1} partitions, and had {PARTITIONS} when its first stream began"
        await _wait_for_readiness(port, refusal)
        assert refusal in ((await inspect_live_topic(installation.settings, topic.source)).problem or "")
    finally:
        await topic.producer.stop()


async def _wait_for_readiness(port: int, lack: str) -> None:
    """Wait until /readyz shows this reason; an empty one means that the feed is ready."""
    text = ""
    for _ in range(int(SECONDS / 0.2)):
        text = await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/readyz")
        if (lack and lack in text) or (not lack and text.strip() == "ok"):
            return
        await asyncio.sleep(0.2)
    pytest.fail(f"/readyz says {text!r}")


def fetch(address: str) -> str:
    """Return the body of a response with any status, or the name of a failure to connect."""
    try:
        with urllib.request.urlopen(address, timeout=5) as response:  # noqa: S310
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
    except OSError as error:
        return type(error).__name__


async def test_default_librdkafka_producer_is_reported_within_a_minute(installation: LoadedInstallation) -> None:
    """Feed log, metric and ``sotto watch`` name share, cause and remedy of events that CRC32 placed."""
    settings, prefix = installation.settings, installation.settings.prefix
    source = live_source(f"{prefix}-visits", "broker")
    async with admin_client(settings) as admin:
        stamp = {"message.timestamp.type": "LogAppendTime"}
        await admin.create_topics([NewTopic(source.topic, 4, 1, topic_configs=stamp)])
    installation.start("budget")
    await installation.client.register(source)
    begins = int(time.time() - 3600) * 1000
    await installation.client.open(standing_specs("2s", "2s", begins)[0], acknowledge=True)
    producer = Producer({"bootstrap.servers": settings.bootstrap})
    for number in range(400):
        person = f"person-{number}"
        event = {"who": {"id": person}, "at": int(time.time() * 1000), "group": "a", "value": 1}
        producer.produce(source.topic, json.dumps(event).encode(), key=person.encode())
    assert await asyncio.to_thread(producer.flush, 30) == 0
    feed = installation.start("feed")
    await installation.logged(feed, "events refused")
    [line] = [one for one in feed.log.read_text().splitlines() if '"events refused"' in one][:1]
    assert "partitioner=murmur2_random" in json.loads(line)["reason"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sotto", "watch", "--json"),
        env={**os.environ, "SOTTO_BOOTSTRAP": settings.bootstrap, "SOTTO_PREFIX": prefix},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        found = json.loads(await process.stdout.readline())
    process.terminate()
    await process.wait()
    assert found["sources"] == [source.source]
    assert found["refused"]["share"] == "50 to 90 %"
    assert "partitioner=murmur2_random" in found["refused"]["reason"]
