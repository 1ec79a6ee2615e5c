"""README, quick start and the client's examples, run in turn on one real installation."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic

from schemas import EventsSource
from stream.engine.restore import create_reader, read_to_end
from stream.feeds.event_reader import EventReader
from stream.kafka.client.broker_connections import admin_client
from stream.settings import Settings
from tests.conftest import StartService
from tests.docs.pages import DOCS, PAGES, PROJECT, agrees, commands, label, needs_broker, needs_installation, page
from tests.preloaded import PROGRAM_SECONDS

pytestmark = pytest.mark.kafka

WITH_CLIENT = [
    path for path in PAGES if any(needs_installation(one.text) for one in page(path).of_language("python"))
]

PATIENCE = 50
"""Most repetitions of a command whose output changes until the ledger has followed the answers."""


def follow(command: list[str], settings: Settings) -> subprocess.CompletedProcess[str]:
    """Carry out a page's instructions in a separate program, like a reader."""
    programs = Path(sys.executable).parent
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS,
        env={
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "COLUMNS": "200",
            "SOTTO_BOOTSTRAP": settings.bootstrap,
            "SOTTO_PREFIX": settings.prefix,
        },
    )


async def test_documents_run_in_turn_and_print_the_shown_output(
    settings: Settings, start: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start("budget")
    start("worker")
    followed: Counter[str] = Counter()
    first = (PROJECT / "README.md", DOCS / "quick-start.md")
    for path in (*first, *(set(WITH_CLIENT) - set(first))):
        for block in page(path).blocks:
            if block.language == "sh":
                command = ["bash", "-e", "-u", "-o", "pipefail", "-c", block.text]
            elif block.language == "python" and needs_installation(block.text):
                command = [sys.executable, "-c", block.text]
            else:
                continue
            result = await asyncio.to_thread(follow, command, settings)
            if block.output is not None and block.text.startswith("sotto source show"):
                for _ in range(PATIENCE):  # the ledger follows the answers
                    if agrees(result.stdout, block.output):
                        break
                    await asyncio.sleep(0.2)
                    result = await asyncio.to_thread(follow, command, settings)
            refused = result.stdout.startswith("error: ") or " halted: " in result.stdout
            assert (result.returncode != 0) == (refused and block.output is not None), (block.place, result.stdout)
            assert block.output is None or agrees(result.stdout, block.output), (block, result.stdout)
            followed[label(path)] += 1
    assert followed["README.md"] == 2
    assert followed["docs/quick-start.md"] == 8


async def test_producers_of_live_topics_write_events_that_feeds_accept(settings: Settings) -> None:
    """The Python producer of the page sends readable events to their persons' partitions; it fails if there is no topic."""
    text = page(DOCS / "live.md")
    [added, *_] = [shlex.split(one) for block in text.of_language("sh") for one in commands(block.text)]
    source = EventsSource.model_validate_json(added[3])
    topic = f"{settings.prefix}-departures"
    async with admin_client(settings) as admin:
        await admin.create_topics([NewTopic(topic, 4, 1)])
    producers = [block for block in text.of_language("python") if needs_broker(block.text)]
    assert len(producers) == 1
    for block in producers:
        code = block.text.replace(source.topic, topic).replace("127.0.0.1:9092", settings.bootstrap)
        result = await asyncio.to_thread(follow, [sys.executable, "-c", code], settings)
        assert result.returncode == 0, (block.place, result.stdout)
        hasty = code.replace('"partitioner"', '"topic.metadata.propagation.max.ms": 500, "partitioner"')
        result = await asyncio.to_thread(follow, [sys.executable, "-c", hasty.replace(topic, "nowhere")], settings)
        assert (result.returncode, "UNKNOWN_TOPIC_OR_PART" in result.stdout) == (1, True), result.stdout
    origins: list[tuple[int, str]] = []
    async with create_reader(settings) as consumer:
        for partition in range(4):
            async for records in read_to_end(consumer, TopicPartition(topic, partition), 100):
                events = EventReader(source, 4).read([record.value for record in records])
                assert (events.flaws, set(events.homes.tolist())) == ({}, {partition})
                origins += [(partition, json.loads(record.value)["origin"]) for record in records]
    homes = [0, 1, 1, 3]  # CRC32 would put each of these people into another partition
    assert sorted(origins) == [(home, "JFK") for home in homes]
