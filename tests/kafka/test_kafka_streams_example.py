"""The Kafka Streams example asks about each reading once, even if it is killed; its alarms are the answers ``above``."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.java_programs import java_classpath
from sotto import AsyncClient
from stream.engine.restore import create_reader, read_to_end
from stream.kafka.kafka_files import KAFKA_VERSION
from stream.kafka.kafka_programs import java_launcher
from stream.settings import Settings
from tests.conftest import StartService
from tests.docs.pages import PROJECT

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK: javac is not on PATH"),
]

WARDS = ("ward-1", "ward-2", "ward-3")
SHORT = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Java's options for programs that are too short for the better compiler or garbage collector to pay off."""
EACH = 40
HIGH = (3, 30)
"""The readings of each ward that are far above the threshold: one before the kill, one after it."""


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    jars = java_classpath(f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}")
    classes = tmp_path_factory.mktemp("classes")
    source = PROJECT / "examples" / "kafka_streams" / "Alarms.java"
    compiler = ["javac", *(f"-J{option}" for option in SHORT), "-Xlint:all", "-Werror", "-proc:none"]
    subprocess.run([*compiler, "-cp", jars, "-d", str(classes), str(source)], check=True, timeout=300)
    return f"{classes}:{jars}"


@contextmanager
def run_example(classpath: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    options = ["-Xmx256m", *SHORT, f"-Djava.io.tmpdir={folder}"]
    log = (folder / "streams.log").open("ab")
    process = subprocess.Popen(
        [str(java_launcher()), *options, "-cp", classpath, "Alarms", *arguments],
        stdout=log,
        stderr=log,
        cwd=folder,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        log.close()


async def read_committed(settings: Settings, topic: str, partitions: int) -> list[tuple[str, str]]:
    """Return the committed records of a topic as texts."""
    consumer = create_reader(settings)
    await consumer.start()
    try:
        return [
            ((record.key or b"").decode(), (record.value or b"").decode())
            for number in range(partitions)
            async for records in read_to_end(consumer, TopicPartition(topic, number), 5000)
            for record in records
        ]
    finally:
        await consumer.stop()


async def test_kafka_streams_example_asks_each_reading_once(
    settings: Settings, client: AsyncClient, start: StartService, classpath: str, tmp_path: Path
) -> None:
    start("budget")
    start("worker")
    await client.register(
        {"source": "vitals", "kind": "values", "neighbors": "add-remove", "epsilon": 100.0, "sensitivity": 1.0}
    )
    for ward in WARDS:
        mechanism = {"kind": "above_threshold", "threshold": 1000.0, "cutoff": 10}
        await client.open({"stream": ward, "source": "vitals", "epsilon": 10.0, "mechanism": mechanism})
    readings, alarms = f"{settings.prefix}-readings", f"{settings.prefix}-alarms"
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, 2, 1) for name in (readings, alarms)])
    await admin.close()

    async def publish(numbers: range) -> None:
        async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap) as producer:
            for number in numbers:
                for ward in WARDS:
                    value = b"1e6" if number in HIGH else b"12.5"
                    await producer.send_and_wait(readings, value, ward.encode())

    async def until(topic: str, partitions: int, count: int) -> list[tuple[str, str]]:
        async with asyncio.timeout(240):
            while len(found := await read_committed(settings, topic, partitions)) < count:
                assert application.poll() is None, (tmp_path / "streams.log").read_text()[-3000:]
                await asyncio.sleep(0.5)
        return found

    arguments = [settings.bootstrap, readings, alarms, settings.prefix]
    await publish(range(EACH // 2))
    with run_example(classpath, tmp_path, *arguments) as application:
        await until(alarms, 2, len(WARDS))
        await publish(range(EACH // 2, EACH))
    with run_example(classpath, tmp_path, *arguments) as application:
        await until(client.topics.answers, 4, EACH * len(WARDS))
        found = await until(alarms, 2, 2 * len(WARDS))
    asked = [json.loads(text) for _, text in await read_committed(settings, client.topics.queries, 4)]
    assert Counter(one["stream"] for one in asked) == dict.fromkeys(WARDS, EACH)
    assert len({one["id"] for one in asked}) == len(asked)
    above = {one["id"]: one["stream"] for one in asked if one["value"] == 1e6}
    assert Counter(key for key, _ in found) == dict.fromkeys(WARDS, len(HIGH))
    assert {identifier: key for key, identifier in found} == above
    answers = [json.loads(text) for _, text in await read_committed(settings, client.topics.answers, 4)]
    assert Counter(one["id"] for one in answers if one["outcome"] != "rejected") == Counter(
        one["id"] for one in asked
    )
