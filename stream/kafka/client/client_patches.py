"""Extends copies of aiokafka's modules: safe connections, rate limits, static membership, lists of members.

So a program that imports ``sotto`` keeps its own consumers and producers unchanged.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from itertools import chain
from typing import Any, Final, NamedTuple

from aiokafka import conn, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer.group_coordinator import GroupCoordinator, NoGroupCoordinator
from aiokafka.errors import InvalidSessionTimeoutError, KafkaError, KafkaTimeoutError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.util import wait_for

from stream.kafka.client.wire_requests import Request
from stream.settings import variable_of


def _copy_module(name: str) -> Any:
    if (spec := find_spec(name)) is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


client = _copy_module("aiokafka.client")
fetcher = _copy_module("aiokafka.consumer.fetcher")
consumer = _copy_module("aiokafka.consumer.consumer")
producer = _copy_module("aiokafka.producer.producer")
admin = _copy_module("aiokafka.admin.client")

_Client: Final[Any] = client.AIOKafkaClient
_Fetcher: Final[Any] = fetcher.Fetcher

_LONG_REQUEST_BYTES: Final = 16 * 1024
"""Smallest request that is sent in pieces, because a copy of it would cost more."""
_CLOSING_SECONDS: Final = 0.2
"""Time for TLS to end a connection: event loops wait 30 s for a broker that does not close it too."""
_pack_size: Final = struct.Struct(">i").pack


class BrokerConnection(conn.AIOKafkaConnection):  # type: ignore[misc]  # aiokafka is not typed
    """A connection that is closed if sending fails, and soon; its requests create no topics."""

    def close(self, *arguments: Any, **options: Any) -> Any:
        """Closes the connection; the returned future is done soon, even if the broker does not close it too."""
        if self._writer is not None:
            self._loop.call_later(_CLOSING_SECONDS, self._writer.transport.abort)
        return super().close(*arguments, **options)

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """Sends a request and returns the awaitable response.

        KafkaConnectionError if the connection is closed, which uvloop reports as a RuntimeError.
        """
        if isinstance(request, MetadataRequest):
            request._allow_auto_topic_creation = False  # noqa: SLF001  (aiokafka's clients do not pass this option on)
        try:
            if isinstance(request, Request) and request.size >= _LONG_REQUEST_BYTES and self._writer is not None:
                return self._send_pieces(request)
            return super().send(request, expect_response)
        except errors.KafkaError:  # a RuntimeError too, as of a request that the broker does not know
            raise
        except (OSError, RuntimeError) as error:
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN, exc=error)
            raise errors.KafkaConnectionError(f"Connection at {self._host}:{self._port} is closed") from error

    def _send_pieces(self, request: Request) -> Any:
        """Sends a request without copying its batches, which aiokafka copies three times."""
        request.prepare(self._versions)
        correlation_id = self._next_correlation_id()
        header = request.build_request_header(correlation_id=correlation_id, client_id=self._client_id).encode()
        self._writer.writelines([_pack_size(len(header) + request.size) + header, *request.body])
        response = asyncio.get_running_loop().create_future()
        self._requests.append((correlation_id, request, response))
        return wait_for(response, self._request_timeout)


_OPENED_CONNECTIONS: ContextVar[list[BrokerConnection] | None] = ContextVar("_OPENED_CONNECTIONS", default=None)
"""The connections that ``bootstrap`` has opened in this context."""


async def open_connection(host: str, port: int, **options: Any) -> BrokerConnection:
    """Connects to a broker, as ``aiokafka.conn.create_conn`` does."""
    connection = BrokerConnection(host, port, **options)
    if (opened := _OPENED_CONNECTIONS.get()) is not None:
        opened.append(connection)
    await connection.connect()
    return connection


RATE_INTERVAL_SECONDS: Final = 1.0
MAX_METADATA_REQUESTS: Final = 10
"""Maximum number of metadata requests of a client per second."""
MAX_EMPTY_FETCHES: Final = 20
"""Maximum number of fetches per second from one broker that return at once without records."""


class RateLimit:
    """Limits the number of events to ``max_events`` in any interval of ``seconds``."""

    def __init__(self, max_events: int, seconds: float = RATE_INTERVAL_SECONDS) -> None:
        self._starts: deque[float] = deque(maxlen=max_events)
        self._seconds = seconds

    async def wait_for_turn(self) -> None:
        """Waits until one more event is allowed, and counts it."""
        loop = asyncio.get_running_loop()
        begins = loop.time()
        if len(self._starts) == self._starts.maxlen:
            begins = max(begins, self._starts[0] + self._seconds)
        self._starts.append(begins)
        if (left := begins - loop.time()) > 0:
            await asyncio.sleep(left)


class BrokerClient(_Client):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's client with rate-limited metadata requests that create no topics.

    With Kafka's default ``auto.create.topics.enable``, brokers create each topic that a metadata request
    names, with their default configuration. A ledger that is created in this way would lose its first
    records after a week. aiokafka has no option that prevents this.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._metadata_rate = RateLimit(MAX_METADATA_REQUESTS)
        self._is_closed = False

    async def bootstrap(self) -> None:
        """Connects; on a failure or cancellation, closes the connections, which aiokafka leaves open."""
        opened: list[BrokerConnection] = []
        token = _OPENED_CONNECTIONS.set(opened)
        try:
            await super().bootstrap()
        except BaseException:
            for connection in opened:
                connection.close()
            raise
        finally:
            _OPENED_CONNECTIONS.reset(token)

    async def close(self) -> None:
        """Closes all connections, including a connection that is just being opened."""
        self._is_closed = True
        await super().close()

    async def _get_conn(self, *arguments: Any, **options: Any) -> Any:
        connection = await super()._get_conn(*arguments, **options)
        if connection is not None and self._is_closed:
            connection.close()
        return connection

    async def _metadata_update(self, cluster_metadata: Any, topics: Any) -> Any:
        await self._metadata_rate.wait_for_turn()
        return await super()._metadata_update(cluster_metadata, topics)


class PacedFetcher(_Fetcher):  # type: ignore[misc]
    """aiokafka's fetcher, with a limit on empty fetches per second."""

    searched_bytes: Callable[[int], Collection[bytes] | None] | None = None
    """Returns the byte strings to search in a partition's batches; see ``batch_reader.BoundedRecords``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._empty_fetch_rates: dict[Any, RateLimit] = {}
        super().__init__(*arguments, **options)

    async def _proc_fetch_request(self, assignment: Any, node_id: Any, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        started = loop.time()
        found = await super()._proc_fetch_request(assignment, node_id, request)
        if (searched_bytes := self.searched_bytes) is not None:
            for topic_partition, result in self._records.items():
                if (records := getattr(result, "_partition_records", None)) is not None:
                    records._records.searched_bytes = partial(searched_bytes, topic_partition.partition)  # noqa: SLF001
        # A broker without records waits before it answers. An empty answer that comes earlier is an error or outdated.
        is_empty_at_once = not found and loop.time() - started < self._fetch_max_wait_ms / 2000
        task = asyncio.current_task()
        # aiokafka treats a cancellation as an empty answer.
        if is_empty_at_once and task is not None and not task.cancelling():
            await self._empty_fetch_rates.setdefault(node_id, RateLimit(MAX_EMPTY_FETCHES)).wait_for_turn()
        return found

    async def close(self) -> None:
        """Stops fetching.

        aiokafka awaits each task that it cancels. A task cancelled during a pause would raise
        CancelledError in a caller that was not cancelled, and connections would stay open.
        """
        for task in (tasks := {self._fetch_task, *self._pending_tasks}):
            task.cancel()
        await asyncio.wait(tasks)
        self._pending_tasks.clear()
        await super().close()


async def fail_pending_batches(producer: Any, seconds: float) -> None:
    """Closes a producer's connections, and fails all batches not delivered within ``seconds``."""
    await producer.client.close()
    retrying = producer._sender.sender_task  # noqa: SLF001
    retrying.cancel()
    # The producer's task now waits for its requests, which may still be connecting.
    await asyncio.wait([retrying], timeout=seconds)
    retrying.cancel()
    accumulator = producer._message_accumulator  # noqa: SLF001
    pending = accumulator._pending_batches  # noqa: SLF001
    # A batch that waits for a retry removes itself from this set when it is done.
    pending.update(chain.from_iterable(accumulator._batches.values()))  # noqa: SLF001
    for batch in tuple(pending):
        batch.drain_ready()
        batch.failure(KafkaTimeoutError())


