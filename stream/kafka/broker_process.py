"""Starts, identifies, probes and ends the process of a broker, and keeps its state in files."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from aiokafka.protocol.metadata import MetadataRequest_v2

from schemas.wire import DECODE_ERRORS
from stream.secret_files import read_own_file

Decoded = TypeVar("Decoded")


class BrokerError(RuntimeError):
    """A failure of the local broker; the message is one line with a remedy."""


class PortTakenError(BrokerError):
    """Another process took a port between Sotto's check and the broker's start."""


# The shell ends at once, and init becomes the broker's parent. So the broker outlives Python, and does
# not become a zombie, whichever process ends it.
_LAUNCH_DETACHED: Final = '"$@" </dev/null >>"$0" 2>&1 & echo $!'

# The shell waits on a pipe that closes when Python ends, even by kill -9. The shell reaps the broker only
# after it has sent the signal, so the pid cannot belong to another process at that time.
_LAUNCH_WATCHED: Final = """
exec 3<&0
{ "$@" </dev/null >>"$0" 2>&1 3<&- & echo $!; exec >&- 2>&-; read -r word <&3 || kill -TERM $!; wait; } </dev/null &
"""

_IGNORED_JAVA_VARIABLES: Final = {"CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}

_KILL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process, identified by its number (pid) and its start time."""

    pid: int
    """The process number; the system may reuse it after the process has ended."""
    mark: str
    """The text by which `start_mark` identifies the start of the process."""


_watch_pipes: dict[Process, int] = {}
"""The writing end of the pipe that the shell of each watched process reads."""


@contextmanager
def file_lock(path: Path, timeout_seconds: float) -> Iterator[None]:
    """Holds an exclusive lock against processes and threads; it is released when its holder ends.

    BrokerError if the lock is not free within the timeout, or the file cannot be written.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "a")
    except OSError as error:
        raise BrokerError(f"Cannot write {path} ({error.strerror}); choose another folder") from error
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise BrokerError(
                        f"Another process has held {path} for {timeout_seconds:.0f} s; end it"
                    ) from error
                time.sleep(0.05)
            else:
                break
        yield


def java_environment() -> Mapping[str, str]:
    """Returns this environment without Java options and without Sotto's settings and secrets."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _IGNORED_JAVA_VARIABLES and not name.startswith("SOTTO_")
    }
    # File names with characters beyond ASCII need a UTF-8 locale, which minimal containers do not set.
    return {**kept, "LC_ALL": "C.UTF-8"}


def launch(command: Sequence[str | Path], *, folder: Path, console: Path, detached: bool) -> Process:
    """Starts a process in the working folder ``folder`` and in a new session, which Ctrl-C does not reach.

    Its output is appended to ``console``. If ``detached``, it outlives this process; if not, it gets SIGTERM when
    this process ends.
    """
    script = _LAUNCH_DETACHED if detached else _LAUNCH_WATCHED
    reading, writing = os.pipe()
    try:
        shell = subprocess.run(  # noqa: S603 (our own command)
            ["/bin/sh", "-c", script, str(console), *map(str, command)],
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=java_environment(),
            umask=0o077,
            start_new_session=True,
            check=True,
        )
        pid = int(shell.stdout)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    process = Process(pid, start_mark(pid) or "ended")
    if detached:
        os.close(writing)
    else:
        _watch_pipes[process] = writing
    return process


def start_mark(pid: int) -> str | None:
    """Returns a text that identifies the start of a process; None if the process has ended."""
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        state, *fields = text.rpartition(")")[2].split()
        threads, ticks = int(fields[16]), fields[18]
        # A killed process keeps its ports until all of its threads have ended.
        if state in "ZX" and threads <= 1:
            return None
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{ticks}"
    listed = subprocess.run(  # noqa: S603 (the only argument is a number)
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = listed.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def is_alive(process: Process) -> bool:
    """Returns whether a process runs; a later process with its number does not count."""
    return start_mark(process.pid) == process.mark


def end_process(process: Process, *, grace_seconds: float) -> None:
    """Ends a process and waits for its end; never ends a later process with its number.

    SIGKILL follows SIGTERM after ``grace_seconds``; if this is 0, only SIGKILL is sent. BrokerError if SIGKILL does
    not end the process.
    """
    if grace_seconds > 0:
        _signal(process, signal.SIGTERM, wait_seconds=grace_seconds)
    _signal(process, signal.SIGKILL, wait_seconds=_KILL_SECONDS)
    if is_alive(process):
        raise BrokerError(
            f"Process {process.pid} does not end after SIGKILL; inspect it with: ps -p {process.pid}"
        )
    if (pipe := _watch_pipes.pop(process, None)) is not None:
        # A line ends the shell that watches for the end of Python.
        with os.fdopen(pipe, "wb", buffering=0) as stream, suppress(BrokenPipeError):
            stream.write(b"\n")


def _signal(process: Process, number: signal.Signals, *, wait_seconds: float) -> None:
    if not is_alive(process):
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + wait_seconds
    while is_alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)


