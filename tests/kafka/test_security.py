"""An installation works on a Kafka with authentication, and no principal can do more than its role allows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from typer.testing import CliRunner

from schemas import Answer, Query
from sotto import AsyncClient, Forbidden, SottoError, Unknown
from stream.cli.output import CommandError
from stream.cli.setup_commands import topics_app
from stream.engine.restore import create_reader, read_to_end
from stream.kafka.acls import AclEntry, AclRole, Operation, Resource, create_acls, role_access, unwritable_topics
from stream.kafka.broker_addresses import free_port
from stream.kafka.client.broker_connections import SecurityError, admin_client, connection_options
from stream.kafka.topic_creation import check_topics, inspect_topics, require_topics
from stream.kafka.topic_layouts import TopicsError, layout
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import Topics, partition_of
from stream.services.processes import RoleName, Service
from stream.services.runner import guard_topics
from stream.settings import Settings
from tests.builders import source, stream
from tests.kafka.secured import (
    MATRIX,
    WRONG,
    RawKafkaClient,
    SecuredKafka,
    ends,
    fence,
    in_force,
    topics_of,
    variables,
    writable,
)
from tests.names import FILE, make_names

pytestmark = pytest.mark.kafka

LIVE = "guarded"
PARTITIONS = 2
SOURCE = source("vitals", neighbors="add-remove", epsilon=4.0)
SPEC = stream("ward-7", "vitals", mechanism={"cutoff": 3})
REFUSED = "TopicAuthorizationFailedError"

WRITES = {
    AclRole.PRODUCER: {"queries"},
    AclRole.ANALYST: set(),
    AclRole.OPERATOR: {"requests"},
    AclRole.WORKER: {"answers", "state", "charges", "rejected", "status"},
    AclRole.BUDGET: {"control", "ledger", "trail", "rejected", "status"},
    AclRole.FEED: {"partials", "merges", "queries", "requests", "rejected", "status"},
    AclRole.MONITOR: {"requests"},
    AclRole.ALERTS: set(),
    AclRole.BACKUP: set(),
}
READS = {
    AclRole.PRODUCER: set(),
    AclRole.ANALYST: {"answers", "ledger"},
    AclRole.OPERATOR: {"ledger", "trail", "rejected", "status"},
    AclRole.WORKER: {"queries", "control", "state"},
    AclRole.BUDGET: {"requests", "charges", "ledger", "trail"},
    AclRole.FEED: {"control", "partials", "merges"},
    AclRole.MONITOR: {"control", "charges", "ledger", "trail", "rejected", "status"},
    AclRole.ALERTS: {"answers", "ledger"},
    AclRole.BACKUP: {"ledger", "trail", "state"},
}


@dataclass
class Installation:
    """A running installation, with a separate principal for each service."""

    kafka: SecuredKafka
    monitor_address: str
    monitor_token: str
    services: list[Service] = field(default_factory=list)

    def of(self, role: AclRole) -> Settings:
        return self.kafka.role(role, LIVE)

    @property
    def admin(self) -> Settings:
        return self.kafka.administrator(LIVE)


@pytest.fixture(scope="module")
def installation(kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("services")
    kafka.install(LIVE, PARTITIONS)
    key = folder / "noise.key"
    NoiseKey.generate().save(key)
    monitor = monitor_settings(folder)
    token = make_names(folder)["operator"]
    running = Installation(kafka, f"http://127.0.0.1:{monitor['monitor_port']}", token)
    starts: list[tuple[RoleName, Path | None]] = [("budget", key), ("worker", key), ("monitor", None)]
    with ExitStack() as stack:
        for name, key_file in starts:
            settings = running.of(AclRole(name))
            if name == "monitor":
                settings = settings.model_copy(update=monitor)
            service = Service(name, settings, key_file, folder / f"{name}.log")
            running.services.append(stack.enter_context(service))
        yield running


def monitor_settings(folder: Path) -> dict[str, Any]:
    port = free_port()
    return {"monitor_port": port, "monitor_names_file": str(folder / FILE)}


async def collect_answers(settings: Settings, wanted: int) -> list[Answer]:
    found: list[Answer] = []
    async with asyncio.timeout(120), AsyncClient(settings) as client:
        answers = client.answers(from_beginning=True)
        while len(found) < wanted:
            found.append(await anext(answers))
        await answers.aclose()
    return found


async def test_installation_works_with_separate_principals(
    installation: Installation,
) -> None:
    async with AsyncClient(installation.of(AclRole.OPERATOR)) as operator:
        await operator.register(SOURCE)
        await operator.open(SPEC)
    asked = [Query(id=f"q{number}", stream="ward-7", value=1e9) for number in range(4)]
    async with AsyncClient(installation.of(AclRole.PRODUCER)) as producer:
        for query in asked:
            await producer.publish(query)
        await producer.flush()
    found = await collect_answers(installation.of(AclRole.ANALYST), len(asked))
    assert [answer.id for answer in found] == [query.id for query in asked]
    assert [answer.outcome for answer in found][:3] == ["above"] * 3
    async with AsyncClient(installation.of(AclRole.OPERATOR)) as operator:
        await operator.close("vitals", "ward-7")
        grants_now = await operator.list_streams("vitals")
    assert [grant.tops for grant in grants_now] == [3]


async def test_monitor_reads_and_requests_under_its_principal(
    installation: Installation,
) -> None:
    address, token = installation.monitor_address, installation.monitor_token
    headers = {"Authorization": f"Bearer {token}"}
    async with asyncio.timeout(120), ClientSession(headers=headers) as session:
        while not await is_ready(session, address):
            await asyncio.sleep(0.2)
        body = {"kind": "register", "request": "r1", "source": {**SOURCE, "source": "from-the-page"}}
        async with session.post(f"{address}/api/sources", json=body) as response:
            assert response.status == 200, await response.text()
        workers: dict[str, Any] = {}
        while {row["role"] for row in workers.get("members", ())} != {"worker", "budget"}:
            async with session.get(f"{address}/api/workers") as response:
                workers = await response.json()


async def is_ready(session: ClientSession, address: str) -> bool:
    try:
        async with session.get(f"{address}/readyz") as response:
            return response.status == 200
    except OSError:
        return False


@pytest.mark.parametrize("role", AclRole)
async def test_role_reads_and_writes_exactly_its_topics(matrix: SecuredKafka, role: AclRole) -> None:
    topics = topics_of(MATRIX)
    admin = matrix.administrator(MATRIX)
    before = await ends(admin, topics.values(), 1)
    async with RawKafkaClient(matrix.role(role, MATRIX)) as raw:
        written = {name: await raw.write(topic, 0, b"key", b"{}") for name, topic in topics.items()}
        read = {name: await raw.read(topic, 0) for name, topic in topics.items()}
    after = await ends(admin, topics.values(), 1)
    assert written == {name: "NoError" if name in WRITES[role] else REFUSED for name in topics}
    assert read == {name: "NoError" if name in READS[role] else REFUSED for name in topics}
    grown = {
        name
        for name, topic in topics.items()
        if after[TopicPartition(topic, 0)] > before[TopicPartition(topic, 0)]
    }
    assert grown == WRITES[role]


async def test_forged_control_event_is_refused_by_broker(installation: Installation) -> None:
    """The event has the budget service's own bytes with a larger budget; only the broker protects the workers from it."""
    async with AsyncClient(installation.of(AclRole.OPERATOR)) as operator:
        await operator.register({**SOURCE, "source": "bait"})
        await operator.open({**SPEC, "source": "bait", "stream": "bait"})
    topics = Topics(LIVE, PARTITIONS)
    partition = partition_of(b"bait", PARTITIONS)
    async with create_reader(installation.admin) as consumer:
        source = TopicPartition(topics.control, partition)
        records = [record async for batch in read_to_end(consumer, source, 1000) for record in batch]
    forged = json.loads(next(record.value for record in records if record.key == b"bait"))
    forged["spec"]["epsilon"] = 100.0
    before = await ends(installation.admin, [topics.control], PARTITIONS)
    for role in set(AclRole) - {AclRole.BUDGET}:
        async with RawKafkaClient(installation.of(role)) as raw:
            assert await raw.write(topics.control, partition, b"bait", json.dumps(forged).encode()) == REFUSED
    assert await ends(installation.admin, [topics.control], PARTITIONS) == before


