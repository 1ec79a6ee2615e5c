"""Records of a later version are refused with a reason, and never read in part.

Later versions' records are today's with a field that today's schemas do not have.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
import structlog
from aiokafka import TopicPartition

from schemas import Answer
from stream.budget.budget_processor import BudgetProcessor
from stream.processing.protocol import LaterVersionError, Record
from stream.processing.topic_names import partition_of
from tests.chaos.load import Questions
from tests.processing import process_records
from tests.simulation.schedule import lazily
from tests.simulation.world import World, perform
from tests.upgrade.recordings import Recording, recordings

ONE = next(iter(recordings()))


def later(record: Record) -> Record:
    """Return the record as a later version might write it."""
    return record._replace(value=json.dumps({**json.loads(record.value or b""), "later": 1}).encode())


def records_of_a_later_version(
    recording: Recording, name: str, chosen: Callable[[bytes], bool]
) -> tuple[list[Record], Record]:
    """Return a topic's records; for the chosen keys, the last record is a later version's."""
    records = list(recording.records(name))
    last = max(place for place, one in enumerate(records) if chosen(one.key or b""))
    records[last] = later(records[last])
    return records, records[last]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(lambda key: key == b"@progress", id="progress"),
        pytest.param(lambda key: key.startswith(b"@update|"), id="update"),
        pytest.param(lambda key: not key.startswith(b"@"), id="checkpoint"),
    ],
)
def test_worker_does_not_take_over_from_a_later_version(chosen: Callable[[bytes], bool]) -> None:
    recording = recordings()[ONE]
    records, last = records_of_a_later_version(recording, "state", chosen)
    worker = recording.installation().processor(last.partition)
    worker.restore(one for one in recording.records("control") if one.partition == last.partition)
    worker.restore(one for one in records if one.partition == last.partition)
    with pytest.raises(LaterVersionError) as refused:
        worker.end_restore()
    assert str(refused.value) == (
        f"sim.state, partition {last.partition}: cannot read the record at offset {last.offset}: "
        "a later version of Sotto wrote it, or another program; run that version or a later one"
    )


@pytest.mark.parametrize("prefix", [b"source|", b"grant|", b"receipt|", b"@progress"])
def test_budget_service_does_not_take_over_from_a_later_version(prefix: bytes) -> None:
    recording = recordings()[ONE]
    records, last = records_of_a_later_version(recording, "ledger", lambda key: key.startswith(prefix))
    budget = BudgetProcessor(
        recording.topics, 0, key_id="0" * 16, tables=recording.tables(), new_incarnation=lambda _: bytes(16)
    )
    budget.restore(records)
    with pytest.raises(LaterVersionError, match=rf"^sim\.ledger, partition 0: .* at offset {last.offset}: "):
        budget.end_restore()


def test_services_name_their_refusal_and_write_nothing() -> None:
    recording = recordings()[ONE]

    async def scene(world: World) -> tuple[int, int, set[str]]:
        recording.fill(world.broker)
        for topic in (world.topics.state, world.topics.ledger):
            for entry in world.broker.logs[TopicPartition(topic, 0)].entries[-1:]:
                assert entry.record is not None
                entry.record = later(entry.record)
        before = {place: log.end for place, log in world.broker.logs.items()}
        with structlog.testing.capture_logs() as said:
            world.start("budget")
            world.start("worker")
            questions = Questions(recording.specs(), 3)
            for _ in range(12):
                world.ask(*questions.next())
            await asyncio.sleep(60.0)
        topics = world.topics
        answered = (
            world.broker.logs[TopicPartition(topics.answers, 0)].end - before[TopicPartition(topics.answers, 0)]
        )
        granted = (
            world.broker.logs[TopicPartition(topics.ledger, 0)].end - before[TopicPartition(topics.ledger, 0)]
        )
        reasons = {str(one["detail"]) for one in said if one["event"] == "partition starts over"}
        return answered, granted, reasons

    with lazily():
        answered, granted, reasons = perform(scene)
    assert (answered, granted) == (0, 0)
    assert {reason.partition(",")[0] for reason in reasons} == {"sim.state", "sim.ledger"}
    assert all(reason.endswith("run that version or a later one") for reason in reasons)


def asked_of(recording: Recording, control: list[Record], *followed: Record) -> dict[str, Answer]:
    """Return the answers of a partition's streams after a restore from these control events and later ones."""
    worker = recording.installation().processor(0)
    worker.restore(one for one in control if one.partition == 0)
    worker.restore(one for one in recording.records("state") if one.partition == 0)
    worker.end_restore()
    worker.apply_lookup_records(followed)
    names = [name for name in recording.latest("control") if partition_of(name.encode(), 2) == 0]
    questions = [
        Record(
            "queries",
            0,
            10_000 + place,
            0,
            name.encode(),
            json.dumps({"id": name, "stream": name, "value": 1.0}).encode(),
            (),
        )
        for place, name in enumerate(names)
    ]
    assert not worker.prepare(questions).needs_lookup_topics  # waiting does not make the record readable
    outputs = process_records(worker, questions)
    answers = [
        Answer.model_validate_json(value or b"") for _, value, _ in outputs.messages[recording.topics.answers, 0]
    ]
    return {one.stream: one for one in answers}


def test_stream_with_a_later_control_event_is_not_answered() -> None:
    """This holds whether the worker knows the stream from an earlier event or finds only this event."""
    recording = recordings()[ONE]
    stream = next(
        name
        for name, one in recording.latest("control").items()
        if one["kind"] == "opened" and partition_of(name.encode(), 2) == 0
    )
    records = list(recording.records("control"))
    (opened,) = [one for one in records if one.key == stream.encode()]
    known = asked_of(recording, records, later(opened)._replace(offset=opened.offset + 100))
    alone = asked_of(recording, [one if one is not opened else later(one) for one in records])
    assert (known[stream].outcome, alone[stream].outcome) == ("halted", "rejected")
    for one in (known[stream], alone[stream]):
        assert (one.reason or "").endswith("this worker cannot read the stream's control event; upgrade it")
