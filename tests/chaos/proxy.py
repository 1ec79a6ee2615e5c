"""A TCP proxy between a service and the broker, and a broker with a separate listener behind the proxy."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from stream.kafka.broker_addresses import choose_ports, free_port
from stream.kafka.broker_process import HOST, Ports
from stream.kafka.local_broker import LocalBroker

_CHUNK = 1 << 16


def proxied_broker(folder: Path) -> tuple[LocalBroker, Ports, int, int]:
    """Return a broker with a second listener, which tells its clients to connect to the proxy's port.

    The results are the broker, its ports, the second listener's port and the proxy's port.
    """
    ports = choose_ports(free_port())
    behind, proxy = free_port(), free_port()
    direct = f"PLAINTEXT://{HOST}:{ports.clients},CONTROLLER://{HOST}:{ports.controller}"
    properties = {
        "listeners": f"{direct},PROXIED://{HOST}:{behind}",
        "advertised.listeners": f"{direct},PROXIED://{HOST}:{proxy}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
    }
    return LocalBroker(folder, properties=properties), ports, behind, proxy


class Proxy:
    """Forwards connections, until a method makes it fail.

    ``reset`` closes open and new connections. ``silence`` drops the bytes of both directions, like a network that loses
    packets.
    """

    def __init__(self, port: int, target: int) -> None:
        self.connections = 0
        self.swallowed = 0
        self._port = port
        self._target = target
        self._state: Literal["open", "reset", "silent"] = "open"
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._drop()
        if self._server is not None:
            self._server.close()

    def reset(self) -> None:
        """Close every connection, and refuse new ones."""
        self._state = "reset"
        self._drop()

    def silence(self) -> None:
        """Forward nothing more, but keep connections open."""
        self._state = "silent"

    def heal(self) -> None:
        """Forward again; close the connections that have lost bytes."""
        if self._state == "silent":
            self._drop()
        self._state = "open"

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._state == "reset":
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._forward(reader, far_writer), self._forward(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._state == "open":
                    writer.write(data)
                    await writer.drain()
                else:
                    self.swallowed += len(data)
        writer.transport.abort()
