"""``sotto topics create`` on real Kafka, where some topics exist already."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from schemas import EventsSource
from sotto import AsyncClient
from stream.kafka.acls import AclRole
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_creation import (
    LiveTopicReport,
    check_topics,
    create_live_topic,
    create_topics,
    delete_topics,
    find_live_topic,
    inspect_live_topic,
    inspect_topics,
    require_topics,
)
from stream.kafka.topic_layouts import (
    KAFKA_TOPICS,
    REPLICATION,
    Difference,
    TopicsError,
    describe_topics,
    layout,
    read_configurations,
)
from stream.processing.topic_names import Topics
from stream.settings import Settings
from tests.builders import stream
from tests.commands import run_sotto
from tests.conftest import StartService
from tests.kafka.partitions import add_partitions
from tests.kafka.wards import VITALS
from tests.patience import SECONDS
from tests.unit.departures import FLIGHTS

pytestmark = pytest.mark.kafka


@pytest.fixture
def environment(bootstrap: str) -> dict[str, Any]:
    """An installation with three partitions."""
    environment = {"SOTTO_BOOTSTRAP": bootstrap, "SOTTO_PREFIX": f"test-{uuid.uuid4().hex[:8]}"}
    created = run_sotto("topics", "create", "--partitions", "3", **environment)
    assert (created.returncode, "replication 1" in created.stdout) == (0, True), created.stderr
    return environment


def settings_of(environment: dict[str, Any], **given: Any) -> Settings:
    return Settings(bootstrap=environment["SOTTO_BOOTSTRAP"], prefix=environment["SOTTO_PREFIX"], **given)


def test_create_refuses_other_number_of_partitions(environment: dict[str, Any]) -> None:
    again = run_sotto("topics", "create", "--partitions", "3", **environment)
    assert (again.returncode, again.stdout) == (0, "all topics exist\n"), again.stderr
    refused = run_sotto("topics", "create", "--partitions", "5", **environment)
    assert (refused.returncode, refused.stdout) == (1, "")
    message = f"topic {environment['SOTTO_PREFIX']}.queries has 3 partitions, not 5, and the number is fixed at creation; leave the setting out"
    assert f"error: SOTTO_PARTITIONS (--partitions): {message}" in refused.stderr


def test_create_reports_other_replication_for_every_topic(environment: dict[str, Any]) -> None:
    refused = run_sotto("topics", "create", "--replication", "2", **environment)
    assert (refused.returncode, refused.stdout) == (1, "all topics exist\n")
    for topic in layout(Topics(environment["SOTTO_PREFIX"])):
        assert f"{topic.name} has replication=1, not 2" in refused.stderr
    assert "kafka-reassign-partitions.sh" in refused.stderr


def test_check_reports_topics_with_fewer_replicas(environment: dict[str, Any]) -> None:
    """The wanted number is the setting's or, as for new topics, three or one per broker."""
    fewer = run_sotto("topics", "check", **environment, SOTTO_REPLICATION="2")
    assert (fewer.returncode, fewer.stdout) == (1, "")
    for topic in layout(Topics(environment["SOTTO_PREFIX"])):
        assert f"{topic.name} has replication=1, not 2" in fewer.stderr
    assert "or give the present number as --replication (SOTTO_REPLICATION)" in fewer.stderr
    assert run_sotto("topics", "check", **environment).returncode == 0


async def test_check_reports_kafkas_own_topics_with_fewer_replicas(environment: dict[str, Any]) -> None:
    """Without a broker that has the only replica, services cannot commit."""
    settings = settings_of(environment, replication=2)
    [offsets, _] = KAFKA_TOPICS
    async with admin_client(settings) as admin, asyncio.timeout(SECONDS):
        while not (await describe_topics(admin, [offsets]))[offsets]:
            with suppress(KafkaError):  # the first request creates the topic
                await admin.find_coordinator("first")
            await asyncio.sleep(0.1)
    lacking = Difference(offsets, REPLICATION, "2", "1")
    assert lacking in await check_topics(settings)
    assert lacking in (await inspect_topics(settings, role=AclRole.WORKER)).differences  # a service logs it


async def test_create_gives_missing_topic_the_partitions_of_others(environment: dict[str, Any]) -> None:
    settings = settings_of(environment)
    missing = Topics(settings.prefix).partials
    async with admin_client(settings) as admin:
        await admin.delete_topics([missing])
        async with asyncio.timeout(SECONDS):
            while missing in await admin.list_topics():
                await asyncio.sleep(0.1)
    with pytest.raises(TopicsError, match="SOTTO_PARTITIONS"):
        await create_topics(settings_of(environment, partitions=5))
    created = await create_topics(settings)
    assert (created.names, created.differences) == ([missing], [])
    assert (await require_topics(settings)).partitions == 3


