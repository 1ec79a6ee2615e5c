"""Marks of released numbers whose error may exceed them, their range or a threshold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas import Histogram, Query, StreamSpec
from stream.formatting import ROWS_LEFT_OUT
from stream.questions import Result, Results
from stream.questions.answer_warnings import (
    DECIDED,
    EXCEEDS_NUMBER,
    EXCEEDS_RANGE,
    EXCEEDS_THRESHOLD,
    NO_BOUND,
    reasons_of,
)
from stream.questions.clamped_values import describe_clamping
from tests.builders import PEOPLE, installation, parse_source, parse_stream, source, stream

AGES = {"kind": "integers", "minimum": -20, "maximum": 40}
TABLE = parse_source(source("t", "table", path="-", attributes={"temperature": AGES, "sex": ["F", "M"]}))


def reasons(answer: dict[str, Any], asked: dict[str, Any], of: Any = TABLE) -> tuple[str | None, ...]:
    return reasons_of(_answer(answer), _query(asked), of)


def _answer(fields: dict[str, Any]) -> Result:
    return Result.model_validate_json(json.dumps({"id": "1", "stream": "s", "outcome": "answer", **fields}))


def _query(fields: dict[str, Any]) -> Query:
    return Query.model_validate({"id": "1", "stream": "s", **fields})


def _warm(**asked: Any) -> dict[str, Any]:
    return {**asked, "where": "temperature BETWEEN 20 AND 30 AND sex = 'F'"}


@pytest.mark.parametrize(
    ("answer", "asked", "expected"),
    [
        ({"estimate": 20.0, "interval": [5.0, 35.0], "alpha": 90.0}, {"where": "sex = 'F'"}, None),
        ({"estimate": 20.0, "interval": [0.0, 41.0], "alpha": 90.0}, {"where": "sex = 'F'"}, EXCEEDS_NUMBER),
        ({"estimate": 20.0, "interval": [0.0, 31.0], "alpha": 90.0}, {"where": "sex = 'F'"}, EXCEEDS_NUMBER),
        ({"estimate": -69.0, "interval": [0.0, 0.0], "alpha": 40.0}, {"where": "sex = 'F'"}, EXCEEDS_NUMBER),
        ({"estimate": 20.0, "alpha": 90.0}, {"where": "sex = 'F'"}, EXCEEDS_NUMBER),
        ({"estimate": 20.0, "alpha": 19.0}, {"where": "sex = 'F'"}, None),
        ({"estimate": 20.0}, {"where": "sex = 'F'"}, None),
        ({"estimate": 20.0, "basis": "hypothesis"}, {"sum": "temperature"}, NO_BOUND),
        ({"estimate": 20.0, "basis": "hypothesis", "alpha": 2.0}, {"sum": "temperature"}, None),
        ({"estimate": 20.0, "basis": "hypothesis", "alpha": 20.0}, {"where": "sex = 'F'"}, EXCEEDS_NUMBER),
        ({"estimate": 20.0, "basis": "independence", "typical_error": 9.0}, {"where": "sex = 'F'"}, None),
        ({"estimate": 9.0, "basis": "hypothesis", "typical_error": 9.0}, {"where": "sex = 'F'"}, EXCEEDS_NUMBER),
        (
            {"estimate": 9.0, "basis": "hypothesis", "typical_error": 20.0, "alpha": 8.0},
            {"where": "sex = 'F'"},
            None,
        ),
        ({"estimate": 0.5, "typical_error": 0.4}, {"where": "sex = 'F'", "fraction": True}, EXCEEDS_RANGE),
        ({"estimate": 0.4, "interval": [0.0, 0.8]}, {"where": "sex = 'F'", "fraction": True}, EXCEEDS_RANGE),
        ({"estimate": 0.1, "interval": [0.0, 0.3]}, {"where": "sex = 'F'", "fraction": True}, EXCEEDS_NUMBER),
        ({"estimate": 0.1, "interval": [-2.0, 2.0]}, {"mean": "temperature"}, None),
        ({"estimate": 9.0, "interval": [-12.0, 30.0]}, {"mean": "temperature"}, EXCEEDS_RANGE),
        ({"estimate": 25.0, "interval": [20.0, 30.0]}, _warm(mean="temperature"), EXCEEDS_RANGE),
        ({"estimate": 25.0, "interval": [24.0, 26.0]}, _warm(mean="temperature"), None),
        ({"estimate": 25.0, "interval": [20.0, 30.0]}, _warm(quantile="temperature"), EXCEEDS_RANGE),
        ({"estimate": 7.0, "interval": [7.0, 7.0]}, {"mean": "temperature", "where": "temperature = 7"}, DECIDED),
        (
            {"estimate": 0.0, "interval": [0.0, 0.0]},
            {"stddev": "temperature", "where": "temperature = 7"},
            DECIDED,
        ),
        ({"estimate": 0.0, "interval": [0.0, 0.0]}, {"variance": "temperature", "where": "sex = 'F'"}, None),
        ({"estimate": 1.0, "interval": [0.0, 2.0], "alpha": 900.0}, {"quantile": "temperature"}, None),
        ({"estimate": 1.0, "alpha": 900.0}, {"quantile": "temperature"}, None),
    ],
)
def test_number_is_marked_by_its_error(
    answer: dict[str, Any], asked: dict[str, Any], expected: str | None
) -> None:
    assert reasons(answer, asked) == (expected,)


def test_number_of_an_unknown_question_is_marked_if_none_would_be_informed() -> None:
    """Another client may have asked for a count, or for a mean, whose error is small in its range."""
    few, warm = {"estimate": 20.0, "interval": [-1.0, 41.0]}, {"estimate": 1.0, "interval": [-2.0, 4.0]}
    assert reasons_of(_answer(few), None, TABLE) == (EXCEEDS_NUMBER,)
    assert reasons_of(_answer(warm), None, TABLE) == (None,)
    assert reasons_of(_answer(few), None, None) == ()


def test_result_of_top_warns_that_groups_were_chosen_by_noisy_numbers() -> None:
    """All clients have the warning, even if they may not read the source's definition."""
    top = _query({"group_by": ["sex"], "top": 1})
    chosen = {"estimates": [20.0], "top_groups": [{"sex": "F"}]}
    without, bounded, named = (
        _answer({**chosen, **more}) for more in ({}, {"alpha": 4.0}, {"intervals": [[19.0, 21.0]]})
    )
    [line] = without.with_question(top, None).question_warnings
    assert line.endswith("95 % interval, because it holds for a group named in advance")
    assert bounded.with_question(top, None).question_warnings == (
        f"{line}; their ± holds for all of them at once",
    )
    # Workers publish intervals of unknown groups, which no client shows beside chosen groups.
    result = named.with_question(top, None)
    assert (result.intervals, *result.question_warnings) == (None, line)
    assert named.with_question(None, None).intervals is not None


