"""Runs the monitor and the alerts service, and creates, lists and revokes access tokens.

``sotto up`` and the demo run the monitor as a child process. ``sotto token`` manages the tokens.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated
from urllib.error import URLError
from urllib.request import urlopen

import typer
from pydantic import TypeAdapter, ValidationError

from schemas.base import Identifier
from stream.cli.output import AsJson, CommandError, say, show_json, show_table
from stream.formatting import format_count
from stream.kafka.broker_addresses import local_settings, sotto_folders_above
from stream.kafka.broker_process import Process, is_alive, start_mark
from stream.monitor.api.models import AccessRole
from stream.monitor.api.tokens import (
    NamesFile,
    Token,
    TokenError,
    TokenFile,
    change_names,
    generate_token,
    read_names,
    role_with_article,
)
from stream.optional_packages import explain_missing_packages
from stream.secret_files import read_own_file, read_secret, replace_secret, write_secret
from stream.services.processes import Service
from stream.settings import TOKEN_VARIABLE, Settings

LOCK_FILE = "up.lock"
NAMES_FILE = "names.json"
OPERATOR_FILE = "monitor-operator.token"
VIEWER_FILE = "monitor-viewer.token"


@dataclass(frozen=True)
class FolderLock:
    """The lock of an installation's folder; the system releases it when this process ends."""

    descriptor: int

    def write_addresses(self, bootstrap: str | None = None, monitor: str | None = None) -> None:
        """Write this process's id and the addresses of broker and monitor to the lock file."""
        pid = os.getpid()
        content = {"pid": pid, "mark": start_mark(pid), "bootstrap": bootstrap, "monitor": monitor}
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(content).encode(), 0)


@contextmanager
def lock_folder(folder: Path) -> Iterator[FolderLock]:
    """Lock a folder; if it is missing, create it with access for its owner only.

    Raises:
        CommandError: another process has locked it; the message names the process and the broker's address.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / LOCK_FILE
    # No child inherits the descriptor: the lock ends with this process.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(_describe_lock_holder(folder, os.pread(descriptor, 4096, 0))) from None
        lock = FolderLock(descriptor)
        lock.write_addresses()
        yield lock
    finally:
        os.close(descriptor)


def _describe_lock_holder(folder: Path, content: bytes) -> str:
    try:
        holder = json.loads(content)
        who, bootstrap = f"process {int(holder['pid'])}", holder["bootstrap"]
    except (ValueError, KeyError, TypeError):
        who, bootstrap = "another process", None
    where = f"; use it with SOTTO_BOOTSTRAP={bootstrap}, or" if bootstrap else ", which is still starting;"
    return f"'sotto up' runs in {folder} already ({who}){where} start this one with another --folder"


def _find_local_monitor() -> tuple[str, Path] | None:
    """Return the monitor's address and the operator's token file of a ``sotto up`` that runs here or in a parent folder."""
    for folder in sotto_folders_above():
        try:
            holder = json.loads(read_own_file(folder / LOCK_FILE) or b"{}")
            process, address = Process(int(holder["pid"]), holder["mark"]), holder["monitor"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(address, str) and is_alive(process):
            return address, folder / OPERATOR_FILE
    return None


def find_monitor(url: str | None, settings: Settings) -> tuple[str, str]:
    """Return the monitor's address and a token; the token of ``sotto up`` is sent only to its own monitor."""
    is_default = url is None and settings.model_fields_set.isdisjoint({"monitor_host", "monitor_port"})
    if is_default and (local := _find_local_monitor()) is not None:
        return local[0].rstrip("/"), _read_own_token(settings) or read_secret(local[1])
    address = url or f"http://{settings.monitor_host}:{settings.monitor_port}"
    if token := _read_own_token(settings):
        return address.rstrip("/"), token
    raise TokenError(
        f"no token: set {TOKEN_VARIABLE}_FILE to an owner-only file with yours, or {TOKEN_VARIABLE}; an operator "
        "creates one with 'sotto token create NAME --role viewer'"
    )


def _read_own_token(settings: Settings) -> str | None:
    if settings.monitor_token_file:
        return read_secret(Path(settings.monitor_token_file))
    return os.environ.get(TOKEN_VARIABLE)