async def test_create_warns_of_old_settings_and_fails_if_records_are_lost(
    environment: dict[str, Any],
) -> None:
    requests, trail = (
        one for one in layout(Topics(environment["SOTTO_PREFIX"], 3)) if one.name.endswith(("requests", "trail"))
    )
    statuses = []
    for topic in (requests, trail):
        shorter = {**topic.configuration_with(1), "retention.ms": "604800000"}
        async with admin_client(settings_of(environment)) as admin:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic.name, shorter)])
        async with asyncio.timeout(SECONDS):
            while topic.name not in {one.topic for one in await check_topics(settings_of(environment))}:
                await asyncio.sleep(0.1)
        completed = await asyncio.to_thread(run_sotto, "topics", "create", **environment)
        statuses.append(completed.returncode)
        assert completed.stdout == "all topics exist\n"
        assert (
            f"{topic.name} has retention.ms=604800000, not {topic.configuration['retention.ms']}"
            in completed.stderr
        )
    assert statuses == [0, 1]


async def test_check_and_create_name_only_topics_that_differ(environment: dict[str, Any]) -> None:
    settings = settings_of(environment)
    merges, ledger = Topics(settings.prefix).merges, Topics(settings.prefix).ledger
    await add_partitions(settings, merges, 4)
    await add_partitions(settings, ledger, 2)
    for command in ("check", "create"):
        completed = await asyncio.to_thread(run_sotto, "topics", command, **environment)
        assert completed.returncode == 1
        assert (
            f"{merges} has partitions=4, not 3; {ledger} has partitions=2, not 1; partitions cannot be"
            in completed.stderr
        )
        assert ".queries" not in completed.stderr
    with pytest.raises(
        TopicsError, match=r"\.merges has partitions=4, not 3.*another prefix, or restore a backup"
    ):
        await require_topics(settings)


