"""Transactions on a real broker, with each of Kafka's two protocols, and with one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, ProducerFenced

from stream.engine.restore import create_reader, read_to_end
from stream.kafka.client import transactional_producer
from stream.kafka.client.adapter import KAFKA
from stream.kafka.client.broker_connections import connection_options
from stream.kafka.client.transactional_producer import FirstProtocol, SecondProtocol, TransactionalProducer
from stream.settings import Settings
from tests.patience import SECONDS

pytestmark = pytest.mark.kafka

SECOND = [False, True]


@pytest.fixture
def use_protocol(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes new producers use Kafka's first protocol, or the protocol that the broker supports."""

    def speak(*, second: bool) -> None:
        monkeypatch.undo()
        if not second:
            monkeypatch.setattr(transactional_producer, "supports_second_protocol", lambda _: False)

    return speak


def producer_of(settings: Settings, name: str = "w-0", batch_bytes: int = 100_000) -> TransactionalProducer:
    return TransactionalProducer(
        **connection_options(settings),
        transactional_id=f"{settings.prefix}-{name}",
        transaction_timeout_ms=30_000,
        max_batch_size=batch_bytes,
    )


def batches(producer: TransactionalProducer, *values: bytes) -> list[Any]:
    """Return a batch for each value."""
    filled = []
    for value in values:
        filled.append(producer.create_batch())
        filled[-1].append(timestamp=1, key=b"k", value=value, headers=[("h", b"v")])
    return filled


async def committed(settings: Settings, *places: TopicPartition) -> list[list[bytes | None]]:
    """Return the records in some partitions that a reader of committed records sees."""
    async with create_reader(settings) as consumer:
        return [[r.value async for some in read_to_end(consumer, place, 100) for r in some] for place in places]


async def require_committed(settings: Settings, wanted: dict[TopicPartition, list[bytes]]) -> None:
    """Wait for records and allow no others. Kafka ends a transaction some time after it confirms the commit."""
    async with asyncio.timeout(SECONDS):
        while (found := await committed(settings, *wanted)) != [*wanted.values()]:
            for values, expected in zip(found, wanted.values(), strict=True):
                assert values == expected[: len(values)]
            await asyncio.sleep(0.05)


def output_partitions(settings: Settings) -> Sequence[TopicPartition]:
    return [TopicPartition(f"{settings.prefix}.{topic}", 0) for topic in ("answers", "state")]


@pytest.mark.parametrize("second", SECOND)
async def test_transaction_is_visible_entirely_after_commit_only(
    settings: Settings, use_protocol: Any, *, second: bool
) -> None:
    use_protocol(second=second)
    answers, state = output_partitions(settings)
    group, source = f"{settings.prefix}-group", TopicPartition(f"{settings.prefix}.queries", 0)
    producer = producer_of(settings)
    await producer.start()
    assert isinstance(producer._protocol, SecondProtocol if second else FirstProtocol)
    kept: list[bytes] = []
    for turn in range(3):
        before = [b"%d" % number for number in range(3 * turn)]
        values = [b"%d" % number for number in range(3 * turn, 3 * turn + 3)]
        await producer.write({answers: batches(producer, *values), state: batches(producer, values[0])})
        await producer.write({state: batches(producer, values[2])})
        await producer.add_offsets({source: turn + 1}, group)
        assert (await committed(settings, answers))[0] == before
        await producer.commit()
        kept += [values[0], values[2]]
        await require_committed(settings, {answers: [*before, *values], state: kept})
        async with (
            asyncio.timeout(SECONDS),
            KAFKA.consumer(**connection_options(settings), group_id=group) as consumer,
        ):
            while (offset := await consumer.committed(source)) != turn + 1:
                assert offset == (turn or None)
                await asyncio.sleep(0.05)
    await producer.stop()


@pytest.mark.parametrize("before", SECOND)
@pytest.mark.parametrize("after", SECOND)
async def test_successor_ends_open_transaction_and_fences_predecessor(
    settings: Settings, use_protocol: Any, *, before: bool, after: bool
) -> None:
    answers, _ = output_partitions(settings)
    use_protocol(second=before)
    late, idle = producer_of(settings), producer_of(settings, "w-1")
    await late.start()
    await late.write({answers: batches(late, b"kept")})
    await late.commit()
    await late.write({answers: batches(late, b"aborted")})
    await idle.start()
    use_protocol(second=after)
    successor, other = producer_of(settings), producer_of(settings, "w-1")
    await successor.start()
    await other.start()
    with pytest.raises(ProducerFenced):
        await late.commit()
    with pytest.raises(KafkaError):  # the partition's leader alone tells only that there is no transaction
        await idle.write({answers: batches(idle, b"never")})
    await successor.write({answers: batches(successor, b"new")})
    await successor.commit()
    await require_committed(settings, {answers: [b"kept", b"new"]})
    for one in (late, idle, successor, other):
        await one.stop()


@pytest.mark.parametrize("second", SECOND)
async def test_producers_of_both_releases_fence_each_other(
    settings: Settings, use_protocol: Any, *, second: bool
) -> None:
    """During an upgrade, workers of both releases share a group; the earlier release uses aiokafka's own producer."""
    use_protocol(second=second)
    answers, _ = output_partitions(settings)
    name = f"{settings.prefix}-w-0"
    older = AIOKafkaProducer(**connection_options(settings), transactional_id=name)
    await older.start()
    await older.begin_transaction()
    await older.send_and_wait(answers.topic, b"aborted", partition=0)
    producer = producer_of(settings)
    await producer.start()
    await producer.write({answers: batches(producer, b"one")})
    await producer.commit()
    with pytest.raises(KafkaError):
        await older.commit_transaction()
    await older.stop()
    again = AIOKafkaProducer(**connection_options(settings), transactional_id=name)
    await again.start()
    async with again.transaction():
        await again.send_and_wait(answers.topic, b"two", partition=0)
    with pytest.raises(KafkaError):
        await producer.write({answers: batches(producer, b"never")})
    await again.stop()
    await producer.stop()
    await require_committed(settings, {answers: [b"one", b"two"]})


@pytest.mark.parametrize("second", SECOND)
async def test_batch_sent_twice_is_stored_once(
    settings: Settings, use_protocol: Any, monkeypatch: pytest.MonkeyPatch, *, second: bool
) -> None:
    use_protocol(second=second)
    answers, state = output_partitions(settings)
    producer = producer_of(settings)
    await producer.start()
    send, lost = producer._client.send, [True, False]

    async def send_and_lose(node: int, request: Any, **options: Any) -> Any:
        answer = await send(node, request, **options)
        if lost and lost.pop(0):
            raise KafkaConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(producer._client, "send", send_and_lose)
    if not second:
        lost.insert(0, False)  # joining comes first
    await producer.write({answers: batches(producer, b"a", b"b"), state: batches(producer, b"s")})
    lost[:] = [True]
    await producer.commit()
    await producer.write({answers: batches(producer, b"c")})
    await producer.commit()
    await require_committed(settings, {answers: [b"a", b"b", b"c"], state: [b"s"]})
    await producer.stop()
