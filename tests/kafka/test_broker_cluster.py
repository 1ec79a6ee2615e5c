"""``sotto broker start --nodes 3`` starts three brokers, which are found, used and stopped like one broker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.kafka import broker_addresses
from stream.kafka.broker_addresses import ClusterNode, choose_cluster_ports, local_address, server_properties
from stream.kafka.broker_process import BrokerError, Ports, is_alive, read_state
from stream.kafka.local_broker import LocalBroker, LocalCluster
from stream.kafka.topic_creation import check_topics
from stream.settings import Settings
from tests.preloaded import command

pytestmark = pytest.mark.kafka

BROKER = Path(".sotto", "broker")
OF_BROKERS = {"SOTTO_CACHE", "SOTTO_BROKER_JAVA_OPTIONS"}


def sotto(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, without a setting for Kafka's address."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("SOTTO_") or name in OF_BROKERS
    }
    return command(arguments, {**kept, "COLUMNS": "80"}, 300, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    LocalCluster(tmp_path / BROKER, detached=True).kill()


async def test_cluster_of_three_is_started_found_and_stopped_as_one(folder: Path) -> None:
    started = sotto(folder, "broker", "start", "--nodes", "3", "--json")
    assert started.returncode == 0, started.stderr
    started_cluster = json.loads(started.stdout)
    addresses = started_cluster["bootstrap"].split(",")
    assert len(set(addresses)) == 3
    assert [node["bootstrap"] for node in started_cluster["nodes"]] == addresses
    found = local_address(folder)
    assert found is not None
    assert found.bootstrap == started_cluster["bootstrap"]

    created = sotto(folder, "topics", "create")
    assert created.returncode == 0, created.stderr
    assert created.stdout.splitlines()[-1] == "4 partitions, replication 3, min.insync.replicas 2, among 3 brokers"
    assert await check_topics(Settings(bootstrap=started_cluster["bootstrap"])) == []
    less = sotto(folder, "topics", "create", "--replication", "2")
    assert (less.returncode, less.stdout) == (1, "all topics exist\n")
    assert ": sotto.queries has replication=3, not 2; " in less.stderr

    # Without one node, the status shows it, and the other nodes work.
    cluster = LocalCluster(folder / BROKER, detached=True)
    gone = read_state(cluster.node(2).folder)
    assert gone is not None
    assert cluster.node(2).kill()
    status = sotto(folder, "broker", "status")
    assert f"cluster of 3 brokers at {started_cluster['bootstrap']}" in status.stdout
    assert status.stdout.count("process") == 2
    assert "node 2 does not run" in status.stdout
    assert sotto(folder, "source", "list").returncode == 0
    with pytest.raises(BrokerError, match="holds a cluster of several brokers"):
        LocalBroker(folder / BROKER).start()
    refused = sotto(folder, "broker", "start", "--nodes", "5")
    assert refused.returncode == 1
    assert "holds a cluster of 3 nodes" in refused.stderr

    again = sotto(folder, "broker", "start", "--json")
    assert json.loads(again.stdout)["bootstrap"] == started_cluster["bootstrap"]
    states = [read_state(cluster.node(number).folder) for number in (1, 2, 3)]
    assert sotto(folder, "broker", "stop").stdout == "stopped\n"
    assert not [state for state in states if state is not None and is_alive(state.process)]
    assert sotto(folder, "broker", "status").stdout == "no broker runs in that folder\n"
    assert local_address(folder) is None


def test_cluster_retries_after_lost_race_for_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = choose_cluster_ports(2, None)
        taken = Ports(free[1].clients, controller=listener.getsockname()[1])
        laid_out = iter([(free[0], taken)])
        monkeypatch.setattr(
            broker_addresses,
            "choose_cluster_ports",
            lambda nodes, port: next(laid_out, None) or choose_cluster_ports(nodes, port),
        )
        with LocalCluster(tmp_path, 2) as cluster:
            found = cluster.status()
            assert found is not None
            assert None not in found.nodes
        assert next(laid_out, None) is None
        assert cluster.status() is None


def test_cluster_refuses_folder_of_single_broker(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(BrokerError, match="holds a single broker"):
        LocalCluster(tmp_path, 3)
    with pytest.raises(BrokerError, match="2 to 7 nodes"):
        LocalCluster(tmp_path / "other", 8)


def test_server_properties_of_cluster_replicate_thrice() -> None:
    nodes = (Ports(1, 2), Ports(3, 4), Ports(5, 6))
    text = server_properties(nodes[1], data_folder="data", extra={}, cluster_node=ClusterNode(2, "id", nodes))
    properties = dict(line.split("=", 1) for line in text.splitlines())
    assert properties["node.id"] == "2"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:2,2@127.0.0.1:4,3@127.0.0.1:6"
    for kept in ("default", "offsets.topic", "transaction.state.log"):
        assert properties[f"{kept}.replication.factor"] == "3"
    assert properties["min.insync.replicas"] == properties["transaction.state.log.min.isr"] == "2"