async def test_different_partitions_refuse_questions_but_not_halts(
    settings: Settings, client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    given = {"SOTTO_BOOTSTRAP": settings.bootstrap, "SOTTO_PREFIX": settings.prefix}
    start("budget")
    await client.register(VITALS)
    await client.open(stream("ward-7", "vitals", mechanism={"cutoff": 3}))
    topics = client.topics
    await add_partitions(settings, topics.queries, topics.partitions + 2)
    worker = start("worker")
    for asked in (
        ("stream", "halt", "vitals", "ward-7"),
        ("source", "show", "vitals"),
        ("ledger", "trail"),
        ("ledger", "export", str(tmp_path / "backup")),
    ):
        done = await asyncio.to_thread(run_sotto, *asked, **given)
        assert done.returncode == 0, done.stderr
    refusal = (
        f"{topics.queries} has partitions={topics.partitions + 2}, not {topics.partitions}; partitions cannot be"
    )
    ask = await asyncio.to_thread(run_sotto, "ask", "ward-7", "--value", "1", **given)
    assert ask.returncode != 0
    assert refusal in ask.stderr
    async with asyncio.timeout(120):
        while worker.exit_status is None:
            await asyncio.sleep(0.2)
    assert refusal in worker.log.read_text()
    start("budget")  # another service starts, because the topics that it reads and writes are correct
    await client.halt("vitals")


async def test_deleted_installation_can_be_recreated_at_once(environment: dict[str, Any]) -> None:
    settings = settings_of(environment)
    for _ in range(3):
        await delete_topics(settings)
        created = await create_topics(settings)
        assert created.names == [one.name for one in layout(Topics(settings.prefix))]
        assert (await require_topics(settings)).partitions == settings.partitions


def test_live_topic_has_brokers_timestamps_for_its_clock(environment: dict[str, Any]) -> None:
    def source(clock: str) -> EventsSource:
        name = f"{environment['SOTTO_PREFIX']}-{clock}"
        return EventsSource.model_validate({**FLIGHTS, "source": name, "topic": f"{name}.events", "clock": clock})

    async def stamps(topic: str) -> str:
        async with admin_client(settings) as admin:
            return (await read_configurations(admin, [topic]))[topic]["message.timestamp.type"]

    settings = settings_of(environment)
    broker, marks = source("broker"), source("marks")
    missing = asyncio.run(inspect_live_topic(settings, marks))
    assert missing.is_missing
    assert f"'sotto events topic {marks.source}' creates it" in (missing.problem or "")
    for declared, wanted in ((broker, "LogAppendTime"), (marks, "CreateTime")):
        for partitions, new in ((3, True), (5, False)):
            assert asyncio.run(create_live_topic(settings, declared, partitions)) == (3, new)
        assert asyncio.run(stamps(declared.topic)) == wanted
        assert asyncio.run(inspect_live_topic(settings, declared)) == LiveTopicReport()
    unstamped = broker.model_copy(update={"topic": marks.topic})
    with pytest.raises(TopicsError, match=r"message\.timestamp\.type=CreateTime, but windows of source"):
        asyncio.run(create_live_topic(settings, unstamped, 3))
    problem = asyncio.run(inspect_live_topic(settings, unstamped)).problem
    assert "set LogAppendTime with kafka-configs.sh before any event is written" in (problem or "")


async def test_live_topic_must_keep_events(environment: dict[str, Any]) -> None:
    """A compacted topic keeps one event of each person; another may be too short for an outage of the feeds."""
    settings = settings_of(environment)
    source = EventsSource.model_validate(
        {**FLIGHTS, "topic": f"{environment['SOTTO_PREFIX']}-events", "clock": "marks"}
    )
    compacted, brief = (
        {**source.model_dump(), "topic": f"{source.topic}-{kind}"} for kind in ("compacted", "brief")
    )
    async with admin_client(settings) as admin:
        await admin.create_topics(
            [
                NewTopic(compacted["topic"], 1, 1, topic_configs={"cleanup.policy": "compact,delete"}),
                NewTopic(brief["topic"], 1, 1, topic_configs={"retention.ms": "3600000"}),
            ]
        )
    short = EventsSource.model_validate(brief)
    # Kafka may describe a topic as missing for a moment after it was created.
    async with asyncio.timeout(SECONDS):
        for one in (EventsSource.model_validate(compacted), short):
            while (report := await inspect_live_topic(settings, one)).is_missing or report == LiveTopicReport():
                await asyncio.sleep(0.1)
    refused = run_sotto("source", "add", json.dumps(compacted), **environment)
    assert refused.returncode == 1
    problem = (
        f"topic {compacted['topic']} has cleanup.policy=compact,delete, so Kafka deletes all but the latest event"
    )
    assert f"error: topic: {problem}" in refused.stderr
    with pytest.raises(TopicsError, match=problem):
        await create_live_topic(settings, EventsSource.model_validate(compacted), 1)
    warning = f"topic {short.topic} has retention.ms=3600000, and 86400000 or more are needed"
    assert warning in ((await inspect_live_topic(settings, short)).warning or "")
    two_days = 2 * 86_400_000
    assert f"{two_days} or more" in ((await inspect_live_topic(settings, short, two_days)).warning or "")


async def test_create_refuses_names_of_another_installation(environment: dict[str, Any]) -> None:
    """A prefix that could share topics with another installation is refused, whether that installation exists or not."""
    outer = settings_of(environment)
    beside = outer.model_copy(update={"prefix": f"{outer.prefix}.feed"})
    with pytest.raises(
        TopicsError, match=rf"SOTTO_PREFIX: '{beside.prefix}' may share .* installation '{outer.prefix}'"
    ):
        await create_topics(beside)
    alone = outer.model_copy(update={"prefix": f"alone-{outer.prefix}.feed.west"})
    with pytest.raises(
        TopicsError, match=rf"SOTTO_PREFIX: '{alone.prefix}' could share .* choose a prefix that does not contain"
    ):
        await create_topics(alone)
    async with admin_client(outer) as admin:
        assert not [name for name in await admin.list_topics() if name.startswith((beside.prefix, alone.prefix))]


async def test_services_refuse_names_of_another_installation(environment: dict[str, Any]) -> None:
    """If both installations exist already, the inner one's services do not start, and the outer one's feeds do not write to its ledger."""
    outer = settings_of(environment)
    inner = outer.model_copy(update={"prefix": f"{outer.prefix}.feed"})
    topic = f"live-{outer.prefix}"

    def live(source: str, clock: str) -> EventsSource:
        return EventsSource.model_validate({**FLIGHTS, "source": source, "topic": topic, "clock": clock})

    async with admin_client(outer) as admin:
        wanted = [(one.name, one.partitions) for one in layout(Topics(inner.prefix, 3))]
        await admin.create_topics([NewTopic(name, count, 1) for name, count in [*wanted, (topic, 1)]])
    topics = await require_topics(outer, attempts=20, role=AclRole.FEED)
    with pytest.raises(TopicsError, match=rf"SOTTO_PREFIX: '{inner.prefix}' may share"):
        await require_topics(inner, attempts=20, role=AclRole.WORKER)
    assert (await require_topics(inner, attempts=20)).partitions == 3, "it can be read and backed up"
    with pytest.raises(
        TopicsError, match=rf"source 'ledger' would be topic {inner.prefix}.ledger, which belongs to"
    ):
        await find_live_topic(outer, topics, live("ledger", "marks"))
    assert await find_live_topic(outer, topics, live("visits", "marks")) == 1
    with pytest.raises(TopicsError, match=r"exists with message\.timestamp\.type=CreateTime, but windows"):
        await find_live_topic(outer, topics, live("visits", "broker"))
    await delete_topics(outer)
    assert (await require_topics(inner, role=AclRole.WORKER)).partitions == 3, "it is alone, and goes on"
    await delete_topics(inner)
