"""The health probes of a service, and the errors that end its engine."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from aiokafka.errors import KafkaConnectionError
from pydantic import SecretStr

from stream.engine import health, session, supervision
from stream.engine.batch_loop import PartitionHealth
from stream.engine.health import (
    HUNG_SECONDS,
    ListenError,
    ServiceHealth,
    require_free,
)
from stream.engine.partition_task import PartitionTask
from stream.engine.session import StepName, TaskStep
from stream.engine.supervision import (
    FAILING_SECONDS,
    STALLED_SECONDS,
    Membership,
    MembershipLostError,
    StalledError,
    Supervision,
)
from stream.kafka.broker_addresses import free_port
from stream.kafka.broker_process import HOST
from stream.kafka.client.broker_connections import SecurityError
from stream.settings import Settings

WAIT = 20.0
"""Seconds after which a test gives up."""


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Task:
    """The part of a partition's task that supervision uses."""

    def __init__(self, partition: int, name: StepName, since: float, failing_since: float | None = None) -> None:
        self.partition = partition
        self.step = TaskStep()
        self.step.name, self.step.since = name, since
        self.health = PartitionHealth()
        self.health.failing_since = failing_since


class Member:
    """The part of a membership that supervision uses."""

    joined = True
    absence = ""
    kafka_answers_since: float | None = 0.0
    is_displaced = False

    def require_not_excluded(self) -> None:
        if self.is_displaced:
            raise MembershipLostError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (health, session, supervision):
        monkeypatch.setattr(module, "time", made)
    return made


def check_health(member: Member, *tasks: Task) -> ServiceHealth:
    service_health = ServiceHealth("worker")
    Supervision("worker", cast(Membership, member), service_health).check_tasks(cast(list[PartitionTask], tasks))
    return service_health


def metric(service_health: ServiceHealth, name: str) -> Any:
    return service_health.metrics.registry.get_sample_value(f"sotto_worker_{name}")


def test_health_of_worker_without_partitions_is_ready(clock: Clock) -> None:
    service_health = check_health(Member())
    assert clock.now
    assert service_health.answer_probe("/readyz") == ("200 OK", "ok")
    assert (metric(service_health, "member"), metric(service_health, "ready")) == (1.0, 1.0)


def test_health_of_absent_member_gives_reason(clock: Clock) -> None:
    member = Member()
    member.joined, member.absence = False, "is not in its group, according to Kafka"
    service_health = check_health(member, Task(0, "working", clock.now))
    assert service_health.answer_probe("/readyz") == (
        "503 Service Unavailable",
        "this worker is not in its group, according to Kafka",
    )
    assert service_health.answer_probe("/livez") == ("200 OK", "ok")
    assert (metric(service_health, "member"), metric(service_health, "ready")) == (0.0, 0.0)


@pytest.mark.parametrize("is_refused", [True, False])
async def test_absence_names_the_refused_user(monkeypatch: pytest.MonkeyPatch, is_refused: bool) -> None:
    """A user may be removed while the service runs; brokers then refuse its new connections."""

    class Observer:
        async def members(self, _group: str) -> frozenset[str]:
            raise KafkaConnectionError

    class Clients:
        def observer(self, **_: Any) -> Observer:
            return Observer()

    async def connect(_: Settings) -> None:
        if is_refused:
            raise SecurityError("kafka:9093 refuses user 'sotto-worker' or its password; check them")

    monkeypatch.setattr(supervision, "raise_if_refused", connect)
    user = {"sasl_username": "sotto-worker", "sasl_password": SecretStr("wrong")}
    settings = Settings.of_local_broker("kafka:9093", security_protocol="SASL_PLAINTEXT", **user)
    role = SimpleNamespace(name="worker", group="sotto-workers", member="sotto-worker")
    member = Membership(cast(Any, role), settings, cast(Any, None), cast(Any, Clients()), lambda: False)
    member._last_answer_at -= 60.0
    await member._poll_membership()
    cause = (
        "kafka:9093 refuses user 'sotto-worker' or its password; check them"
        if is_refused
        else "KafkaConnectionError"
    )
    assert member.absence == f"gets no answer about its group from Kafka ({cause})"


def test_health_is_not_ready_after_minute_of_failures(clock: Clock) -> None:
    recent = Task(1, "pausing", clock.now, clock.now - FAILING_SECONDS + 1)
    stuck = Task(2, "pausing", clock.now, clock.now - FAILING_SECONDS - 1)
    parked = Task(3, "resting", clock.now, 0.0)
    assert check_health(Member(), recent, parked).not_ready_reason == ""
    service_health = check_health(Member(), recent, stuck, parked)
    assert "[2]" in service_health.answer_probe("/readyz")[1]
    assert metric(service_health, "failing_partitions") == 1.0


def test_health_is_not_ready_after_minute_of_stuck_restore(clock: Clock) -> None:
    slow = Task(1, "restoring", clock.now - FAILING_SECONDS + 1)
    stuck = Task(2, "restoring", clock.now - FAILING_SECONDS - 1)
    begun_anew = Task(3, "restoring", clock.now, clock.now - FAILING_SECONDS - 1)
    assert check_health(Member(), slow).not_ready_reason == ""
    service_health = check_health(Member(), slow, stuck, begun_anew)
    assert "[2, 3]" in service_health.answer_probe("/readyz")[1]
    assert metric(service_health, "failing_partitions") == 2.0


