"""The monitor and the alerts service as processes of a folder, and their addresses."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from stream.cli.output import CommandError, console
from stream.environment import TOKEN_VARIABLE
from stream.kafka.broker.broker_process import Process, is_alive, start_mark
from stream.kafka.client.local_address import folders_above, settings_here
from stream.monitor.api.models import AccessRole
from stream.monitor.api.tokens import NamesFile, Token, TokenError, TokenFile, change_names, new_text
from stream.secret_files import read_own, read_secret, replace_secret, write_secret
from stream.services.processes import Service
from stream.settings import Settings

LOCK = "up.lock"
NAMES_FILE = "names.json"
OPERATOR_FILE = "monitor-operator.token"
VIEWER_FILE = "monitor-viewer.token"


class FolderLock:
    """A folder that this process holds until it ends, however it ends."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self.tell()

    def tell(self, bootstrap: str | None = None, monitor: str | None = None) -> None:
        """Say who holds it, and where the broker and the monitor are once it is known."""
        pid = os.getpid()
        told = {"pid": pid, "mark": start_mark(pid), "bootstrap": bootstrap, "monitor": monitor}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(told).encode(), 0)


@contextmanager
def held(folder: Path) -> Iterator[FolderLock]:
    """Hold a folder, which is made for its owner alone if it is not there.

    Raises:
        CommandError: another process holds it; the message names the process and the broker's address.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / LOCK
    # No child inherits the descriptor: the lock goes with this process.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(_refusal(folder, os.pread(descriptor, 4096, 0))) from None
        yield FolderLock(folder, descriptor)
    finally:
        os.close(descriptor)


def _refusal(folder: Path, told: bytes) -> str:
    try:
        holder = json.loads(told)
        who, bootstrap = f"process {int(holder['pid'])}", holder["bootstrap"]
    except (ValueError, KeyError, TypeError):
        who, bootstrap = "another process", None
    where = f"; use it with SOTTO_BOOTSTRAP={bootstrap}, or" if bootstrap else ", which is still starting;"
    return f"'sotto up' runs in {folder} already ({who}){where} give this one another --folder"


@dataclass(frozen=True, slots=True)
class LocalMonitor:
    """The monitor of a ``sotto up`` that runs."""

    address: str
    token_file: Path
    """Where the viewer's token is."""


def local_monitor(start: Path | None = None) -> LocalMonitor | None:
    """The monitor of the ``sotto up`` whose ``.sotto`` is nearest: in the working folder, or above it."""
    for folder in folders_above(start):
        try:
            holder = json.loads(read_own(folder / LOCK) or b"{}")
            process, address = Process(int(holder["pid"]), holder["mark"]), holder["monitor"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(address, str) and is_alive(process):
            return LocalMonitor(address, folder / VIEWER_FILE)
    return None


def monitor_of(url: str | None, settings: Settings) -> tuple[str, str]:
    """The monitor's address and a token for it; a local monitor's token goes to no other address."""
    if url is None and settings.model_fields_set.isdisjoint({"monitor_host", "monitor_port"}):
        local = local_monitor()
        if local is not None:
            return local.address.rstrip("/"), _own_token(settings) or read_secret(local.token_file)
    address = url or f"http://{settings.monitor_host}:{settings.monitor_port}"
    if token := _own_token(settings):
        return address.rstrip("/"), token
    raise TokenError(
        f"no token: set {TOKEN_VARIABLE}_FILE to an owner-only file that holds yours, or {TOKEN_VARIABLE}; an operator "
        "makes one with 'sotto token create NAME --role viewer'"
    )


def _own_token(settings: Settings) -> str | None:
    if settings.monitor_token_file:
        return read_secret(Path(settings.monitor_token_file))
    return os.environ.get(TOKEN_VARIABLE)


def serve_monitor(host: str | None, port: int | None, *, stop_with_stdin: bool) -> None:
    """Run the monitor until SIGTERM or Ctrl-C."""
    from stream.monitor.monitor_service import serve_monitor  # noqa: PLC0415  (Faust takes a second to import)

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
    change_names(names, lambda before: (TokenFile(tokens=(*before.tokens, *tokens)), None))


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


def check_targets(file: Path) -> None:
    """Refuse a file of targets that the service would refuse."""
    from stream.alerts.alert_targets import AlertsFile  # noqa: PLC0415  (only who takes alerts needs it)

    AlertsFile.read(str(file))


def serve_alerts(*, stop_with_stdin: bool) -> None:
    """Take alerts to their targets until SIGTERM or Ctrl-C."""
    from stream.alerts.alert_service import serve_alerts  # noqa: PLC0415
    from stream.alerts.alert_targets import AlertsFile  # noqa: PLC0415  (only this service needs an HTTP client)

    settings = settings_here()
    file = AlertsFile.read(settings.alerts_file)  # one that cannot be read is told before anything is started
    asyncio.run(serve_alerts(settings, file, stop_with_stdin=stop_with_stdin))
