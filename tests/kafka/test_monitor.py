"""On real Kafka, the monitor shows committed records, carries out its operator's requests, and delays no service."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiokafka import AIOKafkaProducer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from schemas import Amount, PartitionStatus, SourceRecord, ValuesSource
from sotto import AsyncClient
from stream.diagnostics import set_tracer_provider, span
from stream.engine import session
from stream.kafka.broker_addresses import free_port
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_layouts import budget_group, worker_group
from stream.monitor import topic_readers
from stream.monitor.monitor_tables import MonitorTables
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import partition_of
from stream.services.processes import Service
from stream.services.runner import build_worker_engine
from stream.settings import Settings
from tests.builders import source
from tests.chaos.checker import committed
from tests.conftest import StartService
from tests.kafka.wards import ward
from tests.names import FILE, give_token, make_names, revoke

pytestmark = pytest.mark.kafka

FEED = source(neighbors="add-remove", epsilon=5.0)
HIGH, LOW = 1e9, -1e9
START_SECONDS = 180


class Web:
    """A client of the monitor's API."""

    def __init__(self, session: ClientSession, settings: Settings, tokens: dict[str, str]) -> None:
        self._session = session
        self._address = f"http://{settings.monitor_host}:{settings.monitor_port}"
        self.tokens = {**tokens, "nobody": "0" * 40}

    async def status(self, path: str, role: str) -> int:
        async with self._session.get(self._address + path, headers=self._as(role)) as response:
            return response.status

    async def get(self, path: str, role: str = "viewer") -> dict[str, Any]:
        async with self._session.get(self._address + path, headers=self._as(role)) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer

    async def post(self, path: str, body: dict[str, Any], role: str = "operator") -> tuple[int, dict[str, Any]]:
        async with self._session.post(self._address + path, json=body, headers=self._as(role)) as response:
            return response.status, await response.json()

    async def ready(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    async with self._session.get(f"{self._address}/readyz") as response:
                        if response.status == 200:
                            return
                except OSError:
                    pass
                await asyncio.sleep(0.1)

    async def until(self, path: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(START_SECONDS):
            while not wanted(answer := await self.get(path)):
                await asyncio.sleep(0.1)
            return answer

    def _as(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"}


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """A token for each role; ``own`` names their file."""
    return make_names(tmp_path)


@pytest.fixture
def monitor_settings(settings: Settings, tmp_path: Path, tokens: dict[str, str]) -> Settings:
    """The installation's settings, with those of its monitor."""
    assert tokens
    port = free_port()
    return settings.model_copy(
        update={
            "monitor_port": port,
            "monitor_names_file": str(tmp_path / FILE),
            "monitor_burst": 10_000,
            "monitor_asks": True,
        }
    )


@pytest.fixture
def start_monitor(monitor_settings: Settings, tmp_path: Path) -> Iterator[Callable[[], Service]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Service("monitor", monitor_settings, None, tmp_path / "monitor.log"))


@pytest.fixture
async def web(monitor_settings: Settings, tokens: dict[str, str]) -> AsyncIterator[Web]:
    async with ClientSession() as session:
        yield Web(session, monitor_settings, tokens)


def drop_time_fields(page: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a page's rows without the fields that depend on the time; digests come up to two seconds after the answers."""
    return [{name: row[name] for name in row.keys() - {"rates", "dry_in", "updated"}} for row in page["items"]]


async def test_monitor_halt_halts_stream_on_kafka(
    client: AsyncClient,
    start: StartService,
    start_monitor: Callable[[], Service],
    web: Web,
    monitor_settings: Settings,
) -> None:
    """The monitor itself joins no consumer group."""
    start("budget")
    start("worker")
    monitor = start_monitor()
    await web.ready()
    assert (await web.post("/api/sources", {"request": "register", "source": FEED}))[0] == 200
    opening = {"request": "open", "stream": ward(cutoff=3, threshold=0.0)}
    assert (await web.post("/api/streams", opening))[1]["outcome"] == "opened"
    assert (await client.ask({"stream": "ward", "value": HIGH}, outcomes=True)).outcome == "above"
    halt = {"kind": "halt", "request": "stop it", "source": "feed", "stream": "ward", "reason": "audit"}
    assert (await web.post("/api/halts", halt, "nobody"))[0] == 401
    assert (await web.post("/api/halts", halt, "viewer"))[0] == 403
    assert (await client.ask({"stream": "ward", "value": LOW}, outcomes=True)).outcome == "below"
    before = await web.until("/api/streams/ward", lambda detail: detail["row"]["answered"] == 2)
    assert before["row"]["state"] == "open"
    status, receipt = await web.post("/api/halts", halt)
    assert (status, receipt["outcome"]) == (200, "halted")
    assert (await client.list_streams("feed"))[0].ending == "halted"
    assert await web.post("/api/halts", halt) == (200, receipt)
    async with asyncio.timeout(120):
        while (answer := await client.ask({"stream": "ward", "value": LOW}, outcomes=True)).outcome != "halted":
            await asyncio.sleep(0.1)
    assert answer.reason == "audit"
    answers = await web.get("/api/streams/ward/answers")
    assert [row["answer"]["outcome"] for row in answers["items"][-2:]] == ["below", "above"]
    assert answers["before"] is None
    after = await web.until("/api/streams/ward", lambda detail: detail["row"]["state"] == "halted")
    assert (after["row"]["reason"], after["row"]["tops"]) == ("audit", 1)
    workers = await web.until("/api/workers", lambda view: _answered(view) >= 3 and not _lag(view))
    assert {row["role"] for row in workers["members"]} == {"worker", "budget"}
    assert all(row["member"] and row["restore"]["phase"] == "ready" for row in workers["partitions"])
    async with admin_client(monitor_settings) as admin:
        groups = {
            name for name, _ in await admin.list_consumer_groups() if name.startswith(monitor_settings.prefix)
        }
    assert groups == {worker_group(monitor_settings), budget_group(monitor_settings)}
    monitor.stop()
    assert monitor.exit_status == 0
    events = [json.loads(line)["event"] for line in monitor.log.read_text().splitlines()]
    assert events[-1] == "monitor stopped"


async def test_killed_monitor_shows_same_figures_and_delays_no_service(
    client: AsyncClient, start: StartService, start_monitor: Callable[[], Service], web: Web
) -> None:
    start("budget")
    start("worker")
    first = start_monitor()
    await web.ready()
    await client.register(FEED)
    for stream in ("open", "exhausted", "closed"):
        await client.open(ward(stream, cutoff=3, threshold=0.0))
    for stream, values in {"open": [LOW, HIGH, LOW], "exhausted": [HIGH] * 3, "closed": [LOW]}.items():
        for value in values:
            await client.ask({"stream": stream, "value": value}, outcomes=True)
    await client.close("feed", "closed")
    await web.until("/api/sources", lambda page: page["items"][0]["refunded"]["epsilon"] > 0)
    await web.until("/api/overview", lambda overview: overview["answered"] == 7)
    await web.until("/api/streams/exhausted", lambda detail: detail["row"]["reason"] is not None)
    before = [drop_time_fields(await web.get(path)) for path in ("/api/streams", "/api/sources")]
    first.kill()
    second = start_monitor()
    await web.ready()
    after = [drop_time_fields(await web.get(path)) for path in ("/api/streams", "/api/sources")]
    assert after == before
    record, grants = await client.budget("feed"), await client.list_streams("feed")
    assert before[1][0]["spent"]["epsilon"] == record.spent.epsilon
    assert {row["stream"]: row["state"] for row in before[0]} == {
        grant.spec.stream: grant.state for grant in grants
    }
    second.kill()
    for value in (LOW, HIGH):
        await client.ask({"stream": "open", "value": value}, outcomes=True)
    assert (await client.open(ward("another", cutoff=3, threshold=0.0))).outcome == "opened"


async def test_monitor_shows_committed_records_only(
    monitor_settings: Settings, client: AsyncClient, start_monitor: Callable[[], Service], web: Web
) -> None:
    start_monitor()
    await web.ready()
    none, some = Amount(epsilon=0.0, delta=0.0), Amount(epsilon=4.0, delta=0.0)
    source = ValuesSource.model_validate(FEED)

    def record(spent: Amount) -> bytes:
        return (
            SourceRecord(
                source=source,
                fingerprint=None,
                state="open",
                granted=some,
                spent=spent,
                refunded=none,
                left=Amount(epsilon=1.0, delta=0.0),
                streams=0,
            )
            .model_dump_json()
            .encode()
        )

    producer = AIOKafkaProducer(
        bootstrap_servers=monitor_settings.bootstrap, transactional_id=f"{monitor_settings.prefix}-test"
    )
    async with producer:
        for spent, committed in ((none, True), (some, False)):
            await producer.begin_transaction()
            await producer.send_and_wait(client.topics.ledger, record(spent), key=b"source|feed", partition=0)
            await (producer.commit_transaction() if committed else producer.abort_transaction())
        await producer.begin_transaction()
        await producer.send_and_wait(
            client.topics.ledger, record(none).replace(b'"feed"', b'"next"'), key=b"source|next", partition=0
        )
        await producer.commit_transaction()
        page = await web.until("/api/sources", lambda page: page["total"] == 2)
    assert [row["spent"]["epsilon"] for row in page["items"]] == [0.0, 0.0]


async def test_restore_reports_its_progress(
    settings: Settings, client: AsyncClient, key: NoiseKey, start: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("budget")
    await client.register(FEED)
    await client.open(ward(cutoff=3, threshold=0.0))
    monkeypatch.setattr(session, "RESTORE_REPORT_SECONDS", 0.0)
    engine = build_worker_engine(settings, client.topics, key)
    running = asyncio.create_task(engine.run())
    try:
        await client.ask({"stream": "ward", "value": LOW}, timeout=START_SECONDS, outcomes=True)
    finally:
        engine.stop()
        await running
    home = partition_of(b"ward", client.topics.partitions)
    reports = [
        PartitionStatus.model_validate_json(record.value or b"")
        for record in await committed(settings, client.topics.status, home)
        if record.key == f"@worker|{home}".encode()
    ]
    assert [report.phase for report in reports] == ["restoring", "ready"]
    assert all((report.role, report.partition) == ("worker", home) for report in reports)
    assert all(0 < report.records <= report.total for report in reports)
    assert reports[0].member.endswith(f"-{os.getpid()}")


async def test_trace_links_client_to_worker(
    settings: Settings, client: AsyncClient, key: NoiseKey, start: StartService
) -> None:
    start("budget")
    await client.register(FEED)
    await client.open(ward(cutoff=3, threshold=0.0))
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = build_worker_engine(settings, client.topics, key)
    running = asyncio.create_task(engine.run())
    set_tracer_provider(provider)
    try:
        with span("asker", {}):
            await client.ask({"stream": "ward", "value": LOW}, timeout=START_SECONDS, outcomes=True)
    finally:
        engine.stop()
        await running
        set_tracer_provider(None)
    found = {one.name: one for one in exporter.get_finished_spans()}
    asked = found["asker"].get_span_context()
    assert asked is not None
    assert [link.context.span_id for link in found["worker answers"].links] == [asked.span_id]


async def test_monitor_applies_new_and_revoked_tokens_without_restart(
    start_monitor: Callable[[], Service], web: Web, tmp_path: Path
) -> None:
    monitor = start_monitor()
    await web.ready()
    web.tokens["auditor"] = give_token(tmp_path, "auditor", "viewer")
    assert (await web.get("/api/session", "auditor"))["name"] == "auditor"
    revoke(tmp_path, "auditor")
    assert await web.status("/api/session", "auditor") == 401
    (tmp_path / FILE).chmod(0o644)
    for role in ("operator", "viewer", "auditor"):
        assert await web.status("/api/session", role) == 503
    (tmp_path / FILE).chmod(0o600)
    assert await web.status("/api/session", "operator") == 200
    assert await web.status("/api/session", "auditor") == 401
    log = monitor.log.read_text()
    assert "names file unreadable; all tokens are refused" in log
    assert not any(token in log for token in web.tokens.values())


def _lag(view: dict[str, Any]) -> int:
    return sum(row["lag"] for row in view["partitions"])


def _answered(view: dict[str, Any]) -> int:
    return sum(row["position"] or 0 for row in view["partitions"] if row["role"] == "worker")


async def test_monitor_reads_the_trail_from_its_end_and_then_the_rest(
    client: AsyncClient, start: StartService, monitor_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor is up to date before it has read the earlier entries; it follows new ones, and finally has all."""
    monkeypatch.setattr(topic_readers, "MAX_HELD_ENTRIES", 2)
    monkeypatch.setattr(topic_readers, "PACE_WINDOWS", (0,))
    start("budget")
    for number in range(6):
        await client.register({**FEED, "source": f"feed-{number}"})
    tables, ready = MonitorTables(client.topics), asyncio.Event()
    trail_reader = topic_readers.TrailReader(monitor_settings, client.topics, tables, ready.is_set)
    reading = asyncio.create_task(trail_reader.run())
    try:
        async with asyncio.timeout(START_SECONDS):
            while trail_reader.unread_offsets != 0:
                await asyncio.sleep(0.05)
            assert 0 < tables.trail.unread < 7
            await client.register({**FEED, "source": "feed-6"})
            while tables.trail.entries < 8:
                await asyncio.sleep(0.05)
            assert tables.trail.unread > 0
            ready.set()
            while tables.trail.unread:
                await asyncio.sleep(0.05)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert (tables.trail.broken, tables.unreadable) == (None, 0)
    assert tables.records == tables.trail.entries == 8
