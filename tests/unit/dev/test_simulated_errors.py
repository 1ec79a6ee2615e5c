"""A simulation reports the errors that follow from its answers and the table."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import polars as pl
import pytest

from schemas import Answer
from sotto import Driver, Results
from stream.dev import simulation_run as simulation_running
from stream.dev.simulation_inputs import SimulationError, draw_table, read_questions
from stream.dev.simulation_run import SimulationReport, measure, simulate, summarize_errors
from stream.dev.true_answers import truths_of
from stream.tables.columns_table import PrivateTable
from tests.builders import parse_source, parse_spec, source

PEOPLE = parse_source(
    source(
        "people",
        "table",
        epsilon=8.0,
        path="private.csv",
        attributes={
            "age": {"kind": "integers", "minimum": 10, "maximum": 60},
            "sex": ["F", "M"],
            "bmi": {"kind": "bins", "edges": [10, 18.5, 25, 60]},
        },
    )
)
FEED = parse_source(source("people", epsilon=8.0, grid=0.1, minimum=0.0, maximum=50.0))
ROWS = draw_table(PEOPLE, 3000, 1)
AGE, SEX, BMI = pl.col("age"), pl.col("sex"), pl.col("bmi")


def rows(condition: pl.Expr) -> pl.DataFrame:
    return ROWS.filter(condition)


def cells(*names: str) -> list[int]:
    domains: dict[str, list[Any]] = {"sex": ["F", "M"], "bmi": [10.0, 18.5, 25.0]}
    listed: list[dict[str, Any]] = [{}]
    for name in names:
        listed = [{**one, name: value} for one in listed for value in domains[name]]
    return [rows(pl.all_horizontal(pl.col(name) == value for name, value in one.items())).height for one in listed]


def years(table: pl.DataFrame) -> int:
    return sum(table["age"].to_list())


WOMEN = rows(SEX == "F")
COUNTS: list[tuple[str, list[Any]]] = [
    ("age > 30", [rows(AGE > 30).height]),
    ('{"where": "sex = \'F\' AND bmi < 18.5"}', [rows((SEX == "F") & (BMI < 18.5)).height]),
]
TERMS: list[tuple[str, list[Any]]] = [
    (
        '{"terms": [{"where": "age < 20", "weight": 0.5}, {"where": "sex = \'M\' and age >= 20"}]}',
        [Fraction(rows(AGE < 20).height, 2) + rows((SEX == "M") & (AGE >= 20)).height],
    )
]
CELLS: list[tuple[str, list[Any]]] = [
    ('{"cells": [{"at": {"bmi": 12, "sex": "M"}}]}', [rows((SEX == "M") & (BMI < 18.5)).height]),
    (
        '{"cells": [{"at": {"sex": "F", "bmi": 20}, "weight": 0.25}, {"at": {"sex": "M", "bmi": 60}}]}',
        [Fraction(rows((SEX == "F") & (BMI == 18.5)).height, 4) + rows((SEX == "M") & (BMI == 25)).height],
    ),
]
GROUPS: list[tuple[str, list[Any]]] = [('{"group_by": ["bmi", "sex"]}', cells("bmi", "sex"))]
NUMBERS: list[tuple[str, list[Any]]] = [
    ('{"fraction": true, "where": "sex = \'F\'"}', [Fraction(WOMEN.height, 3000)]),
    ('{"sum": "age", "where": "sex = \'F\'"}', [years(WOMEN)]),
    ('{"mean": "age", "where": "sex = \'F\'"}', [Fraction(years(WOMEN), WOMEN.height)]),
]

EXACT: list[tuple[dict[str, Any], list[tuple[str, list[Any]]]]] = [
    ({"kind": "laplace", "answers": 6}, COUNTS + NUMBERS + GROUPS),
    ({"kind": "histogram", "attributes": ["sex", "bmi"]}, CELLS + GROUPS),
    ({"kind": "lazy_histogram", "attributes": ["sex", "bmi"]}, CELLS),
    ({"kind": "sparse_project", "attributes": ["sex", "bmi"], "projections": 64}, CELLS),
    ({"kind": "pmw", "attributes": ["age", "sex", "bmi"], "rows": 3000, "updates": 5}, COUNTS + TERMS),
    ({"kind": "sparse_pmw", "attributes": ["sex", "bmi"], "rows": 3000, "updates": 5}, CELLS),
    ({"kind": "numeric_sparse", "threshold": -500.0, "cutoff": 2}, COUNTS),
    ({"kind": "numeric_sparse", "threshold": -500.0, "cutoff": 2, "numbers": "gap"}, COUNTS),
]


spec = partial(parse_spec, source="people", epsilon=2.0, expected_queries=10)


def numbers(answer: Answer) -> list[Fraction]:
    """Return the numbers that an answer publishes."""
    return [Fraction(one) for one in answer.estimates or (answer.estimate,) if one is not None]


def recorded_answers(monkeypatch: pytest.MonkeyPatch) -> list[Results]:
    """Return the answers of each run of the simulation."""
    kept: list[Results] = []

    class Recording(Driver):
        def ask_many(self, *args: Any, **kwargs: Any) -> Results:
            kept.append(super().ask_many(*args, **kwargs))
            return kept[-1]

    monkeypatch.setattr(simulation_running, "Driver", Recording)
    return kept


def run(mechanism: dict[str, Any], lines: list[str], **others: Any) -> SimulationReport:
    return simulate(spec(**mechanism), PEOPLE, read_questions(lines, "s"), ROWS, runs=2, **others)


@pytest.mark.parametrize(
    ("mechanism", "asked"), EXACT, ids=lambda one: one["kind"] if isinstance(one, dict) else ""
)
def test_simulated_errors_are_distances_from_the_true_counts(
    mechanism: dict[str, Any], asked: list[tuple[str, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The true counts are computed without the simulation."""
    answers = recorded_answers(monkeypatch)
    report = run(mechanism, [line for line, _ in asked])
    for of_run, given in zip(report.runs, answers, strict=True):
        measured = [one for one in of_run.measurements if one.what != "above and below"]
        assert len(measured) == len(asked)
        for place, (one, answer) in enumerate(zip(measured, given, strict=True)):
            published = numbers(answer)
            exact = asked[place][1]
            assert one.line == place + 1
            assert one.alpha == answer.alpha
            assert one.errors == tuple(
                float(abs(number - truth)) for number, truth in zip(published, exact, strict=True)
            )
            assert one.broken is (answer.alpha is not None and max(one.errors) > answer.alpha)


