"""A cluster of brokers on this machine that tolerates the loss of one node."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from stream.kafka import broker_addresses
from stream.kafka.broker_process import (
    BrokerError,
    ClusterState,
    PortTakenError,
    file_lock,
    node_folder,
    read_own_cluster,
    write_state,
)
from stream.kafka.kafka_programs import fetch_jars, new_cluster_id
from stream.kafka.local_broker import START_ATTEMPTS, LocalBroker

HEAP_MEGABYTES: Final = 384

_START_SECONDS: Final = 180.0
_SHUTDOWN_SECONDS: Final = 10.0
"""Seconds until a node is killed. They are few, because the last nodes have no majority and cannot stop cleanly."""


class LocalCluster:
    """Manages the KRaft cluster whose data is in a folder; each node is broker and controller.

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
        heap_megabytes: int = HEAP_MEGABYTES,
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
            list(pool.map(lambda number: self.node(number).stop(_SHUTDOWN_SECONDS), self._started))

    def start(
        self,
        port: int | None = None,
        timeout: float = _START_SECONDS,
        progress: Callable[[str], None] | None = None,
    ) -> broker_addresses.ClusterInfo:
        """Starts the nodes that do not run, and waits until all nodes answer within ``timeout`` seconds.

        The first download does not count. Without a ``port`` for clients, the first node has its last port, or
        else 9092 or a free port. ``progress`` receives one line for each long step. BrokerError if a node cannot
        be started, or runs on another port than requested.
        """
        fetch_jars(progress)
        with file_lock(self.folder / "cluster.lock", timeout):
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

    def stop(self, timeout: float = _SHUTDOWN_SECONDS) -> bool:
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

    def _start_missing(self, state: ClusterState, timeout: float) -> None:
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

    def _choose_state(self, port: int | None) -> ClusterState:
        """Returns the cluster; it keeps its ports if a node runs or all ports are free, else it gets new ones."""
        if (known := read_own_cluster(self.folder)) is not None:
            runs = any(broker.status() is not None for broker in self._brokers(known))
            first = known.nodes[0].clients
            if runs and port not in {None, first}:
                raise BrokerError(f"The cluster in {self.folder} runs on port {first}; stop it first")
            if runs or (port in {None, first} and broker_addresses.are_free(known.nodes)):
                return known
        cluster = known.cluster if known is not None else new_cluster_id()
        state = ClusterState(cluster, broker_addresses.choose_cluster_ports(self.size, port))
        write_state(self.folder, state)
        return state

    def _brokers(self, state: ClusterState) -> list[LocalBroker]:
        return [
            LocalBroker(
                node_folder(self.folder, number),
                detached=self.detached,
                heap_megabytes=self._heap_megabytes,
                cluster_node=broker_addresses.ClusterNode(number, state.cluster, state.nodes),
            )
            for number in range(1, len(state.nodes) + 1)
        ]
