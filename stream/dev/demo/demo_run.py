"""Runs the demo: broker, budget service and two workers; one worker is killed half-way."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from schemas import Answer, Calibration, CloseStream, GrantRecord, OpenStream, RegisterSource, SourceRecord
from stream.client.async_client import AsyncClient
from stream.dev.demo.demo_report import (
    Check,
    DemoQuestion,
    DemoReport,
    check_answers,
    check_budget,
    questions,
    sources,
    streams,
)
from stream.dev.demo.tour import tour
from stream.kafka.broker.local_broker import LocalBroker, prepare
from stream.kafka.topics.creation import create_topics, delete_topics
from stream.privacy.noise import NoiseKey
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from stream.tables import adult

SESSION_TIMEOUT_MS = 6000
ANSWER_TIMEOUT = 60.0
"""Seconds without a new answer until the demo stops."""


class DemoProgress(Protocol):
    """Receives the demo's progress."""

    def step(self, message: str) -> None:
        """Start a step."""

    def advance(self, published: int, answered: int, total: int) -> None:
        """Report the numbers of published and answered queries."""


@dataclass
class _DemoRun:
    asked: dict[str, DemoQuestion]
    answers: list[Answer]
    calibrations: dict[str, Calibration]
    budgets: list[tuple[SourceRecord, list[GrantRecord]]]
    seconds: float
    takeover_seconds: float
    answered_at_kill: int
    toured: list[Check]


@dataclass(frozen=True)
class DemoInstallation:
    """The services of a run on Kafka, with a separate prefix."""

    settings: Settings
    workers: tuple[Service, ...]


