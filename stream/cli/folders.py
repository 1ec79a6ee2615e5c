"""One ``sotto up`` a folder: whoever holds the folder says so in it, and nobody else works there meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stream.cli.output import CommandError
from stream.kafka.broker_process import start_mark

LOCK = "up.lock"
NAMES_FILE = "names.json"
OPERATOR_FILE = "monitor-operator.token"
VIEWER_FILE = "monitor-viewer.token"


class Held:
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
def held(folder: Path) -> Iterator[Held]:
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
        yield Held(folder, descriptor)
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
