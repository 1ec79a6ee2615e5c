"""Streams over tables with several rows per person: the questions that they accept and refuse, and properties that hold for all data."""

from __future__ import annotations

import json
from typing import Any, Final

import polars as pl
import pytest
from typer.testing import CliRunner

from sotto import Driver, Invalid, Refused
from stream.alerts.delivery import Alert
from stream.cli.app import app
from stream.dev.simulation_inputs import draw_table, read_questions
from stream.dev.simulation_run import simulate
from stream.formatting import ROWS_LEFT_OUT
from stream.questions.stream_watch import StreamOpening
from stream.tables.checks import check_table
from stream.tables.columns_table import PrivateTable
from tests.builders import KEY, parse_source, source, stream

MORE = [("ann", "F"), ("ann", "M"), ("ann", "M"), ("ben", "M"), ("cid", "F"), ("cid", "F")]
SINGLE = [("ann", "F"), ("ben", "M"), ("cid", "F")]
PARTS = {"sex": "F"}


def visits(contribution: int = 2, **fields: Any) -> dict[str, Any]:
    table: dict[str, Any] = {"epsilon": 1000.0, "path": "-", "person": "who", "attributes": {"sex": ["F", "M"]}}
    return source("visits", "table", **{**table, "contribution": contribution, **fields})


def columns(rows: list[tuple[str, str]]) -> dict[str, list[str]]:
    return {"who": [who for who, _ in rows], "sex": [sex for _, sex in rows]}


def driver(rows: list[tuple[str, str]] = MORE, contribution: int = 2, **fields: Any) -> Driver:
    made = Driver(KEY, partitions=1)
    made.register(visits(contribution, **fields), columns(rows))
    return made


def opened(made: Driver, mechanism: dict[str, Any], name: str = "s", epsilon: float = 900.0) -> Driver:
    made.open(stream(name, "visits", mechanism=mechanism, epsilon=epsilon, expected_queries=10), acknowledge=True)
    return made


def test_counts_of_people_use_all_their_rows() -> None:
    """Counts of rows use only the rows within the contribution bound."""
    made = opened(driver(), {"kind": "laplace", "answers": 9})
    men, women = (made.ask("s", where=f"sex = '{sex}'").estimate for sex in "MF")
    assert made.ask("s", where="TRUE").estimate == 5
    assert men is not None
    assert women is not None
    assert men + women == 5
    assert made.ask("s", people=True).estimate == 3
    assert made.ask("s", people=True, where="sex = 'F'").estimate == 2
    assert made.ask("s", people=True, where="sex = 'M'").estimate == 2


def test_count_of_people_has_the_noise_of_one_row() -> None:
    """The contribution bound does not change it."""
    alphas = []
    for contribution in (1, 10):
        made = opened(driver(contribution=contribution), {"kind": "laplace", "answers": 2}, epsilon=1.0)
        alphas.append([made.ask("s", people=True).alpha, made.ask("s", where="TRUE").alpha])
    (one, rows), (also, wide) = alphas
    assert one == also == rows
    assert wide is not None
    assert rows is not None
    assert wide > 9 * rows


@pytest.mark.parametrize("kind", ["above_threshold", "numeric_sparse"])
def test_stream_of_people_alone_is_planned_for_one_row(kind: str) -> None:
    """It refuses all other questions; a stream for rows answers people too, with its noise for rows."""
    made = driver(contribution=10)
    for number, fields in enumerate(({}, {"people": True})):
        opened(made, {"kind": kind, "threshold": 0.0, **fields}, f"s{number}", 1.0)
    first, second = (made.grant("visits", f"s{number}").calibration for number in range(2))
    assert (first.sensitivity_steps, second.sensitivity_steps) == (10, 1)
    assert second.alpha < first.alpha / 5
    refused = made.ask("s1", where="TRUE", outcomes=True)
    assert refused.outcome == "rejected"
    assert "only counts of people" in (refused.reason or "")
    for name in ("s0", "s1"):
        assert made.ask(name, people=True, min_rows=2).outcome in {"above", "below"}
    with pytest.raises(Invalid, match="leave out sums, or people"):
        opened(made, {"kind": "noisy_max", "people": True, "sums": ["sex"]}, "s2")


@pytest.mark.parametrize(
    "mechanism",
    [
        {"kind": "histogram", "attributes": ["sex"]},
        {"kind": "lazy_histogram", "attributes": ["sex"]},
        {"kind": "sparse_project", "attributes": ["sex"]},
        {"kind": "pmw", "attributes": ["sex"]},
        {"kind": "pmw", "attributes": ["sex"], "worst_case": True, "rows": 10},
        {"kind": "sparse_pmw", "attributes": ["sex"], "rows": 10},
    ],
)
def test_questions_of_rows_alone_refuse_people_in_words(mechanism: dict[str, Any]) -> None:
    made = opened(driver(), mechanism)
    answer = made.ask("s", people=True, outcomes=True)
    assert (answer.outcome, answer.spent) == ("rejected", None)
    assert "people: this stream's mechanism does not take it" in (answer.reason or "")


