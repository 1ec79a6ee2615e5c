"""A cut connection raises aiokafka's error in each event loop, so no request over it waits for ever."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiokafka import TopicPartition, client, conn, errors
from aiokafka.consumer import consumer, fetcher, subscription_state
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.producer import message_accumulator, producer
from aiokafka.protocol.metadata import MetadataRequest

from stream.engine.restore import create_reader
from stream.kafka.client import client_patches, wire_requests
from stream.kafka.client.client_patches import BrokerClient, BrokerConnection
from stream.settings import Settings
from tests.kafka.secured import Authority

PROJECT = Path(__file__).parents[3]
AT_ONCE = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing a connection resets it."""


async def sent_over_a_cut_connection() -> list[type[BaseException]]:
    """Return the errors of requests that are sent before and after the other end resets the connection."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    async with await asyncio.start_server(lambda _, writer: accepted.put(writer), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = BrokerConnection("127.0.0.1", port, request_timeout_ms=5000)
        connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", port)
        connection._versions = {MetadataRequest.API_KEY: (0, 1)}
        # No request reads, so only the transport reports the end.
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
        results = await asyncio.gather(*pending, return_exceptions=True)
    return found + [type(one) for one in results if isinstance(one, BaseException)]


@pytest.mark.parametrize("loops", [None, uvloop.new_event_loop])
def test_send_over_cut_connection_raises_kafka_error(
    loops: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    with asyncio.Runner(loop_factory=loops) as runner:
        found = runner.run(sent_over_a_cut_connection())
    assert found == [errors.KafkaConnectionError] * 11


async def close_alone(file: Path, certificate: Path, key: Path) -> None:
    """Close a TLS connection whose other end neither reads nor closes it."""
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = asyncio.create_task(
            asyncio.to_thread(lambda: serving.wrap_socket(server.accept()[0], server_side=True))
        )
        connection = BrokerConnection("127.0.0.1", server.getsockname()[1])
        closed, reader = asyncio.get_running_loop().create_future(), asyncio.StreamReader()
        protocol = conn.AIOKafkaProtocol(closed, reader, loop=asyncio.get_running_loop())
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol, *server.getsockname(), ssl=ssl.create_default_context(cafile=file)
        )
        connection._reader, connection._closed_fut = reader, closed
        connection._writer = asyncio.StreamWriter(transport, protocol, reader, connection._loop)
        connection._read_task = connection._create_reader_task()
        with await accepting:
            # Well below the 30 s that event loops wait for the other end.
            await asyncio.wait_for(connection.close(), 20)


@pytest.mark.parametrize("loops", [None, uvloop.new_event_loop])
def test_tls_connection_closes_though_the_broker_does_not(
    tmp_path: Path, loops: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    """A restore or stop that waited for such a broker took half a minute."""
    authority = Authority(tmp_path)
    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(close_alone(authority.file, *authority.issue("broker")))


async def sent_in_pieces(batch: memoryview) -> tuple[bytes, bytes, Any]:
    """Return a long request's bytes at the other end, the bytes of its encoding, and its response."""
    other: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Future()
    async with await asyncio.start_server(lambda *ends: other.set_result(ends), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = BrokerConnection("127.0.0.1", port, request_timeout_ms=5000)
        connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", port)
        connection._versions = {wire_requests.PRODUCE[0]: (0, wire_requests.PRODUCE[1])}
        connection._read_task = connection._create_reader_task()
        request = wire_requests.build_produce_request("id", 1000, {TopicPartition("topic", 0): batch})
        answered = asyncio.ensure_future(connection.send(request))
        reader, writer = await other
        received = await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        header = request.build_request_header(correlation_id=1, client_id="aiokafka").encode()
        answer = struct.pack(">ib", 1, 0) + b"\1" + bytes(5)
        writer.write(struct.pack(">i", len(answer)) + answer)
        codes = await answered
        connection.close(reason=conn.CloseReason.SHUTDOWN)
        writer.close()
    return received, header + request.encode(), codes


@pytest.mark.parametrize("loops", [None, uvloop.new_event_loop])
def test_long_request_arrives_as_encoded(loops: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    """The batch is longer than the socket's buffers, and a part of a larger buffer."""
    batch = memoryview(bytearray(bytes(range(256)) * 50_000))[3:]
    with asyncio.Runner(loop_factory=loops) as runner:
        received, expected, codes = runner.run(sent_in_pieces(batch))
    assert received == expected
    assert codes == []


async def test_connection_outlives_request_that_broker_does_not_know() -> None:
    """Services that ask an old broker for their rights would otherwise wait for Kafka for ever."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    async with await asyncio.start_server(lambda _, writer: accepted.put(writer), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = BrokerConnection("127.0.0.1", port)
        connection._reader, connection._writer = await asyncio.open_connection("127.0.0.1", port)
        connection._versions = {wire_requests.METADATA[0]: (0, wire_requests.METADATA[1] - 1)}
        connection._read_task = connection._create_reader_task()
        with pytest.raises(errors.UnsupportedVersionError):
            connection.send(wire_requests.build_topic_ids_request(["topic"]))
        assert connection.connected()
        connection.close(reason=conn.CloseReason.SHUTDOWN)
        (await accepted.get()).close()


def test_broker_client_opens_connections_that_create_no_topics() -> None:
    """Each connection of Sotto's clients forbids the broker to create topics."""
    assert client_patches.client.create_conn is client_patches.open_connection
    assert issubclass(BrokerClient, client_patches.client.AIOKafkaClient)


async def test_consumer_without_a_group_may_stop_as_soon_as_it_has_started() -> None:
    """Its coordinator's task is then cancelled before it runs, which must not cancel the caller."""
    coordinator = client_patches.consumer.NoGroupCoordinator(
        client.AIOKafkaClient(), subscription_state.SubscriptionState()
    )
    await coordinator.close()


def test_client_patches_names_the_methods_that_aiokafka_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of aiokafka without a replaced method is refused with the method's name."""
    client_patches.require_known_client()
    monkeypatch.delattr(client_patches.client.AIOKafkaClient, "_metadata_update")
    with pytest.raises(RuntimeError, match=r"no AIOKafkaClient\._metadata_update; install the version"):
        client_patches.require_known_client()


PRIVATE_NAMES = {
    conn.AIOKafkaConnection: (
        "_client_id",
        "_host",
        "_loop",
        "_next_correlation_id",
        "_request_timeout",
        "_requests",
        "_versions",
        "_writer",
    ),
    MetadataRequest: ("_allow_auto_topic_creation",),
    client.AIOKafkaClient: ("_get_conn", "_metadata_update", "_wait_on_metadata"),
    fetcher.Fetcher: ("_fetch_max_wait_ms", "_fetch_task", "_pending_tasks", "_proc_fetch_request"),
    fetcher.PartitionRecords: (
        "_aborted_producers",
        "_check_crcs",
        "_consume_aborted_up_to",
        "_consumer_record",
        "_contains_abort_marker",
        "_isolation_level",
        "_records",
        "_records_iterator",
        "_tp",
    ),
    fetcher.FetchResult: ("_partition_records", "_topic_partition", "_update_position"),
    GroupCoordinator: ("_do_rejoin_group", "_group_instance_id", "_maybe_leave_group", "_send_req"),
    consumer.AIOKafkaConsumer: ("_client", "_coordinator", "_isolation_level"),
    producer.AIOKafkaProducer: ("_message_accumulator", "_sender"),
    message_accumulator.MessageAccumulator: ("_batches", "_pending_batches"),
    message_accumulator.BatchBuilder: ("_build", "_set_producer_state"),
}
RECORD = PROJECT / "docs/decisions/0034-aiokafka-stays-with-its-changes-in-one-package.md"


@pytest.mark.parametrize("kind", PRIVATE_NAMES, ids=lambda kind: kind.__name__)
def test_aiokafka_has_the_private_names_that_sotto_uses(kind: type[Any]) -> None:
    """Each name is in the source of its class, or of a base class, and the decision lists the class."""
    source = "".join(inspect.getsource(one) for one in kind.__mro__ if one.__module__.startswith("aiokafka"))
    assert f"`{kind.__name__}`" in RECORD.read_text()
    for name in PRIVATE_NAMES[kind]:
        assert re.search(rf"(self\.|def |self, ){name}\b", source), (
            f"aiokafka has no {kind.__name__}.{name} any more"
        )


def test_private_names_are_used_in_one_package_only() -> None:
    """No other module accesses a private name of another object, except the reader of Spark's tables."""
    package = PROJECT / "stream/kafka/client"
    files = {file for file in (PROJECT / "stream").rglob("*.py") if "noqa: SLF001" in file.read_text()}
    assert files - set(package.glob("*.py")) == {PROJECT / "stream/tables/readers/server_tables.py"}
    assert files & set(package.glob("*.py"))


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
import stream.client.async_client, stream.engine.restore, stream.kafka.topic_creation
assert parts() == before
"""


def test_importing_sotto_leaves_aiokafka_as_it_is() -> None:
    """A program that imports ``sotto`` keeps its own consumers and producers, in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", _HOST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


async def test_consumer_that_cannot_start_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise aiokafka reports each failed connection a second time, as a consumer that was not closed."""
    reader = create_reader(Settings())

    async def fail() -> None:
        raise errors.KafkaConnectionError

    monkeypatch.setattr(reader, "start", fail)
    with pytest.raises(errors.KafkaConnectionError):
        async with reader:
            pass
    assert reader._closed
