"""Starting, recognising and ending the broker's process from any process of the same machine."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stream.kafka.broker_errors import BrokerError

__all__ = ["Process", "end", "file_lock", "is_alive", "java_environment", "launch", "start_mark"]

# A child of the shell, not of Python: whoever asks, `sotto broker stop` included, sees and ends it the same way.
_LAUNCH_DETACHED: Final = '"$@" </dev/null >>"$0" 2>&1 & echo $!'

# The shell waits on a pipe of which Python holds the other end. It closes however Python ends, kill -9 included. The
# shell stays the parent and reaps only at the very end, so that the number it signals cannot belong to another process.
_LAUNCH_WATCHED: Final = """
exec 3<&0
{ "$@" </dev/null >>"$0" 2>&1 3<&- & echo $!; exec >&- 2>&-; read -r word <&3 || kill -TERM $!; wait; } </dev/null &
"""

_JAVA_OPTIONS_OF_OTHERS: Final = {"CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"}

_KILL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process that no other is ever taken for."""

    pid: int
    """Its number, which the system gives to another process some time after its end."""
    mark: str
    """When it started, as `start_mark` tells."""


_pipes: dict[Process, int] = {}


@contextmanager
def file_lock(path: Path, timeout_seconds: float) -> Iterator[None]:
    """Holds an exclusive lock between processes (and threads); it vanishes with its holder.

    Raises:
        BrokerError: If another holds the lock for longer than the timeout, or the file cannot be written.
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
    """This process's environment without what would change a Java program's behaviour, and without our secrets."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _JAVA_OPTIONS_OF_OTHERS and not name.startswith("SOTTO_")
    }
    # File names beyond ASCII need a UTF-8 locale, which minimal containers do not set.
    return {**kept, "LC_ALL": "C.UTF-8"}


def launch(command: Sequence[str | Path], *, folder: Path, console: Path, detached: bool) -> Process:
    """Starts a process in a session of its own, out of Ctrl-C's reach.

    Args:
        command: The program and its arguments.
        folder: The working folder.
        console: The file to which output is appended.
        detached: Whether it outlives this process. If not, it gets SIGTERM as soon as this process ends.
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
        _pipes[process] = writing
    return process


def start_mark(pid: int) -> str | None:
    """When a living process was started, as a text that no other process of this number ever had; else None."""
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        state, *fields = text.rpartition(")")[2].split()
        threads, ticks = int(fields[16]), fields[18]
        # While a killed process's other threads are still on their way out, it keeps its ports.
        if state in "ZX" and threads <= 1:
            return None
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{ticks}"
    listed = subprocess.run(  # noqa: S603 (a number is all it is given)
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = listed.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def is_alive(process: Process) -> bool:
    """Whether the process, and no other of its number, still runs."""
    return start_mark(process.pid) == process.mark


def end(process: Process, *, grace_seconds: float) -> None:
    """Ends a process and returns once it is gone; does nothing to another process that has its number by now.

    Args:
        process: Which one.
        grace_seconds: The time between SIGTERM and SIGKILL; 0 sends SIGKILL at once.

    Raises:
        BrokerError: If even SIGKILL does not end it.
    """
    if grace_seconds > 0:
        _signal(process, signal.SIGTERM, wait_seconds=grace_seconds)
    _signal(process, signal.SIGKILL, wait_seconds=_KILL_SECONDS)
    if is_alive(process):
        raise BrokerError(f"Process {process.pid} does not end; look at it with: ps -p {process.pid}")
    pipe = _pipes.pop(process, None)
    if pipe is not None:
        _dismiss(pipe)


def _dismiss(pipe: int) -> None:
    try:
        os.write(pipe, b"\n")
    except BrokenPipeError:
        pass
    finally:
        os.close(pipe)


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
