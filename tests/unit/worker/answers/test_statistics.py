"""Quantiles, interquartile ranges, variances and deviations on the streams that answer them."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest

from sotto import Driver, Rejected, Result
from tests.builders import KEY, source, stream

ROWS = 20_000
AGES = [17 + (7 * n + n // 11 * 3) % 60 for n in range(ROWS)]
PAY = [(n * 7919) % 5000 + (n % 97) * 400 for n in range(ROWS)]
SEXES = ["F" if n % 3 else "M" for n in range(ROWS)]
DOSES = [((n * 31) % 60 - 10) / 20 for n in range(ROWS)]
COLUMNS = {"age": AGES, "pay": PAY, "sex": SEXES, "band": PAY, "dose": DOSES}
ATTRIBUTES: dict[str, Any] = {
    "age": {"kind": "integers", "minimum": 17, "maximum": 90},
    "pay": {"kind": "integers", "minimum": 0, "maximum": 99_999},
    "sex": ["F", "M"],
    "dose": {"kind": "decimal", "minimum": -1.0, "maximum": 3.0, "step": 0.05},
    "band": {"kind": "bins", "edges": [0.0, 1000.0, 5000.0, 20_000.0, 50_000.0]},
}
STREAMS: dict[str, dict[str, Any]] = {
    "laplace": {"kind": "laplace", "answers": 40},
    "histogram": {"kind": "histogram", "attributes": ["age", "sex"]},
    "pmw": {"kind": "pmw", "attributes": ["age", "sex", "band"]},
}
WOMEN = [age for age, sex in zip(AGES, SEXES, strict=True) if sex == "F"]
MEN = [age for age, sex in zip(AGES, SEXES, strict=True) if sex == "M"]


def driver(neighbors: str = "add-remove", **changed: Any) -> Driver:
    table = source(
        "people", "table", path="in memory", neighbors=neighbors, epsilon=1000.0, delta=0.01, attributes=ATTRIBUTES
    )
    made = Driver(KEY, partitions=1)
    made.register(table, COLUMNS)
    for name, mechanism in STREAMS.items():
        settings = {"epsilon": 40.0, "expected_queries": 40, "beta": 1e-4, **changed}
        made.open(stream(name, "people", mechanism=mechanism, **settings))
    return made


@pytest.fixture(scope="module")
def added() -> Driver:
    return driver()


@pytest.fixture(scope="module")
def replaced() -> Driver:
    return driver("replace")


def rank_error(values: list[int], found: float, q: float) -> float:
    """Return the number of rows by which the rank of ``found`` differs from the quantile's rank."""
    numbers = np.array(values)
    below, upto, wanted = np.sum(numbers < found), np.sum(numbers <= found), q * len(values)
    return float(max(0.0, below - wanted, wanted - upto))