HOST: Final = "127.0.0.1"
"""The address of local brokers, which only this machine can reach."""
STATE_FILE: Final = "broker.json"
CLUSTER_FILE: Final = "cluster.json"


class Ports(msgspec.Struct, frozen=True):
    """The ports of a node, for clients and for other controllers."""

    clients: int
    controller: int


class ClusterState(msgspec.Struct, frozen=True):
    """A cluster's id and its nodes; node 1 has the folder ``node-1``."""

    cluster: str
    nodes: tuple[Ports, ...]

    @property
    def bootstrap(self) -> str:
        """The client addresses of all nodes."""
        return ",".join(f"{HOST}:{one.clients}" for one in self.nodes)


def node_folder(folder: Path, node: int) -> Path:
    """Returns the folder of a cluster's node."""
    return folder / f"node-{node}"


class BrokerState(msgspec.Struct, frozen=True):
    """A broker's process and client port, and the parent process, whose end also ends the broker."""

    pid: int
    mark: str
    port: int
    parent: int | None = None
    parent_mark: str = ""

    @property
    def process(self) -> Process:
        """The broker's process."""
        return Process(self.pid, self.mark)

    @property
    def is_orphaned(self) -> bool:
        """True if the broker is about to end because its parent process has ended."""
        return self.parent is not None and not is_alive(Process(self.parent, self.parent_mark))


def read_state(folder: Path) -> BrokerState | None:
    """Reads the state of the broker in a folder; None if it is missing or unreadable."""
    try:
        return _decode((folder / STATE_FILE).read_bytes(), BrokerState)
    except OSError:
        return None


def read_own_state(folder: Path) -> BrokerState | None:
    """Reads a broker's state, but only from an owner-only file of this user."""
    return _decode(read_own_file(folder / STATE_FILE), BrokerState)


def read_own_cluster(folder: Path) -> ClusterState | None:
    """Reads a cluster's state, but only from an owner-only file of this user."""
    return _decode(read_own_file(folder / CLUSTER_FILE), ClusterState)


def _decode(content: bytes | None, kind: type[Decoded]) -> Decoded | None:
    try:
        return None if content is None else msgspec.json.decode(content, type=kind)
    except DECODE_ERRORS:
        return None


def write_state(folder: Path, state: BrokerState | ClusterState) -> None:
    """Writes a broker's or a cluster's state into an owner-only file."""
    name = STATE_FILE if isinstance(state, BrokerState) else CLUSTER_FILE
    draft = folder / f"{name}.draft"
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(state))
    draft.replace(folder / name)


def delete_state(folder: Path) -> None:
    """Deletes the broker's state file."""
    (folder / STATE_FILE).unlink(missing_ok=True)


_TIMEOUT_SECONDS: Final = 2.0


def fetch_cluster_id(host: str, port: int) -> str | None:
    """Returns the cluster id at an address; None if no broker accepts requests."""
    request = MetadataRequest_v2([])
    message = request.build_request_header(correlation_id=1, client_id="sotto").encode() + request.encode()
    try:
        with (
            socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection,
            connection.makefile("rb") as stream,
        ):
            connection.sendall(len(message).to_bytes(4, "big") + message)
            response = BytesIO(stream.read(int.from_bytes(stream.read(4), "big")))
            request.parse_response_header(response)
            found = request.RESPONSE_TYPE.decode(response)
    except (OSError, ValueError):
        return None
    return found.cluster_id if found.brokers else None
