"""A service process reports that it runs, and deletes the report at its end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaError

from schemas import MemberStatus
from stream import VERSION
from stream.engine.health import ServiceHealth
from stream.engine.session import EngineRole
from stream.kafka.client.broker_connections import SecurityError
from stream.processing.topic_names import Topics
from stream.services import runner as module
from stream.services.runner import resident_bytes, write_heartbeats
from stream.settings import Settings
from tests.builders import KEY


class Producer:
    """Keeps the sent records; fails as often as a test says."""

    client = SimpleNamespace(_get_conn=None, bootstrap=None)
    """A replacement for the attribute in which aiokafka's producer has its connections."""
    failures = 0
    sent: list[tuple[str, bytes, bytes | None]]

    def __init__(self, **_: Any) -> None:
        pass

    async def start(self) -> None:
        if type(self).failures:
            type(self).failures -= 1
            raise KafkaConnectionError

    async def send_and_wait(self, topic: str, *, key: bytes, value: bytes | None) -> None:
        self.sent.append((topic, key, value))

    async def stop(self) -> None:
        pass


@pytest.mark.parametrize("failures", [0, 2])
async def test_write_heartbeats_repeats_and_deletes_report_at_end(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    Producer.sent, Producer.failures = [], failures
    monkeypatch.setattr(module, "KafkaProducer", Producer)
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.01)
    role = EngineRole("worker", "workers", "sotto.status", lambda _: pytest.fail("no processor is made"))
    started = time.time()
    telling = asyncio.create_task(write_heartbeats(Settings(), role, started, lambda: "rolled back " * 200))
    while len(Producer.sent) < 3 and not telling.done():
        await asyncio.sleep(0.01)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert {(topic, key) for topic, key, _ in Producer.sent} == {
        ("sotto.status", f"@member|{role.member}".encode())
    }
    *words, last = [value for _, _, value in Producer.sent]
    assert last is None
    status = MemberStatus.model_validate(json.loads(words[0] or b""))
    assert (status.role, status.member, status.version, status.started) == (
        "worker",
        role.member,
        VERSION,
        started,
    )
    assert status.memory > 1 << 20
    assert status.not_ready is not None
    assert (status.not_ready[:11], len(status.not_ready)) == ("rolled back", 1024)


@pytest.mark.parametrize("instance", ["one", ""])
async def test_failed_process_leaves_the_report_of_its_name(
    monkeypatch: pytest.MonkeyPatch, instance: str
) -> None:
    """A later process of the same name may have written its own report already."""
    Producer.sent, Producer.failures = [], 0
    monkeypatch.setattr(module, "KafkaProducer", Producer)
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.01)
    role = EngineRole("worker", "workers", "sotto.status", lambda _: pytest.fail("no processor is made"))
    telling = asyncio.create_task(
        write_heartbeats(Settings(instance=instance), role, 0.0, has_failed=lambda: True)
    )
    while not Producer.sent and not telling.done():
        await asyncio.sleep(0.01)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert (Producer.sent[-1][2] is None) == (not instance)


async def test_write_heartbeats_continues_after_missing_secret_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing: list[KafkaError] = [SecurityError("SOTTO_TLS_CA_FILE is not there")]

    def connection(_: Settings) -> dict[str, Any]:
        if missing:
            raise missing.pop()
        return {}

    Producer.sent, Producer.failures = [], 0
    monkeypatch.setattr(module, "KafkaProducer", Producer)
    monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(module, "connection_options", connection)
    role = EngineRole("worker", "workers", "sotto.status", lambda _: pytest.fail("no processor is made"))
    telling = asyncio.create_task(write_heartbeats(Settings(), role, time.time()))
    while not (Producer.sent or telling.done()):
        await asyncio.sleep(0.01)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert Producer.sent
    # On one of the two outputs, depending on how earlier tests configured the log.
    assert "SecurityError" in "".join(capsys.readouterr())


def test_resident_bytes_is_known_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    near = resident_bytes()
    monkeypatch.setattr(module, "_STATM", module._STATM / "nothing")
    assert resident_bytes() >= near // 4


@pytest.mark.parametrize("instance", ["one", ""])
def test_process_is_reported_by_its_name(instance: str) -> None:
    """Several named workers of one machine are told apart; a restarted one has its report again."""
    name = instance or f"{socket.gethostname()}-{os.getpid()}"
    settings, topics = Settings(instance=instance), Topics("sotto", 2)
    assert module.build_worker_engine(settings, topics, KEY).role.member == f"worker-{name}"
    assert module.build_budget_engine(settings, topics, KEY).role.member == f"budget-{name}"
    feed = module._build_service("feed", settings, topics, None, ServiceHealth("feed"))
    assert feed.role.member == f"feed-{name}"