def contains(result: Result, number: float) -> bool:
    assert result.interval is not None
    return result.interval[0] <= number <= result.interval[1]


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("q", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_quantile_is_within_its_rank_error(added: Driver, kind: str, q: float) -> None:
    answer = added.ask(kind, quantile="age", q=q)
    assert answer.estimate is not None
    assert answer.alpha is not None
    assert rank_error(AGES, answer.estimate, q) <= answer.alpha
    assert contains(answer, answer.estimate)


@pytest.mark.parametrize("kind", STREAMS)
def test_median_is_asked_without_q(added: Driver, kind: str) -> None:
    answer = added.ask(kind, quantile="age")
    assert answer.estimate == statistics.median_low(AGES)
    assert contains(answer, statistics.median_low(AGES))


@pytest.mark.parametrize("kind", STREAMS)
def test_quantiles_of_one_question_are_listed_in_order(added: Driver, kind: str) -> None:
    answer = added.ask(kind, quantile="age", q=[0.9, 0.1], where="sex = 'F'")
    assert answer.estimates is not None
    assert answer.intervals is not None
    assert answer.alpha is not None
    for number, (low, high), q in zip(answer.estimates, answer.intervals, (0.9, 0.1), strict=True):
        assert rank_error(WOMEN, number, q) <= answer.alpha
        assert low <= number <= high


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_statistics_of_groups_are_listed_by_cell(
    kind: str, neighbors: str, added: Driver, replaced: Driver
) -> None:
    made = added if neighbors == "add-remove" else replaced
    medians = made.ask(kind, quantile="age", group_by=["sex"])
    assert medians.groups == ({"sex": "F"}, {"sex": "M"})
    assert medians.estimates is not None
    assert medians.alpha is not None
    for number, ages in zip(medians.estimates, (WOMEN, MEN), strict=True):
        assert rank_error(ages, number, 0.5) <= medians.alpha
    deviations = made.ask(kind, stddev="age", group_by=["sex"])
    assert deviations.estimates == pytest.approx(
        [statistics.pstdev(WOMEN), statistics.pstdev(MEN)], abs=deviations.alpha
    )


@pytest.mark.parametrize("kind", STREAMS)
def test_interquartile_range_and_variance_have_intervals(added: Driver, kind: str) -> None:
    quartiles = np.quantile(AGES, [0.25, 0.75], method="inverted_cdf")
    assert contains(added.ask(kind, iqr="age"), float(quartiles[1] - quartiles[0]))
    variance = added.ask(kind, variance="age")
    assert contains(variance, statistics.pvariance(AGES))
    assert variance.estimate == pytest.approx(statistics.pvariance(AGES), abs=variance.alpha)


def test_wide_attribute_has_a_narrow_interval(added: Driver) -> None:
    answer = added.ask("laplace", quantile="pay", q=0.75)
    true = float(np.quantile(PAY, 0.75, method="inverted_cdf"))
    assert contains(answer, true)
    assert answer.interval is not None
    assert answer.interval[1] - answer.interval[0] < 500.0


def test_quantile_of_bins_is_the_middle_of_a_bin(added: Driver) -> None:
    for kind in ("laplace", "pmw"):
        answer = added.ask(kind, quantile="band")
        assert answer.estimate == (12_500.0 if statistics.median(PAY) < 20_000 else 35_000.0)
        assert answer.interval is not None
        assert answer.interval[0] in ATTRIBUTES["band"]["edges"]


def test_statistics_of_decimals_are_in_their_unit(added: Driver) -> None:
    median, deviation = added.ask("laplace", quantile="dose"), added.ask("laplace", stddev="dose")
    assert contains(median, statistics.median_low(DOSES))
    assert median.estimate in DOSES
    assert deviation.estimate == pytest.approx(statistics.pstdev(DOSES), abs=deviation.alpha)
    assert contains(deviation, statistics.pstdev(DOSES))


def test_predicate_on_the_attribute_narrows_the_domain(added: Driver) -> None:
    answer = added.ask("laplace", variance="age", where="age BETWEEN 20 AND 29")
    young = [age for age in AGES if 20 <= age <= 29]
    assert answer.alpha is not None
    assert answer.alpha < 1.0
    assert answer.estimate == pytest.approx(statistics.pvariance(young), abs=answer.alpha)


def test_each_answer_of_laplace_is_charged_once() -> None:
    made = driver()
    left = [
        made.ask("laplace", **asked).tops_left
        for asked in (
            {"quantile": "age", "q": [0.1, 0.2, 0.3]},
            {"iqr": "pay"},
            {"variance": "pay", "group_by": ["sex"]},
        )
    ]
    assert left == [39, 38, 37]


def test_statistics_of_an_estimate_share_one_comparison() -> None:
    """Quantiles of one attribute use the same cumulative counts, so the second one is already measured."""
    made = driver(epsilon=0.05)
    first, second = made.ask("pmw", quantile="age"), made.ask("pmw", quantile="age", q=0.9)
    assert second.basis in {"measured", "hypothesis"}
    assert second.tops_left == first.tops_left


def test_gaussian_stream_counts_all_values() -> None:
    made = driver()
    mechanism = {"kind": "laplace", "answers": 400, "dimensions": 6}
    made.open(stream("g", "people", mechanism=mechanism, epsilon=40.0, delta=1e-4, beta=1e-4))
    median, variance = made.ask("g", quantile="age"), made.ask("g", variance="age")
    assert median.estimate is not None
    assert median.alpha is not None
    assert rank_error(AGES, median.estimate, 0.5) <= median.alpha
    assert variance.estimate == pytest.approx(statistics.pvariance(AGES), abs=variance.alpha)


@pytest.mark.parametrize(
    ("kind", "asked", "reason"),
    [
        ("laplace", {"quantile": "sex"}, "quantile: attribute 'sex' is not an attribute of ordered values"),
        ("laplace", {"quantile": "Age"}, "did you mean 'age'?"),
        ("laplace", {"variance": "band"}, "declared are 'age', 'pay', 'dose'"),
        ("laplace", {"quantile": "age", "group_by": ["age"]}, "group_by: an attribute is named twice"),
        ("laplace", {"quantile": "age", "alpha": 5.0}, "alpha: "),
        ("laplace", {"quantile": "age", "q": 0.1234567}, "q: a number has more than six decimal digits"),
        ("laplace", {"quantile": "pay", "group_by": ["age", "sex"]}, "more than 1048576 values"),
        ("histogram", {"quantile": "pay"}, "quantile: attribute 'pay' is not an attribute of ordered values"),
        ("histogram", {"quantile": "age", "group_by": ["band"]}, "group_by: attribute 'band' is not an attribute"),
        ("pmw", {"quantile": "pay"}, "quantile: attribute 'pay' is not an attribute of ordered values"),
        ("pmw", {"iqr": "age", "alpha": 3.0}, "alpha: "),
    ],
)
def test_unsupported_statistic_is_refused(added: Driver, kind: str, asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(Rejected, match="malformed") as refused:
        added.ask(kind, **asked)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"q": 0.5}, "q: belongs to quantile"),
        ({"quantile": "age", "q": 1.5}, "q"),
        ({"quantile": "age", "q": [0.5], "group_by": ["sex"]}, "q: with group_by, give one number"),
        ({"quantile": "age", "variance": "age"}, "quantile, variance: give exactly one of them"),
        ({"iqr": "age", "mean": "age"}, "mean, iqr: give exactly one of them"),
    ],
)
def test_contradictory_statistic_is_invalid(added: Driver, asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        added.ask("laplace", **asked)


def test_dry_run_of_a_statistic_shows_its_price(added: Driver) -> None:
    priced = added.ask("laplace", quantile="age", dry_run=True)
    assert priced.is_priced
    assert priced.price == pytest.approx(1.0, rel=1e-6)


def test_quantile_with_too_wide_noise_is_refused_with_the_remedy() -> None:
    made = Driver(KEY, partitions=1)
    rows = {"who": list(range(50)), "age": [17] * 50}
    table = source("people", "table", path="in memory", neighbors="replace", attributes={"age": 300})
    made.register({**table, "person": "who", "contribution": 300}, table=rows)
    made.open(stream("s", "people", mechanism={"kind": "laplace", "answers": 100}), acknowledge=True)
    with pytest.raises(Rejected, match="too wide; open a stream with a larger epsilon or fewer answers"):
        made.ask("s", quantile="age")
