"""``sotto serve`` runs one service, and ``sotto up`` a whole installation on this machine.

A service runs without the packages of the broker, the monitor and the clients, so this module must not
import them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, cast

import typer
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from schemas import PartitionStatus
from schemas.wire import parse_or_none
from stream import diagnostics
from stream.cli.output import CommandError, print_warnings, say, say_progress
from stream.engine.health import ServiceName
from stream.engine.restore import create_reader
from stream.kafka.broker_addresses import DEFAULT_FOLDER, local_settings
from stream.kafka.topic_creation import create_topics
from stream.optional_packages import explain_missing_packages
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics
from stream.services.processes import ReplicaError, Replicas, RoleName, Service, count_cores, metrics_ports
from stream.services.runner import ignore_stop_signals, install_stop_handlers
from stream.services.runner import serve as serve_role
from stream.settings import MAX_PORT, Settings, unread_variables_warning
from stream.tables.demo_tables import ADULT_PATH
from stream.witnesses.anchor import WitnessError
from stream.witnesses.witness_kinds import open_witnesses

if TYPE_CHECKING:
    from stream.cli.monitor_commands import RunningMonitor


def serve(
    role: Annotated[
        Literal["worker", "budget", "feed", "monitor", "alerts"],
        typer.Argument(
            help="worker answers queries; budget grants, records and halts; feed counts live topics; monitor serves the page and the "
            "API; alerts notifies webhooks and Alertmanager."
        ),
    ],
    key_file: Annotated[Path | None, typer.Option(help="Noise key file; or SOTTO_NOISE_KEY[_FILE].")] = None,
    host: Annotated[str | None, typer.Option(help="Address of the monitor's page and API.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the monitor's page and API.", min=1, max=MAX_PORT)
    ] = None,
    processes: Annotated[
        int, typer.Option(help="Worker or feed processes, restarted when they fail; 0 for one per core.", min=0)
    ] = 1,
    json_logs: Annotated[bool, typer.Option(help="Log JSON.")] = False,
    stop_with_stdin: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run a service until SIGTERM or Ctrl-C."""
    diagnostics.configure_logs(as_json=json_logs)
    # With --stop-with-stdin a parent process started this one, and has logged the warning.
    if not stop_with_stdin and (reason := unread_variables_warning()) is not None:
        diagnostics.get_logger("settings").warning("without effect", reason=reason)
    if processes != 1 and role not in {"worker", "feed"}:
        raise CommandError("--processes: only workers and feeds have several; omit it, or give 1")
    if role in {"monitor", "alerts"}:
        from stream.cli import monitor_commands  # noqa: PLC0415  (other services run without its packages)

        if role == "monitor":
            monitor_commands.serve_monitor(host, port, stop_with_stdin=stop_with_stdin)
        else:
            monitor_commands.serve_alerts(stop_with_stdin=stop_with_stdin)
        return
    if host is not None or port is not None:
        raise CommandError(
            "--host, --port: only the monitor has a page; set SOTTO_METRICS_HOST and _PORT for other services' metrics"
        )
    name = cast("ServiceName", role)
    if name == "feed" and key_file is not None:
        raise CommandError("--key-file: a feed needs no noise key; omit it")
    key = None if name == "feed" else NoiseKey.load(key_file) if key_file else NoiseKey.from_environment()
    if processes == 1:
        run_service(serve_role(name, local_settings(), key, stop_with_stdin=stop_with_stdin))
        return
    arguments = [*(("--key-file", str(key_file)) if key_file else ()), *(("--json-logs",) if json_logs else ())]
    asyncio.run(_serve_replicas(name, processes or count_cores(), arguments, stop_with_stdin=stop_with_stdin))


def run_service(service: Coroutine[Any, Any, None]) -> None:
    """Run a service in uvloop's event loop, or in asyncio's if uvloop is not installed."""
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    with suppress(ImportError):
        from uvloop import new_event_loop as new_loop  # noqa: PLC0415
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(service)


