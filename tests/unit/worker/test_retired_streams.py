"""Workers that drop retired streams answer, charge and restore like workers that keep them."""

from __future__ import annotations

import gc
import json
import tracemalloc
from random import Random
from typing import Any
from weakref import ref

import pytest

from schemas import Amount, RetiredAnswer, RetiredStreams
from sotto import Driver
from stream.budget import budget_processor
from stream.budget.decision_records import build_retired_record
from stream.processing import digest_table
from stream.processing.protocol import RETIRED_PREFIX, Outputs, Record
from stream.worker import hosted_streams
from stream.worker.stream_records import MAX_REASON_BYTES, OTHER_REASON, RetiredStreamTable
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY
from tests.processing import process_records
from tests.unit.installation import messages_to, query, records, spec, table_store
from tests.unit.mechanisms import AGES, KINDS, SEXES, SOURCES, TOWNS, Kind

DAY = 86_400


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retire single streams, free their slots at once, and write files of two digests."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 2)
    monkeypatch.setattr(budget_processor, "LEAST_RETIRED_PER_PARTITION", 0)
    monkeypatch.setattr(hosted_streams, "MIN_RETIRED_SLOTS", 1)


def new_driver(retire_days: float, partitions: int = 2) -> Driver:
    driver = Driver(KEY, partitions=partitions, retire_days=retire_days)
    table = {"age": AGES, "sex": SEXES, "town": TOWNS}
    for name, source in SOURCES.items():
        driver.register(source, table if name == "people" else None)
    return driver


class InstallationPair:
    """An installation that retires streams a day after their end, and one that never does."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.drivers = new_driver(1.0), new_driver(0.0)
        self.kind_of: dict[str, Kind] = {}
        self.open_names: list[str] = []
        self.asked = 0

    def open(self) -> None:
        name, kind = f"stream-{len(self.kind_of)}", self.chance.choice(KINDS)
        self.kind_of[name] = kind
        self.open_names.append(name)
        for driver in self.drivers:
            driver.open(kind.spec(stream=name), acknowledge=True)

    def ask(self) -> None:
        name = self.chance.choice(list(self.kind_of))
        asked = self.chance.sample(self.kind_of[name].questions, k=2)
        self.asked += 1
        questions = [{"id": f"{self.asked}/{n}", "stream": name, **one} for n, one in enumerate(asked)]
        for driver in self.drivers:
            driver.ask_many(questions)

    def end(self) -> None:
        if self.open_names:
            name = self.open_names.pop(self.chance.randrange(len(self.open_names)))
            request = self.chance.choice(("close", "close", "halt"))
            for driver in self.drivers:
                getattr(driver, request)(self.kind_of[name].source, name, reason=f"reason {len(name)}")

    def wait(self) -> None:
        days = self.chance.choice((0.3, 1.5))
        for driver in self.drivers:
            driver.wait(days * DAY)
            driver.register(SOURCES["feed"])

    def crash(self) -> None:
        for driver in self.drivers:
            driver.crash()


@pytest.mark.parametrize("seed", range(4))
def test_worker_that_drops_streams_answers_as_one_that_keeps_them(seed: int) -> None:
    """Answers and charges have equal bytes, for all mechanisms, ends and restarts."""
    pair = InstallationPair(seed)
    for _ in range(6):
        pair.open()
    for _ in range(90):
        pair.chance.choice((pair.open, pair.ask, pair.ask, pair.ask, pair.end, pair.wait, pair.crash))()
    for name, kind in pair.kind_of.items():
        for driver in pair.drivers:
            driver.ask_many([{"id": f"last/{name}", "stream": name, **kind.questions[0]}])
    one, other = pair.drivers
    for topic in (one.topics.answers, one.topics.charges):
        assert [(a.partition, a.value) for a in one.records(topic)] == [
            (a.partition, a.value) for a in other.records(topic)
        ]
    retired = [record for record in one.records(one.topics.control) if record.value is None]
    assert len(retired) > 3
    assert len(one.snapshot_streams()) == len(other.snapshot_streams()) - len(retired)
    assert other.snapshot_streams() | one.snapshot_streams() == other.snapshot_streams()


class Installation:
    """A worker beside a driver's installation of one partition, whose control events and questions it gets."""

    def __init__(self) -> None:
        self.driver = new_driver(1.0, partitions=1)
        self.topics = self.driver.topics
        self.state: list[Record] = []
        self.status: list[tuple[bytes, bytes | None]] = []
        self.worker = QueryProcessor(self.topics, 0, KEY, table_store())
        self.offset = self.followed = 0

    def follow(self) -> None:
        control = self.driver.records(self.topics.control)
        self.keep(self.worker.apply_lookup_records(control[self.followed :]))
        self.followed = len(control)

    def keep(self, outputs: Outputs) -> None:
        for key, value, _ in messages_to(outputs, self.topics.state):
            self.state.append(Record(self.topics.state, 0, len(self.state), 1, key, value))
        self.status += [(key, value) for key, value, _ in messages_to(outputs, self.topics.status)]

    def ask(self, stream: str, **fields: Any) -> dict[str, Any]:
        fields = fields or {"value": 1e9}
        self.driver.ask_many([{"id": f"q{self.offset}", "stream": stream, **fields}])
        batch = records([query(f"q{self.offset}", stream, **fields)], start=self.offset, topics=self.topics)
        self.offset += 1
        outputs = process_records(self.worker, batch)
        self.keep(outputs)
        [(_, value, _)] = messages_to(outputs, self.topics.answers)
        answer: dict[str, Any] = json.loads(value or b"")
        del answer["id"]
        return answer

    def end(self, source: str, *names: str) -> None:
        """Close streams, and let the installation retire them; the worker does not follow yet."""
        for name in names:
            self.driver.close(source, name)
        self.driver.wait(2 * DAY)
        self.driver.register(SOURCES["feed"])

    def restart(self, control: list[Record] | None = None) -> None:
        self.worker = QueryProcessor(self.topics, 0, KEY, table_store())
        self.worker.restore(self.driver.read_compacted((self.topics.control, 0)) if control is None else control)
        self.worker.restore({record.key: record for record in self.state}.values())
        self.worker.end_restore()
        self.followed = len(self.driver.records(self.topics.control))

    def kept_keys(self) -> set[bytes]:
        latest = {record.key or b"": record.value for record in self.state}
        return {key for key, value in latest.items() if value is not None}