async def publish_query(client: AsyncClient) -> None:
    await client.publish(Query(id="q", stream="ward-7", value=1.0))
    await client.flush()


async def test_clients_without_permission_get_error_instead_of_waiting(installation: Installation) -> None:
    async with asyncio.timeout(120):
        async with AsyncClient(installation.of(AclRole.PRODUCER)) as producer:
            with pytest.raises(Forbidden, match=r"TopicAuthorizationFailedError.*sotto topics acl"):
                await producer.ask({"stream": "ward-7", "value": 1.0})
            with pytest.raises(Forbidden, match=r"TopicAuthorizationFailedError.*sotto topics acl"):
                await producer.register(SOURCE)
            with pytest.raises(Forbidden, match=r"TopicAuthorizationFailedError.*sotto topics acl"):
                await producer.budget("vitals")
        async with AsyncClient(installation.of(AclRole.OPERATOR)) as operator:
            # The error comes at once, because the client knows already that it may not use the topic.
            with pytest.raises(Forbidden, match=r"TopicAuthorizationFailedError.*sotto topics acl"):
                await publish_query(operator)


async def test_live_events_are_accepted_from_granted_principals_only(installation: Installation) -> None:
    """A sender of events may write one live topic, and reads the declaration of its events in the ledger."""
    door, tills = "ops.door", "ops.tills"
    async with admin_client(installation.admin) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1) for topic in (door, tills)])
    async with AsyncClient(installation.of(AclRole.OPERATOR)) as operator:
        for topic in (door, tills):
            await operator.register(source(topic, "events", topic=topic, epsilon=1.0, attributes={}))
    kafka = installation.kafka
    await asyncio.to_thread(kafka.add_users, ["door"])
    topics = Topics(LIVE)
    counted = AclEntry(Operation.DESCRIBE, Resource.TOPIC, topics.queries)
    seen = AclEntry(Operation.DESCRIBE, Resource.TOPIC, tills)
    granted = (*AclEntry.read(topics.ledger), counted, *AclEntry.write(door), seen)
    await create_acls(installation.admin, "User:door", granted)
    sender = kafka.user("door", LIVE)
    event = {"who": "ada", "at": 1000}
    async with asyncio.timeout(120):
        while True:
            try:
                async with AsyncClient(sender) as client:
                    await publish_event(client, door, event)
                    break
            except SottoError:
                await asyncio.sleep(0.2)  # the broker may not know the user or its access yet
    assert (await ends(installation.admin, [door], 1))[TopicPartition(door, 0)] == 1
    for settings in (sender, *(installation.of(role) for role in set(AclRole) - {AclRole.FEED})):
        for topic in (door, tills):
            if (settings, topic) != (sender, door):
                async with RawKafkaClient(settings) as raw:
                    assert await raw.write(topic, 0, b"ada", json.dumps(event).encode()) == REFUSED
    async with asyncio.timeout(120), AsyncClient(sender) as client:
        with pytest.raises(Forbidden, match=r"TopicAuthorizationFailedError.*sotto topics acl"):
            await publish_event(client, tills, event)
    async with asyncio.timeout(120), AsyncClient(installation.of(AclRole.OPERATOR)) as operator:
        with pytest.raises(Unknown, match=r"topic 'ops.door' does not exist or is not visible to you"):
            await publish_event(operator, door, event)
    assert set((await ends(installation.admin, [door, tills], 1)).values()) == {0, 1}


