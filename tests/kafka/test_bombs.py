"""A real broker has batches that decompress to far more bytes: services refuse them at once, and keep answering."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

from sotto import AsyncClient
from stream.kafka.topic_creation import check_topics
from stream.processing.dead_letters import MAX_BATCH_RECORDS
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import partition_of
from stream.services.processes import Service
from stream.settings import Settings
from tests import bombs
from tests.chaos.checker import committed
from tests.conftest import StartService
from tests.kafka.wards import FEED, ask_low, ward

pytestmark = pytest.mark.kafka

BOMBS: dict[str, Callable[[], bytes]] = {
    "9 MB in a value": lambda: bombs.large_value(9),
    "400 MB in a value": lambda: bombs.large_value(400),
    "900 values of 1 MB": lambda: bombs.large_values(900),
    "more than a million records": cache(lambda: bombs.tiny_records(MAX_BATCH_RECORDS + 1)),
    "three values of 1.3 MB": lambda: bombs.batch(
        (piece for delta in range(3) for piece in bombs.long_record(delta, 1_300_000)), 3
    ),
}
"""Batches that a service must refuse. The last one is small enough when decompressed, but its records are too large for dead letters."""
GROWTH = 128
"""Megabytes by which a service may grow for one partition; see "Memory" in docs/operations.md."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Long timeouts, so that workers keep their session while the broker decompresses on a busy machine."""
    return settings.model_copy(update={"session_timeout_ms": 30_000, "transaction_timeout_ms": 60_000})


