"""The health probes of a service, and the errors that end its engine."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from stream.engine import health, supervision
from stream.engine.health import (
    HUNG_SECONDS,
    ListenError,
    PartitionHealth,
    ServiceHealth,
    StepName,
    TaskStep,
    require_free,
)
from stream.engine.partition_task import PartitionTask
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
    contact: float | None = 0.0
    is_displaced = False

    def require_not_excluded(self) -> None:
        if self.is_displaced:
            raise MembershipLostError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(health, "time", made)
    monkeypatch.setattr(supervision, "time", made)
    return made


def look(member: Member, *tasks: Task) -> ServiceHealth:
    told = ServiceHealth("worker")
    Supervision("worker", cast(Membership, member), told).check_tasks(cast(list[PartitionTask], tasks))
    return told


def figure(told: ServiceHealth, name: str) -> Any:
    return told.metrics.registry.get_sample_value(f"sotto_worker_{name}")


def test_a_spare_is_ready(clock: Clock) -> None:
    told = look(Member())
    assert clock.now
    assert told.answer("/readyz") == ("200 OK", "ok")
    assert (figure(told, "member"), figure(told, "ready")) == (1.0, 1.0)


def test_whoever_is_no_member_says_why(clock: Clock) -> None:
    member = Member()
    member.joined, member.absence = False, "is not in its group, according to Kafka"
    told = look(member, Task(0, "working", clock.now))
    assert told.answer("/readyz") == (
        "503 Service Unavailable",
        "this worker is not in its group, according to Kafka",
    )
    assert told.answer("/livez") == ("200 OK", "ok")
    assert (figure(told, "member"), figure(told, "ready")) == (0.0, 0.0)


def test_a_partition_that_starts_over_for_a_minute_makes_it_not_ready(clock: Clock) -> None:
    recent = Task(1, "pausing", clock.now, clock.now - FAILING_SECONDS + 1)
    stuck = Task(2, "pausing", clock.now, clock.now - FAILING_SECONDS - 1)
    parked = Task(3, "resting", clock.now, 0.0)
    assert look(Member(), recent, parked).not_ready_reason == ""
    told = look(Member(), recent, stuck, parked)
    assert "[2]" in told.answer("/readyz")[1]
    assert figure(told, "failing_partitions") == 1.0


def test_a_restore_that_has_not_gone_on_for_a_minute_makes_it_not_ready(clock: Clock) -> None:
    slow = Task(1, "restoring", clock.now - FAILING_SECONDS + 1)
    stuck = Task(2, "restoring", clock.now - FAILING_SECONDS - 1)
    begun_anew = Task(3, "restoring", clock.now, clock.now - FAILING_SECONDS - 1)
    assert look(Member(), slow).not_ready_reason == ""
    told = look(Member(), slow, stuck, begun_anew)
    assert "[2, 3]" in told.answer("/readyz")[1]
    assert figure(told, "failing_partitions") == 2.0


@pytest.mark.parametrize("name", ["working", "pausing"])
def test_work_takes_as_long_as_it_takes_and_is_told(
    clock: Clock, name: StepName, capsys: pytest.CaptureFixture[str]
) -> None:
    told = look(Member(), Task(0, name, clock.now - 900.0), Task(1, "waiting", clock.now))
    assert told.not_ready_reason == ""
    assert figure(told, "step_seconds") == 900.0
    # On one of the two outputs, depending on how earlier tests configured the log.
    assert "long step" in "".join(capsys.readouterr())


def test_whoever_has_lost_its_name_to_another_process_ends(clock: Clock) -> None:
    member = Member()
    member.is_displaced = True
    assert clock.now
    with pytest.raises(MembershipLostError):
        look(member)


@pytest.mark.parametrize("name", ["waiting", "writing"])
def test_a_wait_for_kafka_that_does_not_end_ends_the_process_unless_kafka_is_away(
    clock: Clock, name: StepName
) -> None:
    task, member = Task(4, name, clock.now - STALLED_SECONDS - 1), Member()
    with pytest.raises(StalledError, match=f"partition 4 has been {name} for 301 s"):
        look(member, task)
    for contact in (None, clock.now - STALLED_SECONDS + 1):
        member.contact = contact
        assert look(member, task).not_ready_reason == ""


def test_an_event_loop_that_hangs_is_told_by_the_probes(clock: Clock) -> None:
    told = ServiceHealth("budget")
    assert told.answer("/readyz")[1] == "has not reached Kafka yet"
    assert told.answer("/livez") == ("200 OK", "ok")
    told.set_not_ready_reason("")
    clock.now += HUNG_SECONDS + 1
    for path in ("/livez", "/readyz"):
        status, lack = told.answer(path)
        assert status.startswith("503")
        assert "event loop" in lack


def test_probes_and_figures_are_served_on_one_port() -> None:
    told, port = ServiceHealth("worker"), free_port()
    told.serve(HOST, port)
    told.set_not_ready_reason("this worker leaves")
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


def begun(port: int) -> socket.socket:
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


def test_a_connection_is_cut_off_at_its_deadline_however_often_something_comes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "REQUEST_SECONDS", 0.1)
    port = free_port()
    ServiceHealth("worker").serve(HOST, port)
    with begun(port) as connection, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        trickle(connection)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_beyond_so_many_connections_the_oldest_makes_room_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(health, "REQUEST_SECONDS", 10 * WAIT)
    port = free_port()
    ServiceHealth("worker").serve(HOST, port)
    with begun(port) as oldest, begun(port) as second, begun(port):
        with urlopen(f"http://{HOST}:{port}/livez", timeout=WAIT) as response:
            assert response.read() == b"ok\n"
        assert is_over(oldest)
        second.sendall(b"x\r\n\r\n")
        assert second.recv(4) == b"HTTP"


def test_a_connection_that_breaks_is_one_line_of_the_log_without_its_address(
    capfd: pytest.CaptureFixture[str],
) -> None:
    port, told = free_port(), ""
    ServiceHealth("worker").serve(HOST, port)
    with begun(port) as connection:
        # The connection may be reset at its end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until = time.monotonic() + WAIT
    while "probe cut short" not in told and time.monotonic() < until:
        time.sleep(0.01)
        # On one of the two outputs, depending on how earlier tests configured the log.
        told += "".join(capfd.readouterr())
    assert "ConnectionResetError" in told
    assert "Traceback" not in told
    assert HOST not in told


@pytest.fixture
def taken() -> Iterator[int]:
    """Yield a port on which a socket listens."""
    with socket.create_server((HOST, 0)) as server:
        yield int(server.getsockname()[1])


def test_a_port_in_use_is_told_with_the_setting_that_names_it(taken: int) -> None:
    with pytest.raises(ListenError, match=rf"^SOTTO_METRICS_PORT: port {taken} of {HOST} is in use; give another"):
        ServiceHealth("worker").serve(HOST, taken)
    with pytest.raises(ListenError, match=rf"^SOTTO_MONITOR_PORT \(--port\): port {taken} of {HOST} is in use"):
        require_free("monitor", HOST, taken)


def test_an_address_that_is_not_this_machines_is_told_with_its_setting() -> None:
    with pytest.raises(ListenError, match=r"^SOTTO_METRICS_HOST: cannot listen on '192\.0\.2\.1'"):
        ServiceHealth("worker").serve("192.0.2.1", free_port())
    with pytest.raises(ListenError, match=r"^SOTTO_MONITOR_HOST \(--host\): cannot listen on 'nowhere\.invalid'"):
        require_free("monitor", "nowhere.invalid", free_port())


def test_a_port_that_is_free_is_free_afterwards() -> None:
    port = free_port()
    require_free("monitor", HOST, port)
    require_free("monitor", HOST, port)
