"""Live topics with decimals and dates: exact sums in cents, calendar cells in a zone, and refused events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas import Query
from sotto import Driver
from stream.feeds.event_reader import EventReader
from tests.builders import installation, parse_source, source, stream

START = "2026-03-29T00:00:00Z"
SALES: dict[str, Any] = source(
    "sales",
    "events",
    topic="shop.sales",
    contribution=3,
    attributes={
        "shop": ["A", "B"],
        "price": {"kind": "decimal", "minimum": 0, "maximum": 100, "step": 0.01},
        "paid": {
            "kind": "timestamp",
            "granularity": "hour-of-day",
            "zone": "Europe/Berlin",
        },
        "due": {"kind": "date", "minimum": "2026-01-01", "maximum": "2026-12-31", "outside": "reject"},
    },
)
STANDING = {"count": {"sum": "price"}, "by": ["shop"], "window": {"size": "1h"}, "begins": START}


def sale(
    who: str, price: Any, shop: str = "A", paid: Any = "2026-03-29T02:30:00+01:00", due: Any = "2026-04-01"
) -> dict[str, Any]:
    return {"who": who, "at": "2026-03-29T00:30:00Z", "shop": shop, "price": price, "paid": paid, "due": due}


def opened(mechanism: dict[str, Any], **standing: Any) -> Driver:
    spec = {**stream("s", "sales", mechanism=mechanism), "epsilon": 2.0, "expected_queries": 100}
    driver = installation({**spec, "standing": {**STANDING, **standing}}, sources=[SALES], partitions=2)
    driver.advance("sales", "2026-03-29T00:40:00Z")
    return driver


def numbers(driver: Driver) -> list[str]:
    """Return the private numbers of the first window's questions, as they are written."""
    driver.advance("sales", "2026-03-29T01:00:00Z")
    found = [
        json.loads(record.value or b"{}", parse_float=str) for record in driver.records(driver.topics.queries)
    ]
    assert all(Query.model_validate_json(record.value or b"") for record in driver.records(driver.topics.queries))
    return [str(one.get("value", one.get("values"))) for one in found]


def test_live_sums_of_decimals_are_exact_in_cents() -> None:
    """Doubles would add ten times 0.1 to 0.9999999999999999."""
    driver = opened({"kind": "laplace", "answers": 100})
    driver.publish(
        "sales", [sale(f"p{place}", price) for place, price in enumerate([0.1] * 10 + ["19.995", 250, -1])]
    )
    assert numbers(driver) == ["121.00", "0.00"]
    answer: Any = next(iter(driver.answers(from_beginning=True)))
    assert abs(answer.estimate - 121.0) <= answer.alpha
    assert answer.estimate == round(answer.estimate, 2)


def test_live_sums_of_decimals_run_on_all_mechanisms_of_windows() -> None:
    for mechanism, expected in (
        ({"kind": "histogram", "attributes": ["shop"], "answers": 10}, ["['12.30', '0.50']"]),
        ({"kind": "numeric_sparse", "threshold": 5.25, "cutoff": 2}, ["12.30", "0.50"]),
    ):
        driver = opened(mechanism)
        driver.publish("sales", [sale("ann", "12.30"), sale("bob", "0.5", shop="B")])
        assert numbers(driver) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [("paid = 3", "2"), ("paid = 2", "1"), ("due >= '2026-04'", "2"), ("due = '2026-03-31'", "1")],
)
def test_live_conditions_use_dates_in_their_zone(where: str, expected: str) -> None:
    """At 01:00 UTC the clock in Berlin went from 2 to 3."""
    driver = opened({"kind": "laplace", "answers": 100}, count="events", where=where)
    events = [
        sale("ann", 1),
        sale("bob", 1, paid="2026-03-29T03:15:00", due="2026-03-31"),
        sale("cem", 1, paid="2026-03-30 02:15:00"),
    ]
    driver.publish("sales", events)
    assert numbers(driver) == [expected, "0"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"price": "about 3"}, "number"),
        ({"price": "١٢"}, "number"),
        ({"paid": "2026-03-29T02:30:00"}, "date"),
        ({"paid": 1_774_746_000_000}, "date"),
        ({"due": "2026-02-30"}, "date"),
        ({"due": "2027-01-01"}, "date"),
        ({"due": None}, "date"),
        ({"due": "２０２６-04-01"}, "date"),
    ],
)
def test_live_events_that_do_not_fit_are_dead_letters(changed: dict[str, Any], code: str) -> None:
    driver = opened({"kind": "laplace", "answers": 100})
    driver.publish("sales", [{**sale("ann", 1), **changed}])
    assert [letter.code for letter in driver.dead_letters("sales")] == [code]


def test_events_have_equal_codes_with_and_without_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = [1, 0.005, "0.005", "0.00499999999999999999999", 1.005, "99.995", 1e300, -0.0, "12.30", " 7 "]
    events = [json.dumps(sale(f"p{place}", price)).encode() for place, price in enumerate(prices)]
    reader = EventReader(parse_source(SALES), 4)
    quick = reader.read(events)
    monkeypatch.setattr(reader._plain, "_fields", None)
    slow = reader.read(events)
    assert {name: codes.tolist() for name, codes in quick.codes.items()} == {
        name: codes.tolist() for name, codes in slow.codes.items()
    }
    assert quick.codes["price"].tolist() == [100, 1, 1, 0, 101, 10_000, 10_000, 0, 1_230, 700]