async def publish_event(client: AsyncClient, source: str, event: dict[str, Any]) -> None:
    await client.publish(source, [event])
    await client.flush()


async def test_roles_cannot_fence_budget_service_or_join_service_groups(installation: Installation) -> None:
    for role in set(AclRole) - {AclRole.BUDGET}:
        if WRITES[role]:
            with pytest.raises(TransactionalIdAuthorizationFailed):
                await fence(installation.of(role), f"{LIVE}-budget-0")
    for role, group in ((AclRole.ANALYST, f"{LIVE}-workers"), (AclRole.WORKER, f"{LIVE}-budget")):
        topic = topics_of(LIVE)["answers" if role is AclRole.ANALYST else "queries"]
        consumer = AIOKafkaConsumer(topic, **connection_options(installation.of(role)), group_id=group)
        try:
            with pytest.raises(GroupAuthorizationFailedError):
                await join_group(consumer)
        finally:
            await consumer.stop()


async def join_group(consumer: AIOKafkaConsumer) -> None:
    await consumer.start()
    await consumer.getmany(timeout_ms=10_000)


async def test_analyst_may_use_own_groups(matrix: SecuredKafka) -> None:
    analyst = matrix.role(AclRole.ANALYST, MATRIX)
    consumer = AIOKafkaConsumer(
        topics_of(MATRIX)["answers"],
        **connection_options(analyst),
        group_id=f"{MATRIX}-analyst-reports",
        auto_offset_reset="earliest",
    )
    async with consumer:
        await consumer.getmany(timeout_ms=1000)
        await consumer.commit()


