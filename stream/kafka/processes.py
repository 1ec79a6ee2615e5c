"""Running Sotto's own services as child processes that never outlive their parent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from pydantic import SecretStr

from stream.environment import KEY_FILE_VARIABLE, MONITOR_NAMES, MONITOR_TOKEN, NOISE_KEY, without
from stream.settings import Settings, variable

RoleName = Literal["worker", "budget", "feed", "monitor", "alerts"]

STOP_SECONDS = 15.0
"""How long a service may take to finish its batch and leave its group."""
LOG_BYTES = 5_000_000
"""Size from which on a log is moved aside; the last one that was is kept, so that a service has twice this at most."""


class Service:
    """A service in a process of its own.

    It stops when its standard input closes, which happens however this process ends; Ctrl-C does not reach it, so
    that the parent can stop everything in order.
    """

    def __init__(self, role: RoleName, settings: Settings, key_file: Path | None, log: Path) -> None:
        """Take the noise key's file, None for a service that must not have the key."""
        # What was not told is not told on: a default is not a wish, such as that for one replica.
        given = {variable(name): _text(value) for name, value in settings.model_dump(exclude_unset=True).items()}
        # Settings go through the environment: a command line can be read by everybody on the machine.
        needless = NOISE_KEY | MONITOR_TOKEN if role == "monitor" else NOISE_KEY | MONITOR_TOKEN | MONITOR_NAMES
        environment = without(needless, {**os.environ, **given})
        if key_file is not None:
            environment[KEY_FILE_VARIABLE] = str(key_file)
        self.role = role
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _owners_alone(log) as output:
            self._process = started(["serve", role, "--stop-with-stdin", "--json-logs"], environment, output)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def keep_log_small(self) -> None:
        """Move a log that has grown beyond ``LOG_BYTES`` aside, in place of the one that was moved before.

        What is written between the copy and the cut is lost.
        """
        if self.log.stat().st_size <= LOG_BYTES:
            return
        previous = self.log.with_name(f"{self.log.name}.1")
        with self.log.open("rb") as grown, _owners_alone(previous) as kept:
            kept.truncate(0)
            shutil.copyfileobj(grown, kept)
        os.truncate(self.log, 0)  # the service appends, so that it goes on at the beginning

    def ask_to_stop(self) -> None:
        """Tell it to finish, and do not wait."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Ask it to finish, and end it by force if it does not."""
        self.ask_to_stop()
        if self._process.poll() is None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def started(arguments: Sequence[str], environment: Mapping[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own, with a pipe for its input."""
    return subprocess.Popen(  # noqa: S603  (our own interpreter and module)
        [sys.executable, "-P", "-m", "stream.cli", *arguments],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,
    )


def _owners_alone(log: Path) -> BinaryIO:
    """A log to append to, that nobody but its owner may read."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)  # it may be there from an earlier version
    return os.fdopen(descriptor, "ab")


def _text(value: Any) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
