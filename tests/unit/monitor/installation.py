"""Builds an installation in memory with a monitor, and a clock that only the test moves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from schemas import PartitionStatus, Position, Query, Receipt, StreamStatus
from schemas import Request as LedgerRequest
from schemas.windows import format_moment
from sotto import Driver
from stream.client.answer_history import AnswerLog
from stream.monitor.api import views
from stream.monitor.api.http_requests import MonitorRunner
from stream.monitor.api.models import Readiness
from stream.monitor.api.monitor_state import Monitor
from stream.monitor.api.question_routes import Asker
from stream.monitor.api.server import APPLICATION_OPTIONS, add_api
from stream.monitor.api.tokens import Token, TokenError, TokenFile
from stream.monitor.monitor_alerts import Alerts
from stream.monitor.monitor_tables import MonitorTables
from stream.processing.protocol import Record
from stream.questions import Result
from stream.questions.question_forms import set_default_max_price
from stream.settings import Settings
from tests import builders
from tests.unit.monitor.answer_logs import InMemoryConsumer

OPERATOR = "sotto_00000000000a_" + "0" * 43
VIEWER = "sotto_00000000000b_" + "1" * 43
ANALYST = "sotto_00000000000c_" + "2" * 43
NAMES = TokenFile(
    tokens=(
        Token.from_text(ANALYST, "ana", "analyst", created=0),
        Token.from_text(OPERATOR, "olga", "operator", created=0),
        Token.from_text(VIEWER, "vera", "viewer", created=0),
    )
)
FEED = builders.source(neighbors="add-remove")
HIGH, LOW = 1e9, -1e9
"""Values so far from the threshold that noise changes no decision."""

WebClient = TestClient[Request, Application]


def spec(name: str, *, cutoff: int = 2, epsilon: float = 1.0, source: str = "feed") -> dict[str, Any]:
    return builders.stream(name, source, mechanism={"cutoff": cutoff}, epsilon=epsilon)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Installation:
    """Services in memory and their monitor; `flow` gives the monitor the records that it has not seen."""

    settings: Settings = field(default_factory=Settings)
    driver: Driver = field(default_factory=lambda: Driver(builders.OTHER_KEY, partitions=2))
    now: float = 1_000_000.0
    requested: list[LedgerRequest] = field(default_factory=list)
    asks: list[Query] = field(default_factory=list)
    names: TokenFile | None = NAMES
    readiness: Readiness = field(default_factory=lambda: Readiness(ready=True, behind=0))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the clock of the services whenever the monitor's clock or the driver changes."""
        object.__setattr__(self, name, value)
        if name in {"now", "driver"} and "driver" in self.__dict__ and "now" in self.__dict__:
            self.driver._now = int(self.now * 1000)

    def __post_init__(self) -> None:
        self.tables = MonitorTables(self.driver.topics)
        self.alerts = Alerts(self.tables)
        self.alerts.complete = True
        self._answers: dict[int, int] = {}
        self.monitor = Monitor(
            self.tables,
            self._names,
            self.settings,
            self.request,
            lambda: self.readiness,
            clock=lambda: self.now,
            asker=Asker(self.answer),
            alerts=self.alerts,
            answers=AnswerLog(
                self.settings,
                self.driver.topics,
                InMemoryConsumer(
                    self.driver.topics.answers, lambda: self.driver.records(self.driver.topics.answers)
                ),
            ),
        )
        self._shown = 0

    def _names(self) -> TokenFile:
        if self.names is None:
            raise TokenError("cannot read the file")
        return self.names

    async def request(self, request: LedgerRequest) -> Receipt:
        """Decide a request by the services in memory, as the client does on Kafka."""
        self.requested.append(request)
        try:
            return self.driver.request(request)
        finally:
            self.flow()

    async def answer(self, question: Query) -> Result:
        """Answer a question by the workers in memory, as the client does on Kafka."""
        self.asks.append(question)
        [result] = self.driver.ask_many([set_default_max_price(question)])
        self.flow()
        return result

    def records(self) -> list[Record]:
        """Return all records of the monitor's topics as of now; its tables skip those that they have read."""
        return [
            record._replace(timestamp=int(self.now * 1000))
            for topic in self.tables.inputs
            for record in self.driver.records(topic)
        ]

    def flow(self) -> None:
        for record in self.records():
            self.tables.add_record(record)
        self.flow_answers()

    def flow_answers(self) -> None:
        """Give the monitor the answers since the last call."""
        for record in self.driver.records(self.driver.topics.answers):
            if record.offset >= self._answers.get(record.partition, 0):
                self._answers[record.partition] = record.offset + 1
                self.alerts.add_answer(record._replace(timestamp=int(self.now * 1000)))

    def answer_window(self, stream: str, start: int, groups: dict[str, str], **fields: Any) -> None:
        """Give the monitor the answers of a standing stream for one hour: an outcome for each group."""
        for group, outcome in groups.items():
            window = {"start": format_moment(start * 1000), "end": format_moment((start + 3600) * 1000)}
            answer = {"id": f"{start}/{group}", "stream": stream, "outcome": outcome, "window": window, **fields}
            value = json.dumps({**answer, "group": {"zone": group}}).encode()
            self.alerts.add_answer(
                Record(self.driver.topics.answers, 0, 0, int(self.now * 1000), stream.encode(), value)
            )

    def open(self, *streams: dict[str, Any]) -> None:
        self.driver.register(FEED)
        for one in streams:
            self.driver.open(one, acknowledge=True)
        self.flow()

    def ask(self, stream: str, *values: float) -> None:
        self.driver.ask_many(
            [{"id": f"{number}", "stream": stream, "value": one} for number, one in enumerate(values)]
        )
        self.flow()

    def show(self, status: StreamStatus) -> None:
        """Give the monitor a stream's status, as a worker writes it."""
        self._shown += 1
        key, value = status.stream.encode(), status.model_dump_json().encode()
        self.tables.add_record(Record(self.driver.topics.status, 0, self._shown, int(self.now * 1000), key, value))

    def show_restore(self, restore: PartitionStatus) -> None:
        """Give the monitor a partition's status, as a service writes it while it restores."""
        self._shown += 1
        key, value = f"@{restore.role}|{restore.partition}".encode(), restore.model_dump_json().encode()
        self.tables.add_record(Record(self.driver.topics.status, 0, self._shown, int(self.now * 1000), key, value))

    def application(self) -> Application:
        """Return a web application that serves the monitor alone."""
        application = Application(**APPLICATION_OPTIONS)
        add_api(application, self.monitor)
        if self.monitor.sign_on is not None:
            self.monitor.sign_on.add_routes(application)
        return application

    @asynccontextmanager
    async def web(self) -> AsyncIterator[WebClient]:
        async with TestClient(_Server(self.application())) as client:
            yield client


class _Server(TestServer):
    """A test server with the connections of the monitor's real server."""

    async def _make_runner(self, **_: Any) -> MonitorRunner:
        return MonitorRunner(self.app)


async def get(client: WebClient, path: str, token: str = VIEWER, **parameters: str) -> dict[str, Any]:
    async with client.get(path, params=parameters, headers=bearer(token)) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def post(
    client: WebClient, path: str, body: Any, token: str = OPERATOR, status: int = 200
) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {**bearer(token), "Content-Type": "application/json"}
    async with client.post(path, data=data, headers=headers) as response:
        assert response.status == status, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


def status(installation: Installation, stream: str, answered: int, tops: int, offset: int) -> StreamStatus:
    """Return a stream's status as its worker writes it, with these totals and its last question's offset."""
    entry = installation.tables.streams[stream]
    row = views.stream_row(installation.tables, entry, installation.now)
    return StreamStatus(
        stream=stream,
        source=row.source,
        incarnation=entry.incarnation,
        state="open",
        answered=answered,
        tops=tops,
        tops_left=None,
        spent=row.spent,
        alpha=row.alpha,
        position=Position(topic=installation.driver.topics.queries, partition=0, offset=offset),
    )
