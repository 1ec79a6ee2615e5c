"""The local broker is a real Kafka that can be started, stopped, killed and restarted."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.java_programs import java_classpath
from stream.kafka import kafka_programs
from stream.kafka.broker_addresses import choose_ports, free_port
from stream.kafka.broker_process import BrokerError, Ports, Process, is_alive, start_mark
from stream.kafka.kafka_programs import (
    NodeKind,
    cluster_id,
    copy_formatted_data,
    fetch_jars,
    java_launcher,
    server_command,
    store_formatted_data,
)
from stream.kafka.local_broker import LocalBroker, record_start_cache

pytestmark = pytest.mark.kafka

MAKER = """
import sys, time
from pathlib import Path
from stream.kafka.local_broker import LocalBroker
broker = LocalBroker(Path(sys.argv[1]), detached=sys.argv[2] == "detached", heap_megabytes=256)
print(broker.start().pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path_factory.mktemp("broker"), heap_megabytes=256)
    yield broker
    broker.stop()


@pytest.fixture
def broker(shared_broker: LocalBroker) -> LocalBroker:
    shared_broker.start()
    return shared_broker


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def wait_until(claim: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.05)
    return claim()


async def write(bootstrap: str, topic: str, *values: bytes) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    async with consumer:
        return [(await consumer.getone()).value for _ in range(count)]


async def test_broker_returns_written_records(broker: LocalBroker) -> None:
    info = broker.start()
    await write(info.bootstrap, "greetings", b"hello", b"again")
    assert await read(info.bootstrap, "greetings", 2) == [b"hello", b"again"]


async def test_broker_keeps_data_and_port_through_stop_and_kill(broker: LocalBroker) -> None:
    first = broker.start()
    await write(first.bootstrap, "kept", b"one")
    assert broker.stop()
    second = broker.start(port=first.port)
    assert await read(second.bootstrap, "kept", 1) == [b"one"]
    assert broker.kill()
    third = broker.start(port=first.port)
    assert await read(third.bootstrap, "kept", 1) == [b"one"]
    assert first.bootstrap == second.bootstrap == third.bootstrap
    assert len({first.pid, second.pid, third.pid}) == 3


def test_broker_start_is_idempotent(broker: LocalBroker) -> None:
    running = broker.status()
    assert running is not None
    assert broker.start() == running
    assert LocalBroker(broker.folder).start() == running


def test_running_broker_refuses_other_port(broker: LocalBroker) -> None:
    port = broker.start().port
    with pytest.raises(BrokerError, match=f"runs on port {port}; stop it first"):
        broker.start(port=port + 2)


def test_broker_stop_from_elsewhere_leaves_no_process(broker: LocalBroker) -> None:
    before = broker.start()
    mark = start_mark(before.pid)
    assert mark is not None
    assert LocalBroker(broker.folder).stop()
    assert not is_alive(Process(before.pid, mark))
    assert broker.status() is None
    assert not broker.stop()


@pytest.mark.parametrize(
    "left_behind",
    [
        pytest.param(
            f'{{"pid": {os.getpid()}, "mark": "other/1", "port": 9092}}', id="number now another process's"
        ),
        pytest.param('{"pid": 4194999, "mark": "boot/1", "port": 9092}', id="process gone"),
        pytest.param('{"pid": ', id="cut short"),
    ],
)
def test_stale_state_file_is_no_broker_and_ends_no_process(tmp_path: Path, left_behind: str) -> None:
    broker = LocalBroker(tmp_path)
    (tmp_path / "broker.json").write_text(left_behind)
    assert broker.status() is None
    assert not broker.kill()
    assert not (tmp_path / "broker.json").exists()


