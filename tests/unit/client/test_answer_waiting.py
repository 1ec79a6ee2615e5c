"""Waiting for answers: a missing answer never costs an answer that has come, and abandoned questions are not waited for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    ConsumerStoppedError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)

from sotto import AsyncClient, Forbidden, Invalid, Query, SottoError, Unreachable
from stream.client.answer_reader import MAX_SEARCHED_STRINGS
from stream.client.kafka_connection import KafkaConnection
from stream.processing.protocol import Record


class Answers:
    """A reader of answers that a test adds; with ``broken`` it reads no more."""

    def __init__(self) -> None:
        self.come: list[Record] = []
        self.broken: KafkaError | None = None
        self.stopped = False

    def add(self, *identifiers: str) -> None:
        for identifier in identifiers:
            value = json.dumps({"id": identifier, "stream": "ward", "outcome": "below"}).encode()
            self.come.append(Record("answers", 0, 0, 0, b"ward", value))

    async def getmany(self, **_: Any) -> dict[int, list[Record]]:
        await asyncio.sleep(0.01)
        if self.broken is not None:
            raise self.broken
        come, self.come = self.come, []
        return {0: come}

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("sotto.answers", 0)}

    def pause(self, *_: TopicPartition) -> None:
        """Do nothing: all questions are in one partition, which is read at once."""

    def resume(self, *_: TopicPartition) -> None:
        """Do nothing: the test's answers come without it."""

    def highwater(self, _: TopicPartition) -> int | None:
        """Return None: the topic's end is unknown."""
        return None

    async def seek_to_end(self, *_: TopicPartition) -> None:
        """Do nothing: only answers that a test adds are read."""

    async def position(self, _: TopicPartition) -> int:
        return 0

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()

    async def reader(_connection: KafkaConnection, **_: Any) -> Answers:
        return made

    async def send(*_: Any) -> asyncio.Future[None]:
        taken = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    monkeypatch.setattr(KafkaConnection, "open_answers_consumer", reader)
    monkeypatch.setattr(KafkaConnection, "send", send)
    return made


def connected_client() -> AsyncClient:
    client = AsyncClient()
    client._connection.is_open = True
    return client


async def wait_for_questions(client: AsyncClient, number: int) -> None:
    while len(client._listener._all_futures()) != number:
        await asyncio.sleep(0.01)


async def test_ask_many_keeps_received_answers_if_reader_fails(answers: Answers) -> None:
    client = connected_client()
    asked = client.ask_many([Query(id=str(number), stream="ward", value=1.0) for number in range(10)])
    results = asyncio.ensure_future(asked._collect_results())
    await wait_for_questions(client, 10)
    answers.add(*(str(number) for number in range(10) if number != 4))
    await wait_for_questions(client, 1)
    answers.broken = KafkaConnectionError("one moment")
    with pytest.raises(Unreachable, match="1 questions have no answer: Kafka: ") as lost:
        await results
    assert [one.id for one in lost.value.results] == [str(number) for number in range(10) if number != 4]
    assert [query.id for query in lost.value.unanswered] == ["4"]
    await client.disconnect()


@pytest.mark.usefixtures("answers")
async def test_ask_does_not_wait_for_unsent_question(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise MessageSizeTooLargeError("large")

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    client = connected_client()
    monkeypatch.setattr(KafkaConnection, "send", refuse)
    with pytest.raises(Unreachable, match="MessageSizeTooLarge"):
        await client.ask("ward", value=1.0)
    monkeypatch.setattr(KafkaConnection, "send", hang)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.ask("ward", value=1.0), 0.05)
    await asyncio.sleep(0)
    assert client._listener._futures == {}
    await client.disconnect()


