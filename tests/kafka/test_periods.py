"""On a real broker, despite kills, each period begins once, its windows are asked once, and it is closed automatically."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic
from aiokafka.partitioner import murmur2

from schemas import EventsSource, StreamSpec, format_moment, period_name
from stream.budget.trail_verification import TrailCheck
from stream.kafka.client.broker_connections import admin_client
from tests.chaos.checker import committed
from tests.chaos.loaded_installation import LoadedInstallation
from tests.chaos.windows import YESTERDAY, live_source
from tests.unit.budget.budget_service import ledger_codec

pytestmark = pytest.mark.kafka

PARTITIONS = 2
HOURS = 4
HOUR = 3_600_000
HALF = HOUR // 2
SECONDS = 180.0


async def questions(installation: LoadedInstallation, topic: str) -> list[dict[str, Any]]:
    """Return the questions in all partitions of a topic."""
    found = []
    for number in range(installation.client.topics.partitions):
        found += [json.loads(one.value or b"") for one in await committed(installation.settings, topic, number)]
    return found


class Follower:
    """Follows the answers and ends of a stream, by the name under which it was opened."""

    def __init__(self, installation: LoadedInstallation, stream: str) -> None:
        self.notices: list[tuple[str, str]] = []
        self._task = asyncio.create_task(self._follow(installation, stream))

    async def _follow(self, installation: LoadedInstallation, stream: str) -> None:
        async for notice in installation.client.watch(stream, quiet=True):
            self.notices.append((notice.stream, notice.ended or (notice.answer.id if notice.answer else "")))

    def stop(self) -> list[tuple[str, str]]:
        """Stop following, and return the answers and ends."""
        self._task.cancel()
        return sorted(self.notices)


async def trail_findings(installation: LoadedInstallation) -> list[str]:
    """Return the findings of a comparison of the trail with the ledger."""
    check, topics = TrailCheck(), installation.client.topics
    for record in await committed(installation.settings, topics.trail, 0):
        check.add_entry(record.value)
    latest = {one.key: one.value for one in await committed(installation.settings, topics.ledger, 0)}
    found = check.compare_ledger(ledger_codec.decode(value) for value in latest.values() if value is not None)
    return [*check.findings(), *found]


async def test_periods_begin_once_and_end_through_kills(
    installation: LoadedInstallation,
) -> None:
    topic, topics = f"{installation.settings.prefix}-visits", installation.client.topics
    budget, worker, feed = (installation.start(role) for role in ("budget", "worker", "feed"))
    async with admin_client(installation.settings) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    declared = {
        **live_source(topic, "marks").model_dump(),
        "unit": "person-period",
        "period": "1h",
        "contribution": 50,
        "ahead": "1h",
        "total": None,
    }
    await installation.client.register(EventsSource.model_validate(declared, strict=False))
    standing = {"window": {"size": "30m"}, "by": ["group"], "begins": format_moment(YESTERDAY)}
    spec = {
        "stream": "counts",
        "source": "visits",
        "epsilon": 50.0,
        "mechanism": {"kind": "laplace", "answers": 12},
        "standing": standing,
    }
    await installation.client.open(StreamSpec.model_validate(spec, strict=False), acknowledge=True)
    follower = Follower(installation, "counts")
    wanted: Counter[tuple[str, str]] = Counter()
    async with AIOKafkaProducer(bootstrap_servers=installation.settings.bootstrap) as producer:
        for half in range(2 * HOURS):
            start = YESTERDAY + half * HALF
            for place in range(20):
                who, group = f"person-{place}", "abc"[place % 3]
                event = {"who": {"id": who}, "at": start + place * 60_000, "group": group, "value": 1}
                home = int(murmur2(who.encode()) & 0x7FFFFFFF) % PARTITIONS
                await producer.send(topic, json.dumps(event).encode(), key=who.encode(), partition=home)
                period = YESTERDAY + half // 2 * HOUR
                wanted[period_name("counts", period), f"{format_moment(start)}/{place % 3}"] += 1
            headers = [("sotto-mark", format_moment(start + HALF).encode())]
            for number in range(PARTITIONS):
                await producer.send(topic, b"", partition=number, headers=headers)
            await producer.flush()
            if half in {1, 4}:
                feed.kill()
                feed = installation.start("feed")
            if half == 2:
                budget.kill()
                budget = installation.start("budget")
            if half == 5:
                worker.kill()
                worker = installation.start("worker")
            await asyncio.sleep(0.5)

    deadline, ended = time.monotonic() + SECONDS, set[str]()
    while time.monotonic() < deadline:
        grants = {one.spec.stream: one for one in await installation.client.list_streams()}
        ended = {name for name, one in grants.items() if one.state == "closed"}
        answers = await questions(installation, topics.answers)
        if len(follower.notices) >= len(answers) >= len(wanted) and len(ended) == HOURS - 1:
            break
        await asyncio.sleep(0.5)

    asked = await questions(installation, topics.queries)
    assert {(one["stream"], one["id"]): one["value"] for one in asked} == dict(wanted)
    assert len(asked) == len(wanted)
    answers = await questions(installation, topics.answers)
    assert sorted((one["stream"], one["id"]) for one in answers) == sorted(wanted)
    assert not [one for one in answers if one["outcome"] in {"rejected", "halted"}]
    # A reader that follows the model by its name gets the answers of all periods, and no period's end.
    assert follower.stop() == sorted(wanted)
    assert ended == {period_name("counts", YESTERDAY + hour * HOUR) for hour in range(HOURS - 1)}
    assert grants.keys() == {"counts", *(period_name("counts", YESTERDAY + hour * HOUR) for hour in range(HOURS))}
    assert await trail_findings(installation) == []
