"""Installations in memory for tests of the page: one that has worked for an hour, and a very large one."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import polars as pl
from aiohttp import web

from schemas import MAX_RECORD_BYTES, GrantRecord, LedgerRecord, RejectedHeaders
from schemas.windows import format_moment, moment_ms
from schemas.wire import Codec
from sotto import Refused
from stream.engine.health import ServiceName
from stream.monitor.api.http_requests import MonitorRunner
from stream.monitor.api.service_models import MemberRow, PartitionRow, Restore, WorkersView
from stream.processing.protocol import Record
from stream.settings import Settings
from tests.builders import source, stream
from tests.unit.monitor.installation import OPERATOR, VIEWER, Installation

__all__ = ["OPERATOR", "VIEWER", "Scene"]

STEP = 30.0
HOUR = 3600.0

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)

CENSUS = source(
    "census",
    "table",
    path="census.csv",
    neighbors="replace",
    accountant="zcdp",
    epsilon=3.0,
    delta=1e-6,
    attributes={"age": {"kind": "integers", "minimum": 0, "maximum": 99}, "sex": ["F", "M"]},
)


BEGINS = "2026-03-01T00:00:00Z"
VISITS = source(
    "visits",
    "events",
    topic="city.visits",
    epsilon=2.5,
    clock="marks",
    ahead="1d",
    unit="person-period",
    period="1h",
    attributes={"zone": ["north", "west", "south", "east"]},
)


def values(name: str, epsilon: float) -> dict[str, Any]:
    return source(name, neighbors="add-remove", epsilon=epsilon)


def above(name: str, source_name: str, epsilon: float, cutoff: int) -> dict[str, Any]:
    return stream(name, source_name, mechanism={"threshold": 2000.0, "cutoff": cutoff}, epsilon=epsilon)


STREAMS: list[tuple[dict[str, Any], int, float]] = [
    # The stream, queries per step, and how many in a hundred are far above the threshold.
    (above("ward-3/heart-rate", "vitals", 1.0, 24), 6, 2.0),
    (above("ward-7/heart-rate", "vitals", 1.0, 12), 9, 0.8),
    (above("ward-7/oxygen", "vitals", 0.8, 8), 4, 2.6),
    (above("ward-9/oxygen", "vitals", 0.8, 40), 8, 2.0),
    (above("intensive-care/alarms", "vitals", 0.3, 6), 3, 0.6),
    (above("grid-north/peak-load", "energy", 0.5, 60), 12, 2.2),
    (above("grid-south/peak-load", "energy", 0.5, 60), 10, 1.8),
    (above("checkout/refunds", "payments", 2.0, 100), 12, 3.0),
    (above("checkout/chargebacks", "payments", 1.6, 10), 5, 0.7),
    (above("visitors/pricing-page", "web-traffic", 0.5, 10), 4, 0.4),
]


class Scene(Installation):
    """An installation with an invented past: the monitor sees its records with the times of that past."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.read: dict[tuple[str, int], int] = {}
        roomy = {"monitor_requests_per_second": 1000.0, "monitor_burst": 1000}
        super().__init__(settings=settings or Settings.model_validate(roomy), now=time.time())

    def flow(self) -> None:
        """Give the monitor all new records, with the status of all changed streams."""
        for worker in self.driver._workers:
            self.driver.write(worker.collect_due_outputs(self.now))
        for topic in self.tables.inputs:
            for record in self.driver.records(topic):
                place = (record.topic, record.partition)
                if record.offset >= self.read.get(place, 0):
                    self.read[place] = record.offset + 1
                    self.tables.add_record(record._replace(timestamp=int(self.now * 1000)))
        self.flow_answers()

    def at_work(self) -> None:
        """Return a scene with an hour's work on five sources."""
        self.monitor.clock = lambda: self.now
        end, chance = self.now, random.Random(7)
        self.now = end - HOUR
        for feed in (
            values("vitals", 4.0),
            values("energy", 3.0),
            values("payments", 4.0),
            values("web-traffic", 6.0),
        ):
            self.driver.register(feed)
        people = {
            "age": [chance.randrange(100) for _ in range(500)],
            "sex": [chance.choice("FM") for _ in range(500)],
        }
        self.driver.register(CENSUS, pl.DataFrame(people))
        for spec, _, _ in STREAMS:
            self.driver.open(spec, acknowledge=True)
        self.open_on_the_census()
        for step in range(int(HOUR / STEP)):
            self.now = end - HOUR + (step + 1) * STEP
            self.driver.ask_many(self.queries(step, chance))
            self.events_of_the_day(step)
            self.flow()
            self.monitor.record_history()
        self.refuse_some()
        self.answer_windows(end)
        self.now = end
        self.show_services()
        self.monitor.clock = time.time

    def open_on_the_census(self) -> None:
        for name, mechanism, epsilon in (
            ("age-groups", {"kind": "histogram", "attributes": ["age"]}, 0.2),
            ("seniors/counts", {"kind": "numeric_sparse", "threshold": 300.0, "cutoff": 5}, 0.3),
            ("households", {"kind": "laplace", "answers": 40}, 0.25),
        ):
            self.driver.open(
                stream(name, "census", mechanism=mechanism, epsilon=epsilon, delta=1e-7), acknowledge=True
            )

    def queries(self, step: int, chance: random.Random) -> Iterator[dict[str, Any]]:
        busy = 1.0 + 0.6 * ((step % 40) > 25) + 0.3 * chance.random()
        for spec, number, percent_above in STREAMS:
            for index in range(round(number * busy)):
                high = chance.random() * 100 < percent_above
                yield {"id": f"{step}-{index}", "stream": spec["stream"], "value": 1e6 if high else -1e6}
        if step % 6 == 0:
            yield {"id": f"{step}-a", "stream": "households", "where": f"age >= {chance.randrange(60)}"}
            yield {"id": f"{step}-b", "stream": "seniors/counts", "where": f"age >= {chance.randrange(100)}"}

    def events_of_the_day(self, step: int) -> None:
        if step == 50:
            self.driver.close("payments", "checkout/chargebacks", "the campaign is over")
        if step == 70:
            self.driver.halt("energy", "grid-south/peak-load", "meters replaced; under review")
        if step == 80:
            self.driver.halt("web-traffic", reason="consent banner out of order")
        if step == 90:
            self.driver.open(above("checkout/chargebacks-2", "payments", 0.5, 10), acknowledge=True)
        if step == 60:
            try:
                self.driver.open(above("too-much", "vitals", 9.0, 10), acknowledge=True)
            except Refused:
                return
            raise AssertionError("a stream was opened that the budget cannot pay for")

    def answer_windows(self, end: float) -> None:
        """Answer windows of an hour over three zones; two of the zones were ``above`` in the latest windows."""
        hour = int(end // 3600) * 3600
        for ago, groups in (
            (5, {"north": "above"}),
            (4, {"north": "below", "west": "above"}),
            (1, {"harbour": "above"}),
        ):
            self.now = hour - (ago - 1) * 3600 + 2
            numbers = {"estimate": 41_280.5, "alpha": 310.25, "tops_left": 55}
            self.answer_window("grid-north/peak-load", hour - ago * 3600, groups, **numbers)

    def refuse_some(self) -> None:
        self.driver.ask_many([{"id": f"late-{n}", "stream": "nowhere/at-all", "value": 1.0} for n in range(23)])
        for number in range(9):
            self.driver.send(number % 2, b"no JSON at all")
        self.driver.ask_many(
            [{"id": f"w-{n}", "stream": "ward-3/heart-rate", "where": "age >= 3"} for n in range(4)]
        )
        self.flow()

    def show_services(self) -> None:
        now = self.now

        def partition(number: int, member: str | None, restore: Restore | None, lag: int = 0) -> PartitionRow:
            position = 41_200 + 977 * number
            return PartitionRow(
                role="worker",
                partition=number,
                member=member,
                position=position,
                end=position + lag,
                lag=lag,
                events_per_second=0.0 if member is None else 1.4 + 0.2 * number,
                restore=restore,
            )

        done = Restore(phase="ready", records=18_204, total=18_377, seconds=0.84, updated=now - 3000)
        under_way = Restore(phase="restoring", records=9_100, total=18_377, seconds=0.4, updated=now)
        partitions = [
            partition(0, "sotto-worker-5f0c", done),
            partition(1, "sotto-worker-5f0c", done, 3),
            partition(2, "sotto-worker-91ab", done, 0),
            partition(3, "sotto-worker-91ab", under_way, 118),
        ]
        ledger = PartitionRow(
            role="budget",
            partition=0,
            member="sotto-budget-77e2",
            position=412,
            end=412,
            lag=0,
            events_per_second=0.2,
            restore=Restore(phase="ready", records=96, total=96, seconds=0.1, updated=now - 3000),
        )
        processes: list[tuple[str, ServiceName, str, list[int], int, float]] = [
            ("sotto-worker-5f0c", "worker", "10.0.4.11", [0, 1], 3, 3.0),
            ("sotto-worker-91ab", "worker", "10.0.4.12", [2, 3], 118, 1.8),
            ("sotto-budget-77e2", "budget", "10.0.4.10", [0], 0, 0.2),
        ]
        members = [
            MemberRow(
                member=member,
                role=role,
                host=host,
                partitions=numbers,
                lag=lag,
                events_per_second=rate,
                version="0.3.0",
                started=now - 7200.0,
                memory=310_000_000,
                heard=now - 4.0,
            )
            for member, role, host, numbers, lag, rate in processes
        ]
        self.monitor.set_workers(WorkersView(time=now, members=members, partitions=[*partitions, ledger]))

    def with_periods(self, hours: int) -> None:
        """Return a scene with a live topic with periods of an hour and two streams, and with a feed of values."""
        self.driver.register(values("vitals", 4.0))
        self.driver.open(above("ward-3/heart-rate", "vitals", 1.0, 24), acknowledge=True)
        self.driver.register(VISITS)
        begins = moment_ms(BEGINS)
        standing = {"by": ["zone"], "window": {"size": "15m"}, "begins": BEGINS}
        for name, mechanism in (
            ("visits/busy", {"kind": "above_threshold", "threshold": 90.0, "cutoff": 5, "monotone": True}),
            ("visits/counts", {"kind": "laplace", "answers": 16}),
        ):
            self.driver.open(
                stream(name, "visits", mechanism=mechanism, expected_queries=16, standing=standing),
                acknowledge=True,
            )
        for hour in range(hours):
            for quarter in range(4):
                start = begins + (4 * hour + quarter) * 900_000
                zones = {"north": 140 if (hour + quarter) % 3 == 0 else 30, "west": 40, "south": 20, "east": 10}
                events = [
                    {"who": f"{zone}-{number}", "at": start + number * 1000, "zone": zone}
                    for zone, count in zones.items()
                    for number in range(count)
                ]
                self.driver.publish("visits", events)
                self.driver.advance("visits", format_moment(start + 900_000))
        self.flow()

    def with_streams(self, count: int) -> None:
        """Open so many streams on one source; they differ in their names and their charges."""
        self.driver.register(values("crowd", 1000.0))
        self.driver.open(above("model", "crowd", 0.001, 10), acknowledge=True)
        self.flow()
        grant = self.a_grant
        for number in range(count - 1):
            self.add_grant(grant, f"crowd/stream-{number:05}", tops=number % 10, answered=number)

    def add_grant(self, model: GrantRecord, stream: str, **changes: Any) -> None:
        """Add a grant like another one to the monitor's tables; its name may be invalid."""
        spec = model.spec.model_copy(update={"stream": stream})
        record = model.model_copy(update={"spec": spec, **changes})
        place = (self.driver.topics.ledger, 0)
        offset = self.read[place]
        self.read[place] = offset + 1
        value = _ledger.encode(record)
        self.tables.add_record(Record(*place, offset, int(self.now * 1000), f"grant|{stream}".encode(), value))

    def add_dead_letter(self, headers: RejectedHeaders) -> None:
        """Add a dead letter with any headers."""
        place = (self.driver.topics.rejected, 0)
        offset = self.read.get(place, 0)
        self.read[place] = offset + 1
        self.tables.add_record(Record(*place, offset, int(self.now * 1000), b"", b"", headers.to_kafka()))

    @property
    def a_grant(self) -> GrantRecord:
        """The latest record of a stream."""
        return next(
            found
            for record in reversed(self.driver.records(self.driver.topics.ledger))
            if record.value and isinstance(found := _ledger.decode(record.value), GrantRecord)
        )

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[str]:
        """Serve the monitor on a port (default: any free one), and yield its address."""
        runner = MonitorRunner(self.application())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
