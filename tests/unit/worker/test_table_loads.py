"""A worker's tables are loaded beside its steps: a table holds up the questions of its own streams only."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import Answer
from sotto import Driver
from stream.processing.protocol import Outputs
from stream.tables.engine_limits import CancelledStepError
from stream.worker.fair_shares import Limits
from stream.worker.table_loads import TableLoads
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, source, stream
from tests.held_threads import HeldThreads
from tests.processing import process_records
from tests.unit.installation import HIGH, answers_in, query, records, table_store

ROWS: dict[str, list[Any]] = {"age": [20, 30, 40] * 100, "sex": ["F", "M", "F"] * 100}
LIMITS = Limits.from_seconds(5.0, 0.7)
NEW_ROWS: dict[str, list[Any]] = {"age": [20] * 600, "sex": ["F"] * 600}


class LoadingWorker:
    """A worker whose tables are loaded when a test says so, and the installation that it follows."""

    def __init__(self, neighbors: str = "add-remove") -> None:
        self.driver = Driver(KEY, partitions=1)
        self.driver.register(source("feed"))
        self.driver.register(source("people", "table", neighbors=neighbors), ROWS)
        self.driver.open(stream("s"))
        self.driver.open(stream("adults", "people", mechanism={"threshold": 450.0, "cutoff": 3}, epsilon=5.0))
        self.threads = HeldThreads()
        self.tables = table_store()
        self.tables.put("people", ROWS)
        self.loads = TableLoads(self.tables, self.threads)
        self.processor = self.new_processor()
        self._followed = self._asked = 0
        self.apply_lookup_records()

    def new_processor(self) -> QueryProcessor:
        return QueryProcessor(self.driver.topics, 0, KEY, self.tables, LIMITS, self.loads)

    def apply_lookup_records(self) -> Outputs:
        control = self.driver.records(self.driver.topics.control)[self._followed :]
        self._followed += len(control)
        return self.processor.apply_lookup_records(control)

    def ask(self, name: str, **fields: Any) -> Answer:
        value = query(f"q{self._asked}", name, **fields)
        self._asked += 1
        asked = records([value], start=self._asked, topics=self.driver.topics)
        [answer] = answers_in(process_records(self.processor, asked), self.driver.topics)
        return answer


@pytest.fixture
def worker() -> LoadingWorker:
    return LoadingWorker()


def test_worker_answers_other_streams_while_table_loads(worker: LoadingWorker) -> None:
    """A table that is loaded holds up no question to other streams, and it is used once it is there."""
    assert worker.ask("s", value=HIGH).outcome == "above"
    assert [future.done() for future in worker.threads.held] == [False]
    worker.threads.run()
    assert worker.processor.has_finished_readings
    worker.processor.collect_due_outputs(0.0)
    assert not worker.processor.has_finished_readings
    assert worker.ask("adults", where="age >= 0").outcome == "below"


def test_question_waits_for_its_own_table(worker: LoadingWorker) -> None:
    """A question to a stream whose table is loaded is answered after that, and nothing is loaded twice."""
    assert worker.ask("adults", where="age >= 0").outcome == "below"
    assert [future.done() for future in worker.threads.held] == [True]


@pytest.mark.parametrize("end", ["close", "halt"])
def test_question_to_an_ended_stream_waits_for_no_table(worker: LoadingWorker, end: str) -> None:
    """A stream may end while its table is still loaded; its answer is halted at once."""
    getattr(worker.driver, end)("people", "adults", reason="done")
    worker.apply_lookup_records()
    assert worker.ask("adults", where="age >= 0").outcome == "halted"
    assert not any(future.done() for future in worker.threads.held)


def test_work_of_an_ended_streams_question_waits_for_its_public_rows() -> None:
    """A replay with the table in memory computes the same work, and so the same share."""
    worker = LoadingWorker(neighbors="replace")
    worker.driver.halt("people", "adults", reason="done")
    worker.apply_lookup_records()
    assert worker.ask("adults", where="age >= 0").outcome == "halted"
    replayed = QueryProcessor(worker.driver.topics, 0, KEY, worker.tables, LIMITS)
    replayed.apply_lookup_records(worker.driver.records(worker.driver.topics.control))
    asked = records([query("q0", "adults", where="age >= 0")], topics=worker.driver.topics)
    process_records(replayed, asked)
    done = [one.streams.columns.due[one.streams.slots["adults"]] for one in (worker.processor, replayed)]
    assert done[0] == done[1] > 0


def test_restored_worker_loads_tables_beside_its_steps(worker: LoadingWorker) -> None:
    """The restore of a partition does not wait for tables."""
    restored = worker.processor = worker.new_processor()
    restored.restore(worker.driver.records(worker.driver.topics.control))
    restored.end_restore()
    assert not any(future.done() for future in worker.threads.held)
    assert worker.ask("adults", where="age >= 0").outcome == "below"


def test_refreshed_stream_answers_from_old_version_until_loaded(worker: LoadingWorker) -> None:
    """While the new version is loaded, streams answer from the old one; they change together with the table."""
    worker.threads.run()
    assert worker.ask("adults", where="age >= 0").version is None
    worker.driver.refresh("people", NEW_ROWS)
    worker.tables.put("people", NEW_ROWS)
    worker.apply_lookup_records()
    worker.driver.extend("people", "adults", 2.0)
    worker.apply_lookup_records()
    assert (worker.ask("adults", where="age >= 0").version, worker.ask("s", value=HIGH).outcome) == (
        None,
        "above",
    )
    worker.threads.run()
    worker.processor.collect_due_outputs(0.0)
    answer = worker.ask("adults", where="age >= 0")
    assert (answer.version, answer.outcome) == (2, "above")
    slot = worker.processor.streams.slots["adults"]
    assert len(worker.processor.streams.extensions[slot]) == 1


def test_end_of_stream_does_not_wait_for_its_refresh(worker: LoadingWorker) -> None:
    """A halt reaches a stream whose new version is still loaded, and the version is forgotten."""
    worker.threads.run()
    worker.ask("adults", where="age >= 0")
    worker.driver.refresh("people", NEW_ROWS)
    worker.tables.put("people", NEW_ROWS)
    worker.apply_lookup_records()
    worker.driver.halt("people", "adults", reason="wrong table")
    worker.apply_lookup_records()
    assert worker.ask("adults", where="age >= 0").reason == "wrong table"
    worker.threads.run()
    worker.processor.collect_due_outputs(0.0)
    assert worker.ask("adults", where="age >= 0").reason == "wrong table"


def test_wrong_table_refuses_its_streams_when_loaded(worker: LoadingWorker) -> None:
    """A worker with other data refuses the streams of the table, and no others."""
    worker.tables.put("people", NEW_ROWS)
    answer = worker.ask("adults", where="age >= 0")
    assert (answer.outcome, (answer.reason or "")[:31]) == ("halted", "table: source data differs from")
    assert sum(worker.processor.refusals().values()) == 1
    assert worker.ask("s", value=HIGH).outcome == "above"


@pytest.mark.parametrize("all_go", [False, True])
def test_partitions_share_load_until_all_have_gone(worker: LoadingWorker, *, all_go: bool) -> None:
    """A load is cancelled when the last session that waits for it ends, and begun again for the next one."""
    control = worker.driver.records(worker.driver.topics.control)
    other = worker.new_processor()
    other.apply_lookup_records(control)
    [load] = worker.threads.held
    worker.processor.cancel_readings()
    if all_go:
        other.cancel_readings()
    worker.threads.run()
    assert isinstance(load.exception(), CancelledStepError) == all_go
    worker.new_processor().apply_lookup_records(control)
    assert len(worker.threads.held) == all_go
