"""Standing streams: which ones open, their default fields, and the largest move of a person in their plans."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import AnswersCalibration, OpenStream, Receipt, moment_ms
from sotto import Driver, Invalid, Refused
from stream.questions.question_forms import as_spec
from tests.builders import installation, source, stream
from tests.privacy.service import KEY, definition_of, feed
from tests.unit.feeds.live import flights, standing


@pytest.fixture
def driver() -> Driver:
    return installation(sources=[flights()], key=KEY, partitions=2)


NUMBERS = {"kind": "laplace", "answers": 30_000}
ALL_GROUPS = {"kind": "histogram", "attributes": ["origin"], "answers": 9}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "where": (standing(where="color = 1"), "standing.where: "),
    "by": (standing(by=["origin", "color"]), "standing.by: name 2 is no attribute"),
    "by twice": (standing(by=["origin", "origin"]), "standing.by: the list contains an attribute twice"),
    "sum": (standing(count={"sum": "origin"}), "standing.count.sum: "),
    "unknown sum": (standing(count={"sum": "color"}), "standing.count.sum: "),
    "groups": (standing(by=["origin", "gate"]), "standing.by: its 12,000 groups exceed 10,000"),
    "histogram's groups": (
        standing(mechanism={"kind": "histogram", "attributes": ["gate"]}, by=[]),
        "standing.by: its 4,000 groups exceed the limit of a histogram, 256",
    ),
    "histogram's attributes": (
        standing(mechanism={"kind": "histogram", "attributes": ["speed"]}),
        "mechanism.attributes: must have the attributes of standing.by",
    ),
    "lateness": (standing(lateness="32d"), "standing.lateness: "),
    "window": (standing(window={"size": "367d"}), "standing.window.size: "),
    "monotone": (standing(count={"sum": "delay"}), "mechanism.monotone: sums of 'delay' can fall"),
    "threshold below": (
        standing(mechanism={"kind": "above_threshold", "threshold": -1, "cutoff": 1}),
        "mechanism.threshold: -1 lies outside",
    ),
    "sums": (
        standing(mechanism={"kind": "above_threshold", "threshold": 1, "sums": ["wait"]}),
        "mechanism.sums: ",
    ),
    "people": (
        standing(mechanism={"kind": "above_threshold", "threshold": 1, "people": True}),
        "mechanism.people: ",
    ),
    "dimensions": (standing(mechanism={"kind": "laplace", "dimensions": 3}), "mechanism.dimensions: "),
    "answers": (standing(mechanism={"kind": "laplace", "answers": 2}), "mechanism.answers: 2 would not last"),
    "queries": (standing(expected_queries=2), "expected_queries: each window asks 3 questions"),
    "q's digits": (standing(mechanism=NUMBERS, quantile="delay", q=0.1234567), "standing.q: a number has more"),
    "quantile of categories": (
        standing(mechanism=NUMBERS, quantile="origin"),
        "standing.quantile: must name an ordered attribute (numbers, bins, dates or ordered categories); the source declares delay, gate, speed, wait",
    ),
    "quantile of nothing": (
        standing(mechanism=NUMBERS, quantile="color"),
        "standing.quantile: must name an ordered attribute",
    ),
    "quantile of its group": (
        standing(mechanism=NUMBERS, quantile="speed", by=["speed"]),
        "standing.by: must not name the",
    ),
    "quantile's mechanism": (standing(quantile="delay"), "mechanism.kind: above_threshold answers no quantiles"),
    "quantile's counts": (
        standing(mechanism=NUMBERS, quantile="gate"),
        "standing.quantile: 'gate' has 4,000 values in 3 groups, so a window would have 12,000 counts, and at most 10,000 are allowed",
    ),
    "quantile's values": (
        standing(mechanism=NUMBERS, quantile="gate", by=[]),
        "standing.quantile: a question would carry 4,000 counts (one per value of 'gate' allowed by where), and at most",
    ),
    "quantile's groups": (
        standing(mechanism=ALL_GROUPS, quantile="delay", where="delay >= 0 AND gate < 9"),
        "standing.quantile: a question would carry 4,503 counts (one per value of 'delay' allowed by where, in each group), and",
    ),
    "quantiles in groups": (
        standing(mechanism=ALL_GROUPS, quantile="speed", q=[0.1, 0.5]),
        "standing.q: must be one number, because an answer of a histogram",
    ),
    "quantile's answers": (
        standing(mechanism={"kind": "laplace", "answers": 2}, quantile="speed"),
        "mechanism.answers: 2 would not last",
    ),
    "quantile's epsilon": (
        standing(mechanism={"kind": "laplace", "answers": 1000_000}, quantile="delay", epsilon=1),
        "one answer would draw from",
    ),
    "top": (
        standing(mechanism=NUMBERS, top=2),
        "standing.top: a question to laplace is about one group; use histogram",
    ),
    "kind": (standing(mechanism={"kind": "noisy_max"}), "mechanism.kind: noisy_max does not run"),
    "nothing standing": (
        {name: part for name, part in standing().items() if name != "standing"},
        "standing: source 'flights' is a live topic",
    ),
    "elsewhere": (
        standing() | {"source": "feed"},
        "standing: only a source of kind 'events' has standing streams",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictory_standing_fields_are_refused_by_field(driver: Driver, case: str) -> None:
    driver.register(feed())
    spec, message = REFUSED[case]
    with pytest.raises(Refused) as refused:
        driver.open(spec, acknowledge=True)
    assert str(refused.value).startswith(message)
    assert driver.list_streams() == []


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"count": "people", "quantile": "delay"}, "standing: count, quantile: give exactly one of them"),
    ({"q": 0.5}, "standing: q: belongs to quantile"),
    ({"quantile": "delay", "top": 2}, "standing: top: selects the largest counts or sums"),
    ({"quantile": "delay", "q": 1.5}, "standing.q: give a number from 0 to 1"),
]


@pytest.mark.parametrize(("changed", "message"), INVALID)
def test_quantile_fields_that_contradict_each_other_are_refused(
    driver: Driver, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(Invalid) as refused:
        driver.open(standing(mechanism=NUMBERS, **changed))
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("topic", ["sotto.queries", "sotto.control", "sotto.ledger", "sotto.feed.flights"])
def test_source_on_a_topic_of_sotto_is_refused(driver: Driver, topic: str) -> None:
    events = {**flights(), "source": "own", "topic": topic}
    with pytest.raises(
        Refused, match=rf"topic: '{topic}' belongs to Sotto itself, .* give the topic of the events"
    ):
        driver.register(events)
    driver.register({**events, "topic": f"{topic[6:]}"})


LONG = {"\N{GRINNING FACE}" * 126 + f"{number}": ["\x01" * 256] for number in range(8)}


@pytest.mark.parametrize(
    ("mechanism", "most"),
    [({"kind": "laplace", "answers": 100_000}, 7), ({"kind": "running_count", "steps": 24}, 2)],
)
def test_size_of_a_window_question_is_limited_at_opening(mechanism: dict[str, Any], most: int) -> None:
    """The limit holds for any counts, so no question is refused because of its counts."""
    driver = Driver(KEY)
    driver.register(flights(attributes=LONG, clock="marks", total=9))
    spec = standing(
        mechanism=mechanism,
        expected_queries=100_000,
        begins="1970-01-01T00:00:00Z",
        where=None,
        window={"size": "1h"},
    )
    spec["standing"]["by"] = list(LONG)[: most + 1]
    with pytest.raises(Refused, match=r"standing\.by: the question .* may have .* bytes"):
        driver.open(spec, acknowledge=True)
    spec["standing"]["by"] = list(LONG)[:most]
    driver.open(spec, acknowledge=True)
    driver.advance("flights", "1970-01-01T02:00:00Z")
    asked = [one.value or b"" for one in driver.records(driver.topics.queries)]
    assert max(map(len, asked)) + 40 * (256 if mechanism["kind"] == "running_count" else 1) <= 16_384


def test_histogram_of_a_table_is_released_once() -> None:
    driver = Driver(KEY)
    driver.register(source("t", "table", path="-", epsilon=9, attributes={"x": 2}), {"x": [0, 1]})
    histogram = {"kind": "histogram", "attributes": ["x"], "answers": 2}
    with pytest.raises(Refused, match=r"mechanism\.answers: a table's histogram is released once"):
        driver.open(stream("h", "t", mechanism=histogram), acknowledge=True)


def test_monotone_is_refused_if_people_are_replaced() -> None:
    driver = Driver(KEY)
    driver.register(flights(neighbors="replace"))
    with pytest.raises(Refused, match=r"mechanism\.monotone: counts are not monotone"):
        driver.open(standing(), acknowledge=True)


def test_stream_without_a_begin_starts_when_feeds_count_it(driver: Driver) -> None:
    """Feeds count from ``idle``, here 5 s, after the control event, for which another ``idle`` is left."""
    request = OpenStream(request="one", stream=as_spec(standing()))
    [receipt] = driver.requests([request])
    ledger = driver._budget.ledger
    definition = definition_of(driver, "late")
    assert definition.spec.standing is not None
    assert receipt.begins == definition.spec.standing.begins == "1970-01-01T00:00:10Z"
    assert driver.grant("flights", "late").spec == definition.spec
    ledger.advance_clock(1_767_225_600_123)
    [again] = driver.requests([request])
    assert again == receipt
    later = driver.open(standing("later"), acknowledge=True)
    assert later.begins == "2026-01-01T00:00:10.123Z"
    given = driver.open(standing("given", begins="2026-02-01T00:00:00+01:00"), acknowledge=True)
    assert given.begins == "2026-01-31T23:00:00Z"


def at_the_turn_of_2026(driver: Driver, **source: Any) -> None:
    """Register another live topic, and set the ledger's clock to this time."""
    driver.register(flights(source="visits", topic="visits", **source))
    driver._budget.ledger.advance_clock(moment_ms("2026-01-01T00:00:00Z"))


