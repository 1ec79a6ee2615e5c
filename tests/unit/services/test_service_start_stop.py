"""Services wait for Kafka after temporary errors, raise other errors, and end their wait at an order to stop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from contextlib import suppress
from weakref import ref

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    NodeNotReadyError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)

from stream.kafka.broker_addresses import free_port
from stream.kafka.broker_process import HOST
from stream.kafka.client import broker_connections
from stream.kafka.client.adapter import KAFKA
from stream.kafka.client.broker_connections import (
    BROKER_ATTEMPTS,
    ClosedError,
    SecurityError,
    Stopped,
    ask_any_broker,
    retry_until_available,
    unless_stopped,
)
from tests.patience import SECONDS


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_connections, "RETRY_PAUSES", (0.0, 0.001))
    monkeypatch.setattr(broker_connections, "BROKER_RETRY_SECONDS", 0.0)


class Kafka:
    """Fails a number of times, then answers."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error = error
        self.times = times
        self.asked = 0

    async def answer(self) -> str:
        self.asked += 1
        if self.asked <= self.times:
            raise self.error
        return "answer"


@pytest.mark.parametrize(
    "error",
    [
        KafkaConnectionError("no broker"),
        NodeNotReadyError("node 3"),
        RequestTimedOutError(),
        ClosedError("closes the connection"),
        OSError("no route"),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_retry_until_available_waits_and_reports_temporary_errors(error: Exception) -> None:
    kafka, messages = Kafka(error, 20), list[str]()
    assert await retry_until_available(kafka.answer, asyncio.Event(), messages.append) == "answer"
    assert kafka.asked == 21
    assert len(messages) == 20
    assert all(one.startswith("waits for Kafka: ") for one in messages)


@pytest.mark.parametrize(
    "error",
    [SecurityError("a wrong password"), GroupAuthorizationFailedError(), TopicAuthorizationFailedError()],
    ids=lambda error: type(error).__name__,
)
async def test_retry_until_available_raises_permanent_error_at_once(error: Exception) -> None:
    kafka = Kafka(error, 1)
    with pytest.raises(type(error)):
        await retry_until_available(kafka.answer, asyncio.Event())
    assert kafka.asked == 1


@pytest.mark.parametrize("hangs", [True, False])
async def test_retry_until_available_ends_at_stop(monkeypatch: pytest.MonkeyPatch, *, hangs: bool) -> None:
    monkeypatch.setattr(broker_connections, "RETRY_PAUSES", (3600.0,))
    stopping, kafka = asyncio.Event(), Kafka(KafkaConnectionError("no broker"), 1000)

    async def hang() -> str:
        await asyncio.Event().wait()
        return "never"

    waiting = asyncio.create_task(retry_until_available(hang if hangs else kafka.answer, stopping))
    await asyncio.sleep(0.01)
    stopping.set()
    with pytest.raises(Stopped):
        await asyncio.wait_for(waiting, SECONDS)


async def test_ask_any_broker_retries_past_dead_broker() -> None:
    kafka = Kafka(NodeNotReadyError("node 3"), BROKER_ATTEMPTS - 1)
    assert await ask_any_broker(kafka.answer) == "answer"
    with pytest.raises(NodeNotReadyError):
        await ask_any_broker(Kafka(NodeNotReadyError("node 3"), BROKER_ATTEMPTS).answer)


def test_failed_service_ends_despite_hanging_batch() -> None:
    script = """
import asyncio, time
from stream.services.runner import force_exit_after

async def fail():
    hanging = asyncio.ensure_future(asyncio.to_thread(time.sleep, 3600))
    await asyncio.sleep(0)
    force_exit_after(0.5)
    raise RuntimeError

asyncio.run(fail())
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=600)
    assert ended.returncode == 1


@pytest.mark.parametrize("order", ["the end of its input", "SIGTERM", "SIGINT"])
def test_stopped_service_ends_despite_hanging_shutdown(order: str) -> None:
    script = f"""
import asyncio, os, signal
from stream.services import runner as services

services.STOP_SECONDS = 0.25

async def serve():
    services.install_stop_handlers(lambda: None, stop_with_stdin={order == "the end of its input"})
    if {order.startswith("SIG")}:
        os.kill(os.getpid(), getattr(signal, {order!r}))
    await asyncio.Event().wait()

asyncio.run(serve())
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=600, input=b"")
    assert ended.returncode == 1


@pytest.mark.parametrize("order", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_finished_service_survives_second_stop_signal(order: str, loops: str) -> None:
    pytest.importorskip(loops)
    script = f"""
import asyncio, os, signal
import {loops} as loops
from stream.services import runner as services

async def serve():
    stopping = asyncio.Event()
    services.install_stop_handlers(stopping.set, stop_with_stdin=False)
    os.kill(os.getpid(), signal.{order})
    await stopping.wait()
    services.ignore_stop_signals()
    os.kill(os.getpid(), signal.{order})

with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
    runner.run(serve())
os.kill(os.getpid(), signal.{order})
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=600, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"")


async def test_consumer_can_restart_and_stop_after_failed_start() -> None:
    stopping, left = asyncio.Event(), 3

    def tell(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            stopping.set()

    consumer = KAFKA.consumer(bootstrap_servers=f"{HOST}:{free_port()}", group_id="group")
    with pytest.raises(Stopped):
        await retry_until_available(consumer.start, stopping, tell)
    assert consumer.member_id == ""
    await consumer.stop()


async def test_unless_stopped_keeps_nothing_of_a_failed_attempt() -> None:
    """Otherwise a failed restore would keep a partition's state and files, because full garbage collections are rare."""
    held: list[ref[Kafka]] = []

    async def attempt() -> None:
        state = Kafka(OSError(), 0)
        held.append(ref(state))
        raise OSError("disk full")

    gc.disable()
    try:
        with suppress(OSError):
            await unless_stopped(asyncio.Event(), attempt())
        await asyncio.sleep(0)
        assert held[0]() is None
    finally:
        gc.enable()