def test_candidates_may_be_people() -> None:
    made = opened(driver(), {"kind": "noisy_max", "people": True})
    named = [{"name": "all", "people": True}, {"name": "none", "people": True, "where": "FALSE"}]
    assert made.ask("s", candidates=named).choice == "all"


def test_table_without_persons_counts_a_person_for_each_row() -> None:
    made = driver(person=None, contribution=1)
    opened(made, {"kind": "laplace", "answers": 3})
    assert made.ask("s", people=True).estimate == made.ask("s", where="TRUE").estimate == len(MORE)
    with pytest.raises(Invalid, match=r"\(this source declares none: each row is one person\); COUNT"):
        made.sql("SELECT COUNT(DISTINCT who) FROM visits")


def test_distinct_persons_in_sql_are_exact_for_many_rows() -> None:
    made = opened(driver(), {"kind": "laplace", "answers": 20})
    [row] = made.sql("SELECT COUNT(DISTINCT who) AS people, COUNT(*) AS n FROM visits")
    assert (row["people"], row["n"]) == (3, 5)
    wide = opened(driver(contribution=4), {"kind": "laplace", "answers": 20})
    grouped = wide.sql("SELECT sex, COUNT(DISTINCT Who) AS people FROM visits GROUP BY sex ORDER BY sex")
    assert [(row["sex"], row["people"]) for row in grouped] == [("F", 2), ("M", 2)]
    assert len(grouped.results) == 1, "one answer for all groups, by the rows that count"
    [row] = made.sql("SELECT COUNT(DISTINCT who) FILTER (WHERE sex = 'F') AS women FROM visits")
    assert row["women"] == 2
    with pytest.raises(Invalid, match=r"declares as person, 'who'; COUNT\(\*\) counts rows, .* there are$"):
        made.sql("SELECT COUNT(DISTINCT sex) FROM visits")


def test_public_outputs_do_not_depend_on_rows_beyond_the_bound() -> None:
    """Equal rows beyond the bound change no true answer; plans, promises and refusals are equal for all rows."""
    mechanisms: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"kind": "laplace", "answers": 2}, {"where": "sex = 'F'"}),
        ({"kind": "laplace", "answers": 2}, {"people": True}),
        ({"kind": "laplace", "answers": 2}, {"group_by": ["sex"]}),
        ({"kind": "above_threshold", "threshold": 1e6}, {"where": "sex = 'F'"}),
        ({"kind": "histogram", "attributes": ["sex"]}, {"group_by": ["sex"]}),
        ({"kind": "pmw", "attributes": ["sex"]}, {"where": "height > 2"}),
    ]
    outputs = []
    for rows in (SINGLE, [*SINGLE, *[SINGLE[0]] * 500], [*SINGLE, *[("ann", "M")] * 500]):
        made = driver(rows, contribution=1, neighbors="replace")
        shown = []
        for number, (mechanism, question) in enumerate(mechanisms):
            name = f"s{number}"
            opened(made, mechanism, name, 1.0)
            answer = made.ask(name, outcomes=True, **question)
            grant = made.grant("visits", name)
            shown.append((grant.calibration, grant.state, grant.cost, answer.outcome, answer.alpha, answer.reason))
        outputs.append((shown, made.ask("s3", where="sex = 'M'", outcomes=True).outcome))
    assert outputs[0] == outputs[1] == outputs[2]


def test_number_of_people_is_public_if_one_is_replaced() -> None:
    """The number of rows is never public if a person may have several."""
    made = driver([*MORE, *MORE], contribution=1, neighbors="replace")
    opened(made, {"kind": "laplace"})
    assert made.ask("s", where="TRUE", fraction=True).estimate == 1.0
    for contribution, message in ((1, "which is public here"), (2, None)):
        made = driver(MORE, contribution=contribution, neighbors="replace")
        mechanism = {"kind": "sparse_pmw", "attributes": ["sex"], "rows": 40}
        if message is None:
            opened(made, mechanism)
            calibration = made.grant("visits", "s").calibration
            assert calibration.epsilon_rows > 0.0  # type: ignore[union-attr]
        else:
            with pytest.raises(Refused, match=message):
                opened(made, mechanism)


def test_people_answers_are_the_same_after_crash_and_redelivery() -> None:
    made = opened(driver(), {"kind": "laplace", "answers": 5}, epsilon=1.0)
    first = made.ask("s", where="sex = 'F'")
    made.crash()
    made.redeliver()
    assert made.ask("s", where="sex = 'F'").index == 1
    assert first.index == 0


