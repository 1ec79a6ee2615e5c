"""What a broker's folder remembers of the broker started last."""

import os
from pathlib import Path
from typing import Final

import msgspec

from schemas.wire import UNREADABLE
from stream.kafka.broker_process import Process, is_alive
from stream.secret_files import read_own

HOST: Final = "127.0.0.1"
"""Where a local broker is reached: from its machine only."""
STATE_FILE: Final = "broker.json"
CLUSTER_FILE: Final = "cluster.json"


class NodePorts(msgspec.Struct, frozen=True):
    """Where a node of a cluster listens, for clients and for the other nodes' controllers."""

    clients: int
    controller: int


class ClusterState(msgspec.Struct, frozen=True):
    """A cluster's id and its nodes; the first is number 1, in the folder ``node-1``."""

    cluster: str
    nodes: tuple[NodePorts, ...]

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, for clients."""
        return ",".join(f"{HOST}:{one.clients}" for one in self.nodes)


def node_folder(folder: Path, node: int) -> Path:
    """Where a node of a cluster keeps what is its own."""
    return folder / f"node-{node}"


class BrokerState(msgspec.Struct, frozen=True):
    """Its process, its ports, and the process that it ends with."""

    pid: int
    mark: str
    port: int
    administration: int | None = None
    parent: int | None = None
    parent_mark: str = ""

    @property
    def process(self) -> Process:
        """The broker's process."""
        return Process(self.pid, self.mark)

    @property
    def orphaned(self) -> bool:
        """Whether it is about to end, since it was to end with a process that is gone."""
        return self.parent is not None and not is_alive(Process(self.parent, self.parent_mark))


def read_state(folder: Path) -> BrokerState | None:
    """What the folder says; None if it says nothing that can be read."""
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=BrokerState)
    except (OSError, *UNREADABLE):
        return None


def read_own_state(folder: Path) -> BrokerState | None:
    """What the folder says in an owner-only file of this user; None otherwise."""
    told = read_own(folder / STATE_FILE)
    try:
        return None if told is None else msgspec.json.decode(told, type=BrokerState)
    except UNREADABLE:
        return None


def read_own_cluster(folder: Path) -> ClusterState | None:
    """The cluster that an owner-only file of this user describes; None otherwise."""
    told = read_own(folder / CLUSTER_FILE)
    try:
        return None if told is None else msgspec.json.decode(told, type=ClusterState)
    except UNREADABLE:
        return None


def write_state(folder: Path, state: BrokerState) -> None:
    """Remember a broker, for this user alone."""
    _write(folder, STATE_FILE, msgspec.json.encode(state))


def write_cluster(folder: Path, state: ClusterState) -> None:
    """Remember a cluster, for this user alone."""
    _write(folder, CLUSTER_FILE, msgspec.json.encode(state))


def _write(folder: Path, name: str, content: bytes) -> None:
    draft = folder / f"{name}.draft"
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.replace(folder / name)


def forget_state(folder: Path) -> None:
    """Remember no broker."""
    (folder / STATE_FILE).unlink(missing_ok=True)