def read_committed_without_group(consumer: Any) -> None:
    """Makes a consumer that has not started read the committed records of all partitions, without a group."""
    consumer._isolation_level = "read_committed"  # noqa: SLF001
    consumer._group_id = None  # noqa: SLF001


class GroupMember(NamedTuple):
    """One member of a group, as the group's coordinator describes it."""

    member_id: str
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


async def group_members(kafka: AIOKafkaAdminClient, group: str) -> list[GroupMember]:
    """Lists the members of a group, even during a rebalance.

    KafkaError if the coordinator does not answer, or refuses access.
    """
    members = []
    responses = await kafka.describe_consumer_groups([group])
    for described in chain.from_iterable(one.groups for one in responses):
        if described[0]:
            raise for_code(described[0])
        members += [GroupMember(*member[:5]) for member in described[5]]
    return members


class GroupObserver:
    """Lists group members over one connection; reopens the connection after a failure."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._admin: AIOKafkaAdminClient | None = None

    async def members(self, group: str) -> frozenset[str]:
        """Returns the ids of a group's members; KafkaError if Kafka does not answer, or refuses access."""
        try:
            if self._admin is None:
                self._admin = KafkaAdmin(**self._options)
                await self._admin.start()
            return frozenset(member.member_id for member in await group_members(self._admin, group))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Closes the connection."""
        connected, self._admin = self._admin, None
        if connected is not None:
            await connected.close()


INVALID_SESSION_TIMEOUT: Final[int] = InvalidSessionTimeoutError.errno
"""Kafka's error code if the group coordinator refuses a session timeout."""