async def test_role_cannot_create_topics_or_access_lists(matrix: SecuredKafka) -> None:
    budget = matrix.role(AclRole.BUDGET, MATRIX)
    with pytest.raises(SecurityError, match="access control list"):
        await create_acls(budget, f"User:{MATRIX}-budget", role_access(budget)[AclRole.WORKER])
    async with admin_client(budget) as admin:
        response = await admin.create_topics([NewTopic(f"{MATRIX}.more", 1, 1)])
    assert [code for _, code, *_ in response.topic_errors] == [TopicAuthorizationFailedError.errno]


async def test_service_without_its_role_reports_it_at_start(matrix: SecuredKafka) -> None:
    analyst = matrix.role(AclRole.ANALYST, MATRIX)
    with pytest.raises(TopicsError, match=f"hides.*{MATRIX}.state.*--role worker"):
        await require_topics(analyst, role=AclRole.WORKER)
    with pytest.raises(TopicsError, match="no topic of 'elsewhere'"):
        await require_topics(analyst.model_copy(update={"prefix": "elsewhere"}))


async def test_missing_write_is_reported_with_its_topic(matrix: SecuredKafka) -> None:
    """A service reports it at its start, and a client that may write to no topic names the topic of its questions."""
    admin, topics = matrix.administrator(MATRIX), Topics(MATRIX)
    matrix.add_users(["half"])
    access = role_access(admin)
    writes = AclEntry.write(topics.trail)
    granted = [*access[AclRole.ANALYST], *(one for one in access[AclRole.BUDGET] if one not in writes)]
    await create_acls(admin, "User:half", [one for one in granted if one.operation is not Operation.WRITE])
    half = matrix.user("half", MATRIX)
    seen = AclEntry(Operation.DESCRIBE, Resource.TOPIC, topics.queries)
    await create_acls(admin, "User:half", [seen])
    async with asyncio.timeout(120):
        while True:
            try:
                async with AsyncClient(half) as client:
                    await publish_query(client)
            except Forbidden as error:
                if f"({topics.queries})" in str(error):
                    break
            except SottoError:
                await asyncio.sleep(0.2)  # the broker may not know the user or its access yet
        await create_acls(admin, "User:half", [one for one in granted if one.operation is Operation.WRITE])
        while await unwritable_topics(half, AclRole.BUDGET) != [topics.trail]:
            await asyncio.sleep(0.1)
        with pytest.raises(
            TopicsError, match=f"write: {topics.trail}; grant it the access of 'sotto topics acl --role budget'"
        ):
            await guard_topics(half, AclRole.BUDGET)