def test_decision_is_marked_by_the_threshold_of_its_question() -> None:
    above = {"outcome": "above", "alpha": 30.0}
    assert reasons(above, {"value": 1.0, "threshold": 20.0}) == (EXCEEDS_THRESHOLD,)
    assert reasons(above, {"value": 1.0, "threshold": 40.0}) == (None,)
    assert reasons(above, {"value": 1.0}) == (None,)


WINDOW = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"}
FLIGHTS = parse_source(
    source(
        "flights",
        "events",
        topic="t",
        person="tail",
        time="at",
        contribution=1,
        attributes={
            "delay": AGES,
            "carrier": ["A", "B"],
            "day": {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-01-09"},
        },
    )
)


def _window_reasons(answer: dict[str, Any], mechanism: dict[str, Any], **standing: Any) -> tuple[Any, ...]:
    asked = {"window": {"size": "1h"}, **standing}
    spec = parse_stream(stream("s", "flights", mechanism=mechanism, epsilon=1.0, standing=asked))
    result = _answer({**answer, "window": WINDOW}).with_stream(spec, FLIGHTS)
    return (*result.reasons, *(text for text in result.question_warnings if text.startswith("top:")))


def test_numbers_of_windows_without_intervals_are_marked_by_alpha() -> None:
    """The largest groups and gaps have no interval; the alpha of a quantile is in events, so it marks no number."""
    cells = {"kind": "histogram", "attributes": ["carrier"], "answers": 4}
    chosen = {"estimates": [6.0, 40.0], "top_groups": [{"carrier": "A"}, {"carrier": "B"}], "alpha": 22.0}
    first, second, warning = _window_reasons(chosen, cells, top=2)
    assert (first, second) == (EXCEEDS_NUMBER, None)
    assert warning.endswith("their ± holds for all of them at once")
    gaps = {"kind": "numeric_sparse", "threshold": 5, "cutoff": 3, "numbers": "gap"}
    assert _window_reasons({"outcome": "above", "estimate": 40.0, "alpha": 44.0}, gaps) == (EXCEEDS_NUMBER,)
    middle = {"estimate": 1.0, "interval": [0.0, 2.0], "alpha": 44.0}
    assert _window_reasons(middle, {"kind": "laplace", "answers": 4}, quantile="delay") == (None,)


def test_decision_about_a_window_is_marked_by_the_threshold_of_its_stream() -> None:
    for threshold, expected in ((20.0, EXCEEDS_THRESHOLD), (40.0, None)):
        mechanism = {"kind": "above_threshold", "threshold": threshold, "cutoff": 3}
        assert _window_reasons({"outcome": "below", "alpha": 30.0}, mechanism) == (expected,)


def test_quantile_of_texts_is_marked_by_the_width_of_its_interval() -> None:
    """An interval with more than two thirds of the declared dates or categories says hardly anything."""
    day = {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-01-09"}
    grade = {"kind": "categories", "values": ["low", "mid", "high"], "ordered": True}
    table = parse_source(source("t", "table", attributes={"day": day, "grade": grade, "sex": ["F", "M"]}))
    wide, narrow = ("2024-01-02", "2024-01-08"), ("2024-01-02", "2024-01-07")
    by_sex = {"choices": ("2024-01-05", "2024-01-04"), "choice_intervals": (wide, narrow)}
    assert reasons(by_sex, {"quantile": "day", "group_by": ["sex"]}, table) == (EXCEEDS_RANGE, None)
    for low, expected in (("low", EXCEEDS_RANGE), ("mid", None)):
        one = {"choice": "mid", "choice_intervals": ((low, "high"),)}
        assert reasons(one, {"quantile": "grade"}, table) == (expected,)
    result = _answer(by_sex).with_question(_query({"quantile": "day", "group_by": ["sex"]}), table)
    assert [row.get("informative", True) for row in result.rows()] == [False, True]
    assert result.warnings[-1] == f"not informative: 1 of 2 numbers; {EXCEEDS_RANGE}"


def test_quantile_of_the_dates_of_a_window_is_marked_by_the_width_of_its_interval() -> None:
    for low, expected in (("2024-01-02", EXCEEDS_RANGE), ("2024-01-03", None)):
        answer = {"choice": "2024-01-05", "choice_intervals": ((low, "2024-01-08"),)}
        assert _window_reasons(answer, {"kind": "laplace", "answers": 4}, quantile="day") == (expected,)


def test_value_of_a_feed_is_compared_with_its_range() -> None:
    feed = parse_source(source(minimum=0.0, maximum=30.0))
    answer = {"estimate": 1.0, "interval": [-8.0, 10.0]}
    assert reasons(answer, {"value": 1.0}, feed) == (None,)
    assert reasons({**answer, "interval": [-10.0, 12.0]}, {"value": 1.0}, feed) == (EXCEEDS_RANGE,)


def test_result_marks_the_numbers_of_its_groups() -> None:
    answer = {"estimates": (50.0, 2.0), "intervals": ((40.0, 60.0), (0.0, 12.0)), "alpha": 20.0}
    result = _answer(answer).with_question(_query({"group_by": ["sex"]}), TABLE)
    assert (result.informative, result.uninformative) == (True, (1,))
    clear = _answer({"estimate": 50.0, "alpha": 1.0}).with_question(_query({"where": "sex = 'F'"}), TABLE)
    rows = Results([clear, result, _answer({"outcome": "halted"})]).rows()
    assert [row.get("informative") for row in rows] == [True, True, False, None]
    assert "informative" not in clear.rows()[0]
    assert result.warnings == (ROWS_LEFT_OUT, f"not informative: 1 of 2 numbers; {EXCEEDS_NUMBER}")
    assert "not informative" in repr(Results([result]))
    assert result == _answer(answer)


def test_result_of_one_number_says_that_it_is_not_informative() -> None:
    result = _answer({"estimate": 2.0, "alpha": 5.0}).with_question(_query({"where": "sex = 'F'"}), TABLE)
    assert not result.informative
    assert "(warning: not informative: the error may exceed the number itself)" in str(result)
    assert result.rows()[0]["informative"] is False


def test_answer_to_another_client_has_no_mark() -> None:
    assert _answer({"estimate": 2.0, "alpha": 5.0}).informative


FEES = parse_source(
    source(
        "t",
        "table",
        path="-",
        attributes={
            "fee": {"kind": "integers", "minimum": 0, "maximum": 50},
            "exact": {"kind": "integers", "minimum": 0, "maximum": 50, "outside": "reject"},
            "size": {"kind": "bins", "edges": [0, 10, 20.5]},
            "day": {"kind": "date", "granularity": "day", "minimum": "2024-01-01", "maximum": "2024-01-09"},
            "month": {"kind": "date", "granularity": "month", "minimum": "2024-01-01", "maximum": "2024-03-31"},
            "seen": {"kind": "timestamp", "granularity": "hour", "minimum": "2024-03-30", "maximum": "2024-03-31"},
            "cost": {"kind": "decimal", "minimum": 0, "maximum": 2.5, "step": 0.5},
            "profit": {"kind": "integers", "minimum": -5, "maximum": 50, "outside": "reject"},
            "hour": {"kind": "timestamp", "granularity": "hour-of-day"},
            "grade": {"kind": "categories", "values": ["low", "high"], "ordered": True},
        },
    )
)
SUMMED = "values of 'fee' outside 0 to 50 count as its ends; no ± covers this"


def _at_end(name: str, ends: str) -> str:
    return f"'{name}': a quantile or its interval is at the end of the declared range, {ends}; the true quantile may lie beyond"


@pytest.mark.parametrize(
    ("answer", "asked", "expected"),
    [
        ({"estimate": 33.0, "interval": [32.9, 33.1]}, {"mean": "fee"}, SUMMED),
        ({"estimate": 9000.0, "interval": [8990.0, 9010.0]}, {"sum": "fee"}, SUMMED),
        ({"estimate": 900.0, "interval": [899.0, 901.0]}, {"sum": "fee", "where": "fee < 50 AND fee > 5"}, None),
        ({"estimate": 8.0, "interval": [7.0, 9.0]}, {"mean": "fee", "where": "fee < 9"}, SUMMED),
        ({"estimate": 90.0, "interval": [89.0, 91.0]}, {"variance": "fee"}, SUMMED),
        ({"estimate": 33.0, "interval": [32.9, 33.1]}, {"mean": "exact"}, None),
        ({"estimate": 50.0, "interval": [50.0, 50.0]}, {"quantile": "fee"}, _at_end("fee", "0 to 50")),
        ({"estimate": 49.0, "interval": [48.0, 50.0]}, {"quantile": "fee"}, _at_end("fee", "0 to 50")),
        ({"estimate": 49.0, "interval": [48.0, 49.0]}, {"quantile": "fee"}, None),
        ({"estimates": [4.0, 50.0]}, {"quantile": "fee", "q": [0.1, 0.9]}, _at_end("fee", "0 to 50")),
        ({"estimate": 50.0, "interval": [50.0, 50.0]}, {"quantile": "exact"}, None),
        ({"estimate": 15.25, "interval": [10.0, 20.5]}, {"quantile": "size"}, _at_end("size", "0 to 20.5")),
        ({"choice": "2024-01-09"}, {"quantile": "day"}, _at_end("day", "2024-01-01 to 2024-01-09")),
        ({"choice": "2024-01-08"}, {"quantile": "day"}, None),
        ({"estimate": 23.0, "interval": [23.0, 23.0]}, {"quantile": "hour"}, None),
        ({"choice": "high"}, {"quantile": "grade"}, None),
        ({"outcome": "rejected", "reason": "mean: no"}, {"mean": "fee"}, None),
        ({"choice": "a"}, {"candidates": [{"name": "a", "sum": "fee"}, {"name": "b", "sum": "fee"}]}, SUMMED),
    ],
)
def test_answer_warns_of_clamped_values(
    answer: dict[str, Any], asked: dict[str, Any], expected: str | None
) -> None:
    """Clamping to the declared range causes an error that no interval covers; a quantile has it only at an end of the range."""
    warnings = _answer(answer).with_question(_query(asked), FEES).question_warnings
    assert tuple(one for one in warnings if one != ROWS_LEFT_OUT) == (() if expected is None else (expected,))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"where": "fee = 0"}, ("'fee': 0 also counts all lower values",)),
        ({"where": "fee BETWEEN 0 AND 10"}, ("'fee': 0 also counts all lower values",)),
        ({"where": "NOT FEE IN (0, 50)"}, ("'fee': 0 also counts all lower values, 50 all higher ones",)),
        ({"where": "fee <= 10 OR fee > 40"}, ()),
        ({"cells": [{"at": {"fee": 50, "exact": 0}}]}, ("'fee': 50 also counts all higher values",)),
        ({"cells": [{"at": {"fee": 9, "size": 3}}]}, ()),
        ({"cells": [{"at": {"day": "2024-01-01"}}]}, ("'day': 2024-01-01 also counts all earlier dates",)),
        ({"where": "exact = 0 AND fee >= 50"}, ()),
        ({"where": "cost BETWEEN 1 AND 2.5"}, ("'cost': 2.5 also counts all higher values",)),
        ({"where": "size < 10"}, ()),
        ({"where": "size >= 0 AND size < 10"}, ("'size': [0, 10) also counts all lower values",)),
        (
            {"where": "day >= '2024-01-01' AND day < '2024-01-03'"},
            ("'day': 2024-01-01 also counts all earlier dates",),
        ),
        ({"where": "seen = '2024-03-31'"}, ("'seen': 2024-03-31T23Z also counts all later dates",)),
        ({"where": "fee BETWEEN 40 AND 90"}, ("'fee': 50 also counts all higher values",)),
        ({"where": "fee IN (-3, 1) OR fee > 90"}, ()),
        ({"where": "cost <= 7.25 AND cost > 1"}, ("'cost': 2.5 also counts all higher values",)),
        (
            {"where": "day BETWEEN '2023-12-28' AND '2024-01-05'"},
            ("'day': 2024-01-01 also counts all earlier dates",),
        ),
        (
            {"where": "month <= '2025-06-30' AND month > '2024-01'"},
            ("'month': 2024-03 also counts all later dates",),
        ),
        ({"where": "seen <= '2026-01-01'"}, ("'seen': 2024-03-31T23Z also counts all later dates",)),
        ({"where": "hour = 0 AND grade = 'low'"}, ()),
        ({"mean": "exact", "where": "fee = 50"}, ("'fee': 50 also counts all higher values",)),
        ({"group_by": ["month"]}, ("'month': 2024-01 also counts all earlier dates, 2024-03 all later ones",)),
        (
            {"group_by": ["month"], "where": "month < '2024-03'"},
            ("'month': 2024-01 also counts all earlier dates",),
        ),
        ({"group_by": ["month", "grade"], "where": "month = '2024-02'"}, ()),
        ({"where": "there is no such attribute"}, ()),
    ],
)
def test_answer_warns_of_ends_that_count_values_beyond(asked: dict[str, Any], expected: tuple[str, ...]) -> None:
    """A condition or a group may select the end of a clamped range, where values beyond it count too."""
    warnings = _answer({"estimate": 900.0}).with_question(_query(asked), FEES).question_warnings
    assert tuple(one for one in warnings if "also counts" in one) == expected