def peak_memory(service: Service) -> float:
    """Return the largest memory of a service so far, in megabytes."""
    lines = Path(f"/proc/{service.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


async def dead_letters(client: AsyncClient, settings: Settings) -> list[RecordLike]:
    return [
        record
        for partition in range(client.topics.partitions)
        for record in await committed(settings, client.topics.rejected, partition)
    ]


def rejection_headers(letter: RecordLike) -> dict[str, str]:
    return {
        name.removeprefix("__connect.errors."): value.decode()
        for name, value in letter.headers
        if name.startswith("__connect.errors.")
    }


async def test_worker_refuses_bombs_among_queries_and_continues(
    settings: Settings, client: AsyncClient, start: StartService
) -> None:
    start("budget")
    worker = start("worker")
    await client.register(FEED)
    await client.open(ward())
    await ask_low(client, "before")
    partition, usual = partition_of(b"ward", client.topics.partitions), peak_memory(worker)
    for name, make in BOMBS.items():
        await bombs.send(settings.bootstrap, client.topics.queries, partition, make())
        await ask_low(client, f"after {name}")
    assert worker.exit_status is None
    assert peak_memory(worker) < usual + GROWTH
    refused = [rejection_headers(letter) for letter in await dead_letters(client, settings)]
    whole, single = refused[:4], refused[4:]
    assert [int(one["last.offset"]) - int(one["offset"]) + 1 for one in whole] == [
        1,
        1,
        900,
        MAX_BATCH_RECORDS + 1,
    ]
    assert [int(one["length"]) for one in whole] == [len(make()) for make in list(BOMBS.values())[:4]]
    assert {one["exception.class.name"] for one in whole} == {"unreadable"}
    assert {one["codec"] for one in whole} == {"zstd"}
    assert [(one["exception.class.name"], one["length"]) for one in single] == [("too-large", "1300000")] * 3
    log = worker.log.read_text()
    assert "partition starts over" not in log
    assert log.count("refused unread") == 4


@pytest.mark.parametrize("topic", ["requests", "charges"])
async def test_budget_service_refuses_bombs_and_continues(
    topic: str, settings: Settings, client: AsyncClient, start: StartService
) -> None:
    budget = start("budget")
    await client.register(FEED)
    usual = peak_memory(budget)
    for number, make in enumerate(BOMBS.values()):
        await bombs.send(settings.bootstrap, getattr(client.topics, topic), 0, make())
        receipt = await client.open({**ward(f"ward-{number}"), "epsilon": 0.01}, acknowledge=True)
        assert receipt.outcome == "opened"
    async with asyncio.timeout(120):
        while len(refused := await dead_letters(client, settings)) < 7:
            await asyncio.sleep(0.2)
    assert Counter(rejection_headers(letter)["exception.class.name"] for letter in refused) == {
        "unreadable": 4,
        "malformed": 3,
    }
    assert budget.exit_status is None
    assert peak_memory(budget) < usual + GROWTH
    assert "partition starts over" not in budget.log.read_text()


async def test_workers_skip_bombs_in_control(settings: Settings, client: AsyncClient, start: StartService) -> None:
    start("budget")
    worker = start("worker")
    await client.register(FEED)
    await client.open({**ward(), "epsilon": 0.1})
    await ask_low(client, "before")
    partition, usual = partition_of(b"ward", client.topics.partitions), peak_memory(worker)
    for make in BOMBS.values():
        await bombs.send(settings.bootstrap, client.topics.control, partition, make())
    await client.open({**ward("later"), "epsilon": 0.1})
    await ask_low(client, "after")
    worker.stop()
    successor = start("worker")
    await ask_low(client, "successor")
    assert peak_memory(successor) < usual + GROWTH
    assert "refused unread" in successor.log.read_text()
    assert "partition starts over" not in successor.log.read_text()


async def test_invalid_header_names_cost_only_their_own_events(
    settings: Settings, client: AsyncClient, start: StartService
) -> None:
    start("budget")
    worker = start("worker")
    await client.register(FEED)
    await client.open(ward())
    await ask_low(client, "before")
    partition, usual = partition_of(b"ward", client.topics.partitions), peak_memory(worker)
    place = client.topics.answers, partition
    seen = len(await committed(settings, *place))
    for codec in ("none", "zstd"):
        built = bombs.bad_header_names(4000, "ward", f"{codec} ", codec)
        await bombs.send(settings.bootstrap, client.topics.queries, partition, built)
        await ask_low(client, f"after {codec}")
    answers = [json.loads(record.value or b"") for record in (await committed(settings, *place))[seen:]]
    assert [one["id"] for one in answers] == [
        name for codec in ("none", "zstd") for name in (*(f"{codec} {n}" for n in range(4000)), f"after {codec}")
    ]
    assert Counter(one["outcome"] for one in answers) == {"rejected": 8000, "below": 2}
    refused = await dead_letters(client, settings)
    assert len(refused) == 8000
    assert refused[0].headers[0] == ("\\xff\\xfe", b"x")
    assert peak_memory(worker) < usual + GROWTH
    assert "partition starts over" not in worker.log.read_text()


async def test_worker_memory_is_limited_for_all_partitions_at_once(
    settings: Settings, client: AsyncClient, start: StartService
) -> None:
    """The batches are just within the limits: of their decompressed size, or of their number of headers."""
    full = bombs.large_values(4)
    headers = [(b"n%d" % number, b"v") for number in range(64)]
    headed = bombs.batch(
        [b"".join(bombs.record(delta, b"", b"v", headers) for delta in range(5000))], 5000, level=3
    )
    for partition in range(client.topics.partitions):
        for built in (full, headed):
            for _ in range(40 if built is full else 2):
                await bombs.send(settings.bootstrap, client.topics.queries, partition, built)
    start("budget")
    worker = start("worker")
    await client.register(FEED)
    names = {
        partition_of(name.encode(), client.topics.partitions): name for name in map("ward-{}".format, range(50))
    }
    for name in names.values():
        await client.open({**ward(name), "epsilon": 0.1})
    questions = ({"id": "after", "stream": name, "value": 1.0} for name in names.values())
    answers = await asyncio.wait_for(asyncio.gather(*map(client.ask, questions)), 300)
    assert [answer.outcome for answer in answers] == ["below"] * client.topics.partitions
    assert peak_memory(worker) < 256 + GROWTH * client.topics.partitions
    assert "partition starts over" not in worker.log.read_text()


async def test_service_warns_if_brokers_decompress_batches(
    settings: Settings, client: AsyncClient, start: StartService
) -> None:
    """With such a setting, brokers decompress batches in memory, so a batch of some kilobytes can crash a broker."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        unfolding = {"compression.type": "uncompressed"}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, client.topics.queries, unfolding)])
    finally:
        await admin.close()
    async with asyncio.timeout(120):
        while [one.wanted for one in await check_topics(settings) if one.setting == "compression.type"] != [
            "producer"
        ]:
            await asyncio.sleep(0.2)
    worker = start("worker")
    async with asyncio.timeout(120):
        while '"topic differs"' not in worker.log.read_text():
            await asyncio.sleep(0.2)
    with pytest.raises(MessageSizeTooLargeError):
        await bombs.send(settings.bootstrap, client.topics.queries, 0, bombs.large_value(9))
