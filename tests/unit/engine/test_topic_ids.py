"""Ids of input topics are kept with the positions, and compared before records are read or written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, NodeNotReadyError, TopicAuthorizationFailedError

from schemas import EventsSource
from stream.budget.budget_processor import BudgetProcessor
from stream.engine import partition_input
from stream.engine.health import Metrics
from stream.engine.partition_input import InputRecreatedError, TopicIds
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import FeedDefinitions
from stream.feeds.merge_processor import MergeProcessor
from stream.kafka.client.adapter import Consumer
from stream.processing.protocol import InputRefusedError, Processor, Record
from stream.processing.topic_names import Topics
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY
from tests.processing import process_records
from tests.unit.feeds.live import flights
from tests.unit.installation import table_store

SOURCE = TopicPartition("queries", 0)
TOPICS = Topics()
LIVE = EventsSource.model_validate(flights(), strict=False)
MAKERS: dict[str, Callable[[], Processor]] = {
    "worker": lambda: QueryProcessor(TOPICS, 0, KEY, table_store()),
    "budget": lambda: BudgetProcessor(
        TOPICS, 0, key_id=KEY.key_id, tables=table_store(), new_incarnation=lambda _: bytes(16)
    ),
    "merging": lambda: MergeProcessor(TOPICS, 0, FeedDefinitions()),
    "feed": lambda: FeedProcessor(TOPICS, LIVE, 0, 4, FeedDefinitions()),
}


class Broker:
    """Answers with an id, or with errors before it."""

    def __init__(self, topic_id: str, *errors: KafkaError) -> None:
        self.topic_id_now = topic_id
        self.errors = list(errors)
        self.asked = 0

    async def topic_id(self, partition: TopicPartition) -> str:
        assert partition == SOURCE
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.topic_id_now


class State:
    """A processor that knows an id, and may refuse another topic."""

    def __init__(self, known: str = "", *, refuses: bool = False) -> None:
        self.topic_ids = {SOURCE.topic: known} if known else {}
        self.read_again: list[str] = []
        self._refuses = refuses

    def restart_input(self, topic: str) -> None:
        if self._refuses:
            raise InputRefusedError("the topic is another")
        self.read_again.append(topic)


def ids_of(broker: Broker, seconds: float = 5.0) -> TopicIds:
    return TopicIds(cast(Consumer, broker), seconds, Metrics("worker").recreated)


@pytest.mark.parametrize(
    ("known", "now", "reached", "another"),
    [
        ("", "a", 9, False),
        ("a", "a", 9, False),
        ("a", "b", 9, True),
        ("a", "b", 0, False),
        ("a", "", 9, False),
        ("", "", 9, False),
    ],
    ids=["a record without an id", "the same", "another", "nothing read yet", "no ids any more", "no ids"],
)
async def test_compare_finds_another_topic(known: str, now: str, reached: int, another: bool) -> None:
    """A topic is another one if its id differs from the id of the topic that was read; without an earlier id, any id is accepted."""
    state = State(known)
    assert await ids_of(Broker(now)).compare(cast(Processor, state), SOURCE, reached) is another
    assert state.read_again == [SOURCE.topic] * another
    assert state.topic_ids.get(SOURCE.topic, "") == (now or known)


async def test_compare_counts_refused_topics() -> None:
    """A processor that refuses another topic keeps its earlier id, and the metric counts this."""
    state, metrics = State("a", refuses=True), Metrics("feed")
    ids = TopicIds(cast(Consumer, Broker("b")), 5.0, metrics.recreated)
    with pytest.raises(InputRefusedError):
        await ids.compare(cast(Processor, state), SOURCE, 9)
    assert state.topic_ids == {SOURCE.topic: "a"}
    assert metrics.registry.get_sample_value("sotto_feed_input_recreated_total") == 1


async def test_confirm_raises_once_the_topic_is_another() -> None:
    """Records fetched before the check are confirmed; after the topic was created again, no record is."""
    broker = Broker("a")
    ids = ids_of(broker)
    await ids.compare(cast(Processor, State()), SOURCE, 0)
    async with ids:
        ids.request_ids(needed=True)
        await ids.confirm()
        broker.topic_id_now = "b"
        await ids.confirm()
        ids.request_ids(needed=True)
        with pytest.raises(InputRecreatedError, match=r"queries was deleted .* id was a, and is b"):
            await ids.confirm()
        with pytest.raises(InputRecreatedError):
            ids.request_ids(needed=True)


async def test_confirm_waits_until_kafka_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary errors are retried; a permanent error, or one that lasts too long, is raised."""
    monkeypatch.setattr(partition_input, "TOPIC_ID_RETRY_SECONDS", 0.0)
    broker = Broker("a", NodeNotReadyError(), NodeNotReadyError())
    ids = ids_of(broker)
    await ids.compare(cast(Processor, State()), SOURCE, 0)
    assert broker.asked == 3
    broker.errors = [TopicAuthorizationFailedError()]
    with pytest.raises(TopicAuthorizationFailedError):
        await ids.confirm()
    short = ids_of(broker, seconds=-1.0)
    broker.errors = [NodeNotReadyError()]
    with pytest.raises(NodeNotReadyError):
        await short.compare(cast(Processor, State()), SOURCE, 0)


async def test_ask_is_limited_to_once_a_second_without_records() -> None:
    """Without new records, Kafka is asked once a second, and additionally before each write."""
    broker = Broker("a")
    ids = ids_of(broker)
    await ids.compare(cast(Processor, State()), SOURCE, 0)
    async with ids:
        for _ in range(3):
            ids.request_ids(needed=False)
            await asyncio.sleep(0.01)
        assert broker.asked == 2
        await ids.confirm()
        assert broker.asked == 3


@pytest.mark.parametrize("role", MAKERS)
def test_progress_keeps_topic_ids(role: str) -> None:
    """The progress record has the ids in its header and its earlier fields in its value; a restore reads both."""
    before = MAKERS[role]()
    before.end_restore()
    given = {topic: f"id of {topic}" for topic in before.inputs}
    records = [progress_of(before), progress_of(before, given)]
    assert records[0].value == records[1].value
    for record, known in zip(records, ({}, given), strict=True):
        after = MAKERS[role]()
        after.restore([record])
        assert after.end_restore()[before.inputs[0]] == 8
        assert after.topic_ids == known


def progress_of(processor: Any, given: dict[str, str] | None = None) -> Record:
    """Return the progress record after a malformed event at offset 7."""
    processor.topic_ids.update(given or {})
    outputs = process_records(processor, [Record(processor.inputs[0], 0, 7, 0, b"key", b"{")])
    [message] = [
        message
        for topic, _, messages in outputs
        for message in messages
        if topic == processor.changelog and message[0] == b"@progress"
    ]
    return Record(processor.changelog, 0, 0, 0, *message)


def test_budget_service_restarts_one_input_and_continues_other() -> None:
    """If the topic of requests was created again, charges are read on from their position."""
    processor = MAKERS["budget"]()
    requests, charges = processor.inputs
    for topic in (requests, charges):
        process_records(processor, [Record(topic, 0, 7, 0, b"key", b"{")])
    processor.restart_input(requests)
    after = MAKERS["budget"]()
    outputs = process_records(processor, [Record(charges, 0, 8, 0, b"key", b"{")])
    after.restore(
        Record(topic, 0, 0, 0, *message)
        for topic, _, messages in outputs
        for message in messages
        if topic == processor.changelog and message[0] == b"@progress"
    )
    assert after.end_restore() == {requests: 0, charges: 9}
