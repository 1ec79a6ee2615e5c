"""Control events out of order: an opening is repeated after the halt that followed it."""

from __future__ import annotations

import pytest

from stream.processing.protocol import Record
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, installation, source
from tests.processing import process_records
from tests.unit.installation import spec, table_store


@pytest.fixture
def control() -> list[Record]:
    """A stream's opening, its halt, and the repeated opening."""
    driver = installation(spec("ward"))
    driver.halt("feed", "ward")
    opened, halted = driver.records(driver.topics.control)
    return [opened, halted, opened._replace(offset=halted.offset + 1)]


def _worker() -> QueryProcessor:
    return QueryProcessor(installation(sources=[source()]).topics, 0, KEY, table_store())


def _state(worker: QueryProcessor) -> str:
    process_records(worker, [])
    return worker.streams.snapshot_streams()["ward"][0]


def test_halt_counts_in_one_batch_with_a_repeated_opening(control: list[Record]) -> None:
    worker = _worker()
    worker.apply_lookup_records(control)
    assert _state(worker) == "halted"


def test_halt_counts_in_a_batch_before_a_repeated_opening(control: list[Record]) -> None:
    worker = _worker()
    for record in control:
        worker.apply_lookup_records([record])
    assert _state(worker) == "halted"


def test_halt_counts_in_a_restore_with_a_repeated_opening(control: list[Record]) -> None:
    worker = _worker()
    worker.restore(control)
    worker.end_restore()
    assert _state(worker) == "halted"