def test_simulated_runs_have_independent_noise_and_joint_figures() -> None:
    report = run({"kind": "laplace", "answers": 2}, ["age > 30", "age > 40"])
    errors = [[one.errors[0] for one in each.measurements] for each in report.runs]
    assert errors[0] != errors[1]
    [found] = report.error_summaries
    flat = [error for each in errors for error in each]
    assert (found.largest, found.mean, found.numbers) == (max(flat), sum(flat) / 4, 4)
    assert found.alpha is not None
    assert found.alpha[0] == report.grant.calibration.alpha


def test_simulated_charges_endings_and_rejections_are_the_streams() -> None:
    report = run(
        {"kind": "laplace", "answers": 2}, ["age > 30", "", "height > 3", "age > 40", "age > 50", "age > 60"]
    )
    for each in report.runs:
        assert (each.answered, each.halted, each.charged, list(each.rejections)) == (2, 2, 2, [3])
        assert each.ended is not None
        assert each.ended.line == 5
        assert "exhausted" in each.ended.reason
        assert each.grant.spent.epsilon == each.grant.cost.epsilon == 2.0
    free = run({"kind": "histogram", "attributes": ["sex"]}, ["sex = 'F'"]).runs[0]
    assert (free.charged, free.ended, free.grant.spent.epsilon) == (None, None, 2.0)


def test_error_of_a_decision_is_the_distance_to_the_right_side() -> None:
    sparse: dict[str, Any] = {"kind": "above_threshold", "threshold": 100.0}
    report = run(sparse, ['{"where": "age > 30", "threshold": 5}', "age < 0"])
    [found] = report.error_summaries
    assert (found.what, found.largest, found.broken) == ("above and below", 0.0, 0)
    [query] = read_questions(["age >= 10"], "s").values()
    truths = truths_of(PEOPLE, PrivateTable.load(PEOPLE, ROWS))
    calibration = report.grant.calibration
    wrong = Answer(id="1", stream="s", outcome="below", index=0)
    [one] = measure(1, query, wrong, spec(**sparse), calibration, truths)
    assert (one.errors, one.alpha, one.broken) == ((2900.0,), calibration.alpha, True)


