"""The alerts service on the command line: ``sotto serve alerts``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stream.kafka.nearby import settings_here


def check_targets(file: Path) -> None:
    """Refuse a file of targets that the service would refuse."""
    from stream.alerts.configuration import AlertsFile  # noqa: PLC0415  (only who takes alerts needs it)

    AlertsFile.read(str(file))


def serve(*, stop_with_stdin: bool) -> None:
    """Take alerts to their targets until SIGTERM or Ctrl-C."""
    from stream.alerts.configuration import AlertsFile  # noqa: PLC0415  (only this service needs an HTTP client)
    from stream.alerts.service import serve_alerts  # noqa: PLC0415

    settings = settings_here()
    file = AlertsFile.read(settings.alerts_file)  # one that cannot be read is told before anything is started
    asyncio.run(serve_alerts(settings, file, stop_with_stdin=stop_with_stdin))
