"""``sotto serve`` runs one service. It must not import the local broker, an optional package."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from stream import diagnostics
from stream.cli.output import CommandError
from stream.engine.health import ServiceName
from stream.kafka.broker.broker_addresses import local_settings
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import ReplicaError, Replicas, count_cores
from stream.services.runner import ignore_stop_signals, install_stop_handlers
from stream.services.runner import serve as serve_role
from stream.settings import MAX_PORT, unread_variables_warning


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
    # A parent process has logged the warning already.
    if not stop_with_stdin and (reason := unread_variables_warning()) is not None:
        diagnostics.get_logger("settings").warning("without effect", reason=reason)
    if processes != 1 and role not in {"worker", "feed"}:
        raise CommandError("--processes: only workers and feeds have several; omit it, or give 1")
    if role in {"monitor", "alerts"}:
        from stream.cli.run import monitor_commands  # noqa: PLC0415  (other services run without its packages)

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
