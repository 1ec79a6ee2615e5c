"""Answers carry the confidence interval of each number whose noise has a known law."""

from __future__ import annotations

from typing import Any

import pytest

from sotto import Driver
from stream.questions import Result
from tests.builders import installation, source, stream
from tests.unit.mechanisms import AGES, KINDS, SEXES, SOURCES, TOWNS, Kind, ask, driver_with

WITHOUT = {"above_threshold", "noisy_max", "exponential", "randomized_response", "sparse_project"}
"""Mechanisms that publish no numbers, or numbers whose error has no known law."""


def driver_of(spec: dict[str, Any]) -> Driver:
    rows = {"people": {"age": AGES, "sex": SEXES, "town": TOWNS}}
    return installation(spec, sources=[SOURCES[spec["source"]]], rows=rows)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_measured_number_has_an_interval(kind: Kind) -> None:
    mechanism, seen = kind.mechanism, 0
    for question, result in zip(kind.questions, ask(driver_with(kind), kind.questions), strict=True):
        if result.basis == "hypothesis" and question.keys() & {"quantile", "stddev"}:
            continue  # error bounds of the estimate's counts give their intervals
        number, numbers = result.interval is not None, result.intervals is not None
        assert number <= (result.estimate is not None)
        assert numbers <= (result.estimates is not None)
        chosen = result.top_groups is not None
        if mechanism["kind"] in WITHOUT or chosen or result.basis in {"gap", "hypothesis"}:
            assert not number
            assert not numbers
            continue
        if result.estimate is None and result.estimates is None:
            continue
        seen += 1
        pairs = [result.interval] if number else [*(result.intervals or ())]
        assert len(pairs) == (1 if number else len(result.estimates or ()))
        assert all(pair is not None and pair[0] <= pair[1] for pair in pairs)
        if result.alpha is not None and number and result.estimate is not None:
            # A bound that holds for one number is smaller than one that holds for all numbers together.
            assert result.interval is not None
            assert result.interval[1] - result.interval[0] <= 2.0 * result.alpha + 2.0
    unmeasured = mechanism["kind"] in WITHOUT or mechanism.get("numbers") == "gap"
    assert seen or unmeasured or mechanism.get("counts") is False


def test_intervals_are_part_of_rows_text_and_json() -> None:
    driver = driver_of(stream("s", "people", "laplace", mechanism={"answers": 9}))
    count = driver.ask("s", where="age < 30")
    groups = driver.ask("s", group_by=["sex"])
    assert count.interval is not None
    assert groups.intervals is not None
    low, high = count.interval
    assert f"(95 %: {low:.0f} to {high:.0f})" in str(count)
    assert count.rows()[0]["interval_low"] == low
    assert [row["interval_high"] for row in groups.rows()] == [pair[1] for pair in groups.intervals]
    assert Result.read(count.model_dump_json().encode()).interval == count.interval
    assert next(driver.answers(from_beginning=True)).interval == count.interval


def test_answer_without_interval_has_no_such_field() -> None:
    driver = driver_of(stream("s", "people", mechanism={"threshold": 100.0}))
    driver.ask("s", where="age < 30")
    [delivered] = driver.log((driver.topics.answers, 0))
    assert b"interval" not in (delivered.value or b"")


def test_sql_tables_have_columns_for_the_ends_of_intervals() -> None:
    driver = driver_of(stream("s", "people", "laplace", mechanism={"answers": 9}))
    table = driver.sql("SELECT sex, COUNT(*) AS n FROM people GROUP BY sex")
    assert table.columns == ("sex", "n", "n ±", "n 95% low", "n 95% high")
    for row in table:
        assert row["n 95% low"] < row["n"] < row["n 95% high"] <= row["n"] + row["n ±"]


def test_sql_tables_of_estimates_have_no_columns_for_intervals() -> None:
    spec = stream("s", "people", "pmw", mechanism={"attributes": ["age", "sex"], "warm_start": 0}, epsilon=0.01)
    table = driver_of(spec).sql("SELECT COUNT(*) AS n FROM people WHERE age < 30 AND sex = 'F'")
    assert table.results[0].basis == "independence"
    assert table.columns == ("n", "n ±", "n informative")


def test_intervals_stay_within_public_limits() -> None:
    rows = {"few": {"age": [3] * 40}}
    few = source("few", "table", attributes={"age": 10}, neighbors="replace")
    spec = stream("s", "few", "laplace", mechanism={"answers": 60}, epsilon=1.0)
    driver = installation(spec, sources=[few], rows=rows)
    for where, fraction in (("age = 3", False), ("age = 4", False), ("TRUE", True)):
        result = driver.ask("s", where=where, fraction=fraction)
        most = 1.0 if fraction else 40.0
        assert result.interval is not None
        assert 0.0 <= result.interval[0] <= result.interval[1] <= most


def test_mean_has_an_interval_within_its_range() -> None:
    driver = driver_of(stream("s", "people", "laplace", mechanism={"answers": 4}, epsilon=2.0))
    mean = driver.ask("s", mean="age")
    nobody = driver.ask("s", mean="age", where="age = 58 AND sex = 'F' AND age < 3")
    assert mean.interval is not None
    assert mean.alpha is not None
    assert mean.interval[0] < sum(AGES) / len(AGES) < mean.interval[1]
    assert mean.interval[1] - mean.interval[0] < mean.alpha
    assert nobody.interval is not None


@pytest.mark.parametrize("kind", ["pmw", "histogram"])
def test_share_has_an_interval_no_wider_than_its_count(kind: str) -> None:
    """Numerator and denominator are noisy, but their errors partly cancel."""
    mechanism = {"kind": kind, "attributes": ["age", "sex"]}
    driver = driver_of(stream("s", "people", mechanism=mechanism, epsilon=0.4, expected_queries=20))
    for where in ("age < 20", "sex = 'F' AND age < 50"):
        count, share = driver.ask("s", where=where), driver.ask("s", where=where, fraction=True)
        assert count.interval is not None
        assert share.interval is not None
        rows = len(AGES) * 1.05
        assert (share.interval[1] - share.interval[0]) * rows <= 1.1 * (count.interval[1] - count.interval[0])


def test_intervals_of_estimated_counts_end_on_whole_rows() -> None:
    """The true count is whole, so intervals end on whole rows, even if widened to contain an estimate that is not whole."""
    rows = {"t": {"a": [n * n % 12 for n in range(900)], "b": [n % 10 for n in range(900)]}}
    spec = stream("s", "t", mechanism={"kind": "pmw", "attributes": ["a", "b"]}, epsilon=0.5, expected_queries=20)
    driver = installation(spec, sources=[source("t", "table", attributes={"a": 12, "b": 10})], rows=rows)
    groups = driver.ask("s", group_by=["a", "b"])
    assert any(number != round(number) for number in groups.estimates or ())
    assert all(low == round(low) and high == round(high) for low, high in groups.intervals or ((0.5, 0.5),))
