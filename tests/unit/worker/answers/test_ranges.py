"""The range of a feed: its values are clamped to it, and some grids are too fine for it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sotto import Driver, Refused, Unknown
from stream.budget import openings, request_handler
from stream.processing.protocol import Record
from tests.builders import KEY, installation, parse_source, source, stream
from tests.processing import process_records

FINE = source(sensitivity=1e-9, grid=1e-12)
EXACT: dict[str, Any] = {"epsilon": 1000.0}


def driver_of(**changes: Any) -> Driver:
    return installation(sources=[source(**{**EXACT, **changes})])


def alarms(threshold: float = 0.0, name: str = "alarms") -> dict[str, Any]:
    return stream(name, mechanism={"threshold": threshold, "cutoff": 10}, epsilon=100.0)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (FINE, "grid: 1e-12 reaches from -1125.9 to 1125.9 only; declare the source's minimum and maximum"),
        ({**FINE, "minimum": 0.0}, "grid: 1e-12 reaches"),
        ({**FINE, "minimum": 0.0, "maximum": 5000.0}, "maximum: a grid of 1e-12 reaches from -1125.9 to 1125.9"),
        (
            {**FINE, "minimum": -5000.0, "maximum": 1.0},
            "minimum: a grid of 1e-12 reaches from -1125.9 to 1125.9",
        ),
        (source(grid=0.5, maximum=1e15), "maximum: a grid of 0.5 reaches"),
        (source(grid=0.001, minimum=1.2e12), "minimum: a grid of 0.001 reaches"),
        (source(minimum=1e15), "minimum, maximum: no value lies between"),
    ],
)
def test_grid_too_fine_for_the_range_is_refused_at_registration(declared: dict[str, Any], words: str) -> None:
    driver = Driver(KEY, partitions=1)
    with pytest.raises(Refused) as refused:
        driver.register(declared)
    assert words in str(refused.value)
    with pytest.raises(Unknown):
        driver.budget("feed")


@pytest.mark.parametrize(
    "declared",
    [
        {**FINE, "minimum": -1000.0, "maximum": 1000.0},
        source(grid=0.889, maximum=1e15),
        source(grid=8.89e-7, sensitivity=1e-3),
        source(grid=0.1),
        source(minimum=3.0),
    ],
)
def test_grid_that_reaches_the_range_is_accepted(declared: dict[str, Any]) -> None:
    assert Driver(KEY, partitions=1).register(declared).outcome == "registered"


@pytest.mark.parametrize("fine", [5e-12, 4.45e-12])
def test_grid_that_a_refusal_names_is_accepted(fine: float) -> None:
    source = {**FINE, "grid": fine, "minimum": 0.0, "maximum": 5000.0}
    assert Driver(KEY, partitions=1).register(source).outcome == "registered"


def test_range_needs_its_ends_in_order() -> None:
    with pytest.raises(ValidationError, match="maximum must be above minimum"):
        parse_source(source(minimum=2.0, maximum=2.0))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("sensitivity", "1.00000000000000001"),
        ("grid", "0.1000000000000000055"),
        ("maximum", "9.00000000000000001"),
    ],
)
def test_number_with_more_digits_than_a_double_is_refused(field: str, text: str) -> None:
    driver = Driver(KEY, partitions=1)
    service = driver._budget
    value = (
        b'{"kind":"register","request":"1","source":{"kind":"values","source":"feed","neighbors":"replace",'
        b'"epsilon":1,"sensitivity":%s,"grid":%s,"maximum":%s}}'
    ) % tuple((text if name == field else "1.50").encode() for name in ("sensitivity", "grid", "maximum"))
    outputs = process_records(service, [Record(driver.topics.requests, 0, 0, 0, b"feed", value)])
    [receipt] = [
        record for _, _, messages in outputs for key, record, _ in messages if (key or b"").startswith(b"receipt|")
    ]
    assert f"source.{field}: has more digits than a double keeps".encode() in (receipt or b"")
    kept = value.replace(text.encode(), b"1.50")
    process_records(service, [Record(driver.topics.requests, 0, 1, 0, b"feed", kept.replace(b'"1"', b'"2"'))])
    assert "feed" in service.ledger.accounts


@pytest.mark.parametrize("threshold", [10.5, -0.5, 1e15])
def test_threshold_outside_the_range_is_refused_at_opening(threshold: float) -> None:
    driver = driver_of(minimum=0.0, maximum=10.0)
    with pytest.raises(Refused, match=r"mechanism.threshold: .* lies outside the source's range, 0 to 10"):
        driver.open(alarms(threshold))
    assert driver.open(alarms(10.0)).outcome == "opened"


def test_threshold_of_a_query_may_lie_outside_the_range() -> None:
    """It is not clamped."""
    driver = driver_of(minimum=0.0, maximum=10.0)
    driver.open(alarms(5.0))
    asked = [(1e6, 1e15), (1e6, 1e3), (-1e6, -1e15), (-1e6, -1e3)]
    answers = driver.ask_many(
        {"id": str(n), "stream": "alarms", "value": value, "threshold": threshold}
        for n, (value, threshold) in enumerate(asked)
    )
    assert [answer.outcome for answer in answers] == ["below", "below", "above", "above"]


def test_values_are_clamped_to_the_declared_range() -> None:
    driver = driver_of(minimum=-5.0, maximum=40.0)
    mechanism = {"kind": "laplace", "dimensions": 4}
    driver.open(stream("s", mechanism=mechanism, epsilon=1000.0))
    [answer] = driver.ask_many([{"id": "1", "stream": "s", "values": [-5.6, 41.0, 1e300, 7.0]}])
    assert answer.estimates == (-5.0, 40.0, 40.0, 7.0)


def test_source_of_an_earlier_version_stays_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its streams answer."""
    driver = Driver(KEY, partitions=1)
    with monkeypatch.context() as before:
        for module in (request_handler, openings):
            before.setattr(module, "require_grid_covers_range", lambda _: None)
        driver.register({**FINE, **EXACT})
        driver.open(alarms(1000.0))
    driver.crash()
    [answer] = driver.ask_many([{"id": "1", "stream": "alarms", "value": -1000.0}])
    assert answer.outcome == "below"
    assert driver.register({**FINE, **EXACT}).outcome == "registered"
    with pytest.raises(Refused, match="grid: 1e-12 reaches"):
        driver.open(alarms(1000.0, "more"))


def test_feed_without_a_declared_range_is_written_as_before() -> None:
    written = parse_source(source()).model_dump_json()
    assert "minimum" not in written
    assert "maximum" not in written
    assert '"minimum":0.0' in parse_source(source(minimum=0.0)).model_dump_json()
