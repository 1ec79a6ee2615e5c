"""A request that the contract allows is done or refused; it stops neither the budget service nor a worker."""

from __future__ import annotations

import contextlib

import pytest

from schemas import MAX_DEFINITION_BYTES, RegisterSource
from schemas.wire import MalformedEventError
from stream.accounting.ledger import RefusedError
from tests.unit.processors.budget_service import opening, register, request_codec
from tests.unit.processors.installation import TABLE, VALUES, feed_driver, spec

VERY_SURE = {"expected_queries": 10**12, "beta": 1e-300, "epsilon": 700.0}


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(
            register("1", source="feed-1", accountant="zcdp", delta=5e-324),
            id="smallest delta",
        ),
        pytest.param(
            opening("1", "alarms", source="wide", **VERY_SURE),
            id="tiny beta",
        ),
        pytest.param(
            opening("1", "alarms", source="wide", epsilon=50.0, beta=5e-324, calibration="textbook"),
            id="smallest beta",
        ),
    ],
)
def test_no_valid_request_stops_the_service_or_a_worker(request_bytes: bytes) -> None:
    driver = feed_driver()
    driver.register({**VALUES, "source": "wide", "epsilon": 1000.0})
    try:
        request = request_codec.decode(request_bytes)
    except MalformedEventError:
        return  # the contract refuses these parameters: they never reach the service
    with contextlib.suppress(RefusedError):
        driver.request(request)
    assert driver.open(spec("after")).outcome == "opened"


def test_a_source_as_large_as_a_request_may_be_does_not_stop_the_workers() -> None:
    def people(categories: list[str]) -> RegisterSource:
        source = {**TABLE, "attributes": {"sex": categories}}
        return RegisterSource.model_validate({"request": "1", "source": source})

    categories = [f"{number:0256d}" for number in range(2023)]
    largest = people(categories)
    assert MAX_DEFINITION_BYTES - 256 < len(request_codec.encode(largest)) <= MAX_DEFINITION_BYTES
    driver = feed_driver()
    with contextlib.suppress(RefusedError):
        driver.register(largest.source, {"sex": categories[:1]})
        driver.open(spec("people-0", "people"))
    assert driver.open(spec("after")).outcome == "opened"