def with_streams(*names: str, **more: Any) -> Installation:
    found = Installation()
    for name in names:
        found.driver.open(spec(name, "feed", **more))
    found.follow()
    return found


def test_budget_service_writes_digests_before_deletions() -> None:
    """Both are records of one transaction in the stream's partition, so no reader sees only one of them."""
    found = with_streams("one", "two")
    found.end("feed", "one", "two")
    keys = [record.key for record in found.driver.records(found.topics.control)][-3:]
    assert (keys[0] or b"").startswith(RETIRED_PREFIX)
    assert keys[1:] == [b"one", b"two"]


def test_worker_deletes_state_and_status_of_a_retired_stream() -> None:
    found = with_streams("one", "two")
    found.ask("one")
    found.driver.close("feed", "one")
    found.follow()
    halted = found.ask("one")
    assert found.kept_keys() == {b"@progress", b"one"}
    found.end("feed")
    found.follow()
    assert found.kept_keys() == {b"@progress"}
    assert found.status == [(b"one", None)]
    assert set(found.worker.streams.slots) == {"two"}
    assert found.ask("one") == halted
    found.restart()
    assert found.ask("one") == halted


def test_status_of_a_retired_stream_is_deleted() -> None:
    driver = new_driver(1.0)
    driver.open(spec("one", "feed"))
    driver.ask_many([{"stream": "one", "value": 1e9}])
    for worker in driver._workers:
        driver.write(worker.collect_due_outputs(10.0))
    assert list(driver.statuses(["one"])) == ["one"]
    driver.close("feed", "one")
    driver.wait(2 * DAY)
    driver.register(SOURCES["feed"])
    assert driver.statuses(["one"]) == {}


def test_worker_killed_before_the_deletion_deletes_after_its_restart() -> None:
    """The restore finds the checkpoint of a stream that control has retired."""
    found = with_streams("one", "two")
    found.ask("one")
    found.driver.close("feed", "one")
    found.follow()
    halted = found.ask("one")
    found.end("feed")
    found.restart()  # it never followed the retirement
    found.keep(found.worker.apply_lookup_records([]))
    assert found.kept_keys() == {b"@progress"}
    assert found.ask("one") == halted


def test_updates_of_a_retired_stream_are_deleted() -> None:
    """The updates of a hypothesis are deleted with the checkpoint, even if the worker is killed in between."""
    kind = next(one for one in KINDS if one.name == "sparse_pmw")
    for restarts in (False, True):
        found = Installation()
        found.worker = QueryProcessor(found.topics, 0, KEY, found.driver._tables)
        found.driver.open(kind.spec(stream="cells"), acknowledge=True)
        found.follow()
        for question in kind.questions:
            found.ask("cells", **question)
        found.driver.close("people", "cells")
        found.follow()
        assert any(key.startswith(b"@update|") for key in found.kept_keys())
        found.end("feed")
        if restarts:
            found.restart()
        found.follow()
        assert found.kept_keys() == {b"@progress"}


@pytest.mark.parametrize("restarts", [False, True])
def test_definition_after_its_digest_does_not_open_the_stream(restarts: bool) -> None:
    """Only another client writes one; a restore reads digests and definitions in any order."""
    found = with_streams("one")
    opened = found.driver.records(found.topics.control)[0]
    assert found.ask("one")["outcome"] == "above"
    found.driver.close("feed", "one")
    found.follow()
    halted = found.ask("one")
    found.end("feed")
    found.follow()
    late = opened._replace(offset=1_000)
    if restarts:
        found.restart([*found.driver.read_compacted((found.topics.control, 0)), late])
    else:
        found.keep(found.worker.apply_lookup_records([late]))
    assert found.ask("one") == halted
    assert not found.worker.streams.slots


