"""librdkafka and the JVM client can produce queries and consume their answers, each once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Message, Producer

from benchmarks.java_programs import java_classpath
from schemas import Answer
from schemas.answers import ANSWER_TYPE
from schemas.wire import Codec
from sotto import AsyncClient
from stream.kafka.kafka_files import KAFKA_VERSION
from stream.kafka.kafka_programs import (
    download,
    fetch_jars,
    java_launcher,
    maven_context,
    system_certificates,
)
from stream.processing.topic_names import partition_of
from stream.settings import Settings
from tests.builders import source
from tests.conftest import StartService
from tests.patience import SECONDS
from tests.preloaded import PROGRAM_SECONDS

pytestmark = pytest.mark.kafka

FEED = source(neighbors="add-remove", epsilon=100.0)
STREAMS = [f"ward-{number}" for number in range(12)]
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SEPARATOR = "|"
ABORTED = "never committed"

answers: Codec[Answer] = Codec(Answer, limit=1 << 20)


@pytest.fixture
async def wards(client: AsyncClient, start: StartService) -> AsyncClient:
    """An installation with a dozen open streams in different partitions."""
    start("budget")
    start("worker")
    await client.register(FEED)
    for stream in STREAMS:
        mechanism = {"kind": "above_threshold", "threshold": 1000.0}
        await client.open({"stream": stream, "source": "feed", "mechanism": mechanism, "epsilon": 1.0})
    return client


def questions(count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"q{number}", "stream": STREAMS[number % len(STREAMS)], "value": 1.0} for number in range(count)
    ]


def ask_by_librdkafka(
    settings: Settings, topic: str, asked: Iterable[dict[str, Any]], **configuration: Any
) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap, "enable.idempotence": True, **configuration})
    for question in asked:
        producer.produce(topic, json.dumps(question).encode(), key=question["stream"].encode())
    assert producer.flush(30) == 0


def read_by_librdkafka(settings: Settings, topic: str, count: int) -> list[Message]:
    """Return ``count`` committed records, and any records that follow within two seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: list[Message] = []
    try:
        while message := consumer.poll(SECONDS if len(found) < count else 2):
            assert message.error() is None, message.error()
            found.append(message)
    finally:
        consumer.close()
    return found


def headers_of(message: Message) -> dict[str, str]:
    listed: Any = message.headers() or ()
    return {name: value.decode() for name, value in listed}


def decode_answers(messages: Iterable[Message]) -> list[Answer]:
    return [answers.decode(message.value()) for message in messages]


async def test_librdkafka_queries_with_murmur2_are_answered_once(settings: Settings, wards: AsyncClient) -> None:
    asked = questions(120)
    await asyncio.to_thread(ask_by_librdkafka, settings, wards.topics.queries, asked, partitioner="murmur2_random")
    found = decode_answers(await asyncio.to_thread(read_by_librdkafka, settings, wards.topics.answers, len(asked)))
    assert Counter(answer.id for answer in found) == Counter(question["id"] for question in asked)
    assert {answer.outcome for answer in found} == {"below"}
    for stream in STREAMS:
        assert [answer.index for answer in found if answer.stream == stream] == list(range(10))


async def test_librdkafka_queries_with_crc32_get_answer_or_right_partition(
    settings: Settings, wards: AsyncClient
) -> None:
    """By default, librdkafka partitions by CRC32: queries in a wrong partition are refused with the right one, and none is lost."""
    asked = questions(120)
    await asyncio.to_thread(ask_by_librdkafka, settings, wards.topics.queries, asked)
    found = decode_answers(await asyncio.to_thread(read_by_librdkafka, settings, wards.topics.answers, len(asked)))
    assert Counter(answer.id for answer in found) == Counter(question["id"] for question in asked)
    astray = {answer.stream for answer in found if answer.outcome == "rejected"}
    home = {answer.stream for answer in found if answer.outcome == "below"}
    assert astray | home == set(STREAMS)
    assert not astray & home
    assert astray
    for answer in found:
        if answer.stream in astray:
            assert answer.reason is not None
            assert answer.reason.startswith("wrong-partition: ")
            assert "partitioner=murmur2_random" in answer.reason


