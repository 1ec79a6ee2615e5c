"""Runs Apache Kafka on this machine for demos, tests and benchmarks.

Each node is broker and controller in one process (KRaft), and only this machine can reach it.
The module needs Linux or macOS.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from stream.kafka import broker_addresses, broker_process, kafka_programs
from stream.kafka.broker_process import BrokerError, Ports, PortTakenError, Process, is_alive, read_own_cluster

START_ATTEMPTS: Final = 3
"""Number of attempts to start a broker, because another process may take a chosen port first."""

_START_SECONDS: Final = 120.0
_SHUTDOWN_SECONDS: Final = 30.0
_RECORDING_SECONDS: Final = 300.0
_CLUSTER_START_SECONDS: Final = 180.0
_NODE_SHUTDOWN_SECONDS: Final = 10.0
"""Seconds until a node is killed. They are few, because the last nodes have no majority and cannot stop cleanly."""


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
        self._started_process: Process | None = None

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
                    raise BrokerError(f"The broker in {self.folder} runs on port {running.port}; stop it first")
                return running
            if state is not None:
                # The broker is dead; this ends the shell that watched it.
                broker_process.end_process(state.process, grace_seconds=0)
            broker_process.delete_state(self.folder)
            if self._cluster_node is not None:
                return self._start(self._cluster_node.ports, jars, deadline)
            if (self.folder / broker_process.CLUSTER_FILE).exists():
                raise BrokerError(
                    f"{self.folder} holds a cluster of several brokers; start it with 'sotto broker start', and choose another "
                    "folder for a single one"
                )
            for attempt in range(1, START_ATTEMPTS + 1):
                try:
                    return self._start(broker_addresses.choose_ports(port), jars, deadline)
                except PortTakenError:
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
        if (state := broker_process.read_state(self.folder)) is None or not is_alive(state.process):
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
                raise BrokerError(f"Cannot work in {self.folder} ({error}); choose another folder") from error

    def _end(self, grace_seconds: float, only: Process | None = None) -> bool:
        if not (self.folder / broker_process.STATE_FILE).exists():
            return False
        # The lock waits for a broker that is being started.
        with self._folder_lock(_START_SECONDS + grace_seconds):
            state = broker_process.read_state(self.folder)
            if only is not None and (state is None or state.process != only):
                return False
            ran = state is not None and is_alive(state.process)
            if state is not None:
                broker_process.end_process(state.process, grace_seconds=grace_seconds)
            broker_process.delete_state(self.folder)
            return ran

    def _start(self, ports: Ports, jars: Path, deadline: float) -> broker_addresses.BrokerInfo:
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

    def _wait_for_answer(self, process: Process, ports: Ports, cluster: str, deadline: float) -> None:
        # Compare the cluster id, because another broker may have taken the port.
        while broker_process.fetch_cluster_id(broker_process.HOST, ports.clients) != cluster:
            if not is_alive(process):
                errors = kafka_programs.error_lines([self._console, self.log])
                port_taken = any("Address already in use" in line for line in errors)
                kind = PortTakenError if port_taken else BrokerError
                raise kind(f"Kafka ended while starting: {errors[-1]} (see {self.log})")
            if time.monotonic() > deadline:
                raise BrokerError(f"Kafka did not answer in time; allow more, or see {self.log}")
            time.sleep(0.05)

    def _format(self, ports: Ports, jars: Path, deadline: float) -> None:
        # Rename the folder only when it is complete: an interrupted format must not look like data.
        new_data = self.folder / "formatting"
        shutil.rmtree(new_data, ignore_errors=True)
        kind: kafka_programs.NodeKind = "member" if self._cluster_node else "single"
        place = self._cluster_node
        cluster, node = (place.cluster, place.node) if place else (kafka_programs.new_cluster_id(), 1)
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
            joined_cluster=place.cluster if place else None,
        )
        if is_default:
            kafka_programs.store_formatted_data(jars, new_data, kind)
        new_data.rename(self.folder / "data")

    def _write_properties(self, name: str, ports: Ports, data_folder: str) -> None:
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
                raise BrokerError("Java wrote no startup cache; brokers start without it, only slower")
            new_cache.rename(cache)
    return cache


class LocalCluster:
    """Manages the KRaft cluster whose data is in a folder; it tolerates the loss of one node.

    By default, topics have three replicas, two of which must store each record. As with `LocalBroker`, several
    objects may manage the same folder, which is the parent of the nodes' folders. Data, ids and (if they are free)
    ports are kept. As a context manager, it starts the cluster on entry; on exit, it stops the nodes that it
    started. Without a number of ``nodes``, a new cluster has three. If ``detached``, the nodes outlive this
    process. BrokerError if the folder holds another cluster or a single broker.
    """

    def __init__(
        self,
        folder: Path = broker_addresses.DEFAULT_FOLDER,
        nodes: int | None = None,
        *,
        detached: bool = False,
        heap_megabytes: int = 384,
    ) -> None:
        self.folder = Path(folder).absolute()
        known = read_own_cluster(self.folder)
        self.size = nodes or (len(known.nodes) if known is not None else 3)
        if known is not None and len(known.nodes) != self.size:
            raise BrokerError(
                f"{self.folder} holds a cluster of {len(known.nodes)} nodes; start it as it is, or choose another folder"
            )
        if not 2 <= self.size <= broker_addresses.MAX_NODES:
            raise BrokerError(
                f"a cluster has 2 to {broker_addresses.MAX_NODES} nodes, not {self.size}; choose a number between"
            )
        if known is None and (self.folder / "data").exists():
            raise BrokerError(f"{self.folder} holds a single broker; choose another folder for a cluster")
        self.detached = detached
        self._heap_megabytes = heap_megabytes
        self._started: set[int] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with ThreadPoolExecutor(self.size) as pool:
            list(pool.map(lambda number: self.node(number).stop(_NODE_SHUTDOWN_SECONDS), self._started))

    def start(
        self,
        port: int | None = None,
        timeout: float = _CLUSTER_START_SECONDS,
        progress: Callable[[str], None] | None = None,
    ) -> broker_addresses.ClusterInfo:
        """Starts the nodes that do not run, and waits until all nodes answer within ``timeout`` seconds.

        The first download does not count. Without a ``port`` for clients, the first node has its last port, or
        else 9092 or a free port. ``progress`` receives one line for each long step. BrokerError if a node cannot
        be started, or runs on another port than requested.
        """
        kafka_programs.fetch_jars(progress)
        with broker_process.file_lock(self.folder / "cluster.lock", timeout):
            for attempt in range(1, START_ATTEMPTS + 1):
                try:
                    self._start_missing(self._choose_state(port), timeout)
                    break
                except PortTakenError:
                    # While a node runs, the ports cannot change.
                    if attempt == START_ATTEMPTS or self.status() is not None:
                        raise
        if (info := self.status()) is None:
            raise BrokerError(f"All nodes ended right after their start; see the logs in {self.folder}")
        return info

    def stop(self, timeout: float = _NODE_SHUTDOWN_SECONDS) -> bool:
        """Stops all nodes, by SIGKILL after ``timeout`` seconds; returns whether a node ran."""
        return self._for_each_broker(lambda broker: broker.stop(timeout))

    def kill(self) -> bool:
        """Kills all nodes by SIGKILL, like a power cut; returns whether a node ran."""
        return self._for_each_broker(LocalBroker.kill)

    def status(self) -> broker_addresses.ClusterInfo | None:
        """The cluster, or None if no node of it runs."""
        if (state := read_own_cluster(self.folder)) is None:
            return None
        nodes = tuple(broker.status() for broker in self._brokers(state))
        return broker_addresses.ClusterInfo(state.bootstrap, nodes, self.folder) if any(nodes) else None

    def node(self, number: int) -> LocalBroker:
        """Returns one node, numbered from 1, to start, stop or kill it alone.

        BrokerError if the cluster was never started or has no such node.
        """
        if (state := read_own_cluster(self.folder)) is None or not 1 <= number <= len(state.nodes):
            raise BrokerError(f"There is no node {number} in {self.folder}; start the cluster first")
        return self._brokers(state)[number - 1]

    def _for_each_broker(self, action: Callable[[LocalBroker], bool]) -> bool:
        if (state := read_own_cluster(self.folder)) is None:
            return False
        with ThreadPoolExecutor(self.size) as pool:
            return any(list(pool.map(action, self._brokers(state))))

    def _start_missing(self, state: broker_process.ClusterState, timeout: float) -> None:
        brokers = enumerate(self._brokers(state), start=1)
        missing = {number: broker for number, broker in brokers if broker.status() is None}
        # A node answers only after a majority has elected a leader: start all nodes, then wait.
        with ThreadPoolExecutor(self.size) as pool:
            starting = [pool.submit(broker.start, None, timeout) for broker in missing.values()]
        failed = [error for one in starting if (error := one.exception()) is not None]
        self._started |= {number for number, broker in missing.items() if broker.started_it}
        if failed:
            with ThreadPoolExecutor(self.size) as pool:
                list(pool.map(LocalBroker.kill, missing.values()))
            raise next((error for error in failed if isinstance(error, PortTakenError)), failed[0])

    def _choose_state(self, port: int | None) -> broker_process.ClusterState:
        """Returns the cluster; it keeps its ports if a node runs or all ports are free, else it gets new ones."""
        if (known := read_own_cluster(self.folder)) is not None:
            runs = any(broker.status() is not None for broker in self._brokers(known))
            first = known.nodes[0].clients
            if runs and port not in {None, first}:
                raise BrokerError(f"The cluster in {self.folder} runs on port {first}; stop it first")
            if runs or (port in {None, first} and broker_addresses.are_free(known.nodes)):
                return known
        cluster = known.cluster if known is not None else kafka_programs.new_cluster_id()
        state = broker_process.ClusterState(cluster, broker_addresses.choose_cluster_ports(self.size, port))
        broker_process.write_state(self.folder, state)
        return state

    def _brokers(self, state: broker_process.ClusterState) -> list[LocalBroker]:
        return [
            LocalBroker(
                broker_process.node_folder(self.folder, number),
                detached=self.detached,
                heap_megabytes=self._heap_megabytes,
                cluster_node=broker_addresses.ClusterNode(number, state.cluster, state.nodes),
            )
            for number in range(1, len(state.nodes) + 1)
        ]
