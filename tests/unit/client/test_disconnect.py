"""When a client disconnects, all waiting calls get an error, and no new call begins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from sotto import AsyncClient, Client, Settings, SottoError
from stream.client import kafka_connection
from stream.client.kafka_connection import KafkaConnection, KafkaSender
from stream.processing.protocol import Record
from tests.unit.client.readers import Nothing


class Reader(Nothing):
    """A reader of answers that returns only the answers that ``come``."""

    def __init__(self) -> None:
        self.come: list[Record] = []
        self.reading = threading.Event()
        self.stopped = False
        self.started = asyncio.Event()

    async def start(self) -> None:
        await self.started.wait()

    async def topics(self) -> set[str]:
        return {Settings().prefix + ".answers"}

    def skip_batches(self, _: object) -> None:
        """Skip none."""

    async def getmany(self, **_: Any) -> dict[Any, Any]:
        self.reading.set()
        await super().getmany()
        come, self.come = self.come, []
        return {0: come}

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.stopped = True


@pytest.fixture
def answer_reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader()
    monkeypatch.setattr(kafka_connection, "create_reader", lambda *_, **__: reader)
    return reader


@pytest.fixture
def client(answer_reader: Reader, monkeypatch: pytest.MonkeyPatch) -> Client:
    async def mark_open(self: KafkaConnection) -> None:
        self.is_open = True

    async def never(*_: Any) -> None:
        answer_reader.reading.set()
        await asyncio.Event().wait()

    answer_reader.started.set()
    monkeypatch.setattr(KafkaConnection, "open", mark_open)
    monkeypatch.setattr(AsyncClient, "_send_requests", never)
    return Client()


@pytest.mark.parametrize(
    "wait",
    [lambda client: client.requests([]), lambda client: next(client.answers())],
    ids=["requests", "answers"],
)
def test_disconnect_ends_calls_of_other_threads_with_error(
    client: Client, answer_reader: Reader, wait: Callable[[Client], Any]
) -> None:
    outcome: Future[Any] = Future()

    def waiting() -> None:
        try:
            outcome.set_result(wait(client))
        except BaseException as error:  # noqa: BLE001  (reported to the test)
            outcome.set_exception(error)

    threading.Thread(target=waiting, daemon=True).start()
    assert answer_reader.reading.wait(5)
    client.disconnect()
    with pytest.raises(SottoError, match="disconnected"):
        outcome.result(5)


def test_disconnect_closes_reader_between_two_answers(client: Client, answer_reader: Reader) -> None:
    answer_reader.come = [Record("answers", 0, 0, 0, b"ward", b'{"id":"1","stream":"ward","outcome":"below"}')]
    each = client.answers()
    assert next(each).id == "1"
    client.disconnect()
    assert answer_reader.stopped
    each.close()


def test_disconnect_refuses_new_calls(client: Client) -> None:
    client.connect()
    running = client._get_portal()
    client.disconnect()
    with pytest.raises(SottoError, match="disconnected"):
        running.run(running.client.list_sources())


async def test_disconnect_keeps_waiting_question_from_being_sent(
    answer_reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    async def send(*given: Any) -> None:
        sent.append(given)

    monkeypatch.setattr(KafkaConnection, "send", send)
    asking = AsyncClient()
    asking._connection.is_open = True
    question = asyncio.create_task(asking.ask("ward", value=1.0, timeout=1))
    await asyncio.sleep(0.01)
    await asking.disconnect()
    answer_reader.started.set()
    with pytest.raises(SottoError, match="not connected"):
        await question
    assert not sent
    assert answer_reader.stopped


async def test_disconnect_ends_producer_that_is_still_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late:
        failed = False
        ended = False
        connected = asyncio.Event()

        async def end(self) -> None:
            self.ended = True

    late = Late()

    async def start(_settings: Any) -> Late:
        await late.connected.wait()
        return late

    monkeypatch.setattr(KafkaSender, "start", start)
    asking = AsyncClient()
    asking._connection.is_open = True
    published = asyncio.create_task(asking.publish("ward", value=1.0))
    await asyncio.sleep(0.01)
    await asking.disconnect()
    late.connected.set()
    with pytest.raises(SottoError, match="not connected"):
        await published
    assert late.ended