@pytest.mark.parametrize(
    ("declared", "asked", "expected"),
    [
        ({"neighbors": "replace"}, {"fraction": True}, ", but a share is of all rows"),
        (
            {"neighbors": "replace", "person": "who"},
            {"fraction": True},
            ", but a share is of all people and all rows without a person",
        ),
        ({"neighbors": "replace", "person": "who", "contribution": 2}, {"fraction": True}, ""),
        ({"neighbors": "replace"}, {}, ""),
        ({"neighbors": "add-remove"}, {"fraction": True}, ""),
    ],
)
def test_share_of_a_public_number_of_rows_says_that_it_is_of_all(
    declared: dict[str, Any], asked: dict[str, Any], expected: str
) -> None:
    """The public number of rows includes those that are left out of the count."""
    table = parse_source(source("t", "table", path="t.csv", attributes={"age": 10}, **declared))
    warnings = (
        _answer({"estimate": 0.5}).with_question(_query({"where": "age < 5", **asked}), table).question_warnings
    )
    assert warnings[-1] == ROWS_LEFT_OUT + expected


OTHER = "'ward': 'none' also counts missing and undeclared categories"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"where": "ward = 'none'"}, (OTHER,)),
        ({"where": "Ward <> 'a' AND age < 9"}, (OTHER,)),
        ({"where": "ward = 'a' OR ward IN ('b')"}, ()),
        ({"where": "age < 9"}, ()),
        ({"group_by": ["ward"]}, (OTHER,)),
        ({"group_by": ["ward"], "where": "ward <> 'none'"}, ()),
        ({"quantile": "ward"}, (OTHER,)),
        ({"rate": "ward = 'none'", "where": "age < 9"}, (OTHER,)),
        ({"group_by": ["sex"]}, ()),
    ],
)
def test_answer_warns_of_category_that_counts_missing_ones(
    asked: dict[str, Any], expected: tuple[str, ...]
) -> None:
    """A missing or undeclared category counts as the one declared as `other`."""
    ward = {"kind": "categories", "values": ["a", "b", "none"], "other": "none", "ordered": True}
    table = parse_source(
        source("t", "table", path="t.csv", attributes={"ward": ward, "age": 10, "sex": ["F", "M"]})
    )
    warnings = _answer({"estimate": 900.0}).with_question(_query(asked), table).question_warnings
    assert tuple(one for one in warnings if "also counts" in one) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("exact", ()), ("profit", ("each person's sum counts from -20 to 20: lower sums count as -20",))],
)
def test_person_sum_says_that_it_is_clamped_from_below(name: str, expected: tuple[str, ...]) -> None:
    asked = _query({"person_sum": name, "bound": 20})
    warnings = _answer({"estimate": -9.0}).with_question(asked, FEES).question_warnings
    assert tuple(one for one in warnings if "each person's sum" in one) == expected


