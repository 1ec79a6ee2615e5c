"""Ports that services listen on: where one cannot be had, the setting that names it is told."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from stream.settings import variable

Purpose = Literal["metrics", "monitor"]

_OPTIONS: Final[dict[Purpose, tuple[str, str]]] = {"metrics": ("", ""), "monitor": (" (--host)", " (--port)")}


class ListenError(RuntimeError):
    """A service cannot listen where it was told to; the message names the setting and says what to do."""


@contextmanager
def told_where(purpose: Purpose, host: str, port: int) -> Iterator[None]:
    """Raise ListenError in place of what the system says of an address."""
    try:
        yield
    except OSError as error:
        raise ListenError(_told(error, purpose, host, port)) from None


def require_free(purpose: Purpose, host: str, port: int) -> None:
    """ListenError unless this process could listen there: whoever does so later, in a library, reports it out of reach."""
    with told_where(purpose, host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()


def _told(error: OSError, purpose: Purpose, host: str, port: int) -> str:
    of_host, of_port = _OPTIONS[purpose]
    if error.errno == errno.EADDRINUSE:
        return (
            f"{variable(f'{purpose}_port')}{of_port}: port {port} of {host} is in use; give another one, or end what "
            "listens there"
        )
    if error.errno == errno.EACCES:
        return f"{variable(f'{purpose}_port')}{of_port}: this user may not open port {port}; give one from 1024 on"
    return (
        f"{variable(f'{purpose}_host')}{of_host}: cannot listen on '{host}' ({error.strerror}); give an address of "
        "this machine"
    )
