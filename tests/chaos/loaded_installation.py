"""An installation on a real broker under load: its faults, and a report of faults and findings."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import GroupIdNotFound, NoError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest

from schemas import ExtendStream, OpenStream, RefreshSource
from sotto import AsyncClient
from stream.kafka.topic_layouts import worker_group
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from stream.witnesses.witness_kinds import FileWitness
from tests import bombs
from tests.chaos.checker import Findings, check, check_letters, committed
from tests.chaos.live import HOURS, LONG, Live, live_topic
from tests.chaos.load import EPSILON, GREEDY, WORK_OUTSTANDING, Questions, answered, open_streams, specs
from tests.chaos.trails import check_anchors
from tests.chaos.windows import YESTERDAY

WINDOWS_SETTLING = 180.0
"""Seconds within which every closed window must be asked and answered."""
SETTLING = 120.0
"""Seconds within which the charges under way must reach the ledger."""

RETIRE_DAYS = 5 / 86_400
"""Ended streams are retired after five seconds."""

POLL_MS = 3_000
"""A crippled client library leaves its group if nothing was fetched for so many milliseconds, unless its settings forbid it."""

REPORTS: list[str] = []
"""The injected faults and the findings of every installation; they are printed at the end of a test run."""


class LoadedInstallation:
    """An installation with its services, its load, and a journal of the injected faults."""

    def __init__(
        self, settings: Settings, client: AsyncClient, key: NoiseKey, folder: Path, stack: AsyncExitStack
    ) -> None:
        self.settings = settings
        self.client = client
        self.key = key
        self.folder = folder
        self.asked: list[str] = []
        self.injected: Counter[str] = Counter()
        self.retire_days = RETIRE_DAYS
        self.bombs: Counter[tuple[str, int, int]] = Counter()
        self.openings: list[OpenStream] = []
        self.live: Live | None = None
        self.windows: list[str] = []
        """The ids of the questions that a live topic's windows asked; empty until the test has ended."""
        self.work_outstanding = WORK_OUTSTANDING
        self._questions = Questions(specs(), seed=0)
        self._stack = stack
        self._started = 0
        self._services: list[Service] = []
        self._witness = FileWitness(folder / "anchors.jsonl")
        key.save(folder / "noise.key")

    def start(self, role: RoleName, *, settings: Settings | None = None, log: Path | None = None) -> Service:
        """Start a service; it is stopped at the end of the test."""
        self._started += 1
        path = log or self.folder / f"{role}-{self._started}.log"
        own = (settings or self.settings).model_copy(
            update={
                "table_roots": str(self.folder),
                "work_outstanding": self.work_outstanding,
                "retire_days": self.retire_days,
                "witnesses": self._witness.name,
                "anchor_seconds": 1.0,
            }
        )
        service = Service(role, own, None if role == "feed" else self.folder / "noise.key", path)
        self._services.append(service)
        return self._stack.enter_context(service)

    async def logged(self, service: Service, event: str, seconds: float = 120.0) -> None:
        """Wait until a service has logged an event, such as ``joined`` or ``assigned``."""
        async with asyncio.timeout(seconds):
            while f'"event": "{event}"' not in await asyncio.to_thread(service.log.read_text):
                assert service.exit_status is None, f"the service ended before it had {event}"
                await asyncio.sleep(0.02)

    def assigned(self, service: Service) -> list[list[int]]:
        """Return the partitions that a service was assigned, at each rebalance."""
        lines = (json.loads(line) for line in service.log.read_text().splitlines() if line.startswith("{"))
        return [line["partitions"] for line in lines if line["event"] == "assigned"]

    async def open(self) -> None:
        """Register the sources, and open the streams of the load."""
        self.openings = await open_streams(self.client, self.folder / "people.csv")

    async def people(self, clock: str, replicas: int = 1, seed: int = 1, *, period: str | None = None) -> Live:
        """Open a live topic and its standing streams; people send events until all is verified."""
        pace = LONG if period is None else HOURS
        begins = YESTERDAY if clock == "marks" else int(time.time() * 1000)
        live = self.live = await live_topic(
            self.settings,
            self.client,
            clock,
            begins=begins,
            pace=pace,
            period=period,
            replicas=replicas,
            seed=seed,
        )
        live.services = self._services
        self._stack.push_async_callback(live.close)
        live.begin()
        return live

    async def extend(self, *streams: str) -> None:
        """Extend streams at the cost of an opening, and repeat the requests in case services fail in the meantime."""
        source = {spec.stream: spec.source for spec in specs()}
        number = self.injected["stream extended"]
        requests = [
            ExtendStream(request=f"extend {name} {number}", source=source[name], stream=name, epsilon=EPSILON)
            for name in streams
        ]
        for _ in range(2):
            receipts = await self.client.requests(requests, 180)
            assert {receipt.outcome for receipt in receipts} == {"opened"}, [one.reason for one in receipts]
        self.injected["stream extended"] += len(streams)

    async def refresh(self) -> None:
        """Renew the table without changing its rows, and repeat the request."""
        request = RefreshSource(request=f"refresh {self.injected['table renewed']}", source="people")
        for _ in range(2):
            [receipt] = await self.client.requests([request], 180)
            assert receipt.outcome == "registered", receipt.reason
        self.injected["table renewed"] += 1

    async def ask(self, count: int) -> None:
        """Publish the next questions; every fourth one comes from a greedy stream."""
        (greedy,) = (spec for spec in specs() if spec.stream == GREEDY)
        for number in range(count):
            identifier, stream, value = self._questions.next(None if number % 4 else greedy)
            await self.client._connection.send(self.client.topics.queries, stream, value)
            self.asked.append(identifier)
        await self.client.flush()

    async def bomb(self, topic: str, partition: int = 0) -> None:
        """Send batches of a few kilobytes that hold 9 MB, 400 MB and 900 times 1 MB."""
        for built, count in (
            (bombs.large_value(9), 1),
            (bombs.large_value(400), 1),
            (bombs.large_values(900), 900),
        ):
            first = await bombs.send(self.settings.bootstrap, topic, partition, built)
            self.bombs[topic, partition, first] += 1
            self.injected[f"batch of {len(built)} bytes with {count} too large"] += 1

    async def answered(self, missing: int = 0, seconds: float = 180.0) -> None:
        """Wait until all questions except ``missing`` ones are answered."""
        wanted = len(self.asked) - missing
        found = await answered(self.client, wanted, seconds)
        assert found >= wanted, f"{found} of {wanted} answered within {seconds:.0f} s"

    async def expire_offsets(self) -> None:
        """Make the broker forget the workers' committed offsets; no worker may run."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.bootstrap)
        await admin.start()
        try:
            async with asyncio.timeout(120):
                while True:
                    response = await admin._send_request(DeleteGroupsRequest([worker_group(self.settings)]))
                    # If the workers are killed again before they have joined, there is no group to delete.
                    if {for_code(code) for _, code in response.results} <= {NoError, GroupIdNotFound}:
                        break
                    await asyncio.sleep(0.5)  # the session of a killed worker must end first
        finally:
            await admin.close()
        self.injected["committed offsets expired"] += 1

    async def compact_eagerly(self) -> None:
        """Have the changelog compacted within moments."""
        eager = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "cleanup.policy": "compact"}
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.bootstrap)
        await admin.start()
        try:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.client.topics.state, eager)])
        finally:
            await admin.close()

    async def repeat_openings(self, streams: list[str]) -> None:
        """Repeat the openings of streams on the control topic, from another producer than the budget service's."""
        topic = self.client.topics.control
        async with AIOKafkaProducer(bootstrap_servers=self.settings.bootstrap) as producer:
            for number in range(self.client.topics.partitions):
                first = {record.key: record for record in reversed(await committed(self.settings, topic, number))}
                for name in streams:
                    if (record := first.get(name.encode())) is not None:
                        await producer.send_and_wait(topic, record.value, key=record.key, partition=number)
                        self.injected["control event repeated out of order"] += 1

    async def verified(self, *, same_version: bool = True) -> Findings:
        """Wait until everything is answered and all charges have reached the ledger; then require that there is no violation.

        Without ``same_version``, services of several versions have answered, which word the same reasons differently.
        """
        if self.live is not None:
            await self.live.finished(WINDOWS_SETTLING)
            # With the broker's clock, windows go on closing. Without feeds, they ask no questions while the topics are read.
            for service in self._services:
                if service.role == "feed" and service.exit_status is None:
                    await asyncio.to_thread(service.stop)
            self.windows = await self.live.asked()
        deadline = time.monotonic() + SETTLING
        while True:
            limited = self.settings.model_copy(update={"work_outstanding": self.work_outstanding})
            findings = await check(
                limited, self.client.topics, self.key, [*self.asked, *self.windows], same_version=same_version
            )
            findings.violations.extend(await self._letters())
            anchors = self._witness.read_newest(self.settings.prefix)
            trail = await committed(self.settings, self.client.topics.trail, 0)
            findings.violations.extend(check_anchors(anchors, trail))
            if self.live is not None:
                findings.violations.extend(await self.live.refunds())
            if not findings.violations or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        self._report(findings)
        assert findings.violations == [], findings.violations
        return findings

    async def _letters(self) -> list[str]:
        """Return a violation for each bomb without exactly one dead letter."""
        topics = self.client.topics
        places = [(topics.rejected, number) for number in range(topics.partitions)]
        logs = {place: await committed(self.settings, *place) for place in places}
        return check_letters(logs, topics, self.bombs)

    def _report(self, findings: Findings) -> None:
        faults = ", ".join(f"{times} × {name}" for name, times in self.injected.items())
        outcomes = Counter(
            "busy" if (answer.reason or "").startswith("busy") else answer.outcome for answer in findings.answers
        )
        counted = ", ".join(f"{times} {name}" for name, times in outcomes.most_common())
        found = "; ".join(findings.violations) or "no violation"
        live = self.live
        sent = live and f", {live.sent} live events ({live.visits.wrong} wrong, {live.repeated} twice)"
        asked = f"{len(self.asked)} events{sent or ''}, {len(self.windows)} questions of windows"
        REPORTS.append(f"{faults}: {asked}, {counted}; {found}")


@asynccontextmanager
async def open_installation(settings: Settings, key: NoiseKey, folder: Path) -> AsyncIterator[LoadedInstallation]:
    """Yield an installation on existing topics; its services are stopped at the end."""
    async with AsyncExitStack() as stack, AsyncClient(settings) as client:
        yield LoadedInstallation(settings, client, key, folder, stack)


@contextmanager
def crippled(**weaknesses: int) -> Iterator[None]:
    """Give services that are started meanwhile a weak client library, or a wrong clock: see ``crippled/sitecustomize.py``."""
    added = {f"CRIPPLED_{name.upper()}": str(value) for name, value in weaknesses.items()}
    with patch.dict(os.environ, {"PYTHONPATH": str(Path(__file__).with_name("crippled")), **added}):
        yield