BOUND_AT_STEP = "bound: each person's sum counts up to 900, because 'cost' has steps of 100"


@pytest.mark.parametrize(
    ("low", "bound", "expected"),
    [
        (0, 900, ()),
        (0, 950, (BOUND_AT_STEP,)),
        (0, 50, ()),
        (-500, 950, (BOUND_AT_STEP, "each person's sum counts from -900 to 900: lower sums count as -900")),
    ],
)
def test_bound_between_two_steps_says_what_counts(low: int, bound: int, expected: tuple[str, ...]) -> None:
    """The worker rounds the bound down to a step, and refuses one below a step."""
    cost = {"kind": "decimal", "minimum": low, "maximum": 1000, "step": 100}
    table = parse_source(source("t", "table", path="t.csv", attributes={"cost": cost}))
    asked = _query({"person_sum": "cost", "bound": bound})
    warnings = _answer({"estimate": 9.0}).with_question(asked, table).question_warnings
    assert tuple(one for one in warnings if "each person's sum" in one) == expected


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ({"group_by": ["dow"]}, True),
        ({"where": "DOW >= 6"}, True),
        ({"quantile": "dow"}, True),
        ({"where": "age < 5"}, False),
    ],
)
def test_answers_about_weekdays_say_which_day_is_1(asked: dict[str, Any], is_said: bool) -> None:
    """Elsewhere weekdays begin with 0 or with Sunday."""
    days = {"dow": {"kind": "date", "granularity": "weekday"}, "age": 10}
    table = parse_source(source("t", "table", path="t.csv", attributes=days))
    warnings = _answer({"estimate": 900.0}).with_question(_query(asked), table).question_warnings
    assert [one for one in warnings if "Monday" in one] == ["'dow': 1 is Monday, 7 is Sunday"] * is_said


