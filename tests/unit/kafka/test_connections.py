"""A connection that was cut says so in aiokafka's words, in whichever event loop, and whoever asks over it is never left waiting."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from aiokafka import conn, errors
from aiokafka.protocol.metadata import MetadataRequest

from stream.kafka.client.adapter import KAFKA
from stream.kafka.client.client_patches import BrokerConnection

AT_ONCE = struct.pack("ii", 1, 0)
"""For SO_LINGER: a connection is reset when it is closed."""


async def sent_over_a_cut_connection() -> list[type[BaseException]]:
    """What becomes of requests that are sent before and after the other end resets the connection."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    async with await asyncio.start_server(lambda _, writer: accepted.put(writer), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = BrokerConnection("127.0.0.1", port, request_timeout_ms=5000)
        connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", port)
        connection._versions = {MetadataRequest.API_KEY: (0, 1)}
        # Nobody reads: what tells of the end is the transport alone.
        connection._read_task = asyncio.create_task(asyncio.sleep(60))
        other = (await accepted.get()).transport
        other.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        pending: list[Any] = [connection.send(MetadataRequest([]))]
        other.abort()
        found: list[type[BaseException]] = []
        for _ in range(10):
            await asyncio.sleep(0.01)
            try:
                pending.append(connection.send(MetadataRequest([])))
            except errors.KafkaError as error:
                found.append(type(error))
        connection.close(reason=conn.CloseReason.CONNECTION_BROKEN)
        told = await asyncio.gather(*pending, return_exceptions=True)
    return found + [type(one) for one in told if isinstance(one, BaseException)]


@pytest.mark.parametrize("loops", [None, uvloop.new_event_loop])
def test_whoever_sends_over_a_cut_connection_is_told_by_an_error_of_kafkas(
    loops: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    with asyncio.Runner(loop_factory=loops) as runner:
        found = runner.run(sent_over_a_cut_connection())
    assert found == [errors.KafkaConnectionError] * 11


def test_every_client_connects_so() -> None:
    assert KAFKA.consumer is not None
    assert conn.AIOKafkaConnection is BrokerConnection