def test_check_shows_rows_that_larger_contributions_leave_out(tmp_path: Any) -> None:
    """The check lists doubled contributions, up to the first that leaves out at most one row in a hundred, with their costs."""
    path = tmp_path / "visits.csv"
    rows = [f"{person},F" for person in range(90) for _ in range(1 + person % 10)]
    path.write_text("who,sex\n" + "\n".join(rows) + "\n")
    report = check_table(parse_source(visits(2)), path)
    assert report.people is not None
    assert [(one.contribution, one.rows_beyond) for one in report.people.bounds] == [(4, 189), (8, 27), (10, 0)]
    [words] = [one for one in report.suggestions if one.startswith("contribution: ")]
    assert ": 324 rows, which counts and sums leave out" in words
    assert "4 would leave out 189; 8 would leave out 27; 10 would leave out 0" in words
    assert "choose it without looking at the table" in words


ROWS_OF_ONE: Final = "of each 'who' at most 2 rows count"


def test_answers_of_a_bounded_source_carry_how_many_rows_count() -> None:
    """Warnings and frames of results say how many rows of one person count, except for counts of people and unbounded sources."""
    made = opened(driver(), {"kind": "laplace", "answers": 20})
    asked: list[dict[str, Any]] = [{"where": "TRUE"}, {"where": "sex = 'F'"}, {"people": True}]
    results = made.ask_many([{"stream": "s", "id": str(at), **one} for at, one in enumerate(asked)])
    assert [one.warnings for one in results] == [
        (ROWS_OF_ONE, ROWS_LEFT_OUT),
        (ROWS_OF_ONE, ROWS_LEFT_OUT),
        (ROWS_LEFT_OUT,),
    ]
    assert results.warnings == (ROWS_OF_ONE, ROWS_LEFT_OUT)
    assert results.to_polars()["rows_per_person"].to_list() == [2, 2, None]
    assert ROWS_OF_ONE in str(results[0])
    assert "at most 2 rows count" in results[0]._repr_html_()


def test_alerts_of_a_bounded_source_carry_how_many_rows_count() -> None:
    """A watched alert and a webhook's message say how many rows of one person count."""
    made = opened(driver(), {"kind": "above_threshold", "threshold": -100.0, "cutoff": 3})
    made.ask("s", where="TRUE")
    [notice] = made.watch(from_beginning=True)
    assert (notice.is_alert, notice.bound_text) == (True, ROWS_OF_ONE)
    assert notice.answer is not None
    opening = StreamOpening("s", "visits", "0" * 32, "open", None, 0.0)
    message = json.loads(Alert("sotto", opening, notice.answer, notice.time, bound_text=notice.bound_text).body)
    assert message["data"]["counted"] == ROWS_OF_ONE


def test_check_counts_rows_beyond_the_contribution(tmp_path: Any) -> None:
    path = tmp_path / "visits.csv"
    path.write_text("who,sex\nann,F\nann,M\nann,M\nben,M\n,F\n")
    declared = parse_source(visits(2))
    report = check_table(declared, path)
    assert report.people is not None
    assert (report.people.rows_beyond, report.people.rows_without, report.fits) == (1, 1, False)
    assert any(": 1 row, which counts and sums leave out" in one for one in report.suggestions)
    assert any("are left out" in one for one in report.suggestions)
    path.write_text("who,sex\nann,F\nann,M\nben,M\n")
    assert check_table(declared, path).fits
    assert not check_table(parse_source(visits(1)), path).fits


def test_check_counts_the_rows_that_services_count(tmp_path: Any) -> None:
    """The check counts rows beyond the contribution bound among the valid rows, with the choice that services make."""
    path = tmp_path / "visits.csv"
    path.write_text("who,sex\nann,F\nann,?\nann,M\nann,\nben,?\nben,M\ncid,F\ncid,F\ncid,M\n,F\n")
    declared = parse_source(visits(2, path=str(path)))
    report = check_table(declared)
    assert report.people is not None
    assert (report.left_out, report.people.rows_beyond, report.people.rows_without) == (3, 1, 1)
    assert report.counted == PrivateTable.load(declared).private_row_count == 5
    assert (report.people.people, report.people.most_rows) == (3, 3)
    assert check_table(declared, person="sex").counted is None
    shown = CliRunner().invoke(app, ["source", "check", declared.model_dump_json(exclude_unset=True)]).stdout
    assert "; left out for a cell: 3 (30 %); in counts: 5 (50 %)" in " ".join(shown.split())


def test_simulation_measures_errors_of_the_rows_that_its_key_counts() -> None:
    declared = parse_source(visits(3))
    made = opened(driver(), {"kind": "laplace", "answers": 3})
    spec = made.grant("visits", "s").spec
    questions = read_questions(["sex = 'F'", '{"people": true}', "TRUE"], "s")
    table = pl.concat([draw_table(declared, 400, 1), pl.DataFrame({"sex": ["F"] * 50, "who": [1] * 50})])
    report = simulate(spec, declared, questions, table, runs=4)
    assert report.rows == 450
    assert report.counted is not None
    assert report.counted < 400
    # With ε = 900 noise is 0, so any error comes from the choice of rows.
    assert {one.what: one.largest for one in report.error_summaries} == {"counts": 0.0, "people": 0.0}