class ExplainedError(KafkaError):  # type: ignore[misc]  # aiokafka is not typed
    """An error whose message is complete: it has the problem and the remedy."""

    def __str__(self) -> str:
        return str(self.args[0])


class RefusedTimeError(ExplainedError):
    """A broker refuses a timeout permanently; the message names Sotto's and Kafka's setting."""


def session_timeout_error(milliseconds: int) -> RefusedTimeError:
    """Creates the error for a session timeout outside the coordinator's range."""
    return RefusedTimeError(
        f"{variable_of('session_timeout_ms')}: Kafka refuses a session of {milliseconds} ms; set one between the brokers' "
        "group.min.session.timeout.ms and group.max.session.timeout.ms, or change these"
    )


def transaction_timeout_error(milliseconds: int) -> RefusedTimeError:
    """Creates the error for a transaction timeout above the coordinator's limit."""
    return RefusedTimeError(
        f"{variable_of('transaction_timeout_ms')}: Kafka refuses transactions of {milliseconds} ms; set at most the "
        "brokers' transaction.max.timeout.ms, or raise that setting"
    )


FENCED_INSTANCE_ID: Final = 82
"""Kafka's error code if another member now has this member's instance id; aiokafka lacks this code."""


class StaticCoordinator(GroupCoordinator):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's group coordinator with static membership (``group_instance_id``)."""

    displaced = False
    """True if another process has joined under the same instance id; this is permanent."""
    session_refused = False
    """True if the group refuses the session timeout; aiokafka raises the error only at the next fetch."""
    _former_member_id = ""
    _group_instance_id: str | None

    def reset_generation(self) -> None:
        """Resets the membership, but keeps the member id, by which Kafka detects a displaced member."""
        if self._group_instance_id is not None and self.generation > 0:
            self._former_member_id = self.member_id
        super().reset_generation()

    async def _do_rejoin_group(self, subscription: Any) -> Any:
        if self._former_member_id:
            self.member_id, self._former_member_id = self._former_member_id, ""
        return await super()._do_rejoin_group(subscription)

    async def _send_req(self, request: Any) -> Any:
        response = await super()._send_req(request)
        code = getattr(response, "error_code", 0)
        self.displaced |= code == FENCED_INSTANCE_ID
        self.session_refused |= code == INVALID_SESSION_TIMEOUT
        return response

    async def _maybe_leave_group(self) -> None:
        name, self._group_instance_id = self._group_instance_id, None
        try:
            await super()._maybe_leave_group()
        finally:
            self._group_instance_id = name


class GrouplessCoordinator(NoGroupCoordinator):  # type: ignore[misc]
    """The coordinator of a consumer without a group, which may be closed at once."""

    async def close(self) -> None:
        """Lets the coordinator's task begin; the caller would get the CancelledError of a task that never ran."""
        await asyncio.sleep(0)
        await super().close()


_REPLACED_METHODS: Final = (
    (client, ("create_conn",)),
    (client.AIOKafkaClient, ("bootstrap", "close", "_get_conn", "_metadata_update")),
    (fetcher.Fetcher, ("_proc_fetch_request", "close")),
    (GroupCoordinator, ("reset_generation", "_do_rejoin_group", "_send_req", "_maybe_leave_group")),
    (NoGroupCoordinator, ("close",)),
)
"""The functions and methods of aiokafka that this module replaces."""


def require_known_client() -> None:
    """Raises a RuntimeError if aiokafka lacks a method that this module overrides."""
    missing = [
        f"{kind.__name__}.{name}" for kind, names in _REPLACED_METHODS for name in names if not hasattr(kind, name)
    ]
    if missing:
        raise RuntimeError(f"aiokafka has no {', '.join(missing)}; install the version that Sotto requires")


def _replace_parts(consumer_module: Any, producer_module: Any) -> None:
    consumer_module.AIOKafkaClient = producer_module.AIOKafkaClient = BrokerClient
    consumer_module.Fetcher = PacedFetcher
    consumer_module.GroupCoordinator = StaticCoordinator
    consumer_module.NoGroupCoordinator = GrouplessCoordinator


def patch_process() -> None:
    """Patches aiokafka instead of copies of its modules. Only the monitor needs this, because Faust uses aiokafka."""
    _replace_parts(import_module("aiokafka.consumer.consumer"), import_module("aiokafka.producer.producer"))


require_known_client()
client.create_conn = open_connection
_replace_parts(consumer, producer)
admin.AIOKafkaClient = BrokerClient

KafkaConsumer: Final = consumer.AIOKafkaConsumer
KafkaProducer: Final = producer.AIOKafkaProducer
KafkaAdmin: Final = admin.AIOKafkaAdminClient