async def test_question_is_not_sent_if_brokers_are_down(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question's timeout also limits the wait for the partition's end."""

    async def position(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Answers, "position", position)
    monkeypatch.setattr(KafkaConnection, "send", None)
    client = connected_client()
    with pytest.raises(Unreachable, match=r"within 0\.05 s, so the question was not sent") as lost:
        await client.ask("ward", value=1.0, timeout=0.05)
    assert [query.stream for query in lost.value.unanswered] == ["ward"]
    await client.disconnect()
    assert client._listener._futures == {}
    assert answers.stopped


@pytest.mark.parametrize(
    ("seconds", "problem"), [(-3, "is -3"), (0, "is 0"), (float("nan"), "is nan"), ("3", "is of type str")]
)
async def test_timeout_not_above_zero_is_refused(seconds: Any, problem: str) -> None:
    """Nothing is sent: the client is not even connected."""
    with pytest.raises(Invalid, match=f"^timeout: {problem}; give a number of seconds"):
        await AsyncClient().ask("ward", value=1.0, timeout=seconds)


@pytest.mark.parametrize("disconnects", [False, True])
async def test_question_is_not_sent_if_its_partition_cannot_be_read(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, disconnects: bool
) -> None:
    """The reader of answers fails, or the client disconnects, while the question waits for its partition's end."""
    client, sent = connected_client(), []

    async def position(self: Answers, _: TopicPartition) -> int:
        if disconnects:
            await client.disconnect()
        else:
            answers.broken = KafkaConnectionError("one moment")
        while not self.stopped:
            await asyncio.sleep(0.01)
        raise ConsumerStoppedError

    async def send(*record: Any) -> None:
        sent.append(record)

    monkeypatch.setattr(Answers, "position", position)
    monkeypatch.setattr(KafkaConnection, "send", send)
    with pytest.raises(SottoError, match="not connected" if disconnects else "Kafka: "):
        await client.ask("ward", value=1.0)
    assert sent == []
    await asyncio.sleep(0)
    assert client._listener._futures == {}
    await client.disconnect()


WRONG: list[dict[str, Any]] = [
    {"id": "0", "stream": "ward", "value": 1.0},
    {"id": "1", "stream": "ward", "value": 1.0},
    {"id": "wrong", "stream": "ward", "value": float("nan")},
    {"id": "never", "stream": "ward", "value": 1.0},
]


async def yield_wrong_questions() -> AsyncIterator[dict[str, Any]]:
    for question in WRONG:
        yield question


@pytest.fixture
def sent_ids(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the published questions, which are answered at once."""
    published: list[str] = []

    async def send(
        _connection: KafkaConnection, _topic: str, _key: str, value: bytes, *_: Any
    ) -> asyncio.Future[None]:
        identifier = json.loads(value)["id"]
        published.append(identifier)
        answers.add(identifier)
        taken = asyncio.get_running_loop().create_future()
        taken.set_result(None)
        return taken

    monkeypatch.setattr(KafkaConnection, "send", send)
    return published


async def test_ask_many_sends_nothing_if_listed_question_is_invalid(sent_ids: list[str]) -> None:
    client = connected_client()
    for questions in (WRONG, (one for one in WRONG)):
        with pytest.raises(Invalid, match="value: is not a finite number"):
            await client.ask_many(questions)
    with pytest.raises(Invalid, match="value: is not a finite number"):
        [one async for one in client.ask_many(WRONG)]
    assert sent_ids == []
    await client.disconnect()


async def test_ask_many_keeps_answers_before_invalid_streamed_question(
    sent_ids: list[str],
) -> None:
    client = connected_client()
    with pytest.raises(Invalid, match="value: is not a finite number") as ended:
        await client.ask_many(yield_wrong_questions())
    assert [one.id for one in ended.value.results] == ["0", "1"]
    assert ended.value.unanswered == ()
    for questions in (yield_wrong_questions(), (one for one in WRONG)):
        results = aiter(client.ask_many(questions))
        assert [(await anext(results)).id, (await anext(results)).id] == ["0", "1"]
        with pytest.raises(Invalid, match="value: is not a finite number"):
            await anext(results)
    assert sent_ids == ["0", "1"] * 3
    await client.disconnect()


async def test_ask_many_keeps_answers_before_loss_of_kafka(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connected_client()
    taking = KafkaConnection.send

    async def send(connection: KafkaConnection, topic: str, key: str, value: bytes, *more: Any) -> Any:
        if json.loads(value)["id"] == "1":
            raise KafkaConnectionError("away")
        answers.add("0")
        return await taking(connection, topic, key, value, *more)

    monkeypatch.setattr(KafkaConnection, "send", send)
    with pytest.raises(Unreachable, match="KafkaConnectionError") as ended:
        await client.ask_many([Query(id=str(number), stream="ward", value=1.0) for number in range(3)])
    assert [one.id for one in ended.value.results] == ["0"]
    await client.disconnect()


async def test_batches_are_searched_for_awaited_ids_or_streams(answers: Answers) -> None:
    """Ids that JSON may write in another way, or too many of them, are replaced by the streams' names."""
    client = connected_client()
    own = client._listener._partition_of(b"ward").partition
    asked: list[asyncio.Task[Any]] = []

    async def searched_for(*identifiers: str) -> list[bytes] | None:
        asked.extend(asyncio.create_task(client.ask("ward", value=1.0, id=one)) for one in identifiers)
        await asyncio.sleep(0.05)
        assert client._listener._strings_to_search(own + 1) == []
        found = client._listener._strings_to_search(own)
        return None if found is None else sorted(found)

    assert await searched_for("first", "second") == [b"first", b"second"]
    assert await searched_for("ärztin") == [b"ward"]
    answers.add("ärztin")
    assert await searched_for() == [b"first", b"second"]
    assert await searched_for(*map("id-{}".format, range(MAX_SEARCHED_STRINGS))) == [b"ward"]
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert await searched_for() == []
    await client.disconnect()


async def test_timeout_includes_the_wait_for_the_end_of_the_topic(answers: Answers) -> None:
    """The wait for an answer begins before its partition is looked up, so both together have one timeout."""
    looked_up: list[float] = []

    async def seek_to_end(*_: TopicPartition) -> None:
        looked_up.append(time.monotonic())

    answers.seek_to_end = seek_to_end  # type: ignore[method-assign]
    client = connected_client()
    query = Query(id="a", stream="ward", value=1.0)
    pending = await client._listener.add_question(query, None, None, 60.0)
    assert pending.asked_at <= looked_up[0]
    await client.disconnect()


async def test_lookup_that_fails_without_a_timeout_is_unreachable(answers: Answers) -> None:
    async def seek_to_end(*_: TopicPartition) -> None:
        raise TimeoutError

    answers.seek_to_end = seek_to_end  # type: ignore[method-assign]
    client = connected_client()
    query = Query(id="a", stream="ward", value=1.0)
    with pytest.raises(
        Unreachable, match=r"^no broker gives the end of sotto\.answers, partition \d, so .* may read the topic"
    ):
        await client._listener.add_question(query, None, None, None)
    await client.disconnect()


async def test_missing_right_to_read_answers_ends_the_lookup(answers: Answers) -> None:
    """The consumer fails on its first fetch, and its lookup of the partition's end never returns."""

    async def wait_forever(*_: TopicPartition) -> None:
        await asyncio.Event().wait()

    answers.broken = TopicAuthorizationFailedError("sotto.answers")
    answers.seek_to_end = wait_forever  # type: ignore[method-assign]
    client = connected_client()
    with pytest.raises(Forbidden, match="TopicAuthorizationFailedError"):
        await client._listener.add_question(Query(id="a", stream="ward", value=1.0), None, None, None)
    await client.disconnect()
