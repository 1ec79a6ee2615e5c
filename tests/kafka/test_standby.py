"""A worker with standby copies of a killed worker's partitions takes them over."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import partition_of
from stream.services.processes import Service
from stream.settings import Settings
from tests.chaos.load import SENSITIVE_STREAMS
from tests.chaos.loaded_installation import REPORTS, LoadedInstallation, open_installation

pytestmark = pytest.mark.kafka

PATIENCE = 180.0


def log_entries(service: Service, event: str) -> list[dict[str, Any]]:
    """Return a service's log entries of one kind."""
    lines = [json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("event") == event]


def owned_partitions(service: Service) -> set[int]:
    """Return the partitions that a service was assigned last."""
    assignments = log_entries(service, "assigned")
    return set(assignments[-1]["partitions"]) if assignments else set()


async def wait_until(what: str, condition: Any) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        await asyncio.sleep(0.1)


async def start_two_workers(installation: LoadedInstallation) -> tuple[Service, Service]:
    """Start two workers that share the partitions, open streams, and wait until questions are answered."""
    installation.start("budget")
    first = installation.start("worker")
    await installation.open()
    await installation.ask(600)
    await installation.answered()
    second = installation.start("worker")
    everything = set(range(installation.settings.partitions))

    def shared() -> bool:
        return (
            bool(owned_partitions(first))
            and bool(owned_partitions(second))
            and owned_partitions(first) ^ owned_partitions(second) == everything
        )

    await wait_until("two workers share the partitions", shared)
    return first, second


async def test_heir_of_warm_copy_restores_rest_and_answers_equally(
    settings: Settings, key: NoiseKey, tmp_path: Path
) -> None:
    async with open_installation(settings, key, tmp_path) as installation:
        victim, heir = await start_two_workers(installation)
        inherited = owned_partitions(victim)
        await wait_until(
            "warm copies", lambda: inherited <= {line["partition"] for line in log_entries(heir, "standby ready")}
        )
        await installation.ask(600)
        await installation.answered(missing=300)
        victim.kill()
        killed = time.monotonic()
        installation.injected["SIGKILL worker, warm copy inherited"] += 1
        stream = next(
            name
            for name in (f"stream-{number}" for number in range(SENSITIVE_STREAMS))
            if partition_of(name.encode(), settings.partitions) in inherited
        )
        installation.asked.append("after the kill")
        async with asyncio.timeout(PATIENCE):
            await installation.client.ask({"id": "after the kill", "stream": stream, "value": 1.0}, outcomes=True)
        after = time.monotonic() - killed - settings.session_timeout_ms / 1000
        await installation.ask(400)
        await installation.answered()
        REPORTS.append(f"first answer {after:+.2f} s after the session of the killed worker")
        print(REPORTS[-1])  # noqa: T201
        await installation.verified()
        warm = {line["partition"] for line in log_entries(heir, "partition ready") if line["warm"]}
        assert warm >= inherited


async def test_heir_without_warm_copy_restores_completely(
    settings: Settings, key: NoiseKey, tmp_path: Path
) -> None:
    plain = settings.model_copy(update={"standby_partitions": 0})
    async with open_installation(plain, key, tmp_path) as installation:
        victim, heir = await start_two_workers(installation)
        victim.kill()
        installation.injected["SIGKILL worker, nothing inherited"] += 1
        await installation.ask(400)
        await installation.answered()
        await installation.verified()
        assert not any(line["warm"] for line in log_entries(heir, "partition ready"))