def test_answer_beyond_its_alpha_is_counted_as_broken() -> None:
    """An answer without α is counted as unpromised."""
    [query] = read_questions(["age >= 10"], "s").values()
    truths = truths_of(PEOPLE, PrivateTable.load(PEOPLE, ROWS))
    laplace = spec("laplace")
    calibration = run({"kind": "laplace"}, ["age > 30"]).grant.calibration
    measured = [
        one
        for estimate, alpha in ((3005.0, 5.0), (3006.0, 5.0), (9000.0, None))
        for one in measure(
            1,
            query,
            Answer(id="1", stream="s", outcome="answer", estimate=estimate, alpha=alpha),
            laplace,
            calibration,
            truths,
        )
    ]
    assert [one.broken for one in measured] == [False, True, False]
    [found] = summarize_errors(measured)
    assert (found.broken, found.unpromised, found.largest, found.alpha) == (1, 1, 6000.0, (5.0, 5.0))


def test_error_of_a_choice_is_its_regret(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = recorded_answers(monkeypatch)
    asked = '{"candidates": [{"name": "old", "where": "age > 40"}, {"name": "all", "where": "TRUE"}, {"name": "years", "sum": "age"}]}'
    for kind in ("noisy_max", "exponential"):
        report = run({"kind": kind, "answers": 4, "sums": ["age"]}, [asked] * 4)
        scores = {"old": rows(AGE > 40).height, "all": 3000, "years": years(ROWS)}
        for each, given in zip(report.runs, answers[-2:], strict=True):
            regrets = [float(scores["years"] - scores[one.choice or ""]) for one in given]
            assert [one.errors for one in each.measurements] == [(regret,) for regret in regrets]
            assert [one.alpha for one in each.measurements] == [one.alpha for one in given]


def test_feed_is_measured_by_its_questions_values_within_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = recorded_answers(monkeypatch)
    lines = ['{"value": 12.34}', '{"value": 1000}', '{"values": [0.1, 7.0]}']
    exact = [[Fraction("12.34")], [Fraction(50)], [Fraction("0.1"), Fraction(7)]]
    report = simulate(spec("laplace", answers=3, dimensions=2), FEED, read_questions(lines, "s"), runs=1)
    assert report.rows is None
    for one, answer, truths in zip(report.runs[0].measurements, answers[0], exact, strict=True):
        published = numbers(answer)
        assert one.errors == tuple(
            float(abs(number - truth)) for number, truth in zip(published, truths, strict=True)
        )


def test_shares_use_a_public_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = recorded_answers(monkeypatch)
    replace = PEOPLE.model_copy(update={"neighbors": "replace"})
    frame = pl.concat(
        [ROWS.with_columns(SEX.cast(pl.String)), pl.DataFrame({"age": [20], "sex": ["none"], "bmi": [20.0]})]
    )
    questions = read_questions(['{"fraction": true, "where": "age > 30"}'], "s")
    report = simulate(spec("laplace"), replace, questions, frame, runs=1)
    share = Fraction(rows(AGE > 30).height, 3001)
    assert report.rows == 3001
    assert report.runs[0].measurements[0].errors == (float(abs(Fraction(answers[0][0].estimate or 0.0) - share)),)


def test_mean_over_no_row_has_no_true_value() -> None:
    report = run({"kind": "laplace"}, ['{"mean": "age", "where": "age < 0"}'])
    assert report.runs[0].answered == 1
    assert report.error_summaries == ()


def test_seed_repeats_the_report_and_another_seed_does_not() -> None:
    def made(seed: int) -> SimulationReport:
        return run({"kind": "laplace", "answers": 2}, ["age > 30", "age > 40"], seed=seed)

    assert made(7) == made(7)
    assert len({made(seed).runs[0].measurements for seed in range(7, 15)}) > 1


def test_contradictory_inputs_are_refused_with_the_remedy() -> None:
    questions = read_questions(["age > 30"], "s")
    with pytest.raises(SimulationError, match="SPEC source"):
        simulate(spec("laplace", source="others"), PEOPLE, questions, ROWS)
    with pytest.raises(SimulationError, match="give a public one"):
        simulate(spec("laplace"), PEOPLE, questions)
    records = parse_source(source("people", "records", epsilon=1.0))
    answers = read_questions(['{"category": "1"}'], "s")
    with pytest.raises(SimulationError, match="sotto estimate"):
        simulate(spec("randomized_response"), records, answers)