def serve_monitor(host: str | None, port: int | None, *, stop_with_stdin: bool) -> None:
    """Run the monitor until SIGTERM or Ctrl-C."""
    from stream.monitor.monitor_service import serve_monitor  # noqa: PLC0415  (Faust takes a second to import)

    given = {"monitor_host": host, "monitor_port": port}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = Settings.model_validate({**local_settings().model_dump(), **chosen})
    if not settings.monitor_names_file:
        raise TokenError(
            "SOTTO_MONITOR_NAMES_FILE: is not set; set it to a file of names; 'sotto token create NAME "
            "--role operator --file names.json' creates one"
        )
    names = NamesFile(Path(settings.monitor_names_file))
    names()  # fails early
    sign_on = None
    if settings.monitor_oidc_issuer:
        with explain_missing_packages("oidc"):
            from stream.monitor.api.single_sign_on import SingleSignOn  # noqa: PLC0415  (joserfc is an extra)
        sign_on = SingleSignOn(settings)
    asyncio.run(serve_monitor(settings, names, sign_on=sign_on, stop_with_stdin=stop_with_stdin))


@dataclass
class RunningMonitor:
    """The monitor's child process; if it ends, the other services continue.

    ``operator`` and ``viewer`` are the files with the tokens of these roles.
    """

    service: Service
    address: str
    operator: Path
    viewer: Path
    is_starting: bool = True
    """True if the page has not answered yet."""
    is_up: bool = False
    """True if the page has answered and the monitor runs."""

    def watch(self) -> None:
        """Update ``is_starting`` and ``is_up``; print once that the monitor ended; keep its log small."""
        self.service.rotate_large_log()
        if self.service.exit_status is not None:
            if self.is_starting or self.is_up:
                self.is_starting = self.is_up = False
                say(f"The monitor ended, see {self.service.log}; the other services continue", soft_wrap=True)
        elif self.is_starting and _is_answering(self.address):
            self.is_starting, self.is_up = False, True

    @property
    def where(self) -> str:
        """A sentence with the page's address and the token files."""
        tokens = f"{self.operator} (may change), {self.viewer} (may read)"
        return f"The monitor's page is {self.address}; tokens: {tokens}"


@contextmanager
def run_monitor(settings: Settings, folder: Path, port: int) -> Iterator[RunningMonitor]:
    """Run the monitor as a child process, with its names file and two token files in ``folder``."""
    operator, viewer, names = folder / OPERATOR_FILE, folder / VIEWER_FILE, folder / NAMES_FILE
    create_names_file(names, {"operator": operator, "viewer": viewer})
    monitor_settings = settings.model_copy(
        update={
            "monitor_port": _free_port(settings.monitor_host, port),
            "monitor_names_file": str(names),
            "monitor_asks": True,
            "monitor_alerts": True,
            "metrics_port": 0,
        }
    )
    NamesFile(names)()
    with Service("monitor", monitor_settings, None, folder / "logs" / "monitor-0.log") as service:
        address = f"http://{monitor_settings.monitor_host}:{monitor_settings.monitor_port}/"
        yield RunningMonitor(service, address, operator, viewer)


def create_names_file(names: Path, files: dict[AccessRole, Path]) -> None:
    """Create the names file, and for each role a file with its first token, unless the names file exists."""
    if names.exists():
        return
    now, tokens = int(time.time()), []
    for role, path in files.items():
        text = generate_token()
        (replace_secret if path.exists() else write_secret)(path, text)
        tokens.append(Token.from_text(text, role, role, created=now))
    # The names file is written last, so that the next start creates all tokens again after a crash.
    change_names(names, lambda before: (TokenFile(tokens=(*before.tokens, *tokens)), None))


def _free_port(host: str, preferred_port: int) -> int:
    """Return ``preferred_port``, or a free port if it is taken."""
    for port in (preferred_port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return preferred_port


def _is_answering(address: str) -> bool:
    try:
        with urlopen(f"{address}healthz", timeout=1.0):  # noqa: S310  (our own address)
            return True
    except (URLError, OSError):
        return False


def serve_alerts(*, stop_with_stdin: bool) -> None:
    """Deliver alerts to their targets until SIGTERM or Ctrl-C."""
    from stream.alerts.alert_service import serve_alerts  # noqa: PLC0415
    from stream.alerts.alerts_file import AlertsFile  # noqa: PLC0415  (only this service needs an HTTP client)

    settings = local_settings()
    file = AlertsFile.read(settings.alerts_file)  # fails early
    asyncio.run(serve_alerts(settings, file, stop_with_stdin=stop_with_stdin))


token_app = typer.Typer(help="The monitor's access tokens: names with their roles.", no_args_is_help=True)
_holder_name: TypeAdapter[str] = TypeAdapter(Identifier)

File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="The file of names; if omitted, SOTTO_MONITOR_NAMES_FILE, or .sotto/names.json here or in a parent folder.",
    ),
]