@pytest.mark.parametrize("role", [AclRole.WORKER, AclRole.BUDGET, AclRole.FEED, AclRole.MONITOR])
async def test_service_may_read_configuration_of_its_topics(matrix: SecuredKafka, role: AclRole) -> None:
    async with asyncio.timeout(120):
        while (await inspect_topics(matrix.role(role, MATRIX), role=role)).hidden:
            await asyncio.sleep(0.1)  # the broker may not know all access yet
    assert await unwritable_topics(matrix.role(role, MATRIX), role) == []


async def test_service_without_access_to_configuration_starts_unchecked(matrix: SecuredKafka) -> None:
    """Roles of an earlier version lack this right, and so does an analyst, who may read all topics of an alerts service."""
    analyst = matrix.role(AclRole.ANALYST, MATRIX)
    found = await inspect_topics(analyst, role=AclRole.ALERTS)
    assert (found.differences, found.retention_differences) == ([], [])
    assert found.hidden == [f"{MATRIX}.answers", f"{MATRIX}.ledger"]
    await guard_topics(analyst, AclRole.ALERTS)


def test_topics_command_creates_and_checks_topics_and_access_lists(kafka: SecuredKafka) -> None:
    kafka.add_users(["alice"])
    given = variables(kafka.administrator("by-hand"))

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(topics_app, arguments, env=given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert run("create", "--partitions", "2").startswith("created by-hand.queries, ")
    assert run("create") == "all topics exist\n"
    assert run("check") == "all topics have the required configuration\n"
    assert run("acl", "--role", "producer", "--principal", "User:alice", "--apply") == "applied to User:alice\n"
    with pytest.raises(
        CommandError, match=r"--apply: topics are missing: by-hnd\.answers, .*; correct SOTTO_PREFIX, or"
    ):
        CliRunner().invoke(
            topics_app, ["acl", "--apply"], env={**given, "SOTTO_PREFIX": "by-hnd"}, catch_exceptions=False
        )
    alice = kafka.user("alice", "by-hand")
    asyncio.run(in_force(alice, AclRole.PRODUCER))
    assert asyncio.run(writable(alice)) == {"queries"}
    with pytest.raises(SecurityError, match=r": this principal lacks Alter on the cluster$"):
        asyncio.run(create_acls(alice, "User:alice", role_access(alice)[AclRole.PRODUCER]))


async def test_changed_topic_is_reported(matrix: SecuredKafka) -> None:
    admin = matrix.administrator("changed").model_copy(update={"partitions": 1})
    async with admin_client(admin) as client:
        wanted = layout(Topics("changed", 1))
        await client.create_topics([NewTopic(one.name, one.partitions, 1) for one in wanted])
    await require_topics(admin, attempts=20)
    differences = await check_topics(admin)
    found = {(one.topic, one.setting, one.wanted, one.actual) for one in differences}
    assert ("changed.ledger", "cleanup.policy", "compact", "delete") in found
    assert not {one for one in found if one[1] == "min.insync.replicas"}


def test_logs_and_command_lines_have_no_password(installation: Installation) -> None:
    kafka = installation.kafka
    secrets = [*kafka.passwords.values(), WRONG]
    logs = [service.log for service in installation.services]
    logs += [path for path in (kafka.folder / "broker").rglob("*") if path.suffix in {".log", ".properties"}]
    assert len(kafka.passwords) >= len(AclRole)
    assert all(service.log.stat().st_size for service in installation.services)
    texts = {path.name: path.read_bytes().decode(errors="replace") for path in logs}
    texts |= {
        f"command line of {service.role}": Path(f"/proc/{service.pid}/cmdline").read_text()
        for service in installation.services
    }
    assert [name for name, text in texts.items() if any(secret in text for secret in secrets)] == []