async def _serve_replicas(role: ServiceName, count: int, arguments: list[str], *, stop_with_stdin: bool) -> None:
    try:
        replicas = Replicas(local_settings(), role, count, arguments)
        install_stop_handlers(replicas.stop, stop_with_stdin=stop_with_stdin)
        await replicas.run()
        ignore_stop_signals()
    except ReplicaError as error:
        raise CommandError(str(error)) from None


class ReadinessReader:
    """Reads, in a thread, the services' reports that partitions are restored.

    Enter its ``with`` block before the services start, because earlier reports are ignored.
    """

    def __init__(self, settings: Settings, partitions: Collection[tuple[ServiceName, int]]) -> None:
        """``partitions`` are the roles and partitions to wait for."""
        self._settings = settings
        self._missing = set(partitions)
        self._is_positioned = threading.Event()
        self._is_ready = threading.Event()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read()), name="readiness", daemon=True)

    @property
    def is_ready(self) -> bool:
        """True if each partition has been reported, or Kafka does not answer."""
        return self._is_ready.is_set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_positioned.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()

    async def _read(self) -> None:
        topics = Topics(self._settings.prefix, self._settings.partitions)
        consumer = create_reader(self._settings, auto_offset_reset="latest")
        try:
            await consumer.start()
            assigned = [TopicPartition(topics.status, number) for number in range(topics.partitions)]
            consumer.assign(assigned)
            await consumer.seek_to_end(*assigned)
            for one in assigned:
                await consumer.position(one)
            self._is_positioned.set()
            while self._missing and not self._is_stopped.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        self._note_report(record.value)
        except KafkaError:
            pass  # the services report problems of Kafka
        finally:
            self._is_positioned.set()
            self._is_ready.set()
            await consumer.stop()

    def _note_report(self, value: bytes | None) -> None:
        report = None if value is None else parse_or_none(value)
        if isinstance(report, dict) and report.get("phase") == "ready":
            status = PartitionStatus.model_validate(report)
            self._missing.discard((status.role, status.partition))


_WATCH_SECONDS: Final = 0.25


