"""Asks a Kafka broker who it is, with one request and no client library's retries or log lines."""

import socket
import ssl
import struct
from contextlib import ExitStack
from typing import Final

__all__ = ["cluster_at"]

_METADATA: Final = 3
_METADATA_VERSION: Final = 2
_TIMEOUT_SECONDS: Final = 2.0


def cluster_at(host: str, port: int, context: ssl.SSLContext | None = None) -> str | None:
    """The id of the cluster that answers at an address, once at least one of its brokers takes requests; else None.

    With a context it is asked over TLS.
    """
    client = b"sotto"
    request = struct.pack(f">hhih{len(client)}si", _METADATA, _METADATA_VERSION, 1, len(client), client, 0)
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS))
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
            connection.sendall(struct.pack(">i", len(request)) + request)
            stream = stack.enter_context(connection.makefile("rb"))
            (size,) = struct.unpack(">i", stream.read(4))
            return _parse(stream.read(size))
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _parse(response: bytes) -> str | None:
    _correlation, brokers = struct.unpack_from(">ii", response)
    position = 8
    for _broker in range(brokers):
        position += 4
        _host, position = _text(response, position)
        position += 4
        _rack, position = _text(response, position)
    cluster, _position = _text(response, position)
    return cluster if brokers else None


def _text(response: bytes, position: int) -> tuple[str | None, int]:
    (length,) = struct.unpack_from(">h", response, position)
    start = position + 2
    if length < 0:
        return None, start
    return response[start : start + length].decode(), start + length