@pytest.mark.parametrize(
    ("step", "asked", "rounded"),
    [
        (100, {"mean": "cost"}, True),
        (100, {"quantile": "cost"}, True),
        (100, {"person_sum": "cost", "bound": 900}, True),
        (100, {"group_by": ["cost"]}, True),
        (100, {"mean": "age"}, False),
        (100, {"where": "age < 5"}, False),
        (0.01, {"mean": "cost"}, False),
    ],
)
def test_numbers_of_rounded_values_say_how_coarse_they_are(
    step: float, asked: dict[str, Any], rounded: bool
) -> None:
    cost = {"kind": "decimal", "minimum": 0, "maximum": 1000, "step": step}
    table = parse_source(source("t", "table", path="t.csv", attributes={"cost": cost, "age": 10}))
    warnings = _answer({"estimate": 900.0}).with_question(_query(asked), table).question_warnings
    expected = "values of 'cost' are rounded to multiples of 100, each by up to 50; no ± covers this"
    assert [one for one in warnings if "rounded" in one] == [expected] * rounded


def test_groups_by_text_say_which_texts_are_not_shown() -> None:
    table = parse_source(source("t", "table", path="t.csv", attributes={"age": 10, "zip": {"kind": "text"}}))
    warnings = (
        _answer({"keys": (), "estimates": ()})
        .with_question(_query({"group_by": ["zip"]}), table)
        .question_warnings
    )
    assert warnings[-2:] == (
        "'zip': rows without a text, and texts below the stream's threshold, are not shown",
        ROWS_LEFT_OUT,
    )


