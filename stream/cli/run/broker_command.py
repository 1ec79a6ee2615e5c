"""``sotto broker``: starts and stops a local Apache Kafka with one node or several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream.cli.output import AsJson, show_json
from stream.kafka.broker.broker_cluster import MAX_NODES, ClusterInfo, LocalCluster, has_cluster
from stream.kafka.broker.local_broker import DEFAULT_FOLDER as BROKER_FOLDER
from stream.kafka.broker.local_broker import BrokerInfo, LocalBroker, record_start_cache

app = typer.Typer(help="A local Apache Kafka for development.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(help="Folder of the broker's data.")]


@app.command("start")
def start(
    folder: Folder = BROKER_FOLDER,
    port: Annotated[
        int | None, typer.Option(help="Client port of the first node; 9092 or a free one if omitted.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Number of nodes; if omitted, as many as the folder has, or one. With several, topics have three "
            "replicas, of which two must be in sync.",
            min=1,
            max=MAX_NODES,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the broker, or a cluster of several, and leave it running."""
    info = _broker_in(folder, nodes).start(port, progress=None if as_json else typer.echo)
    _show(info, as_json=as_json)


@app.command("prepare")
def prepare() -> None:
    """Download Kafka and prepare its start (70 MB): brokers then start with half the CPU time."""
    typer.echo(f"saved in {record_start_cache(typer.echo)}")


@app.command("stop")
def stop(folder: Folder = BROKER_FOLDER) -> None:
    """Stop the broker, or all nodes of the cluster."""
    typer.echo("stopped" if _broker_in(folder).stop() else "no broker runs in that folder")


@app.command("status")
def status(folder: Folder = BROKER_FOLDER, as_json: AsJson = False) -> None:
    """Print whether the broker, or each node of the cluster, runs and where."""
    _show(_broker_in(folder).status(), as_json=as_json)


def _broker_in(folder: Path, nodes: int | None = None) -> LocalBroker | LocalCluster:
    if has_cluster(folder) or (nodes or 1) > 1:
        return LocalCluster(folder, nodes, detached=True)
    return LocalBroker(folder, detached=True)


def _show(info: BrokerInfo | ClusterInfo | None, *, as_json: bool) -> None:
    if as_json:
        show_json({"running": info is not None, **_document(info)})
    elif info is None:
        typer.echo("no broker runs in that folder")
    elif isinstance(info, BrokerInfo):
        typer.echo(f"broker at {info.bootstrap} (process {info.pid}, data in {info.folder})")
    else:
        typer.echo(f"cluster of {len(info.nodes)} brokers at {info.bootstrap} (data in {info.folder})")
        for number, node in enumerate(info.nodes, start=1):
            running = "does not run" if node is None else f"at {node.bootstrap} (process {node.pid})"
            typer.echo(f"  node {number} {running}")


def _document(info: BrokerInfo | ClusterInfo | None) -> dict[str, object]:
    match info:
        case None:
            return {}
        case BrokerInfo():
            return {"bootstrap": info.bootstrap, "pid": info.pid, "folder": str(info.folder)}
        case ClusterInfo():
            nodes = [None if one is None else {"bootstrap": one.bootstrap, "pid": one.pid} for one in info.nodes]
            return {"bootstrap": info.bootstrap, "nodes": nodes, "folder": str(info.folder)}
