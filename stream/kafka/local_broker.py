"""Runs Apache Kafka on this machine for demos, tests and benchmarks.

Each node is broker and controller in one process (KRaft), and only this machine can reach it.
`broker_cluster` combines several nodes. The module needs Linux or macOS.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from stream.kafka import broker_addresses, broker_process, kafka_programs

START_ATTEMPTS: Final = 3
"""Number of attempts to start a broker, because another process may take a chosen port first."""

_START_SECONDS: Final = 120.0
_SHUTDOWN_SECONDS: Final = 30.0
_RECORDING_SECONDS: Final = 300.0


class LocalBroker:
    """Manages the broker whose data, configuration and logs are in a folder.

    Several objects, in several processes, may manage the same folder and its broker. Data and cluster id are kept
    between starts, in owner-only folders. As a context manager, it starts the broker on entry and stops it on exit,
    unless the broker ran before.

    If ``detached``, the broker outlives this process; if not, it gets SIGTERM when this process ends, even by
    kill -9. Ctrl-C never reaches the broker, so clients can finish. ``properties`` are further Kafka server
    properties, which override the properties set here. ``cluster_node`` is the node's place in a cluster,
    with its ports.
    """

    def __init__(
        self,
        folder: Path = broker_addresses.DEFAULT_FOLDER,
        *,
        detached: bool = False,
        heap_megabytes: int = 1024,
        properties: Mapping[str, str] | None = None,
        cluster_node: broker_addresses.ClusterNode | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self.folder = Path(folder).absolute()
        self.detached = detached
        self._heap_megabytes = heap_megabytes
        self._properties = dict(properties or {})
        self._cluster_node = cluster_node
        self._java_options = tuple(java_options)
        self._started_process: broker_process.Process | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._started_process is not None:
            self._end(_SHUTDOWN_SECONDS, only=self._started_process)

    @property
    def started_it(self) -> bool:
        """True if this object started the broker."""
        return self._started_process is not None

    def start(
        self,
        port: int | None = None,
        timeout: float = _START_SECONDS,
        progress: Callable[[str], None] | None = None,
    ) -> broker_addresses.BrokerInfo:
        """Starts the broker if it does not run, and waits until it answers within ``timeout`` seconds.

        ``timeout`` does not include the first download of Kafka. Clients connect to ``port``; the default is 9092, or a
        free port if 9092 is taken. ``progress`` receives one line for each long step. BrokerError if the broker cannot be started, or
        runs on another port than requested.
        """
        jars = kafka_programs.fetch_jars(progress)
        deadline = time.monotonic() + timeout
        with self._folder_lock(timeout):
            if (state := broker_process.read_state(self.folder)) is not None and state.is_orphaned:
                broker_process.end_process(state.process, grace_seconds=_SHUTDOWN_SECONDS)
            if (running := self.status()) is not None:
                if port not in {None, running.port}:
                    raise broker_process.BrokerError(
                        f"The broker in {self.folder} runs on port {running.port}; stop it first"
                    )
                return running
            if state is not None:
                # The broker is dead; this ends the shell that watched it.
                broker_process.end_process(state.process, grace_seconds=0)
            broker_process.delete_state(self.folder)
            if self._cluster_node is not None:
                return self._start(self._cluster_node.ports, jars, deadline)
            if (self.folder / broker_process.CLUSTER_FILE).exists():
                raise broker_process.BrokerError(
                    f"{self.folder} holds a cluster of several brokers; start it with 'sotto broker start', and choose another "
                    "folder for a single one"
                )
            for attempt in range(1, START_ATTEMPTS + 1):
                try:
                    return self._start(broker_addresses.choose_ports(port), jars, deadline)
                except broker_process.PortTakenError:
                    # Retry: `choose_ports` checks the client port again and may choose another controller port.
                    if attempt == START_ATTEMPTS:
                        raise
        raise AssertionError

    def stop(self, timeout: float = _SHUTDOWN_SECONDS) -> bool:
        """Stops the broker, by SIGKILL after ``timeout`` seconds; returns whether it ran."""
        return self._end(grace_seconds=timeout)

    def kill(self) -> bool:
        """Kills the broker by SIGKILL, like a power cut; returns whether it ran."""
        return self._end(grace_seconds=0)

    def status(self) -> broker_addresses.BrokerInfo | None:
        """The running broker, or None."""
        if (state := broker_process.read_state(self.folder)) is None or not broker_process.is_alive(state.process):
            return None
        return self._info(state)

    @property
    def log(self) -> Path:
        """The log file of the last start."""
        return self.folder / "logs" / "server.log"

    @property
    def _console(self) -> Path:
        return self.folder / "logs" / "console.log"

    @contextmanager
    def _folder_lock(self, timeout: float) -> Iterator[None]:
        with broker_process.file_lock(self.folder / "broker.lock", timeout):
            try:
                yield
            except OSError as error:
                raise broker_process.BrokerError(
                    f"Cannot work in {self.folder} ({error}); choose another folder"
                ) from error

    def _end(self, grace_seconds: float, only: broker_process.Process | None = None) -> bool:
        if not (self.folder / broker_process.STATE_FILE).exists():
            return False
        # The lock waits for a broker that is being started.
        with self._folder_lock(_START_SECONDS + grace_seconds):
            state = broker_process.read_state(self.folder)
            if only is not None and (state is None or state.process != only):
                return False
            ran = state is not None and broker_process.is_alive(state.process)
            if state is not None:
                broker_process.end_process(state.process, grace_seconds=grace_seconds)
            broker_process.delete_state(self.folder)
            return ran

    def _start(self, ports: broker_process.Ports, jars: Path, deadline: float) -> broker_addresses.BrokerInfo:
        for folder in ("logs", "tmp"):
            (self.folder / folder).mkdir(mode=0o700, exist_ok=True)
        self._console.unlink(missing_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_name("server.previous.log"))
        shutil.copyfile(Path(__file__).with_name("log4j2.properties"), self.folder / "log4j2.properties")
        data = self.folder / "data"
        if not data.exists():
            self._format(ports, jars, deadline)
        self._write_properties("server.properties", ports, data.name)
        cluster = kafka_programs.cluster_id(data)
        command = kafka_programs.server_command(
            jars, heap_megabytes=self._heap_megabytes, java_options=self._java_options
        )
        process = broker_process.launch(command, folder=self.folder, console=self._console, detached=self.detached)
        try:
            parent = None if self.detached else os.getpid()
            parent_mark = "" if parent is None else broker_process.start_mark(parent) or ""
            state = broker_process.BrokerState(process.pid, process.mark, ports.clients, parent, parent_mark)
            broker_process.write_state(self.folder, state)
            self._wait_for_answer(process, ports, cluster, deadline)
        except BaseException:
            broker_process.end_process(process, grace_seconds=0)
            broker_process.delete_state(self.folder)
            raise
        self._started_process = process
        return self._info(state)

    def _wait_for_answer(
        self, process: broker_process.Process, ports: broker_process.Ports, cluster: str, deadline: float
    ) -> None:
        # Compare the cluster id, because another broker may have taken the port.
        while broker_process.fetch_cluster_id(broker_process.HOST, ports.clients) != cluster:
            if not broker_process.is_alive(process):
                errors = kafka_programs.error_lines([self._console, self.log])
                port_taken = any("Address already in use" in line for line in errors)
                kind = broker_process.PortTakenError if port_taken else broker_process.BrokerError
                raise kind(f"Kafka ended while starting: {errors[-1]} (see {self.log})")
            if time.monotonic() > deadline:
                raise broker_process.BrokerError(f"Kafka did not answer in time; allow more, or see {self.log}")
            time.sleep(0.05)

    def _format(self, ports: broker_process.Ports, jars: Path, deadline: float) -> None:
        # Rename the folder only when it is complete: an interrupted format must not look like data.
        new_data = self.folder / "formatting"
        shutil.rmtree(new_data, ignore_errors=True)
        kind: kafka_programs.NodeKind = "single" if self._cluster_node is None else "member"
        cluster, node = (
            (kafka_programs.new_cluster_id(), 1)
            if self._cluster_node is None
            else (self._cluster_node.cluster, self._cluster_node.node)
        )
        # Additional properties must be validated by Kafka's own tool.
        is_default = not self._properties
        if is_default and kafka_programs.copy_formatted_data(jars, new_data, kind, cluster=cluster, node=node):
            new_data.rename(self.folder / "data")
            return
        self._write_properties("format.properties", ports, new_data.name)
        kafka_programs.format_data(
            jars,
            folder=self.folder,
            properties="format.properties",
            console=self._console,
            timeout_seconds=max(1.0, deadline - time.monotonic()),
            joined_cluster=None if self._cluster_node is None else self._cluster_node.cluster,
        )
        if is_default:
            kafka_programs.store_formatted_data(jars, new_data, kind)
        new_data.rename(self.folder / "data")

    def _write_properties(self, name: str, ports: broker_process.Ports, data_folder: str) -> None:
        text = broker_addresses.server_properties(
            ports, data_folder=data_folder, extra=self._properties, cluster_node=self._cluster_node
        )
        path = self.folder / name
        path.touch(mode=0o600)
        path.chmod(0o600)  # the properties may name files with secrets
        path.write_text(text)

    def _info(self, state: broker_process.BrokerState) -> broker_addresses.BrokerInfo:
        return broker_addresses.BrokerInfo(f"{broker_process.HOST}:{state.port}", state.pid, self.folder)


def record_start_cache(progress: Callable[[str], None] | None = None) -> Path:
    """Records Java's startup cache unless it exists; returns its path. Downloads Kafka if needed.

    With the ahead-of-time cache (JEP 514, 75 MB) brokers start with less CPU time. Java ignores a cache that does
    not fit its version. ``progress`` receives one line for each long step. BrokerError if Kafka cannot be fetched or started,
    or Java writes no cache.
    """
    jars = kafka_programs.fetch_jars(progress)
    cache = kafka_programs.startup_cache_path(jars)
    with broker_process.file_lock(cache.with_suffix(".lock"), _RECORDING_SECONDS):
        if cache.exists():
            return cache
        if progress is not None:
            progress("Starting Kafka once to record Java's startup cache")
        with tempfile.TemporaryDirectory(dir=jars) as folder:
            new_cache = Path(folder) / "made.aot"
            broker = LocalBroker(Path(folder) / "broker", java_options=(f"-XX:AOTCacheOutput={new_cache}",))
            broker.start(timeout=_RECORDING_SECONDS)
            broker.stop(timeout=_RECORDING_SECONDS)  # Java writes the cache at its end
            if not new_cache.exists():
                raise broker_process.BrokerError(
                    "Java wrote no startup cache; brokers start without it, only slower"
                )
            new_cache.rename(cache)
    return cache
