"""Changes to aiokafka that Sotto depends on: connections, fetch pacing, static membership, group queries."""

from __future__ import annotations

import asyncio
from collections import deque
from importlib import import_module
from typing import Any, Final, NamedTuple

from aiokafka import conn, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import InvalidSessionTimeoutError, KafkaError, for_code
from aiokafka.protocol.metadata import MetadataRequest

from stream.kafka.client.aiokafka_copy import admin, consumer, fetcher, producer
from stream.settings import variable

_BOOTSTRAP_SECONDS: Final = 2
"""Longest delay of a cancellation; a broker that does not answer must not hold up a stop."""


class BrokerConnection(conn.AIOKafkaConnection):  # type: ignore[misc]  # aiokafka is not typed
    """A connection that creates no topics, and closes if a request finds it broken."""

    def send(self, request: Any, expect_response: bool = True) -> Any:
        """Send a request and return the awaitable of its answer.

        Raises:
            KafkaConnectionError: the connection is closed. uvloop's transports raise RuntimeError, which aiokafka does not expect.
        """
        if isinstance(request, MetadataRequest):
            request._allow_auto_topic_creation = False  # noqa: SLF001  (aiokafka's clients do not pass it on)
        try:
            return super().send(request, expect_response)
        except RuntimeError as error:
            self.close(reason=conn.CloseReason.CONNECTION_BROKEN, exc=error)
            raise errors.KafkaConnectionError(f"Connection at {self._host}:{self._port} is closed") from error


SECONDS: Final = 1.0
METADATA_REQUESTS: Final = 10
"""A client asks for metadata at most so many times in any second."""
FRUITLESS_FETCHES: Final = 20
"""A consumer has at most so many answers without a record in any second from one broker, leaving out those for which it waited."""


class RateLimit:
    """At most so many of something in any stretch of so many seconds."""

    def __init__(self, most: int, seconds: float = SECONDS) -> None:
        self._begun: deque[float] = deque(maxlen=most)
        self._seconds = seconds

    async def keep(self) -> None:
        """Wait until there may be one more, which begins then."""
        loop = asyncio.get_running_loop()
        begins = loop.time()
        if len(self._begun) == self._begun.maxlen:
            begins = max(begins, self._begun[0] + self._seconds)
        self._begun.append(begins)
        if (left := begins - loop.time()) > 0:
            await asyncio.sleep(left)


class BrokerClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's client with paced metadata requests that create no topics.

    Brokers with ``auto.create.topics.enable``, Kafka's default, create each topic that a metadata
    request names, with the brokers' own configuration: a ledger would lose its beginning after a
    week. aiokafka has no option against it.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._pace = RateLimit(METADATA_REQUESTS)

    async def bootstrap(self) -> None:
        """Connect.

        A cancelled start is given time to end before the cancellation is raised: aiokafka would leave its connection open.
        """
        connecting = asyncio.ensure_future(super().bootstrap())
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            await asyncio.wait([connecting], timeout=_BOOTSTRAP_SECONDS)
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
            raise

    async def _get_conn(self, *arguments: Any, **named: Any) -> Any:
        connection = await super()._get_conn(*arguments, **named)
        if connection is not None:
            connection.__class__ = BrokerConnection
        return connection

    async def _metadata_update(self, cluster_metadata: Any, topics: Any) -> Any:
        await self._pace.keep()
        return await super()._metadata_update(cluster_metadata, topics)


class PacedFetcher(fetcher.Fetcher):  # type: ignore[misc]
    """aiokafka's fetches."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._fruitless: dict[Any, RateLimit] = {}
        super().__init__(*arguments, **named)

    async def _proc_fetch_request(self, assignment: Any, node_id: Any, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        found = await super()._proc_fetch_request(assignment, node_id, request)
        # A broker that has no records waits for some before it says so; what comes sooner is an error, or is no longer asked for.
        is_fruitless = not found and loop.time() - asked < self._fetch_max_wait_ms / 2000
        task = asyncio.current_task()
        # aiokafka takes an order to end for an answer without records.
        if is_fruitless and task is not None and not task.cancelling():
            await self._fruitless.setdefault(node_id, RateLimit(FRUITLESS_FETCHES)).keep()
        return found

    async def close(self) -> None:
        """Stop fetching.

        aiokafka awaits each task that it cancels. A task that was cancelled during a pause raises CancelledError there,
        in a caller that was not cancelled, and the consumer's connections stay open.
        """
        tasks = {self._fetch_task, *self._pending_tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._pending_tasks.clear()
        await super().close()


class GroupMember(NamedTuple):
    """One member of a group, as the group's coordinator describes it."""

    member_id: str
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


