"""Services are killed, suspended or told to stop; still, every event is answered once, and nothing is spent twice or forgotten."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from schemas import OpenStream
from schemas.sources import HOUR_MS
from stream.engine.restore import create_reader
from stream.services.processes import Service
from tests.chaos.load import SENSITIVE_STREAMS, specs
from tests.chaos.loaded_installation import LoadedInstallation

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_killed_workers_and_a_zombie_lose_and_double_nothing(
    installation: LoadedInstallation,
) -> None:
    """The zombie continues after its session has ended."""
    installation.start("budget")
    workers: list[Service] = [installation.start("worker"), installation.start("worker")]
    await installation.open()
    for fault in range(3):
        await installation.ask(1500)
        await installation.bomb(installation.client.topics.queries, fault)
        await installation.answered(missing=1000)
        workers.pop(fault % 2).kill()
        installation.injected["SIGKILL worker"] += 1
        # Some streams are exhausted by now, and no worker answers at the moment.
        await installation.extend("laplace", "noisy-max", "numeric", "stream-0")
        workers.append(installation.start("worker"))
    zombie = workers[0]
    await installation.ask(1500)
    os.kill(zombie.pid, signal.SIGSTOP)
    installation.injected["SIGSTOP past the session, SIGCONT"] += 1
    await installation.answered()
    os.kill(zombie.pid, signal.SIGCONT)
    await installation.ask(1000)
    await installation.answered()
    findings = await installation.verified()
    assert any(grant.state == "exhausted" for grant in findings.grants.values())
    assert any(grant.tops > grant.calibration.cutoff for grant in findings.grants.values())
    assert {answer.basis for answer in findings.answers} >= {
        "release",
        "noisy",
        "hypothesis",
        "randomized",
        "fresh",
    }


async def test_stopped_worker_hands_over_and_rebalances_do_no_harm(
    installation: LoadedInstallation,
) -> None:
    installation.start("budget")
    leaving = installation.start("worker")
    await installation.logged(installation.start("worker"), "assigned")
    await installation.open()
    await installation.ask(2000)
    await installation.answered(missing=1500)
    began = time.monotonic()
    await asyncio.to_thread(leaving.stop)
    assert leaving.exit_status == 0
    installation.injected[f"SIGTERM worker, gone in {time.monotonic() - began:.1f} s"] += 1
    for _ in range(3):
        passing = installation.start("worker")
        await installation.ask(700)
        await installation.logged(passing, "assigned")
        await asyncio.to_thread(passing.stop)
        installation.injected["rebalance by a passing worker"] += 2
        await installation.ask(700)
    await installation.answered()
    await installation.verified()


async def test_budget_service_killed_before_a_grant_grants_each_once(
    installation: LoadedInstallation,
) -> None:
    """Control events that are repeated out of order open no stream again either."""
    budget = installation.start("budget")
    worker = installation.start("worker")
    await installation.open()
    template, killed = specs()[1], "SIGKILL budget service between reserve and grant"
    # The number of attempts until the suspension comes in time depends on the machine's other work.
    for attempt in range(300):
        spec = template.model_copy(update={"stream": f"more-{attempt}", "epsilon": 0.01})
        if await _suspended_while_granting(installation, budget, OpenStream(request=spec.stream, stream=spec)):
            budget.kill()
            installation.injected[killed] += 1
            budget = installation.start("budget")
        else:
            os.kill(budget.pid, signal.SIGCONT)
        [receipt] = await installation.client.requests([OpenStream(request=spec.stream, stream=spec)], 60)
        assert receipt.outcome == "opened"
        if installation.injected[killed] == 2 or (installation.injected[killed] and attempt >= 30):
            break
    assert installation.injected[killed] >= 1
    for topic in (installation.client.topics.requests, installation.client.topics.charges):
        await installation.bomb(topic)
    again = await installation.client.requests(installation.openings, 60)
    assert {one.outcome for one in again} == {"opened"}
    await installation.ask(1000)
    await installation.client.halt("feed", "stream-2")
    await installation.repeat_openings(["stream-1", "stream-2", "stream-3"])
    await installation.ask(500)
    await installation.answered()
    worker.kill()
    installation.injected["SIGKILL worker"] += 1
    installation.start("worker")
    await installation.ask(500)
    await installation.answered()
    findings = await installation.verified()
    assert findings.sources["feed"].granted.epsilon == pytest.approx(SENSITIVE_STREAMS + 1 + 0.01 * (attempt + 1))


@pytest.mark.parametrize("clock", ["marks", "broker"])
async def test_kills_in_windows_leave_each_asked_and_answered_once(
    installation: LoadedInstallation, clock: str
) -> None:
    """Queries are asked meanwhile, and feeds join, leave and continue as zombies."""
    budget, worker = installation.start("budget"), installation.start("worker")
    feeds = [installation.start("feed"), installation.start("feed")]
    await installation.open()
    live = await installation.people(clock)
    for fault in range(3):
        await installation.ask(300)
        await installation.logged(feeds[-1], "partition ready")
        feeds.pop(0).kill()
        installation.injected["SIGKILL feed"] += 1
        feeds.append(installation.start("feed"))
        if fault == 0:
            worker.kill()
            installation.injected["SIGKILL worker"] += 1
            worker = installation.start("worker")
        if fault == 1:
            budget.kill()
            installation.injected["SIGKILL budget service"] += 1
            installation.start("budget")
    os.kill(feeds[0].pid, signal.SIGSTOP)
    installation.injected["SIGSTOP feed past its session, SIGCONT"] += 1
    joining = installation.start("feed")
    installation.injected["feed joins"] += 1
    await installation.logged(joining, "partition ready", 60)
    os.kill(feeds[0].pid, signal.SIGCONT)
    await asyncio.to_thread(feeds[1].stop)
    installation.injected["feed leaves"] += 1
    await installation.ask(300)
    await installation.answered()
    findings = await installation.verified()
    kinds = {answer.stream for answer in findings.answers if answer.window is not None}
    assert kinds == {spec.stream for spec in live.specs}
    assert live.visits.wrong
    assert live.repeated


async def test_kills_at_period_edges_leave_each_period_handled_once(
    installation: LoadedInstallation,
) -> None:
    """Periods begin without a budget service, and end while a worker is one period behind; feeds are killed or continue as zombies."""
    budget, worker = installation.start("budget"), installation.start("worker")
    feeds = [installation.start("feed"), installation.start("feed")]
    live = await installation.people("marks", period="1h")
    await installation.logged(feeds[-1], "partition ready")
    for fault in range(4):
        await live.reached(_edge(live.now) - 2 * live.pace.step)
        if fault == 0:
            budget.kill()
            installation.injected["SIGKILL budget service before a period's edge"] += 1
        if fault == 1:
            worker.kill()
            installation.injected["SIGKILL worker before a period's edge"] += 1
        if fault == 2:
            os.kill(feeds[0].pid, signal.SIGSTOP)
            installation.injected["SIGSTOP feed over a period's edge, SIGCONT"] += 1
        await live.reached(_edge(live.now) + 5 * live.pace.step)
        feeds.pop().kill()
        installation.injected["SIGKILL feed behind a period's edge"] += 1
        feeds.append(installation.start("feed"))
        await installation.logged(feeds[-1], "partition ready")
        if fault == 0:
            budget = installation.start("budget")
        if fault == 1:
            worker = installation.start("worker")
        if fault == 2:
            os.kill(feeds[0].pid, signal.SIGCONT)
    await live.reached(_edge(live.now) + 1)
    findings = await installation.verified()
    periods = [name for name in findings.sources if name.startswith("visits@")]
    assert len(periods) > 4
    assert any(grant.state == "closed" for grant in findings.grants.values())
    assert live.visits.wrong
    assert live.repeated


def _edge(moment: int) -> int:
    """Return the next full hour after a moment."""
    return moment - moment % HOUR_MS + HOUR_MS


async def _suspended_while_granting(
    installation: LoadedInstallation, budget: Service, request: OpenStream
) -> bool:
    """Suspend the budget service as soon as it writes to the ledger; return whether its transaction is not committed yet."""
    topics = installation.client.topics
    place = TopicPartition(topics.ledger, 0)
    committed, written = (
        create_reader(installation.settings, isolation_level=f"read_{one}") for one in ("committed", "uncommitted")
    )
    async with committed, written:
        before = (await written.end_offsets([place]))[place]
        await installation.client._connection.send(
            topics.requests, request.stream.source, request.model_dump_json().encode()
        )
        await installation.client.flush()
        async with asyncio.timeout(120):
            while (await written.end_offsets([place]))[place] == before:
                await asyncio.sleep(0)
        os.kill(budget.pid, signal.SIGSTOP)
        end = (await written.end_offsets([place]))[place]
        stable = (await committed.end_offsets([place]))[place]
        return int(stable) < int(end)


async def test_worker_with_its_log_on_a_full_disk_answers(installation: LoadedInstallation) -> None:
    installation.start("budget", log=Path("/dev/full"))
    worker = installation.start("worker", log=Path("/dev/full"))
    installation.injected["services that log to a full disk"] += 2
    await installation.open()
    await installation.ask(1000)
    await installation.answered()
    assert worker.exit_status is None
    await installation.verified()
