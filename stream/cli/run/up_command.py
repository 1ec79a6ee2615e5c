"""``sotto up``: runs a whole installation on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from stream.cli.output import CommandError, say
from stream.cli.run import monitor_commands
from stream.cli.run.monitor_commands import check_targets, lock_folder
from stream.kafka.broker.local_broker import DEFAULT_FOLDER, LocalBroker
from stream.kafka.topics.creation import create_topics
from stream.privacy.noise import NoiseKey
from stream.services.processes import ReplicaError, RoleName, Service, metrics_ports
from stream.settings import MAX_PORT, Settings
from stream.tables import adult


def up(
    workers: Annotated[int, typer.Option(help="Worker processes.", min=1)] = 1,
    folder: Annotated[Path, typer.Option(help="Folder of data, logs and the key.")] = DEFAULT_FOLDER.parent,
    key_file: Annotated[Path | None, typer.Option(help="Noise key file; generated if omitted.")] = None,
    port: Annotated[
        int, typer.Option(help="Port of the monitor's page; another one if it is taken.", min=1, max=MAX_PORT)
    ] = 8080,
    alerts: Annotated[
        Path | None, typer.Option(help="File of targets for alerts; see 'sotto serve alerts'.")
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option(help="The broker's client port; 9092 or a free one if omitted.")
    ] = None,
) -> None:
    """Start broker, budget service, workers, a feed and monitor on this machine, and stop them at Ctrl-C.

    Exit status 1 if the broker or a service other than the monitor ends; the others are then stopped.
    A folder has one installation. A broker that runs in the folder already is used and left running.
    Tables must be in the working folder or below, or in the folders that SOTTO_TABLE_ROOTS lists.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        ports = iter(metrics_ports(Settings().metrics_port, workers + 2 + (alerts is not None)))
    except ReplicaError as error:
        raise CommandError(str(error)) from None
    with lock_folder(folder) as holder, ExitStack() as stack:
        key_file = key_file or folder / "noise.key"
        if not key_file.exists():
            key_file.parent.mkdir(parents=True, exist_ok=True)
            NoiseKey.generate().save(key_file)
        NoiseKey.load(key_file)
        if alerts is not None:
            check_targets(alerts)
        broker = LocalBroker(folder / "broker")
        stack.push(broker)
        broker.start(broker_port)
        running = broker.status()
        if running is None:
            raise CommandError("the broker ended right after its start; see its log in " + str(broker.log))
        holder.write_addresses(running.bootstrap)
        roots = Settings().table_roots or os.pathsep.join([str(Path.cwd()), str(adult.PATH.parent)])
        settings = Settings.of_local_broker(running.bootstrap, table_roots=roots, table_causes=True)
        asyncio.run(create_topics(settings))
        roles: list[tuple[RoleName, int]] = [
            ("budget", 0),
            ("feed", 0),
            *(("worker", number) for number in range(workers)),
        ]
        services = [
            stack.enter_context(
                Service(
                    role,
                    settings.model_copy(update={"instance": f"up-{number}", "metrics_port": next(ports)}),
                    None if role == "feed" else key_file,
                    folder / "logs" / f"{role}-{number}.log",
                )
            )
            for role, number in roles
        ]
        if alerts is not None:
            alert_settings = settings.model_copy(
                update={"alerts_file": str(alerts.absolute()), "metrics_port": next(ports)}
            )
            services.append(
                stack.enter_context(Service("alerts", alert_settings, None, folder / "logs" / "alerts-0.log"))
            )
        say(
            f"Sotto is up: SOTTO_BOOTSTRAP={running.bootstrap}, logs in {folder / 'logs'}; Ctrl-C stops it"
            + ("" if broker.started_it else ", all but the broker, which ran before"),
            soft_wrap=True,
        )
        monitor = stack.enter_context(monitor_commands.run_monitor(settings, folder, port))
        holder.write_addresses(running.bootstrap, monitor.address)
        # On exit, all services are told to stop before the first is waited for.
        stack.callback(monitor.ask_to_stop)
        for service in services:
            stack.callback(service.ask_to_stop)
        while all(service.exit_status is None for service in services):
            if broker.status() != running:
                raise CommandError(f"the broker ended, so the services are stopped; see {broker.log}")
            for service in services:
                service.rotate_large_log()
            monitor.watch()
            time.sleep(0.5)
        ended = next(service for service in services if service.exit_status is not None)
        raise CommandError(f"the {ended.role} service ended; see {ended.log}")
