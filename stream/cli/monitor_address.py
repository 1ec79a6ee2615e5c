"""Which monitor a command talks to, and with what token."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from stream.cli.folders import LOCK, VIEWER_FILE
from stream.environment import TOKEN_VARIABLE
from stream.kafka.broker_process import Process, is_alive
from stream.kafka.nearby import folders_above
from stream.monitor.tokens import TokenError
from stream.secret_files import read_own, read_secret
from stream.settings import Settings


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