@token_app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Holder of the token: a person, a team or a program.")],
    role: Annotated[
        AccessRole,
        typer.Option(help="viewer reads; analyst opens streams within an allotment; operator does everything."),
    ],
    expires: Annotated[str, typer.Option(help="Lifetime, such as 90d or 12h, or never.")] = "90d",
    into: Annotated[
        Path | None, typer.Option(help="Write the token to this new owner-only file instead of printing it.")
    ] = None,
    file: File = None,
) -> None:
    """Create a token for a name and print it once; the file of names keeps only its digest."""
    now = int(time.time())
    try:
        _holder_name.validate_python(name)
    except ValidationError:
        raise CommandError(
            f"name: {name!r} is invalid; use up to 128 letters, digits and ._:/@+-, a letter or digit first"
        ) from None
    end = _parse_expiry(expires, now)
    path = _names_path(file, must_exist=False)
    if into is not None and into.exists():
        raise CommandError(f"--into: {into} exists already; give a new file")

    def add(names: TokenFile) -> tuple[TokenFile, tuple[Token, str]]:
        changed, token, text = names.add_token(name, role, now=now, expires=end)
        return changed, (token, text)

    token, text = change_names(path, add)
    until = "does not expire" if end is None else f"expires {_format_date(end)}"
    summary = f"{path}: token {token.id} of {name}, {role_with_article(token.role)}, {until}"
    if into is None:
        typer.echo(f"{summary}; it is shown only this time:", err=True)
        typer.echo(text)
    else:
        write_secret(into, text)
        say(f"{summary}; written to {into}", soft_wrap=True)


@token_app.command("list")
def list_tokens(file: File = None, as_json: AsJson = False) -> None:
    """List the id, name, role and validity of every token; never the token itself."""
    path = _names_path(file, must_exist=True)
    now = time.time()
    tokens = sorted(read_names(path).tokens, key=lambda token: (token.name, token.created, token.id))
    if as_json:
        show_json([{**token.model_dump(exclude={"digest"}), "standing": token.status_at(now)} for token in tokens])
        return
    show_table(
        f"{format_count(len(tokens), 'token')} in {path}",
        ["name", "role", "token", "standing", "created", "expires"],
        [
            [
                token.name,
                token.role,
                token.id,
                token.status_at(now) + (f" {_format_date(token.revoked)}" if token.revoked is not None else ""),
                _format_date(token.created),
                "never" if token.expires is None else _format_date(token.expires),
            ]
            for token in tokens
        ],
    )


@token_app.command("revoke")
def revoke(
    which: Annotated[str, typer.Argument(help="A name, for all its tokens, or a token's id.")], file: File = None
) -> None:
    """Revoke a name's tokens, or one by its id: a running monitor refuses them from its next request."""
    path = _names_path(file, must_exist=True)
    ended = change_names(path, lambda names: names.revoke(which, int(time.time())))
    if not ended:
        say(f"{path}: nothing to do, {which} is revoked already", soft_wrap=True)
    for token in ended:
        say(
            f"{path}: token {token.id} of {token.name}, {role_with_article(token.role)}, is revoked",
            soft_wrap=True,
        )


def _names_path(given: Path | None, *, must_exist: bool) -> Path:
    if given is None and (named := Settings().monitor_names_file):
        given = Path(named)
    if given is None:
        given = next((path for folder in sotto_folders_above() if (path := folder / NAMES_FILE).is_file()), None)
    if given is None:
        raise CommandError(
            "--file: no file of names; give one, or set SOTTO_MONITOR_NAMES_FILE; 'sotto up' creates .sotto/names.json"
        )
    if must_exist and not given.exists():
        raise CommandError(
            f"--file: {given} does not exist; 'sotto token create NAME --role ROLE --file {given}' creates it"
        )
    return given


def _parse_expiry(text: str, now: int) -> int | None:
    if text == "never":
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hd])", text)
    if found is None:
        raise CommandError(f"--expires: {text!r} is not a lifetime; give hours as 12h, days as 90d, or never")
    return now + int(found[1]) * {"h": 3_600, "d": 86_400}[found[2]]


def _format_date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
