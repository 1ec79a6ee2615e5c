"""A connection that was cut says so in aiokafka's words, in whichever event loop, and whoever asks over it is never left waiting."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from aiokafka import conn, errors
from aiokafka.protocol.metadata import MetadataRequest

from stream.kafka.client import aiokafka_copy, client_patches
from stream.kafka.client.client_patches import BrokerClient, BrokerConnection

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


def test_broker_client_opens_connections_that_create_no_topics() -> None:
    """Each connection of Sotto's clients forbids the broker to create topics."""
    assert aiokafka_copy.client.create_conn is client_patches.open_connection
    assert issubclass(BrokerClient, aiokafka_copy.client.AIOKafkaClient)


def test_client_patches_names_the_methods_that_aiokafka_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of aiokafka without a replaced method is refused with the method's name."""
    client_patches.require_known_client()
    monkeypatch.delattr(aiokafka_copy.client.AIOKafkaClient, "_metadata_update")
    with pytest.raises(RuntimeError, match=r"no AIOKafkaClient\._metadata_update; install the version"):
        client_patches.require_known_client()


_HOST = """
import aiokafka, aiokafka.admin
from aiokafka import conn
from aiokafka.consumer import consumer, fetcher
from aiokafka.producer import producer

def parts():
    modules = (conn, consumer, fetcher, producer, aiokafka.admin.client, aiokafka.client)
    return {(m.__name__, k): v for m in modules for k, v in vars(m).items() if isinstance(v, type)}

before = parts()
from sotto import AsyncClient, Client, Driver, Settings
import stream.client.async_client, stream.engine.restore, stream.kafka.topics.creation
assert parts() == before
"""


def test_importing_sotto_leaves_aiokafka_as_it_is() -> None:
    """A program that imports ``sotto`` keeps its own consumers and producers, in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", _HOST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