def visits(name: str, begins: str, **changed: Any) -> dict[str, Any]:
    return standing(name, begins=begins, **changed) | {"source": "visits"}


@pytest.mark.parametrize(
    ("size", "earliest", "before"),
    [
        ("1h", "2025-12-31T00:00:00Z", "2025-12-30T23:59:59.999Z"),
        ("7d", "2025-12-24T23:50:00Z", "2025-12-24T23:49:59Z"),
    ],
)
def test_broker_clock_limits_how_long_ago_a_stream_begins(
    driver: Driver, size: str, earliest: str, before: str
) -> None:
    """The limit is a day, or one window and its lateness if this is longer."""
    at_the_turn_of_2026(driver)
    assert driver.open(visits("now", earliest, window={"size": size}), acknowledge=True).begins == earliest
    for begins in (before, "1970-01-01T00:00:00Z"):
        message = rf"standing\.begins: {begins} is too .* clock, 2026-01-01T00:00:00Z: .* give {earliest} or later"
        with pytest.raises(Refused, match=message):
            driver.open(visits("past", begins, window={"size": size}), acknowledge=True)


@pytest.mark.parametrize(
    ("source", "standing_", "found"),
    [
        (
            {},
            {"begins": "1970-01-01T00:00:00Z", "window": {"size": "10s"}},
            "176,722,560 windows .* at most 100,000,000",
        ),
        ({}, {"begins": "1970-01-01T00:00:00Z", "by": ["gate"]}, "1,963,584 windows .* at most 25,000"),
        (
            {"clock": "broker"},
            {"begins": "2025-12-31T00:00:00Z", "by": ["gate"], "window": {"size": "100ms"}},
            "864,000 windows .* at most 25,000",
        ),
        (
            {"unit": "person-period", "period": "1h"},
            {"begins": "1990-01-01T00:00:00Z", "window": {"size": "1h"}},
            "315,576 periods .* at most 100,000",
        ),
    ],
)
def test_replay_may_begin_long_ago_with_bounded_work(
    driver: Driver, source: dict[str, Any], standing_: dict[str, Any], found: str
) -> None:
    at_the_turn_of_2026(driver, **{"clock": "marks", **source})
    with pytest.raises(Refused, match=rf"standing\.begins: {standing_['begins']} lies {found}"):
        driver.open(visits("back", **{"by": [], **standing_}), acknowledge=True)


