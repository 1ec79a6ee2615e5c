"""A worker that lacks something that its streams need reports this in one line of its log, not in thousands."""

from __future__ import annotations

from structlog.testing import capture_logs

from stream.engine.session import Refusals
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, OTHER_KEY, installation, source
from tests.unit.installation import spec, worker_of

LACK = f"this worker lacks noise key {KEY.key_id}; give it that key"


def reported_refusals(refusals: Refusals, processor: QueryProcessor) -> list[tuple[str, str, int, int]]:
    with capture_logs() as lines:
        refusals.report(processor)
    assert {(line["event"], line["role"]) for line in lines} <= {("streams not answered", "worker")}
    return [(line["log_level"], line["reason"], line["streams"], line["partition"]) for line in lines]


def test_refusals_log_missing_key_once_per_partition() -> None:
    driver = installation(*(spec(f"stream-{number}", epsilon=0.01) for number in range(50)))
    refusals, lacking = Refusals("worker", 3), worker_of(driver, key=OTHER_KEY)
    assert reported_refusals(refusals, lacking) == [("warning", LACK, 50, 3)]
    assert reported_refusals(refusals, lacking) == []
    assert reported_refusals(Refusals("worker", 3), worker_of(driver)) == []


def test_refusals_log_missing_key_of_later_stream() -> None:
    driver = installation(sources=[source()])
    refusals, lacking = Refusals("worker", 0), worker_of(driver, key=OTHER_KEY)
    assert reported_refusals(refusals, lacking) == []
    driver.open(spec("one"))
    lacking.apply_lookup_records(driver.records(driver.topics.control))
    assert reported_refusals(refusals, lacking) == [("warning", LACK, 1, 0)]