async def group_members(asked: AIOKafkaAdminClient, group: str) -> list[GroupMember]:
    """Everybody whom a group's coordinator has in it, in the middle of a rebalance too.

    Raises:
        KafkaError: the coordinator does not answer, or may not.
    """
    members = []
    for described in (
        one for response in await asked.describe_consumer_groups([group]) for one in response.groups
    ):
        if described[0]:
            raise for_code(described[0])
        members += [GroupMember(*member[:5]) for member in described[5]]
    return members


class GroupObserver:
    """Asks over a connection of its own, made anew after each failure. Takes aiokafka's options by name."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._admin: AIOKafkaAdminClient | None = None

    async def members(self, group: str) -> frozenset[str]:
        """The ids of a group's members.

        Raises:
            KafkaError: Kafka does not answer, or may not.
        """
        try:
            if self._admin is None:
                self._admin = admin.AIOKafkaAdminClient(**self._options)
                await self._admin.start()
            return frozenset(member.member_id for member in await group_members(self._admin, group))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the connection."""
        connected, self._admin = self._admin, None
        if connected is not None:
            await connected.close()


INVALID_SESSION_TIMEOUT: Final[int] = InvalidSessionTimeoutError.errno
"""Kafka's word to a member with such a session."""


class RefusedTimeError(KafkaError):  # type: ignore[misc]  # aiokafka is not typed
    """A broker refuses one of our times, today and tomorrow; one line that names the setting, and the broker's."""

    def __str__(self) -> str:
        return str(self.args[0])


def refused_session(milliseconds: int) -> RefusedTimeError:
    """The error of a member whose session is too short or too long for the group's coordinator."""
    return RefusedTimeError(
        f"{variable('session_timeout_ms')}: Kafka refuses a session of {milliseconds} ms; set one between the brokers' "
        "group.min.session.timeout.ms and group.max.session.timeout.ms, or change those"
    )


def refused_transaction(milliseconds: int) -> RefusedTimeError:
    """The error of a producer whose transactions may last too long for their coordinator."""
    return RefusedTimeError(
        f"{variable('transaction_timeout_ms')}: Kafka refuses transactions of {milliseconds} ms; set no more than the "
        "brokers' transaction.max.timeout.ms, or raise that"
    )


FENCED_INSTANCE_ID: Final = 82
"""Kafka's word to a member whose name has gone to another; aiokafka knows no error of this number."""


class NamedCoordinator(GroupCoordinator):  # type: ignore[misc]  # aiokafka is not typed
    """aiokafka's side of a group, with names as the module says; without a name it is aiokafka's own."""

    displaced = False
    """Whether another process has joined under this one's name. Nothing brings it back then."""
    session_refused = False
    """Whether the group takes no member with this one's session. aiokafka tells only whoever fetches."""

    _former = ""
    _group_instance_id: str | None

    def reset_generation(self) -> None:
        """Forget the place in the group, but under which id it was held: Kafka tells by it whether the name has gone to another."""
        if self._group_instance_id is not None and self.generation > 0:
            self._former = self.member_id
        super().reset_generation()

    async def _do_rejoin_group(self, subscription: Any) -> Any:
        if self._former:
            self.member_id, self._former = self._former, ""
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


_REPLACED: Final = (
    (AIOKafkaClient, ("bootstrap", "_get_conn", "_metadata_update")),
    (fetcher.Fetcher, ("_proc_fetch_request", "close")),
    (GroupCoordinator, ("reset_generation", "_do_rejoin_group", "_send_req", "_maybe_leave_group")),
)
"""The methods of aiokafka that classes of this module replace."""


def require_known_client() -> None:
    """Check that aiokafka has the methods that this module replaces.

    Raises:
        RuntimeError: aiokafka is of another version.
    """
    missing = [f"{kind.__name__}.{name}" for kind, names in _REPLACED for name in names if not hasattr(kind, name)]
    if missing:
        raise RuntimeError(f"aiokafka has no {', '.join(missing)}; install the version that Sotto requires")


def _replace_parts(consumer_module: Any, producer_module: Any) -> None:
    consumer_module.AIOKafkaClient = producer_module.AIOKafkaClient = BrokerClient
    consumer_module.Fetcher = PacedFetcher
    consumer_module.GroupCoordinator = NamedCoordinator


def patch_process() -> None:
    """Replace the same parts in aiokafka itself: for the monitor, whose consumers Faust makes."""
    _replace_parts(import_module("aiokafka.consumer.consumer"), import_module("aiokafka.producer.producer"))


require_known_client()
_replace_parts(consumer, producer)
admin.AIOKafkaClient = BrokerClient

KafkaConsumer: Final = consumer.AIOKafkaConsumer
KafkaProducer: Final = producer.AIOKafkaProducer
KafkaAdmin: Final = admin.AIOKafkaAdminClient
