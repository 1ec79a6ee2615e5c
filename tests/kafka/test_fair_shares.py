"""A stream with more questions than its partition can answer delays other streams for seconds, not for minutes."""

from __future__ import annotations

import json
import random
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from schemas import MAX_EVENT_BYTES
from sotto import AsyncClient
from stream.kafka.topic_creation import check_topics
from stream.processing.topic_names import partition_of
from stream.settings import Settings
from tests.builders import source, stream
from tests.chaos.checker import committed
from tests.conftest import StartService

pytestmark = pytest.mark.kafka

CELLS = {f"a{number}": 4 for number in range(10)}
QUESTIONS = 1800
PATIENCE = 300.0
"""Most seconds that another stream's question waits; the questions accepted before it take a few seconds on a free core."""


def _terms(chance: random.Random) -> list[dict[str, object]]:
    def cell() -> str:
        return f"a{chance.randrange(10)} = {chance.randrange(4)}"

    return [{"where": f"{cell()} OR {cell()}", "weight": 1 / 256} for _ in range(200)]


async def test_thousands_of_large_questions_delay_no_other_stream(
    settings: Settings, client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    path = tmp_path / "people.csv"
    path.write_text(",".join(CELLS) + "\n" + "\n".join(["0,1,2,3,0,1,2,3,0,1"] * 1000) + "\n")
    home = partition_of(b"greedy", client.topics.partitions)
    neighbor = next(
        name
        for number in count()
        if partition_of((name := f"s{number}").encode(), client.topics.partitions) == home
    )
    start("budget")
    start("worker")
    budget: dict[str, Any] = {"neighbors": "replace", "epsilon": 20.0, "delta": 1e-3}
    await client.register(source("people", "table", path=str(path), attributes=CELLS, **budget))
    pmw = {"attributes": list(CELLS), "updates": 5}
    await client.open(stream("greedy", "people", "pmw", mechanism=pmw, epsilon=10.0, delta=1e-6))
    await client.open(stream(neighbor, "people", "laplace"))
    chance = random.Random(1)
    for number in range(QUESTIONS):
        asked = {"id": f"greedy-{number}", "stream": "greedy", "terms": _terms(chance)}
        value = json.dumps(asked, separators=(",", ":")).encode()
        assert len(value) <= MAX_EVENT_BYTES
        await client._connection.send(client.topics.queries, "greedy", value)
    await client.flush()
    began = time.monotonic()
    answer = await client.ask({"stream": neighbor, "where": "a1 = 1"}, timeout=PATIENCE, outcomes=True)
    print(f"the neighbor waited for {time.monotonic() - began:.1f} s")  # noqa: T201
    assert answer.outcome == "answer"
    answers = [
        json.loads(record.value or b"") for record in await committed(settings, client.topics.answers, home)
    ]
    greedy = [one for one in answers if one["stream"] == "greedy"]
    assert [one["id"] for one in greedy] == [f"greedy-{number}" for number in range(QUESTIONS)]
    busy = [one for one in greedy if one.get("reason", "").startswith("busy")]
    assert len(busy) > QUESTIONS * 0.8
    assert await committed(settings, client.topics.rejected, home) == []


async def test_queries_have_brokers_timestamps(settings: Settings, client: AsyncClient) -> None:
    before = int(time.time() * 1000) - 60_000
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap) as producer:
        await producer.send_and_wait(client.topics.queries, b"{}", partition=0, timestamp_ms=1)
    (record,) = await committed(settings, client.topics.queries, 0)
    assert before < record.timestamp
    assert [one.setting for one in await check_topics(settings) if one.topic == client.topics.queries] == []