def up(
    workers: Annotated[int, typer.Option(help="Worker processes.", min=1)] = 1,
    folder: Annotated[Path, typer.Option(help="Folder of data, logs and the key.")] = DEFAULT_FOLDER.parent,
    key_file: Annotated[Path | None, typer.Option(help="Noise key file; generated if omitted.")] = None,
    port: Annotated[
        int, typer.Option(help="Port of the monitor's page; a free one if it is taken.", min=1, max=MAX_PORT)
    ] = 8080,
    alerts: Annotated[
        Path | None, typer.Option(help="File of targets for alerts; see 'sotto serve alerts'.")
    ] = None,
    broker_port: Annotated[
        int | None, typer.Option(help="The broker's client port; 9092 or a free one if omitted.")
    ] = None,
) -> None:
    """Start broker, budget service, workers, a feed and monitor on this machine, and stop them at Ctrl-C.

    If the broker or a service other than the monitor ends, the other services are stopped and the exit status is 1.
    A folder has one installation. A broker that already runs in the folder is used and left running.
    Tables must be in the working folder or below or, if SOTTO_TABLE_ROOTS is set, in the folders that it lists instead.
    """
    with explain_missing_packages("all"):
        from stream.alerts.alerts_file import AlertsFile  # noqa: PLC0415
        from stream.cli.monitor_commands import lock_folder, run_monitor  # noqa: PLC0415
        from stream.kafka.local_broker import LocalBroker  # noqa: PLC0415

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        ports = iter(metrics_ports(Settings().metrics_port, workers + 2 + (alerts is not None)))
    except ReplicaError as error:
        raise CommandError(str(error)) from None
    with lock_folder(folder) as lock, ExitStack() as stack:
        key_file = key_file or folder / "noise.key"
        _create_key_if_missing(key_file)
        if alerts is not None:
            AlertsFile.read(str(alerts))  # fails early
        broker = LocalBroker(folder / "broker")
        stack.push(broker)
        say_progress("starting Kafka")
        broker.start(broker_port, progress=say_progress)
        running = broker.status()
        if running is None:
            raise CommandError("the broker ended right after its start; see its log in " + str(broker.log))
        lock.write_addresses(running.bootstrap)
        roots = Settings().table_roots or os.pathsep.join([str(Path.cwd()), str(ADULT_PATH.parent)])
        alert_settings = {} if alerts is None else {"alerts_file": str(alerts.absolute())}
        settings = Settings.of_local_broker(
            running.bootstrap, table_roots=roots, table_causes=True, **alert_settings
        )
        warn_about_witnesses(settings)
        asyncio.run(create_topics(settings))
        roles: list[tuple[RoleName, int]] = [("budget", 0), ("feed", 0)]
        roles += [("worker", number) for number in range(workers)]
        roles += [("alerts", 0)] if alerts is not None else []
        say_progress("starting the services")
        awaited: list[tuple[ServiceName, int]] = [("budget", number) for number in range(LEDGER_PARTITIONS)]
        awaited += [("worker", number) for number in range(settings.partitions)]
        readiness = stack.enter_context(ReadinessReader(settings, awaited))
        services = [
            stack.enter_context(
                Service(
                    role,
                    settings.model_copy(update={"instance": f"up-{number}", "metrics_port": next(ports)}),
                    key_file if role in {"budget", "worker"} else None,
                    folder / "logs" / f"{role}-{number}.log",
                )
            )
            for role, number in roles
        ]
        monitor = stack.enter_context(run_monitor(settings, folder, port))
        lock.write_addresses(running.bootstrap, monitor.address)
        # On exit, all services are asked to stop before the command waits for the first one.
        stack.callback(monitor.service.ask_to_stop)
        for service in services:
            stack.callback(service.ask_to_stop)
        unprinted_addresses = describe_addresses(
            running.bootstrap, folder / "logs", broker_port, started_broker=broker.started_it
        )
        for _ in _while_running(services, monitor):
            if broker.status() != running:
                raise CommandError(f"the broker ended, so the services are stopped; see {broker.log}")
            if unprinted_addresses and readiness.is_ready and not monitor.is_starting:
                say(f"Sotto is up: {unprinted_addresses}", soft_wrap=True)
                if monitor.is_up:
                    say(monitor.where, soft_wrap=True)
                unprinted_addresses = ""
        ended = next(service for service in services if service.exit_status is not None)
        raise CommandError(f"the {ended.role} service ended; see {ended.log}")


def describe_addresses(bootstrap: str, logs: Path, port: int | None, *, started_broker: bool) -> str:
    """Describe the addresses of a started installation; warn if another program has the broker's usual port."""
    usual = Settings.model_fields["bootstrap"].default
    rest = "" if started_broker else ", all but the broker, which ran before"
    where = f"SOTTO_BOOTSTRAP={bootstrap}, logs in {logs}; Ctrl-C stops it{rest}"
    if not started_broker or port is not None or bootstrap == usual:
        return where
    return f"{where}. Another program has {usual}: producers and clients outside this folder need this address"


def warn_about_witnesses(settings: Settings) -> None:
    """Warn of each witness that cannot be read, such as a file in a missing folder; services run without it."""
    try:
        witnesses = open_witnesses(settings.witnesses)
    except WitnessError as error:
        raise CommandError(str(error)) from None
    for witness in witnesses:
        try:
            witness.read_newest(settings.prefix)
        except WitnessError as error:
            print_warnings([f"witness: {error}; without it, a rollback is not detected"])


def _create_key_if_missing(key_file: Path) -> None:
    if not key_file.exists():
        key_file.parent.mkdir(parents=True, exist_ok=True)
        NoiseKey.generate().save(key_file)
    NoiseKey.load(key_file)


def _while_running(services: Sequence[Service], monitor: RunningMonitor) -> Iterator[None]:
    """Yield repeatedly until a service ends, and keep the logs small."""
    while all(service.exit_status is None for service in services):
        for service in services:
            service.rotate_large_log()
        monitor.watch()
        yield
        time.sleep(_WATCH_SECONDS)
