"""Rates, the largest groups, and numbers for each person: answers compared with the truth, and refusals."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

from sotto import Driver, Result
from tests.builders import installation, source, stream

RNG = random.Random(11)
PEOPLE = 1500
ROWS = pl.DataFrame(
    [
        {
            "who": f"p{person}",
            "ward": RNG.choice("AAAAABC"),
            "days": RNG.randint(-2, 20),
            "ill": RNG.choice(["yes", "no", "no"]),
        }
        for person in range(PEOPLE)
        for _ in range(RNG.randint(1, 4))
    ]
)
ATTRIBUTES = {
    "ward": ["A", "B", "C", "D"],
    "days": {"kind": "integers", "minimum": -2, "maximum": 20},
    "ill": ["yes", "no"],
}
MECHANISMS: dict[str, dict[str, Any]] = {
    "laplace": {"kind": "laplace", "answers": 20},
    "histogram": {"kind": "histogram", "attributes": ["ward", "ill", "days"]},
    "pmw": {"kind": "pmw", "attributes": ["ward", "ill", "days"]},
}


def opened(kind: str, neighbors: str = "add-remove", *, person: bool = False, **spec: Any) -> Driver:
    declared = {"person": "who", "contribution": 2} if person else {}
    table = source(
        "visits",
        "table",
        path="-",
        neighbors=neighbors,
        epsilon=1000.0,
        delta=0.1,
        attributes=ATTRIBUTES,
        **declared,
    )
    rows = ROWS if person else ROWS.drop("who")
    fields = {"epsilon": 20.0, "beta": 1e-6, "expected_queries": 20, **spec}
    one = stream("s", "visits", mechanism=MECHANISMS[kind], **fields)
    return installation(one, sources=[table], rows={"visits": rows})


def number(answer: Result) -> tuple[float, float]:
    """Return the number of an answer and its bound."""
    assert answer.estimate is not None
    return answer.estimate, bound(answer)


def bound(answer: Result) -> float:
    assert answer.alpha is not None
    return answer.alpha


def by_group(answer: Result) -> list[tuple[Mapping[str, str | int | float], float]]:
    assert answer.groups is not None
    assert answer.estimates is not None
    return list(zip(answer.groups, answer.estimates, strict=True))


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("kind", MECHANISMS)
def test_rates_are_within_their_alpha(kind: str, neighbors: str) -> None:
    driver = opened(kind, neighbors)
    inside = ROWS.filter(pl.col("days") > 3)
    rate, alpha = number(driver.ask("s", rate="ill = 'yes'", where="days > 3"))
    assert abs(rate - share(inside)) <= alpha < 0.2
    grouped = driver.ask("s", rate="ill = 'yes'", where="days > 3", group_by=["ward"])
    for group, one in by_group(grouped):
        rows = inside.filter(pl.col("ward") == group["ward"])
        assert 0.0 <= one <= 1.0
        if len(rows):
            assert abs(one - share(rows)) <= bound(grouped) + 1e-12


@pytest.mark.parametrize("kind", MECHANISMS)
def test_grouped_rates_alpha_leaves_out_excluded_groups(kind: str) -> None:
    """A group that WHERE excludes has no rate, so its noise does not raise the answer's error bound."""
    driver = opened(kind)
    condition: dict[str, Any] = {"rate": "ill = 'yes'", "where": "ward = 'A'"}
    alone, grouped = driver.ask("s", **condition), driver.ask("s", **condition, group_by=["ward"])
    assert bound(grouped) <= 1.5 * bound(alone) < 0.2
    nowhere = driver.ask("s", rate="ill = 'yes'", where="FALSE", group_by=["ward"])
    assert bound(nowhere) >= 0.5


def share(rows: pl.DataFrame) -> float:
    return len(rows.filter(pl.col("ill") == "yes")) / len(rows)


def test_share_is_hardly_wider_than_its_count() -> None:
    driver = opened("laplace", epsilon=1.0)
    count, fraction = (driver.ask("s", where="ill = 'yes'", fraction=one) for one in (False, True))
    assert bound(fraction) * len(ROWS) <= 1.2 * (bound(count) + 2.0)


