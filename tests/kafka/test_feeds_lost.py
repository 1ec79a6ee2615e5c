"""After the loss of a live topic's changelogs and committed offsets, no window is answered twice, and no sum differs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import DeleteGroupsRequest

from schemas import Answer, format_moment
from stream.kafka.topic_creation import create_topics
from stream.kafka.topic_layouts import feed_group, merging_group
from stream.settings import Settings
from tests.chaos.checker import committed
from tests.chaos.live import live_topic
from tests.chaos.loaded_installation import LoadedInstallation
from tests.chaos.windows import YESTERDAY

pytestmark = pytest.mark.kafka

SECONDS = 120.0
RUNNING = {"visits-so-far", "notes-so-far"}


@pytest.mark.parametrize("lost", ["merging", "counting"])
async def test_windows_are_not_answered_again_after_loss_of_changelog(
    installation: LoadedInstallation, lost: str
) -> None:
    """Otherwise merging would ask all windows again, and counting would publish them again with forgotten totals of people."""
    for role in ("budget", "worker"):
        installation.start(role)
    feed = installation.start("feed")
    topic = await live_topic(installation.settings, installation.client, "marks", begins=YESTERDAY)
    topic.services = [feed]
    try:
        for moment in (YESTERDAY + 1000, YESTERDAY + 6000):
            await topic.send(moment, 3000, 40)
            await topic.mark(moment)
        await topic.settled(YESTERDAY + 6000)
        before = await read_answers(installation)
        feed.stop()
        topics, source = installation.client.topics, topic.source.source
        if lost == "merging":
            await delete_topic_and_offsets(
                installation.settings, topics.merges, merging_group(installation.settings)
            )
        else:
            await delete_topic_and_offsets(
                installation.settings, topics.feed_state(source), feed_group(installation.settings, topics, source)
            )
        feed = installation.start("feed")
        topic.services = [feed]
        await topic.send(YESTERDAY + 9000, 3000, 40)
        await topic.mark(YESTERDAY + 12_000)
        streams = {spec.stream for spec in topic.specs}
        after = await wait_for_streams(
            installation, streams if lost == "merging" else streams - RUNNING, halted=lost == "merging"
        )
    finally:
        await topic.producer.stop()
    assert set(map(comparable, before)) <= set(map(comparable, after))
    answered = [one for one in after if one.outcome not in {"halted", "rejected"}]
    assert max(Counter((one.stream, one.id) for one in answered).values()) == 1
    later = [one for one in answered if comparable(one) not in set(map(comparable, before))]
    if lost == "merging":
        assert not later, "a stream whose windows were asked again went on"
        halted = [one for one in after if one.outcome == "halted"]
        assert {one.stream for one in halted} == streams
        assert all((one.reason or "").startswith("asked again: ") for one in halted)
    else:
        assert {one.stream for one in later} == streams - RUNNING
        letters = [
            letter
            for number in range(topics.partitions)
            for letter in await committed(installation.settings, topics.rejected, number)
        ]
        ended = [
            (one.key or b"").decode()
            for one in letters
            if b"so the stream gets no more questions" in b"".join(v for _, v in one.headers)
        ]
        assert sorted(ended) == sorted(RUNNING)


def comparable(answer: Answer) -> tuple[str, str, str, object]:
    return answer.stream or "", answer.id, answer.outcome, answer.estimate


async def read_answers(installation: LoadedInstallation) -> list[Answer]:
    """Return all answers, by partition and in order."""
    topics = installation.client.topics
    return [
        Answer.model_validate_json(record.value or b"", strict=False)
        for number in range(topics.partitions)
        for record in await committed(installation.settings, topics.answers, number)
    ]


async def wait_for_streams(installation: LoadedInstallation, streams: set[str], *, halted: bool) -> list[Answer]:
    """Wait until these streams are halted, or have answered a new window; return all answers."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        answers = await read_answers(installation)
        since = format_moment(YESTERDAY + 8000)
        if streams <= {
            one.stream
            for one in answers
            if (one.outcome == "halted") is halted
            and (halted or (one.window is not None and one.window.start >= since))
        }:
            return answers
        await asyncio.sleep(0.5)
    raise AssertionError([service.log.read_text()[-2000:] for service in installation._services])


async def delete_topic_and_offsets(settings: Settings, topic: str, group: str) -> None:
    """Delete a topic and a group's offsets, and create the installation's missing topics again."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        for _ in range(int(SECONDS)):
            response = await admin._send_request(DeleteGroupsRequest([group]))
            if [code for _, code in response.results] == [0]:
                break
            await asyncio.sleep(1.0)  # the broker may not have removed its last member yet
        else:
            pytest.fail(f"{group} was not deleted: {response}")
        await admin.delete_topics([topic])
        while topic in await admin.list_topics():
            await asyncio.sleep(0.2)
    finally:
        await admin.close()
    await create_topics(settings)