async def test_two_brokers_run_despite_stale_state_and_startup_cache(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = tmp_path / "start.aot"
    spoilt.write_bytes(b"of another version")
    monkeypatch.setattr(kafka_programs, "startup_cache_path", lambda _: spoilt)
    (tmp_path / "broker.json").write_text(f'{{"pid": {os.getpid()}, "mark": "other/1", "port": 9092}}')
    with LocalBroker(tmp_path, heap_megabytes=256) as other:
        here, there = broker.start(), other.start()
        assert here.port != there.port
        assert cluster_id(here.folder / "data") != cluster_id(there.folder / "data")
        await write(there.bootstrap, "theirs", b"there")
        assert await read(there.bootstrap, "theirs", 1) == [b"there"]
        await write(here.bootstrap, "theirs", b"here")
        assert await read(here.bootstrap, "theirs", 1) == [b"here"]
    assert other.status() is None
    assert broker.status() == here


def test_broker_retries_after_lost_race_for_port(
    shared_broker: LocalBroker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take the usual port first; then the broker uses another one."""
    taken = listener.getsockname()[1]
    answers = iter([Ports(choose_ports(None).clients, controller=taken)])
    monkeypatch.setattr(
        "stream.kafka.broker_addresses.choose_ports", lambda port: next(answers, None) or choose_ports(port)
    )
    monkeypatch.setattr("stream.kafka.broker_addresses.DEFAULT_PORT", taken)
    shared_broker.stop()
    running = shared_broker.start()
    assert running == shared_broker.status()
    assert next(answers, None) is None
    assert running.port != taken


def test_broker_keeps_wanted_port_after_lost_race_for_controllers_port(
    shared_broker: LocalBroker, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = free_port()
    answers = iter([Ports(wanted, controller=listener.getsockname()[1])])
    monkeypatch.setattr(
        "stream.kafka.broker_addresses.choose_ports", lambda port: next(answers, None) or choose_ports(port)
    )
    shared_broker.stop()
    assert shared_broker.start(port=wanted).port == wanted
    assert next(answers, None) is None


@pytest.mark.parametrize("kind", ["single", "member"])
def test_formatted_data_is_kept_and_copied_with_new_ids(tmp_path: Path, kind: NodeKind) -> None:
    made = tmp_path / "made"
    (made / "log").mkdir(parents=True)
    (made / "log" / "voters").write_bytes(b"\x00 of DIRECTORY")
    (made / "meta.properties").write_text(
        "#\n#Tue\ncluster.id=CLUSTER\ndirectory.id=DIRECTORY\nnode.id=1\nversion=1\n"
    )
    assert not copy_formatted_data(tmp_path, tmp_path / "none", kind, cluster="a", node=1)
    store_formatted_data(tmp_path, made, kind)
    shutil.rmtree(made)
    ids = []
    for node, cluster in enumerate(("first", "second"), start=1):
        assert copy_formatted_data(tmp_path, tmp_path / cluster, kind, cluster=cluster, node=node)
        assert cluster_id(tmp_path / cluster) == cluster
        assert (tmp_path / cluster / "log" / "voters").read_bytes() == b"\x00 of DIRECTORY"
        properties = dict(
            line.split("=") for line in (tmp_path / cluster / "meta.properties").read_text().splitlines()
        )
        assert (properties["node.id"], properties["version"]) == (str(node), "1")
        ids.append(properties["directory.id"])
    assert (ids == ["DIRECTORY"] * 2) if kind == "single" else len({*ids, "DIRECTORY"}) == 3


def test_unreadable_formatted_data_is_ignored(tmp_path: Path) -> None:
    kept = tmp_path / "formatted-single"
    kept.mkdir()
    (kept / "meta.properties").write_text("of another kind\n")
    assert not copy_formatted_data(tmp_path, tmp_path / "data", "single", cluster="a", node=1)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("port", [-1, 0, 70_000, None])
def test_broker_refuses_unusable_port_in_one_line(
    tmp_path: Path, listener: socket.socket, port: int | None
) -> None:
    wanted = listener.getsockname()[1] if port is None else port
    with pytest.raises(BrokerError, match=rf"^Port {wanted} cannot be used \([^\n]+$"):
        LocalBroker(tmp_path).start(port=wanted)


def test_broker_error_has_kafkas_own_message(tmp_path: Path) -> None:
    broken = LocalBroker(tmp_path, properties={"num.io.threads": "many"})
    with pytest.raises(BrokerError, match=r"^Kafka could not format.+num\.io\.threads[^\n]+$"):
        broken.start()
    assert broken.status() is None


def test_broker_crash_at_start_is_reported_and_leaves_no_process(broker: LocalBroker) -> None:
    broker.stop()
    identity = broker.folder / "data" / "meta.properties"
    honest = identity.read_text()
    identity.write_text(honest.replace("node.id=1", "node.id=7"))
    try:
        with pytest.raises(BrokerError, match=r"^Kafka ended while starting: [^\n]+node[^\n]+$"):
            broker.start()
    finally:
        identity.write_text(honest)
    assert broker.status() is None


@pytest.mark.parametrize("tie", ["attached", "detached"])
def test_broker_ends_with_its_parent_unless_detached(shared_broker: LocalBroker, tie: str) -> None:
    shared_broker.stop()
    maker = subprocess.Popen([sys.executable, "-c", MAKER, str(shared_broker.folder), tie], stdout=subprocess.PIPE)
    with maker:
        assert maker.stdout is not None
        pid = int(maker.stdout.readline())
        maker.send_signal(signal.SIGKILL)
    if tie == "attached":
        assert wait_until(lambda: start_mark(pid) is None)
        assert shared_broker.status() is None
    else:
        time.sleep(0.5)
        running = shared_broker.status()
        assert running is not None
        assert running.pid == pid
        assert shared_broker.stop()


def test_fetch_jars_without_network_names_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_CACHE", str(tmp_path))
    monkeypatch.setattr(kafka_programs, "_DOWNLOAD_ATTEMPTS", 1)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BrokerError, match=r"^Cannot fetch [^\n]+SOTTO_BOOTSTRAP$"):
        fetch_jars()
    assert not list(tmp_path.glob("*/*.jar"))


def test_fetch_jars_never_uses_unpinned_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forged(_artifact: object) -> Path:
        path = tmp_path / f"forged-{time.monotonic_ns()}"
        path.write_bytes(b"not Kafka")
        return path

    monkeypatch.setenv("SOTTO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kafka_programs, "download", forged)
    with pytest.raises(BrokerError, match=r"is not the pinned one"):
        fetch_jars()
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_java_options_from_environment_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_BROKER_JAVA_OPTIONS", "-Xlog:gc '-Dnamed=two words'")
    command = server_command(fetch_jars(), heap_megabytes=256)
    assert command[command.index("-cp") - 2 : command.index("-cp")] == ["-Xlog:gc", "-Dnamed=two words"]


def test_broker_starts_with_fitting_startup_cache() -> None:
    cache = record_start_cache()
    command = server_command(fetch_jars(), heap_megabytes=256, java_options=["-XX:AOTMode=on"])
    assert f"-XX:AOTCache={cache}" in command
    # In this mode, Java refuses to run unless its startup cache fits completely.
    subprocess.run([*command[:-1], "--version"], check=True, capture_output=True)


def test_java_classpath_runs_other_programs() -> None:
    command = [str(java_launcher()), "-cp", java_classpath(), "kafka.Kafka", "--version"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stdout.startswith("4.3.1")
