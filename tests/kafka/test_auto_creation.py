"""By default, Kafka's brokers create any topic that a client asks for; Sotto never causes this."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from stream.client.kafka_connection import KafkaSender
from stream.engine.restore import create_reader
from stream.kafka.client.adapter import KAFKA
from stream.kafka.client.broker_connections import admin_client, connection_options
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import check_topics, require_topics
from stream.kafka.topic_layouts import TopicsError, layout
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import Topics
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from tests.commands import run_sotto
from tests.patience import SECONDS

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def auto_creating_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that creates every topic for which a client asks."""
    broker = LocalBroker(tmp_path_factory.mktemp("obliging"), properties={"auto.create.topics.enable": "true"})
    yield broker.start(timeout=180).bootstrap
    broker.kill()


@pytest.fixture
def settings(auto_creating_broker: str) -> Settings:
    """The settings of an installation without topics."""
    return Settings(bootstrap=auto_creating_broker, prefix=f"test-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    NoiseKey.generate().save(tmp_path / "noise.key")
    return tmp_path / "noise.key"


async def existing_topics(settings: Settings) -> set[str]:
    """Return the existing topics of the installation."""
    async with admin_client(settings) as admin:
        return {name for name in await admin.list_topics() if name.startswith(f"{settings.prefix}.")}


@asynccontextmanager
async def unpatched_client(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield a client of aiokafka without Sotto's changes."""
    client = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def auto_create_topics(settings: Settings) -> None:
    """Let the broker create every topic, because another program's client asks for it."""
    names = {one.name for one in layout(Topics(settings.prefix))}
    async with unpatched_client(settings) as other, asyncio.timeout(SECONDS):
        while not names <= await existing_topics(settings):
            await other.describe_topics(sorted(names))
            await asyncio.sleep(0.1)


async def test_lookup_creates_no_topic(settings: Settings) -> None:
    with pytest.raises(TopicsError, match=r"topics are missing: .*run 'sotto topics create'"):
        await require_topics(settings)
    listed = await asyncio.to_thread(
        run_sotto, "source", "list", SOTTO_BOOTSTRAP=settings.bootstrap, SOTTO_PREFIX=settings.prefix
    )
    assert listed.returncode == 1
    assert "topics are missing" in listed.stderr
    assert await existing_topics(settings) == set()


async def test_waiting_service_creates_no_topic(settings: Settings, key_file: Path, tmp_path: Path) -> None:
    with (
        Service("budget", settings, key_file, tmp_path / "budget.log") as budget,
        Service("worker", settings, key_file, tmp_path / "worker.log") as worker,
    ):
        async with asyncio.timeout(120):
            while budget.exit_status is None or worker.exit_status is None:
                await asyncio.sleep(0.2)
    for service in (budget, worker):
        assert "topics are missing" in service.log.read_text()
    assert await existing_topics(settings) == set()


async def test_topics_commands_report_auto_created_topics_with_remedy(settings: Settings) -> None:
    await auto_create_topics(settings)
    given = {"SOTTO_BOOTSTRAP": settings.bootstrap, "SOTTO_PREFIX": settings.prefix}
    for command in ("create", "check"):
        completed = await asyncio.to_thread(run_sotto, "topics", command, **given)
        assert completed.returncode == 1, completed.stdout
        assert f"{settings.prefix}.ledger has cleanup.policy=delete, not compact" in completed.stderr
        assert f"{settings.prefix}.trail has retention.ms=604800000, not -1" in completed.stderr
        assert "kafka-configs.sh --alter" in completed.stderr


@pytest.mark.parametrize(("role", "topic"), [("budget", "ledger"), ("worker", "state"), ("feed", "merges")])
async def test_service_refuses_topics_that_lose_records(
    settings: Settings, key_file: Path, tmp_path: Path, role: RoleName, topic: str
) -> None:
    await auto_create_topics(settings)
    with Service(role, settings, None if role == "feed" else key_file, tmp_path / "service.log") as service:
        async with asyncio.timeout(120):
            while service.exit_status is None:
                await asyncio.sleep(0.2)
    assert service.exit_status == 1
    log = service.log.read_text()
    assert f"{settings.prefix}.{topic} has cleanup.policy=delete, not compact" in log
    assert "kafka-configs.sh --alter" in log
    assert ("trail has retention.ms=604800000, not -1" in log) == (role == "budget")


async def test_service_starts_once_topics_are_corrected(
    settings: Settings, key_file: Path, tmp_path: Path
) -> None:
    await auto_create_topics(settings)
    async with unpatched_client(settings) as other:
        wanted = {one.name: one.configuration_with(1) for one in layout(Topics(settings.prefix, 1))}
        await other.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name, values) for name, values in wanted.items()]
        )
    async with asyncio.timeout(SECONDS):
        while await check_topics(settings):
            await asyncio.sleep(0.1)
    with Service("budget", settings, key_file, tmp_path / "budget.log") as budget:
        async with asyncio.timeout(120):
            while '"partition ready"' not in budget.log.read_text():
                assert budget.exit_status is None
                await asyncio.sleep(0.2)
    assert '"topic differs"' not in budget.log.read_text()


async def read(settings: Settings, topic: str) -> None:
    async with create_reader(settings) as consumer:
        await consumer.end_offsets([TopicPartition(topic, 0)])


async def send(settings: Settings, topic: str) -> None:
    sender = await KafkaSender.start(settings)
    try:
        await sender.send(topic, b"key", b"value", ())
    finally:
        await sender.end()


async def write(settings: Settings, topic: str) -> None:
    producer = KAFKA.producer(
        **connection_options(settings),
        transactional_id=f"{topic}-0",
        transaction_timeout_ms=5000,
        max_batch_size=1024,
    )
    await producer.start()
    try:
        batch = producer.create_batch()
        batch.append(timestamp=0, key=b"key", value=b"value", headers=[])
        await producer.write({TopicPartition(topic, 0): [batch]})
    finally:
        await producer.stop()


@pytest.mark.parametrize("use", [read, send, write])
async def test_client_of_deleted_topic_does_not_recreate_it(
    settings: Settings, use: Callable[[Settings, str], Awaitable[None]]
) -> None:
    """Otherwise a topic that is deleted while services run would come back with the brokers' default configuration."""
    topic = Topics(settings.prefix).ledger
    with suppress(KafkaError, TimeoutError):
        async with asyncio.timeout(3):
            await use(settings, topic)
    assert await existing_topics(settings) == set()


async def test_other_clients_of_program_create_topics_as_usual(settings: Settings) -> None:
    name = f"{settings.prefix}.others"
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap) as producer, asyncio.timeout(SECONDS):
        await producer.send_and_wait(name, b"value")
    assert await existing_topics(settings) == {name}