def test_histogram_share_of_private_rows_is_free() -> None:
    driver = opened("histogram")
    found, alpha = number(driver.ask("s", where="ill = 'yes' AND ward = 'A'", fraction=True))
    truth = len(ROWS.filter((pl.col("ill") == "yes") & (pl.col("ward") == "A"))) / len(ROWS)
    assert abs(found - truth) <= alpha < 0.02


@pytest.mark.parametrize("kind", MECHANISMS)
def test_largest_groups_have_names_and_counts(kind: str) -> None:
    driver = opened(kind)
    answer = driver.ask("s", group_by=["ward", "ill"], top=2)
    assert answer.groups == ({"ward": "A", "ill": "no"}, {"ward": "A", "ill": "yes"})
    assert answer.top_groups == answer.groups
    counts = ROWS.group_by("ward", "ill").len()
    for group, one in by_group(answer):
        [truth] = counts.filter((pl.col("ward") == group["ward"]) & (pl.col("ill") == group["ill"]))["len"]
        assert abs(one - truth) <= bound(answer)
    assert [row["estimate"] for row in answer.rows()] == sorted(answer.estimates or (), reverse=True)
    more = driver.ask("s", group_by=["ward"], top=99)
    assert len(more.estimates or ()) == 4


def test_largest_groups_cost_one_answer() -> None:
    driver = opened("laplace")
    before = driver.ask("s", group_by=["ward"])
    after = driver.ask("s", group_by=["ward"], top=1)
    assert (before.tops_left, after.tops_left) == (19, 18)
    assert after.alpha == before.alpha


def test_numbers_of_each_person_are_within_their_alpha() -> None:
    driver = opened("laplace", person=True)
    days = ROWS.filter(pl.col("ill") == "yes")
    truths: dict[str, tuple[dict[str, Any], Any]] = {
        "repeaters": (
            {"people": True, "min_rows": 2},
            ROWS.group_by("who").len().filter(pl.col("len") >= 2).height,
        ),
        "ill often": (
            {"people": True, "min_rows": 2, "where": "ill = 'yes'"},
            days.group_by("who").len().filter(pl.col("len") >= 2).height,
        ),
        "sums": (
            {"person_sum": "days", "bound": 15, "where": "ill = 'yes'"},
            days.group_by("who").agg(pl.col("days").sum())["days"].clip(-15, 15).sum(),
        ),
    }
    for question, truth in truths.values():
        answer = driver.ask({"stream": "s", **question})
        found, alpha = number(answer)
        assert abs(found - truth) <= alpha
        assert answer.informative
    people = driver.ask("s", people=True, group_by=["ward"])
    # Two rows of each person count, so each person is in one or two wards.
    counts = [one for _, one in by_group(people)]
    assert PEOPLE - 4 * bound(people) <= sum(counts) <= 2 * PEOPLE + 4 * bound(people)
    assert abs(counts[3]) <= bound(people)
    assert people.warnings[0] == "of each 'who' at most 2 rows count"
    assert people.tops_left == 16


@pytest.mark.parametrize(
    ("kind", "question", "words"),
    [
        ("laplace", {"rate": "ill = 'yes'", "alpha": 0.1, "max_price": 1.0}, "ask for both counts"),
        ("laplace", {"rate": "ill = 'nope'"}, "rate: "),
        ("laplace", {"people": True, "min_rows": 2}, "declares no person column"),
        ("laplace", {"person_sum": "ward", "bound": 3}, "is no attribute of integers"),
        ("histogram", {"people": True, "group_by": ["ward"]}, "does not take it"),
        ("pmw", {"person_sum": "days", "bound": 3}, "does not take it"),
        ("pmw", {"rate": "ill = 'yes'", "group_by": ["ward", "ward"]}, "named twice"),
    ],
)
def test_unsupported_questions_are_refused_without_a_charge(
    kind: str, question: dict[str, Any], words: str
) -> None:
    driver = opened(kind)
    [answer] = driver.ask_many([{"id": "1", "stream": "s", **question}])
    assert answer.outcome == "rejected"
    assert words in (answer.reason or "")
    assert driver.grant("visits", "s").answered == 0
