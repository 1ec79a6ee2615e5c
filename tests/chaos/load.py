"""A load that every fault is injected under, and how to see when it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from schemas import Answer, OpenStream, Query, StreamSpec
from stream.client import Client
from stream.noise import NoiseKey
from stream.settings import Settings
from tests.chaos.checker import Findings, check

STREAMS = 24
CUTOFF = 5


def opening_requests() -> list[OpenStream]:
    specs = [
        StreamSpec.model_validate(
            {
                "stream": f"stream-{number}",
                "source": "feed",
                "mechanism": {"kind": "above_threshold", "threshold": 1000.0, "cutoff": CUTOFF},
                "epsilon": 1.0,
                "calibration": "textbook" if number % 4 == 0 else "best",
            },
        )
        for number in range(STREAMS)
    ]
    return [OpenStream(request=spec.stream, stream=spec) for spec in specs]


async def open_streams(client: Client) -> None:
    await client.register(
        {
            "source": "feed",
            "kind": "values",
            "neighbors": "add-remove",
            "epsilon": float(STREAMS),
            "sensitivity": 1.0,
        },
    )
    receipts = await client.requests(opening_requests())
    assert {receipt.outcome for receipt in receipts} == {"opened"}


async def publish(client: Client, numbers: range) -> list[str]:
    chance = random.Random(numbers.start)
    ids = []
    for number in numbers:
        value = float(chance.randint(0, 700) if chance.random() < 0.98 else 1500)
        query = Query(id=f"q{number}", stream=f"stream-{number % STREAMS}", value=value)
        await client.publish(query)
        ids.append(query.id)
    await client.flush()
    return ids


async def answered(client: Client, count: int, seconds: float) -> int:
    """Wait until so many answers are committed, and give how many there are."""
    seen: list[Answer] = []

    async def read() -> None:
        async for answer in client.answers(from_beginning=True):
            seen.append(answer)
            if len(seen) >= count:
                return

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(read(), seconds)
    return len(seen)


async def settled(settings: Settings, client: Client, key: NoiseKey, asked: list[str]) -> Findings:
    """The findings, once the charges under way have reached the ledger."""
    deadline = time.monotonic() + 20
    while True:
        findings = await check(settings, client.topics, key, asked)
        if not findings.violations or time.monotonic() > deadline:
            return findings
        await asyncio.sleep(0.5)