def test_year_of_the_past_may_be_replayed_in_hours_or_seconds(driver: Driver) -> None:
    at_the_turn_of_2026(driver, clock="marks")
    for name, size in (("hours", "1h"), ("seconds", "1s")):
        begins = "2025-01-01T00:00:00Z"
        assert driver.open(visits(name, begins, window={"size": size}), acknowledge=True).begins == begins


@pytest.mark.parametrize(
    ("mechanism", "windows"),
    [
        ({"kind": "above_threshold", "threshold": 25, "cutoff": 3}, 10_000),
        ({"kind": "laplace", "answers": 99}, 33),
        ({"kind": "histogram", "attributes": ["origin"], "answers": 99}, 99),
    ],
)
def test_receipt_names_the_windows_for_which_alpha_holds(
    driver: Driver, mechanism: dict[str, Any], windows: int
) -> None:
    receipt = driver.open(standing(mechanism=mechanism), acknowledge=True)
    assert isinstance(receipt, Receipt)
    assert receipt.windows == windows


@pytest.mark.parametrize(("expected", "windows"), [(3 * 1_000, 93), (3 * 10, 10)])
def test_receipt_of_periods_names_the_windows_of_each(expected: int, windows: int) -> None:
    driver = Driver(KEY)
    driver.register(flights(unit="person-period", period="1d"))
    hopping = {"size": "1h", "every": "15m"}
    assert driver.open(standing(window=hopping, expected_queries=expected), acknowledge=True).windows == windows