def test_standing_stream_says_which_values_count_as_ends() -> None:
    attributes = {"fee": {"kind": "integers", "minimum": 0, "maximum": 50}}
    topic = parse_source(
        source("e", "events", topic="e", person="who", time="at", attributes=attributes, contribution=2)
    )
    standing = {"count": {"sum": "fee"}, "where": "fee < 50", "window": {"size": "1h"}}
    spec = StreamSpec.model_validate(
        {
            "stream": "s",
            "source": "e",
            "epsilon": 1.0,
            "mechanism": {"kind": "laplace", "answers": 9},
            "standing": standing,
        }
    )
    assert describe_clamping(spec, topic) == (SUMMED,)
    grouped = spec.model_copy(update={"mechanism": Histogram(kind="histogram", attributes=("fee",), answers=9)})
    assert describe_clamping(grouped, topic) == (SUMMED, "'fee': 0 also counts all lower values")


def test_quantile_of_a_window_is_measured_by_its_range() -> None:
    fee = {"kind": "integers", "minimum": 0, "maximum": 120}
    topic = parse_source(
        source("e", "events", topic="e", person="who", time="at", attributes={"fee": fee}, contribution=2)
    )
    spec = stream("s", "e", standing={"quantile": "fee", "where": "fee < 100", "window": {"size": "1h"}})
    window = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"}
    for interval, reason in (((0.0, 12.0), None), ((0.0, 40.0), EXCEEDS_RANGE)):
        found = _answer({"estimate": 5.0, "interval": interval, "window": window})
        assert found.with_stream(parse_stream(spec), topic).reasons == (reason,)


