"""The monitor on the command line: ``sotto serve monitor``, and its part of ``sotto up``."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from stream.cli.folders import NAMES_FILE, OPERATOR_FILE, VIEWER_FILE
from stream.cli.output import console
from stream.kafka.nearby import settings_here
from stream.kafka.processes import Service
from stream.monitor.models import AccessRole
from stream.monitor.names_file import NamesFile, change_names
from stream.monitor.tokens import Names, Token, TokenError, new_text
from stream.secret_files import replace_secret, write_secret
from stream.settings import Settings


def serve(host: str | None, port: int | None, *, stop_with_stdin: bool) -> None:
    """Run the monitor until SIGTERM or Ctrl-C."""
    from stream.monitor.service import serve_monitor  # noqa: PLC0415  (Faust takes a second to import)

    given = {"monitor_host": host, "monitor_port": port}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = Settings.model_validate({**settings_here().model_dump(), **chosen})
    if not settings.monitor_names_file:
        raise TokenError(
            "nobody may use the monitor: set SOTTO_MONITOR_NAMES_FILE to a file of names; 'sotto token create NAME "
            "--role operator --file names.json' makes one"
        )
    names = NamesFile(Path(settings.monitor_names_file))
    names()  # one that cannot be read is told before anything is started
    asyncio.run(serve_monitor(settings, names, stop_with_stdin=stop_with_stdin))


class RunningMonitor:
    """The monitor beside the other services: they go on without it."""

    def __init__(self, service: Service, address: str, operator: Path, viewer: Path) -> None:
        self.address = address
        self._service = service
        self._tokens = (operator, viewer)
        self._told: bool | None = None

    def watch(self) -> None:
        """Say once that the page is there, and once that it is gone; keep its log small."""
        self._service.keep_log_small()
        if self._service.exit_status is not None:
            if self._told is not False:
                self._told = False
                console.print(
                    f"The monitor ended, see {self._service.log}; the other services go on", soft_wrap=True
                )
        elif self._told is None and _answers(self.address):
            self._told = True
            console.print(self.where, soft_wrap=True)

    def ask_to_stop(self) -> None:
        """Tell it to finish, and do not wait."""
        self._service.ask_to_stop()

    @property
    def where(self) -> str:
        """Where the page is, and what opens it."""
        operator, viewer = self._tokens
        return f"The monitor's page is {self.address}; tokens: {operator} (may change), {viewer} (may look)"


@contextmanager
def start(settings: Settings, folder: Path, port: int) -> Iterator[RunningMonitor]:
    """Start the monitor as a child process, with a file of names of its own in the folder."""
    operator, viewer, names = folder / OPERATOR_FILE, folder / VIEWER_FILE, folder / NAMES_FILE
    make_first_names(names, {"operator": operator, "viewer": viewer})
    own = settings.model_copy(
        update={
            "monitor_port": _free_port(settings.monitor_host, port),
            "monitor_names_file": str(names),
            "monitor_asks": True,
            "monitor_alerts": True,
            "metrics_port": 0,
        }
    )
    NamesFile(names)()
    with Service("monitor", own, None, folder / "logs" / "monitor-0.log") as service:
        address = f"http://{own.monitor_host}:{own.monitor_port}/"
        yield RunningMonitor(service, address, operator, viewer)


def make_first_names(names: Path, files: dict[AccessRole, Path]) -> None:
    """Make a file of names in which each role has a token, which is in a file of its own; where it is there, nothing is done.

    Who comes and goes afterwards is for ``sotto token`` to say.
    """
    if names.exists():
        return
    now, tokens = int(time.time()), []
    for role, path in files.items():
        text = new_text()
        (replace_secret if path.exists() else write_secret)(path, text)
        tokens.append(Token.of(text, role, role, created=now))
    # Last of all: had it been written before a token's file, nobody would have that token.
    change_names(names, lambda before: (Names(tokens=(*before.tokens, *tokens)), None))


def _free_port(host: str, wanted: int) -> int:
    """The port that is wanted, or any free one."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return wanted


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}healthz", timeout=1.0):  # noqa: S310  (our own address)
            return True
    except (URLError, OSError):
        return False