def test_histogram_takes_its_attributes_from_the_window_groups(driver: Driver) -> None:
    driver.open(
        standing(mechanism={"kind": "histogram", "attributes": ["speed", "origin"]}, by=[]), acknowledge=True
    )
    query = definition_of(driver, "late").spec.standing
    assert query is not None
    assert query.by == ("speed", "origin")


def sensitivity(source: dict[str, Any], mechanism: dict[str, Any], **changed: Any) -> int:
    driver = Driver(KEY)
    driver.register(flights(**source))
    driver.open(standing(mechanism=mechanism, **changed), acknowledge=True)
    return definition_of(driver, "late").calibration.sensitivity_steps


REPLACE = {"neighbors": "replace"}
ONE: dict[str, Any] = {"kind": "above_threshold", "threshold": 25, "cutoff": 3}
ALL: dict[str, Any] = {"kind": "histogram", "attributes": ["origin"]}


@pytest.mark.parametrize(
    ("source", "mechanism", "count", "steps"),
    [
        ({}, ONE, "events", 2),
        (REPLACE, ONE, "events", 2),
        ({}, ONE, "people", 1),
        (REPLACE, ONE, "people", 1),
        ({}, ONE, {"sum": "delay"}, 3000),
        (REPLACE, ONE, {"sum": "delay"}, 3120),
        (REPLACE, ONE, {"sum": "wait"}, 3000),
        ({}, ALL, "events", 2),
        (REPLACE, ALL, "events", 4),
        ({}, ALL, "people", 1),
        (REPLACE, ALL, "people", 2),
        ({"contribution": 9}, ALL, "people", 1),
        ({}, ALL, {"sum": "delay"}, 3000),
        (REPLACE, ALL, {"sum": "delay"}, 6000),
    ],
)
def test_plan_sensitivity_is_the_move_of_one_persons_events(
    source: dict[str, Any], mechanism: dict[str, Any], count: Any, steps: int
) -> None:
    assert sensitivity(source, mechanism, count=count) == steps


def test_gaussian_noise_of_a_window_fits_the_euclidean_norm() -> None:
    """With δ > 0 and so many windows, Gaussian noise is narrower; all events of a person may be in one group."""
    deviations = {}
    for count in ("events", "people"):
        driver = Driver(KEY)
        driver.register(flights(contribution=8))
        mechanism = {"kind": "histogram", "attributes": ["origin", "speed"], "answers": 1000}
        driver.open(standing(mechanism=mechanism, by=[], count=count, delta=1e-6), acknowledge=True)
        calibration = definition_of(driver, "late").calibration
        assert isinstance(calibration, AnswersCalibration)
        assert calibration.method == "gaussian"
        assert calibration.moved == (6 if count == "events" else 1)
        deviations[count] = calibration.alpha
    # A person moves one group by 8, or by 1.
    assert deviations["events"] / deviations["people"] == pytest.approx(8, rel=0.02)