@pytest.mark.parametrize("name", ["working", "pausing"])
def test_health_stays_ready_and_logs_long_step(
    clock: Clock, name: StepName, capsys: pytest.CaptureFixture[str]
) -> None:
    service_health = check_health(Member(), Task(0, name, clock.now - 900.0), Task(1, "waiting", clock.now))
    assert service_health.not_ready_reason == ""
    assert metric(service_health, "step_seconds") == 900.0
    # On one of the two outputs, depending on how earlier tests configured the log.
    assert "long step" in "".join(capsys.readouterr())


def test_health_raises_if_member_was_displaced(clock: Clock) -> None:
    member = Member()
    member.is_displaced = True
    assert clock.now
    with pytest.raises(MembershipLostError):
        check_health(member)


@pytest.mark.parametrize("name", ["waiting", "writing"])
def test_health_raises_if_kafka_call_stalls_unless_kafka_is_away(clock: Clock, name: StepName) -> None:
    task, member = Task(4, name, clock.now - STALLED_SECONDS - 1), Member()
    with pytest.raises(StalledError, match=f"partition 4 has been {name} for 301 s"):
        check_health(member, task)
    for contact in (None, clock.now - STALLED_SECONDS + 1):
        member.kafka_answers_since = contact
        assert check_health(member, task).not_ready_reason == ""


def test_health_probes_report_hanging_event_loop(clock: Clock) -> None:
    service_health = ServiceHealth("budget")
    assert service_health.answer_probe("/readyz")[1] == "has not reached Kafka yet"
    assert service_health.answer_probe("/livez") == ("200 OK", "ok")
    service_health.set_not_ready_reason("")
    clock.now += HUNG_SECONDS + 1
    for path in ("/livez", "/readyz"):
        status, lack = service_health.answer_probe(path)
        assert status.startswith("503")
        assert "event loop" in lack


def test_health_serves_probes_and_metrics_on_one_port() -> None:
    service_health, port = ServiceHealth("worker"), free_port()
    service_health.serve(HOST, port)
    service_health.set_not_ready_reason("this worker leaves")
    with urlopen(f"http://{HOST}:{port}/metrics") as response:
        assert b"sotto_worker_ready 0.0" in response.read()
        assert response.headers["Server"] == "sotto"
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://{HOST}:{port}/readyz")
    assert refused.value.code == 503
    assert refused.value.read() == b"this worker leaves\n"
    assert refused.value.headers["Server"] == "sotto"
    refused.value.close()
    with urlopen(f"http://{HOST}:{port}/livez") as response:
        assert response.read() == b"ok\n"


def open_request(port: int) -> socket.socket:
    """Return a connection that has sent the beginning of a request."""
    connection = socket.create_connection((HOST, port), timeout=WAIT)
    connection.sendall(b"GET /livez HTTP/1.1\r\nX: ")
    return connection


def trickle(connection: socket.socket) -> None:
    until = time.monotonic() + WAIT
    while time.monotonic() < until:
        connection.sendall(b"a")
        time.sleep(0.01)


def is_over(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_health_server_closes_slow_connection_at_deadline(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "REQUEST_SECONDS", 0.1)
    port = free_port()
    ServiceHealth("worker").serve(HOST, port)
    with open_request(port) as connection, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        trickle(connection)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_health_server_closes_oldest_connection_beyond_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(health, "REQUEST_SECONDS", 10 * WAIT)
    port = free_port()
    ServiceHealth("worker").serve(HOST, port)
    with open_request(port) as oldest, open_request(port) as second, open_request(port):
        with urlopen(f"http://{HOST}:{port}/livez", timeout=WAIT) as response:
            assert response.read() == b"ok\n"
        assert is_over(oldest)
        second.sendall(b"x\r\n\r\n")
        assert second.recv(4) == b"HTTP"


def test_health_server_logs_broken_connection_without_address(
    capfd: pytest.CaptureFixture[str],
) -> None:
    port, logged = free_port(), ""
    ServiceHealth("worker").serve(HOST, port)
    with open_request(port) as connection:
        # The connection may be reset at its end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until = time.monotonic() + WAIT
    while "probe cut short" not in logged and time.monotonic() < until:
        time.sleep(0.01)
        # On one of the two outputs, depending on how earlier tests configured the log.
        logged += "".join(capfd.readouterr())
    assert "ConnectionResetError" in logged
    assert "Traceback" not in logged
    assert HOST not in logged


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Yield a port on which a socket listens."""
    with socket.create_server((HOST, 0)) as server:
        yield int(server.getsockname()[1])


def test_port_in_use_is_reported_with_setting(taken_port: int) -> None:
    with pytest.raises(
        ListenError, match=rf"^SOTTO_METRICS_PORT: port {taken_port} of {HOST} is in use; give another"
    ):
        ServiceHealth("worker").serve(HOST, taken_port)
    with pytest.raises(
        ListenError, match=rf"^SOTTO_MONITOR_PORT \(--port\): port {taken_port} of {HOST} is in use"
    ):
        require_free("monitor", HOST, taken_port)


def test_foreign_address_is_reported_with_setting() -> None:
    with pytest.raises(ListenError, match=r"^SOTTO_METRICS_HOST: cannot listen on '192\.0\.2\.1'"):
        ServiceHealth("worker").serve("192.0.2.1", free_port())
    with pytest.raises(ListenError, match=r"^SOTTO_MONITOR_HOST \(--host\): cannot listen on 'nowhere\.invalid'"):
        require_free("monitor", "nowhere.invalid", free_port())


def test_require_free_releases_port() -> None:
    port = free_port()
    require_free("monitor", HOST, port)
    require_free("monitor", HOST, port)
