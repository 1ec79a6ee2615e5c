"""``sotto broker``: a local Apache Kafka for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stream.cli.output import AsJson, show_json
from stream.kafka.broker import DEFAULT_FOLDER as BROKER_FOLDER
from stream.kafka.broker import BrokerInfo, LocalBroker

app = typer.Typer(help="A local Apache Kafka for development.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(help="Where the broker keeps its data.")]


@app.command("start")
def start(
    folder: Folder = BROKER_FOLDER,
    port: Annotated[int | None, typer.Option(help="Port for clients; 9092 or a free one if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the broker and leave it running."""
    info = LocalBroker(folder, detached=True).start(port, progress=None if as_json else typer.echo)
    _show(info, as_json=as_json)


@app.command("stop")
def stop(folder: Folder = BROKER_FOLDER) -> None:
    """Stop the broker."""
    typer.echo("stopped" if LocalBroker(folder).stop() else "no broker runs in that folder")


@app.command("status")
def status(folder: Folder = BROKER_FOLDER, as_json: AsJson = False) -> None:
    """Say whether the broker runs, and where."""
    _show(LocalBroker(folder).status(), as_json=as_json)


def _show(info: BrokerInfo | None, *, as_json: bool) -> None:
    if as_json:
        known = {} if info is None else {"bootstrap": info.bootstrap, "pid": info.pid, "folder": str(info.folder)}
        show_json({"running": info is not None, **known})
    elif info is None:
        typer.echo("no broker runs in that folder")
    else:
        typer.echo(f"broker at {info.bootstrap} (process {info.pid}, data in {info.folder})")
