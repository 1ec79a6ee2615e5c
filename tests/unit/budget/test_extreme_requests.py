"""A request that the contract allows is granted or refused, and stops neither the budget service nor a worker."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from schemas import MAX_DEFINITION_BYTES, RegisterSource
from schemas.wire import MalformedEventError
from sotto import Refused
from tests.builders import installation, source
from tests.unit.budget.budget_service import opening, register, request_codec
from tests.unit.installation import spec

SUREST: dict[str, Any] = {"source": "wide", "beta": 1e-15, "expected_queries": 10**12}
LEAST_SURE: dict[str, Any] = {"source": "wide", "beta": 1.0 - 1e-9, "expected_queries": 1}
CUTOFF = {"kind": "above_threshold", "threshold": 1e15, "cutoff": 1_000_000}


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(register("1", source="feed-1", accountant="zcdp", delta=5e-324), id="smallest delta"),
        pytest.param(
            register("1", source="feed-1", sensitivity=1e12, grid=1e-12, minimum=0.0, maximum=1e3),
            id="more steps than fit",
        ),
        pytest.param(register("1", source="feed-1", grid=1e-12), id="grid that reaches no value"),
        pytest.param(opening("1", "alarms", **SUREST), id="surest"),
        pytest.param(opening("1", "alarms", **SUREST, epsilon=700.0), id="surest, large epsilon"),
        pytest.param(opening("1", "alarms", **SUREST, epsilon=1e-6), id="surest, least epsilon"),
        pytest.param(
            opening("1", "alarms", **SUREST, mechanism=CUTOFF, delta=5e-324), id="surest, largest cutoff"
        ),
        pytest.param(opening("1", "alarms", **SUREST, calibration="textbook"), id="surest, textbook"),
        pytest.param(opening("1", "alarms", **LEAST_SURE, mechanism=CUTOFF), id="least sure, largest cutoff"),
        pytest.param(opening("1", "alarms", **LEAST_SURE, calibration="textbook"), id="least sure, textbook"),
    ],
)
def test_valid_request_never_stops_the_service_or_a_worker(request_bytes: bytes) -> None:
    driver = installation(sources=[source()])
    driver.register(source("wide", epsilon=1000.0))
    request = request_codec.decode(request_bytes)
    with contextlib.suppress(Refused):
        driver.request(request)
    assert driver.open(spec("after")).outcome == "opened"


@pytest.mark.parametrize("beta", [0.0, 5e-324, 1e-300, 1.0 - 2.0**-53, 1.0])
def test_contract_refuses_a_beta_too_near_to_0_or_1_for_doubles(beta: float) -> None:
    with pytest.raises(MalformedEventError, match=r"stream\.beta: is too"):
        request_codec.decode(opening("1", "alarms", beta=beta))


def test_source_of_the_largest_request_does_not_stop_workers() -> None:
    def people(categories: list[str]) -> RegisterSource:
        table = source("people", "table", attributes={"sex": categories})
        return RegisterSource.model_validate({"request": "1", "source": table})

    categories = [f"{number:0256d}" for number in range(2023)]
    largest = people(categories)
    assert MAX_DEFINITION_BYTES - 256 < len(request_codec.encode(largest)) <= MAX_DEFINITION_BYTES
    driver = installation(sources=[source()])
    with contextlib.suppress(Refused):
        driver.register(largest.source, {"sex": categories[:1]})
        driver.open(spec("people-0", "people"))
    assert driver.open(spec("after")).outcome == "opened"