@pytest.mark.parametrize("asked", [{"people": True}, {"people": True, "group_by": ["grade"]}])
def test_people_without_a_person_column_are_rows(asked: dict[str, Any]) -> None:
    result = _answer({"estimate": 900.0}).with_question(_query(asked), FEES)
    assert result.question_warnings[0] == "people: counts rows, because the source declares no 'person'"


def test_pmw_answers_have_no_warning_of_later_answers() -> None:
    """The α of a `pmw` stream covers every answer that has one, however many are asked."""
    table = source("people", "table", path="people.csv")
    asked = stream("explore", "people", "pmw", expected_queries=1)
    driver = installation(asked, sources=[table], rows={"people": PEOPLE})
    for _ in range(2):
        last = driver.ask("explore", where="age < 50")
    assert last.alpha is not None
    assert "α is promised" not in str(last.warnings)


def test_answers_beyond_the_promise_of_their_stream_say_so() -> None:
    """α holds for the first `expected_queries` answers; questions, statements and a table of results warn once."""
    table = source("people", "table", path="people.csv")
    asked = stream("cells", "people", "histogram", expected_queries=2)
    driver = installation(asked, sources=[table], rows={"people": PEOPLE})
    first, second, third = (driver.ask("cells", where="age < 50") for _ in range(3))
    line = third.warnings[0]
    assert line.startswith("more than the 2 answers for which α is promised: each further answer ")
    assert first.warnings == second.warnings == (ROWS_LEFT_OUT,)
    assert driver.sql("SELECT COUNT(*) AS n, COUNT_IF(age < 9) AS m FROM cells").warnings == (line, ROWS_LEFT_OUT)


def test_answers_with_requested_errors_use_up_the_promise_by_their_prices() -> None:
    """An answer that costs as much as many others may fail with as much probability (docs/proofs/laplace.md)."""
    table = source("people", "table", path="people.csv")
    asked = stream("counts", "people", "laplace", epsilon=4.0, expected_queries=20, mechanism={"answers": 200})
    driver = installation(asked, sources=[table], rows={"people": PEOPLE})
    alpha = driver.grant("people", "counts").calibration.alpha / 9
    first, *_, last = (driver.ask("counts", where="age < 50", alpha=alpha) for _ in range(4))
    assert "α is promised" not in str(first.warnings)
    used = 200 - (last.tops_left or 0)
    assert used > 20
    line = f"by their prices the answers count as {used}, more than the 20 answers for which α is promised"
    assert last.warnings[0].startswith(line)
