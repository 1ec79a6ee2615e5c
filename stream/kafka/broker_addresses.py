"""Addresses of local brokers: chooses ports, builds server properties, and finds a running broker."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stream.kafka.broker_process import (
    HOST,
    BrokerError,
    Ports,
    is_alive,
    node_folder,
    read_own_cluster,
    read_own_state,
)
from stream.settings import SECURITY_FIELDS, Settings, variable_of

DEFAULT_FOLDER: Final = Path(".sotto/broker")
DEFAULT_PORT: Final = 9092
MAX_NODES: Final = 7
_PARTITIONS_OF_INTERNAL_TOPICS: Final = 8

# These ports are below the ephemeral ports. On an ephemeral port, a client that tries to reach a stopped
# broker again can connect to itself and hold the port.
_FREE_PORTS: Final = range(20_000, 32_000)


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A running broker."""

    bootstrap: str
    """The address for clients, `host:port`."""
    pid: int
    """The number of the Java process."""
    folder: Path
    """The folder of data, configuration and logs."""

    @property
    def port(self) -> int:
        """The port for clients."""
        return int(self.bootstrap.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster of which at least one node runs."""

    bootstrap: str
    """The client addresses of all nodes, separated by commas."""
    nodes: tuple[BrokerInfo | None, ...]
    """Each node in order; None if it does not run."""
    folder: Path
    """The folder that contains the nodes' folders."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a cluster: its number (from 1), the cluster id and the ports of all nodes."""

    node: int
    cluster: str
    nodes: tuple[Ports, ...]

    @property
    def ports(self) -> Ports:
        """The ports of this node."""
        return self.nodes[self.node - 1]

    def properties(self) -> Mapping[str, str]:
        """Returns the server properties in which this node differs from a single node.

        The properties list the voters. If the metadata log did, a node with an empty disk would no
        longer be a voter.
        """
        replication = default_replicas(len(self.nodes))
        copies, majority = str(replication), str(replication // 2 + 1)
        voters = (f"{number}@{HOST}:{ports.controller}" for number, ports in enumerate(self.nodes, start=1))
        return {
            "node.id": str(self.node),
            "controller.quorum.voters": ",".join(voters),
            "default.replication.factor": copies,
            "min.insync.replicas": majority,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": majority,
        }


def default_replicas(brokers: int) -> int:
    """Returns the default number of replicas: three, or all brokers if fewer."""
    return max(1, min(3, brokers))


def choose_cluster_ports(nodes: int, preferred_port: int | None) -> tuple[Ports, ...]:
    """Chooses the first node's ports by ``choose_ports``, and free ports for the other nodes.

    BrokerError if ``preferred_port`` cannot be used.
    """
    found = [choose_ports(preferred_port)]
    while len(found) < nodes:
        taken = {port for one in found for port in (one.clients, one.controller)}
        clients, controller = free_port(), free_port()
        if clients != controller and not taken & {clients, controller}:
            found.append(Ports(clients, controller))
    return tuple(found)


def are_free(nodes: Iterable[Ports]) -> bool:
    """Returns whether all of these ports are free."""
    return all(_port_problem(port) is None for one in nodes for port in (one.clients, one.controller))


def choose_ports(preferred_port: int | None) -> Ports:
    """Chooses the client port (``preferred_port``, else 9092 or a free port) and a controller port.

    BrokerError if ``preferred_port`` cannot be used.
    """
    if preferred_port is None:
        clients = DEFAULT_PORT if _port_problem(DEFAULT_PORT) is None else free_port()
    else:
        if (refusal := _port_problem(preferred_port)) is not None:
            raise BrokerError(
                f"Port {preferred_port} cannot be used ({refusal}); choose another port, or give none to get a free one"
            )
        clients = preferred_port
    controller = clients + 1
    while controller == clients or _port_problem(controller) is not None:
        controller = free_port()
    return Ports(clients, controller)


def server_properties(
    ports: Ports, *, data_folder: str, extra: Mapping[str, str], cluster_node: ClusterNode | None = None
) -> str:
    """Returns `server.properties` for a node that only this machine reaches."""
    listeners = f"PLAINTEXT://{HOST}:{ports.clients},CONTROLLER://{HOST}:{ports.controller}"
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"{HOST}:{ports.controller}",
        "log.dirs": data_folder,
        "auto.create.topics.enable": "false",
        # Pause between checks that the last transaction's markers are written (default: 20 ms).
        "add.partitions.to.txn.retry.backoff.ms": "2",
        "group.initial.rebalance.delay.ms": "0",
        # Lets the demo notice a killed worker sooner (default: 6 s).
        "group.min.session.timeout.ms": "2000",
        # A killed broker can return only after its session with the controller expires (default: 9 s).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "offsets.topic.num.partitions": str(_PARTITIONS_OF_INTERNAL_TOPICS),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": str(_PARTITIONS_OF_INTERNAL_TOPICS),
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # The default of 128 MB would be an eighth of the heap.
        "log.cleaner.dedupe.buffer.size": str(32 * 1024 * 1024),
        **({} if cluster_node is None else cluster_node.properties()),
        **extra,
    }
    if cluster_node is not None:
        del properties["controller.quorum.bootstrap.servers"]  # only for voters in the metadata log
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def free_port() -> int:
    """Chooses a free port below the range of ephemeral ports; BrokerError if no port is free."""
    for _attempt in range(200):
        port = secrets.choice(_FREE_PORTS)
        if _port_problem(port) is None:
            return port
    raise BrokerError(f"No free port on {HOST}; end some of the programs that listen there")


def _port_problem(port: int) -> str | None:
    if not 1 <= port <= 65_535:
        return "not between 1 and 65535"
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
    except OSError as error:
        return error.strerror or str(error)
    return None


FOLDER: Final = Path(".sotto")
"""The default folder of ``sotto up`` and ``sotto broker``."""


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """The address of a running broker or cluster, and its folder."""

    bootstrap: str
    folder: Path


def sotto_folders_above(start: Path | None = None) -> Iterator[Path]:
    """Yields the path ``.sotto`` in a folder (default: working folder) and in each parent."""
    try:
        first = (start or Path.cwd()).absolute()
    except OSError:  # the working folder has been deleted
        return
    for folder in (first, *first.parents):
        yield folder / FOLDER


def local_address(start: Path | None = None) -> LocalAddress | None:
    """Finds the running broker or cluster of the nearest ``.sotto`` folder.

    Only owner-only files of this user are trusted.
    """
    for folder in sotto_folders_above(start):
        if (state := read_own_state(folder / "broker")) is not None and is_alive(state.process):
            return LocalAddress(f"{HOST}:{state.port}", folder)
        if (cluster := read_own_cluster(folder / "broker")) is None:
            continue
        numbers = range(1, len(cluster.nodes) + 1)
        states = (read_own_state(node_folder(folder / "broker", number)) for number in numbers)
        if any(state is not None and is_alive(state.process) for state in states):
            return LocalAddress(cluster.bootstrap, folder)
    return None


def local_settings(**fields: Any) -> Settings:
    """Returns the settings. If neither address nor security is set, the address is the local broker's."""
    settings = Settings(**fields)
    if settings.model_fields_set.isdisjoint({"bootstrap", *SECURITY_FIELDS}) and (found := local_address()):
        return settings.model_copy(update={"bootstrap": found.bootstrap})
    return settings


def address_origin(settings: Settings) -> str:
    """Describes for messages where the address in the settings comes from."""
    name = variable_of("bootstrap")
    if os.environ.get(name) == settings.bootstrap:
        return f"as {name} says"
    if (found := local_address()) is not None and found.bootstrap == settings.bootstrap:
        return f"as {found.folder} says"
    if name not in os.environ and settings.bootstrap == type(settings).model_fields["bootstrap"].default:
        absent = f", and no broker runs from {FOLDER} here or above" if found is None else ""
        return f"the default: {name} is not set{absent}"
    return "as given"
