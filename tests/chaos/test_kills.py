"""On real Kafka, with kills: every query answered once, no budget spent twice, no state forked."""

from __future__ import annotations

import pytest

from stream.client import Client
from stream.kafka.processes import Service
from stream.noise import NoiseKey
from stream.settings import Settings
from tests.chaos.checker import check, check_answers, check_ledger
from tests.chaos.load import CUTOFF, STREAMS, answered, open_streams, opening_requests, publish, settled
from tests.conftest import StartService

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_kill_and_rebalance_in_the_middle_lose_and_double_nothing(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    start("budget")
    workers: list[Service] = [start("worker"), start("worker")]
    await open_streams(client)
    asked: list[str] = []
    for fault in range(4):
        asked += await publish(client, range(len(asked), len(asked) + 4000))
        await answered(client, len(asked) - 3000, 30)
        workers.pop(fault % 2).kill()
        workers.append(start("worker"))
    assert await answered(client, len(asked), 60) == len(asked)
    findings = await settled(settings, client, key, asked)
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
    await open_streams(client)
    asked = await publish(client, range(6000))
    await answered(client, 2000, 30)
    zombie.suspend()
    asked += await publish(client, range(6000, 12000))
    assert await answered(client, len(asked), 60) == len(asked)
    zombie.wake()
    asked += await publish(client, range(12000, 15000))
    assert await answered(client, len(asked), 60) == len(asked)
    assert other.exit_status is None
    findings = await settled(settings, client, key, asked)
    assert findings.violations == []


async def test_budget_service_killed_between_requests_grants_each_once(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    budget = start("budget")
    start("worker")
    await open_streams(client)
    asked = await publish(client, range(3000))
    budget.kill()
    asked += await publish(client, range(3000, 6000))
    start("budget")
    again = await client.requests(opening_requests(), 60)
    assert {receipt.outcome for receipt in again} == {"opened"}
    assert await answered(client, len(asked), 60) == len(asked)
    findings = await settled(settings, client, key, asked)
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
    await open_streams(client)
    asked = await publish(client, range(9000))
    assert await answered(client, len(asked), 60) == len(asked)
    findings = await settled(settings, client, key, asked)
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
