"""On real Kafka, with kills: every query answered once, no budget spent twice, no state forked."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import pytest

from schemas import Answer, OpenStream, Query, StreamSpec
from stream.client import Client
from stream.kafka.processes import Service
from stream.noise import NoiseKey
from stream.settings import Settings
from tests.kafka.checker import Findings, check, check_answers, check_ledger
from tests.kafka.conftest import StartService

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

STREAMS = 24
CUTOFF = 5


def _requests() -> list[OpenStream]:
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


async def _open_streams(client: Client) -> None:
    await client.register(
        {
            "source": "feed",
            "kind": "values",
            "neighbors": "add-remove",
            "epsilon": float(STREAMS),
            "sensitivity": 1.0,
        },
    )
    receipts = await client.requests(_requests())
    assert {receipt.outcome for receipt in receipts} == {"opened"}


async def _publish(client: Client, numbers: range) -> list[str]:
    chance = random.Random(numbers.start)
    ids = []
    for number in numbers:
        value = float(chance.randint(0, 700) if chance.random() < 0.98 else 1500)
        query = Query(id=f"q{number}", stream=f"stream-{number % STREAMS}", value=value)
        await client.publish(query)
        ids.append(query.id)
    await client.flush()
    return ids


async def _answered(client: Client, count: int, seconds: float) -> int:
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


async def _settled(settings: Settings, client: Client, key: NoiseKey, asked: list[str]) -> Findings:
    """The findings, once the charges under way have reached the ledger."""
    deadline = time.monotonic() + 20
    while True:
        findings = await check(settings, client.topics, key, asked)
        if not findings.violations or time.monotonic() > deadline:
            return findings
        await asyncio.sleep(0.5)


async def test_kill_and_rebalance_in_the_middle_lose_and_double_nothing(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    start("budget")
    workers: list[Service] = [start("worker"), start("worker")]
    await _open_streams(client)
    asked: list[str] = []
    for fault in range(4):
        asked += await _publish(client, range(len(asked), len(asked) + 4000))
        await _answered(client, len(asked) - 3000, 30)
        workers.pop(fault % 2).kill()
        workers.append(start("worker"))
    assert await _answered(client, len(asked), 60) == len(asked)
    findings = await _settled(settings, client, key, asked)
    assert findings.violations == []
    assert findings.sources["feed"].granted.epsilon == STREAMS
    assert any(grant.state == "exhausted" for grant in findings.grants.values())


async def test_zombie_worker_that_wakes_up_after_its_session_answers_nothing(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    start("budget")
    zombie, other = start("worker"), start("worker")
    await _open_streams(client)
    asked = await _publish(client, range(6000))
    await _answered(client, 2000, 30)
    zombie.suspend()
    asked += await _publish(client, range(6000, 12000))
    assert await _answered(client, len(asked), 60) == len(asked)
    zombie.wake()
    asked += await _publish(client, range(12000, 15000))
    assert await _answered(client, len(asked), 60) == len(asked)
    assert other.exit_status is None
    findings = await _settled(settings, client, key, asked)
    assert findings.violations == []


async def test_budget_service_killed_between_requests_grants_each_once(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    budget = start("budget")
    start("worker")
    await _open_streams(client)
    asked = await _publish(client, range(3000))
    budget.kill()
    asked += await _publish(client, range(3000, 6000))
    start("budget")
    again = await client.requests(_requests(), 60)
    assert {receipt.outcome for receipt in again} == {"opened"}
    assert await _answered(client, len(asked), 60) == len(asked)
    findings = await _settled(settings, client, key, asked)
    assert findings.violations == []
    assert findings.sources["feed"].granted.epsilon == STREAMS


async def test_checker_finds_each_seeded_violation(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    """A checker that cannot fail proves nothing."""
    start("budget")
    start("worker")
    await _open_streams(client)
    asked = await _publish(client, range(9000))
    assert await _answered(client, len(asked), 60) == len(asked)
    findings = await _settled(settings, client, key, asked)
    answers, grants, sources = findings.answers, findings.grants, findings.sources
    assert findings.violations == []
    assert check_answers([*answers, answers[0]], asked)
    assert check_answers(answers[1:], asked)
    assert check_answers(answers, [*asked, "another"])
    halted = next(answer for answer in answers if answer.outcome == "halted")
    late = halted.model_copy(update={"outcome": "below", "index": 10_000})
    assert any("after it had halted" in found for found in check_answers([*answers, late], asked))
    top = next(answer for answer in answers if answer.outcome == "above")
    assert check_ledger([*answers, *[top] * CUTOFF], sources, grants)
    feed = sources["feed"]
    grown = feed.granted.model_copy(update={"epsilon": feed.granted.epsilon + 1})
    assert check_ledger(answers, {"feed": feed.model_copy(update={"granted": grown})}, grants)
    wrong_key = await check(settings, client.topics, NoiseKey.generate(), asked)
    assert any("replay" in found for found in wrong_key.violations)