def test_standby_copy_drops_streams_retired_meanwhile() -> None:
    """The copy reads the definition and the checkpoint, and later the digest and the deletions."""
    found = with_streams("one", "two")
    found.ask("one")
    found.driver.close("feed", "one")
    found.follow()
    halted = found.ask("one")
    copy = QueryProcessor(found.topics, 0, KEY, table_store())
    control, state = found.driver.records(found.topics.control), list(found.state)
    copy.restore(control)
    copy.restore(state)
    found.end("feed")
    found.follow()
    copy.restore(found.driver.records(found.topics.control)[len(control) :])
    copy.restore(found.state[len(state) :])
    copy.end_restore()
    assert set(copy.streams.slots) == {"two"}
    found.worker, found.state = copy, []
    found.keep(copy.apply_lookup_records([]))
    assert found.state == []  # the records are deleted already
    assert found.ask("one") == halted


def test_slots_of_retired_streams_serve_later_ones() -> None:
    """Opening and retiring 300 streams in turn needs only as many slots as streams are open at once."""
    found = with_streams()
    for round_ in range(60):
        names = [f"r{round_}-{number}" for number in range(5)]
        for name in names:
            found.driver.open(spec(name, "feed"))
        found.follow()
        assert [found.ask(name)["index"] for name in names] == [0] * 5
        found.end("feed", *names)
        found.follow()
        assert found.ask(names[0])["outcome"] == "halted"
    assert len(found.worker.streams) <= 20
    assert len(found.worker.streams.retired) == 300


def test_question_to_a_released_slot_is_answered_by_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel still finds the name until slots are freed."""
    monkeypatch.setattr(hosted_streams, "MIN_RETIRED_SLOTS", 100)
    found = with_streams("one", "two")
    found.end("feed", "one")
    found.follow()
    assert found.worker.streams.retired_slots
    assert [found.ask(name)["outcome"] for name in ("one", "two")] == ["halted", "above"]


def test_malformed_questions_to_a_retired_stream_are_rejected() -> None:
    found = with_streams("one")
    found.end("feed", "one")
    found.follow()
    outputs = process_records(found.worker, records([b'{"id":"q","stream":"one","id":"r"}', b"{}"]))
    assert len(messages_to(outputs, found.topics.rejected)) == 2


def retired_record(*names: str, reason: str = "closed") -> RetiredStreams:
    answer = RetiredAnswer(reason=reason, spent=Amount(epsilon=0.1, delta=0.0, rho=0.5), tops_left=3)
    return build_retired_record([(name, answer) for name in names])


def test_retired_stream_takes_at_most_64_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all digests are on disk."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 8192)
    count = 100_000
    tracemalloc.start()
    table = RetiredStreamTable()
    for start in range(0, count, 100):
        names = [f"stream-{number}" for number in range(start, start + 100)]
        table.add_record(retired_record(*names).model_dump_json().encode())
    table.find("stream-7")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(table) == count
    assert peak < 64 * count


def test_reasons_have_a_bound() -> None:
    table = RetiredStreamTable()
    for number in range(MAX_REASON_BYTES // 1000):
        record = retired_record(f"s{number}", reason=f"{number} " + "x" * 1000)
        table.add_record(record.model_dump_json().encode())
    found = [table.find(f"s{number}") for number in (0, MAX_REASON_BYTES // 1000 - 1)]
    assert [one is not None and one.reason[:12] for one in found] == ["0 xxxxxxxxxx", OTHER_REASON[:12]]


@pytest.mark.parametrize("value", [b"{}", b"", b'{"kind":"retired","names":"00","answers":[],"answer_of":[0]}'])
def test_unreadable_digests_are_ignored(value: bytes) -> None:
    """A later release may write other digests; the worker keeps their streams until it is upgraded."""
    found = with_streams("one")
    found.keep(
        found.worker.apply_lookup_records([Record(found.topics.control, 0, 9, 0, RETIRED_PREFIX + b"0", value)])
    )
    assert found.ask("one")["outcome"] == "above"


def test_closed_partition_frees_its_files_without_a_garbage_collection() -> None:
    """Full collections are rare, so reference cycles would keep the files of each session, even on a full disk."""
    driver = new_driver(1.0, partitions=1)
    for number, kind in enumerate(KINDS):
        driver.open(kind.spec(stream=f"stream-{number}"), acknowledge=True)
        driver.ask_many([{"id": f"{number}", "stream": f"stream-{number}", **kind.questions[0]}])
    tables: list[ref[Any]] = [
        ref(driver._workers[0].streams.retired._rows),
        ref(driver._budget.ledger.retired_names._digests),
    ]
    gc.disable()
    try:
        del driver._worker_tasks, driver._budget_task
        assert [table() for table in tables] == [None, None]
    finally:
        gc.enable()
