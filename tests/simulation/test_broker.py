"""The broker in memory behaves like the real one in everything that the engine needs."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import ProducerFenced

from stream.engine.restore import create_reader, read_to_end
from stream.engine.writer import Writer
from stream.kafka.client.adapter import KAFKA, Clients
from stream.processing.protocol import Outputs
from stream.processing.topic_names import Topics
from stream.settings import Settings
from tests.simulation.broker import Broker
from tests.simulation.clients import clients_of
from tests.simulation.clock import virtual_time
from tests.simulation.faults import Faults, Process
from tests.simulation.logs import Log, Transaction


async def observe(settings: Settings, clients: Clients) -> dict[str, Any]:
    """Return what a client observes of transactions, fencing and offsets."""
    topics = Topics(settings.prefix, settings.partitions)
    place, source = TopicPartition(topics.state, 0), TopicPartition(topics.queries, 0)
    group = f"{settings.prefix}-observed"
    committed, dirty = (
        create_reader(settings, clients),
        create_reader(settings, clients, isolation_level="read_uncommitted"),
    )
    member = create_reader(settings, clients, group_id=group, session_timeout_ms=6000, heartbeat_interval_ms=1000)
    seen: dict[str, Any] = {}

    async def note(moment: str) -> None:
        seen[moment] = {
            "stable": (await committed.end_offsets([place]))[place],
            "high": (await dirty.end_offsets([place]))[place],
            "committed": [r.value async for batch in read_to_end(committed, place, 100) for r in batch],
            "position": await committed.position(place),
            "dirty": [r.value async for batch in read_to_end(dirty, place, 100) for r in batch],
            "offset": await member.committed(source),
        }

    async with committed, dirty, member:
        first = await Writer.fence(settings, f"{group}-0", group, clients)
        await note("empty")
        await first.commit(_outputs(place, b"one"), {source: 5})
        second = await Writer.fence(settings, f"{group}-0", group, clients)
        await note("one committed")
        producer = second._producer
        await second._write_batches(_outputs(place, b"two"))
        await producer.add_offsets({source: 6}, group)
        await note("two open")
        third = await Writer.fence(settings, f"{group}-0", group, clients)
        await note("two aborted by the successor's fence")
        with pytest.raises(ProducerFenced):
            await producer.commit()
        with pytest.raises(ProducerFenced):
            await first.commit(_outputs(place, b"never"), {})
        await third.commit(_outputs(place, b"three"), {source: 7})
        fourth = await Writer.fence(settings, f"{group}-0", group, clients)
        await note("three committed")
        for writer in (first, second, third, fourth):
            await writer.close()
    return seen


def _outputs(place: TopicPartition, value: bytes) -> Outputs:
    outputs = Outputs()
    outputs.add(place.topic, place.partition, (b"key", value, ()))
    return outputs


def simulated() -> dict[str, Any]:
    settings = Settings(prefix="observed", partitions=2)
    topics = Topics(settings.prefix, settings.partitions)
    with virtual_time() as loop:
        chance = random.Random(1)
        broker = Broker(loop, chance, {topics.state: 2, topics.queries: 2})
        process = Process("one", loop, chance, Faults(chance, strikes=0, rate=0.0))
        return loop.run_until_complete(observe(settings, clients_of(process, broker, chance)))


@pytest.fixture
def imitation() -> dict[str, Any]:
    """The observations with the broker in memory; made before the test's own event loop runs."""
    return simulated()


def test_open_transaction_holds_back_committed_readers(
    imitation: dict[str, Any],
) -> None:
    """Transaction markers have offsets of their own."""
    seen = imitation
    assert seen["two open"] == {
        "stable": 2,
        "high": 3,
        "committed": [b"one"],
        "position": 2,
        "dirty": [b"one", b"two"],
        "offset": 5,
    }
    assert seen["two aborted by the successor's fence"]["stable"] == 4
    assert seen["three committed"]["committed"] == [b"one", b"three"]
    assert seen["three committed"]["offset"] == 7


@pytest.mark.kafka
async def test_real_broker_behaves_like_the_broker_in_memory(
    imitation: dict[str, Any], settings: Settings
) -> None:
    assert await observe(settings, KAFKA) == imitation
    # aiokafka drops futures that failed with the fence, and asyncio reports them when they are collected; do that here.
    gc.collect()


def test_compaction_keeps_the_latest_of_each_key_and_leaves_gaps() -> None:
    log = Log("state", 0)
    aborted, committed, pending = Transaction("a"), Transaction("b"), Transaction("c")
    log.append([(b"x", b"1", ()), (b"y", b"1", ())], 0)
    log.append([(b"x", b"2", ())], 0, aborted)
    log.mark(aborted, committed=False)
    log.append([(b"x", b"3", ())], 0, committed)
    log.mark(committed, committed=True)
    log.append([(b"y", b"4", ())], 0, pending)
    assert log.compact(random.Random(1)) > 0
    assert [(record.offset, record.value) for record in log.committed()] == [(1, b"1"), (4, b"3")]
    assert log.stable == 6
    log.mark(pending, committed=True)
    assert [(record.offset, record.value) for record in log.committed()] == [(1, b"1"), (4, b"3"), (6, b"4")]