@contextmanager
def installation(
    folder: Path, progress: DemoProgress, bootstrap: str | None, *, feed: bool = False
) -> Iterator[DemoInstallation]:
    """Start a budget service and two workers, and stop them at the end.

    Args:
        folder: Folder for broker data, logs and the key of this run.
        progress: Receives the progress.
        bootstrap: Address of a Kafka; None starts a local one.
        feed: Start a feed too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run_id = uuid.uuid4().hex[:8]
    key_file = folder / f"{run_id}.key"
    NoiseKey.generate().save(key_file)
    with ExitStack() as stack:
        stack.callback(key_file.unlink)
        if bootstrap is None:
            prepare(progress.step)
            progress.step("starting Kafka")
            broker = stack.enter_context(LocalBroker(folder / "broker"))
            kafka = Settings.of_local_broker(broker.start().bootstrap)
        else:
            kafka = Settings(bootstrap=bootstrap)
        own = {
            "prefix": f"sotto-demo-{run_id}",
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "table_roots": str(adult.PATH.parent),
        }
        settings = kafka.model_copy(update=own)
        asyncio.run(create_topics(settings))
        stack.callback(lambda: asyncio.run(delete_topics(settings)))
        progress.step(f"starting the budget service{', a feed' if feed else ''} and two workers")
        roles: list[tuple[RoleName, int]] = [("budget", 0), ("worker", 0), ("worker", 1)]
        roles += [("feed", 0)] if feed else []
        services = [
            stack.enter_context(
                Service(role, settings, key_file, folder / "logs" / f"{run_id}-{role}-{number}.log")
            )
            for role, number in roles
        ]
        yield DemoInstallation(settings, tuple(one for one in services if one.role == "worker"))


def run_demo(up: DemoInstallation, progress: DemoProgress, *, queries: int, seed: int = 1) -> DemoReport:
    """Run the demo, kill one worker half-way, and return the report.

    Args:
        up: The installation, for one run only.
        progress: Receives the progress.
        queries: Minimum number of queries.
        seed: Seed of the questions, not of the noise.
    """
    return _report(asyncio.run(_main_job(up.settings, up.workers[0], progress, queries, seed)))


async def _main_job(
    settings: Settings, victim: Service, progress: DemoProgress, queries: int, seed: int
) -> _DemoRun:
    async with AsyncClient(settings) as client:
        progress.step("registering two sources and opening 40 streams")
        per_stream = -(-queries // len(streams(1)))
        specs = streams(per_stream)
        await client.requests([RegisterSource(request=source.source, source=source) for source in sources()])
        opened = await client.requests([OpenStream(request=spec.stream, stream=spec) for spec in specs])
        for receipt in opened:
            if receipt.outcome != "opened":
                raise RuntimeError(f"stream {receipt.stream} was not opened: {receipt.reason}")
        names = [source.source for source in sources()]
        calibrations = {
            grant.spec.stream: grant.calibration for name in names for grant in await client.list_streams(name)
        }
        asked = {one.query.id: one for one in questions(specs, calibrations, per_stream, seed)}
        answers: list[Answer] = []
        reading = asyncio.create_task(_read(client, answers))
        try:
            began = time.monotonic()
            order = list(asked.values())
            half = len(order) // 2
            progress.step("asking")
            await _publish(client, order[:half], 0, answers, progress, len(order))
            await _until(answers, half // 2, progress, half, len(order))
            progress.step("killing one of the two workers (SIGKILL)")
            victim.kill()
            killed, answered_at_kill = time.monotonic(), len(answers)
            await _publish(client, order[half:], half, answers, progress, len(order))
            await _until(answers, len(order), progress, len(order), len(order))
            took = time.monotonic() - began
            takeover = time.monotonic() - killed
            await asyncio.sleep(1.0)  # lets duplicate answers arrive
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        progress.step("asking a stream of every mechanism")
        toured = await tour(client, seed)
        progress.step("closing the streams")
        await client.requests(
            [CloseStream(request=f"close {s.stream}", source=s.source, stream=s.stream) for s in specs],
        )
        budgets = [await _settled(client, name) for name in names]
        return _DemoRun(asked, answers, calibrations, budgets, took, takeover, answered_at_kill, toured)


async def _publish(
    client: AsyncClient,
    order: list[DemoQuestion],
    before: int,
    answers: list[Answer],
    progress: DemoProgress,
    total: int,
) -> None:
    for number, one in enumerate(order, start=1):
        await client.publish(one.query)
        if number % 500 == 0:
            await client.flush()
            progress.advance(before + number, len(answers), total)
    await client.flush()
    progress.advance(before + len(order), len(answers), total)


async def _read(client: AsyncClient, answers: list[Answer]) -> None:
    async for answer in client.answers(from_beginning=True):
        answers.append(answer)  # noqa: PERF401  (other tasks read the list meanwhile)


async def _until(answers: list[Answer], count: int, progress: DemoProgress, published: int, total: int) -> None:
    seen, since = len(answers), time.monotonic()
    while len(answers) < count:
        await asyncio.sleep(0.1)
        progress.advance(published, len(answers), total)
        if len(answers) > seen:
            seen, since = len(answers), time.monotonic()
        elif time.monotonic() - since > ANSWER_TIMEOUT:
            return


async def _settled(client: AsyncClient, source: str) -> tuple[SourceRecord, list[GrantRecord]]:
    deadline = time.monotonic() + ANSWER_TIMEOUT
    while True:
        grants = await client.list_streams(source)
        if all(grant.state == "closed" for grant in grants) or time.monotonic() > deadline:
            return await client.budget(source), grants
        await asyncio.sleep(0.2)


def _report(run: _DemoRun) -> DemoReport:
    checks, outcomes = check_answers(run.asked, run.answers, run.calibrations)
    dry_of = {answer.stream for answer in run.answers if answer.outcome == "above" and answer.tops_left == 0}
    for record, grants in run.budgets:
        names = {grant.spec.stream for grant in grants}
        checks.append(check_budget(record, grants, dry_of & names))
    after = len(run.answers) - run.answered_at_kill
    checks.append(
        Check(
            "the other worker takes over after kill -9",
            f"{after:,} answers after the kill, all in after {run.takeover_seconds:.1f} s",
            after > 0,
        ),
    )
    checks += run.toured
    rate = len(run.asked) / run.seconds
    figures = {
        "queries_asked": len(run.asked),
        "queries_answered": len(run.answers),
        "above": outcomes["above"],
        "below": outcomes["below"],
        "halted_answers": outcomes["halted"],
        "streams": len(run.calibrations),
        "streams_halted": len(dry_of),
        "seconds": round(run.seconds, 2),
        "queries_per_second": round(rate),
        "budgets": [record.model_dump(mode="json", exclude={"source"}) for record, _ in run.budgets],
    }
    return DemoReport(checks, figures)
