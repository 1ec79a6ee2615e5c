"""``sotto serve`` and ``sotto up``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from stream import log
from stream.cli import monitoring
from stream.cli.folders import held
from stream.cli.output import CommandError, say
from stream.data import adult
from stream.kafka.broker import DEFAULT_FOLDER, LocalBroker
from stream.kafka.nearby import settings_here
from stream.kafka.processes import RoleName as ServiceRole
from stream.kafka.processes import Service
from stream.kafka.replicas import ReplicaError, Replicas, cores
from stream.kafka.services import serve as serve_role
from stream.kafka.services import stop_when_told
from stream.kafka.topics import create_topics
from stream.noise import NoiseKey
from stream.settings import Settings


class RoleName(StrEnum):
    """The services there are."""

    WORKER = "worker"
    BUDGET = "budget"
    MONITOR = "monitor"


def serve(
    role: Annotated[
        RoleName,
        typer.Argument(
            help="worker answers queries; budget grants, records and halts; monitor shows and takes requests."
        ),
    ],
    key_file: Annotated[Path | None, typer.Option(help="Noise key file; else SOTTO_NOISE_KEY[_FILE].")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the monitor's page and API.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the monitor's page and API.")] = None,
    processes: Annotated[
        int, typer.Option(help="Worker processes, restarted when they fail; 0 for one per core.", min=0)
    ] = 1,
    json_logs: Annotated[bool, typer.Option(help="Log JSON.")] = False,
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run a service until SIGTERM or Ctrl-C."""
    log.configure(as_json=json_logs)
    if role is RoleName.MONITOR:
        _require_worker(role, processes)
        monitoring.serve(host, port, stop_with_stdin=stop_with_stdin)
        return
    if host is not None or port is not None:
        raise CommandError(
            "--host and --port are the monitor's; a worker's metrics have SOTTO_METRICS_HOST and _PORT"
        )
    _require_worker(role, processes)
    key = NoiseKey.load(key_file) if key_file else NoiseKey.from_environment()
    if processes == 1:
        name: Literal["worker", "budget"] = "worker" if role is RoleName.WORKER else "budget"
        asyncio.run(serve_role(name, settings_here(), key, stop_with_stdin=stop_with_stdin))
        return
    arguments = [*(("--key-file", str(key_file)) if key_file else ()), *(("--json-logs",) if json_logs else ())]
    asyncio.run(_serve_replicas(processes or cores(), arguments, stop_with_stdin=stop_with_stdin))


def _require_worker(role: RoleName, processes: int) -> None:
    if processes != 1 and role is not RoleName.WORKER:
        raise CommandError("--processes is the workers'; budget service and monitor are one process each")


async def _serve_replicas(count: int, arguments: list[str], *, stop_with_stdin: bool) -> None:
    try:
        replicas = Replicas(settings_here(), count, arguments)
        stop_when_told(replicas.stop, stop_with_stdin=stop_with_stdin)
        await replicas.run()
    except ReplicaError as error:
        raise CommandError(str(error)) from None


def up(
    workers: Annotated[int, typer.Option(help="Worker processes.", min=1)] = 1,
    folder: Annotated[Path, typer.Option(help="Where data, logs and a generated key go.")] = DEFAULT_FOLDER.parent,
    key_file: Annotated[Path | None, typer.Option(help="Noise key file; made in the folder if not given.")] = None,
    port: Annotated[int, typer.Option(help="Port of the monitor's page; another one if it is taken.")] = 8080,
    broker_port: Annotated[
        int | None, typer.Option(help="The broker's port for clients; else 9092, or a free one if that is taken.")
    ] = None,
) -> None:
    """Start broker, budget service, workers and monitor on this machine, and stop them at Ctrl-C.

    Ends with status 1, and stops the others, when the broker or one of the services but the monitor ends. One a folder; a
    broker that runs in the folder already is used, and goes on afterwards. Tables may lie in the working folder and below,
    or in the folders that SOTTO_TABLE_ROOTS names.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with held(folder) as holder, ExitStack() as stack:
        key_file = key_file or folder / "noise.key"
        if not key_file.exists():
            key_file.parent.mkdir(parents=True, exist_ok=True)
            NoiseKey.generate().save(key_file)
        NoiseKey.load(key_file)
        broker = LocalBroker(folder / "broker")
        stack.push(broker)
        broker.start(broker_port)
        running = broker.status()
        if running is None:
            raise CommandError("the broker ended right after its start; see its log in " + str(broker.log))
        holder.tell(running.bootstrap)
        roots = Settings().table_roots or os.pathsep.join([str(Path.cwd()), str(adult.PATH.parent)])
        settings = Settings.of_local_broker(running.bootstrap, table_roots=roots)
        asyncio.run(create_topics(settings))
        roles: list[tuple[ServiceRole, int]] = [("budget", 0), *(("worker", number) for number in range(workers))]
        services = [
            stack.enter_context(Service(role, settings, key_file, folder / "logs" / f"{role}-{number}.log"))
            for role, number in roles
        ]
        say(
            f"Sotto is up: SOTTO_BOOTSTRAP={running.bootstrap}, logs in {folder / 'logs'}; Ctrl-C stops it"
            + ("" if broker.started_it else ", all but the broker, which ran before")
        )
        monitor = stack.enter_context(monitoring.start(settings, folder, port))
        holder.tell(running.bootstrap, monitor.address)
        # All are told at once, before each is waited for.
        stack.callback(monitor.ask_to_stop)
        for service in services:
            stack.callback(service.ask_to_stop)
        while all(service.exit_status is None for service in services):
            if broker.status() != running:
                raise CommandError(f"the broker ended, so the services are stopped; see {broker.log}")
            for service in services:
                service.keep_log_small()
            monitor.watch()
            time.sleep(0.5)
        ended = next(service for service in services if service.exit_status is not None)
        raise CommandError(f"the {ended.role} service ended; see {ended.log}")