async def test_jvm_console_needs_only_keys_and_isolation(settings: Settings, wards: AsyncClient) -> None:
    asked = questions(60)
    lines = [f"{question['stream']}{SEPARATOR}{json.dumps(question)}" for question in asked]
    await asyncio.to_thread(produce_by_jvm, settings, wards.topics.queries, lines)
    home = partition_of(STREAMS[0].encode(), wards.topics.partitions)
    await write_aborted_record(settings, wards.topics.answers, home)
    # The last answer is in the same partition, so a consumer of all answers passes the aborted record.
    asked.append({"id": "last", "stream": STREAMS[0], "value": 1.0})
    await wards.ask(asked[-1])
    lines = await asyncio.to_thread(consume_by_jvm, settings, wards.topics.answers, len(asked))
    found = [json.loads(line) for line in lines]
    assert Counter(one["id"] for one in found) == Counter(question["id"] for question in asked)
    assert {one["outcome"] for one in found} == {"below"}


async def test_jvm_cloud_event_with_trace_is_answered_by_cloud_event(
    settings: Settings, wards: AsyncClient
) -> None:
    headers = f"ce_specversion:1.0,ce_id:7,ce_source:/wards,ce_type:question,traceparent:{PARENT}"
    question = {"id": "traced", "stream": STREAMS[0], "value": 1.0}
    line = SEPARATOR.join([headers, STREAMS[0], json.dumps(question)])
    await asyncio.to_thread(
        produce_by_jvm,
        settings,
        wards.topics.queries,
        [line],
        "parse.headers=true",
        f"headers.delimiter={SEPARATOR}",
    )
    [message] = await asyncio.to_thread(read_by_librdkafka, settings, wards.topics.answers, 1)
    home = partition_of(STREAMS[0].encode(), wards.topics.partitions)
    assert headers_of(message) == {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_id": f"{home}-0",
        "ce_source": f"/{wards.topics.answers}",
        "ce_type": ANSWER_TYPE.decode(),
        "ce_subject": STREAMS[0],
        "traceparent": PARENT,
    }
    assert decode_answers([message])[0].id == "traced"


async def test_python_client_passes_trace_context(settings: Settings, wards: AsyncClient) -> None:
    await wards.ask({"id": "plain", "stream": STREAMS[0], "value": 1.0}, outcomes=True)
    await wards.ask(
        {"id": "traced", "stream": STREAMS[0], "value": 1.0}, headers=[("traceparent", PARENT.encode())]
    )
    plain, traced = await asyncio.to_thread(read_by_librdkafka, settings, wards.topics.answers, 2)
    assert (headers_of(plain), headers_of(traced)) == ({}, {"traceparent": PARENT})


async def write_aborted_record(settings: Settings, topic: str, partition: int) -> None:
    """Write a record in a transaction, and abort it."""
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, transactional_id="somebody")
    async with producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, json.dumps({"id": ABORTED}).encode(), partition=partition)
        await producer.abort_transaction()


def produce_by_jvm(settings: Settings, topic: str, lines: Sequence[str], *properties: str) -> None:
    reader = ["parse.key=true", f"key.separator={SEPARATOR}", *properties]
    options = ["--topic", topic, *(word for one in reader for word in ("--reader-property", one))]
    run_jvm("org.apache.kafka.tools.ConsoleProducer", settings, *options, given="\n".join(lines) + "\n")


def consume_by_jvm(settings: Settings, topic: str, count: int) -> list[str]:
    """Return the first ``count`` committed records."""
    options = [
        "--topic",
        topic,
        "--from-beginning",
        "--isolation-level",
        "read_committed",
        "--max-messages",
        str(count),
    ]
    return run_jvm("org.apache.kafka.tools.consumer.ConsoleConsumer", settings, *options).splitlines()


def run_jvm(tool: str, settings: Settings, *options: str, given: str = "") -> str:
    command = [
        str(java_launcher()),
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dlog4j2.level=OFF",
        "-cp",
        console_classpath(),
        tool,
    ]
    result = subprocess.run(
        [*command, "--bootstrap-server", settings.bootstrap, *options],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@cache
def console_classpath() -> str:
    """Return the class path of Kafka's console programs; the local broker has most of their dependencies."""
    with system_certificates():
        repository = maven_context(fetch_jars().parent / "maven")
        programs = repository.project("org.apache.kafka", "kafka-tools").at_version(KAFKA_VERSION)
        return os.pathsep.join([str(download(programs.artifact())), java_classpath()])
