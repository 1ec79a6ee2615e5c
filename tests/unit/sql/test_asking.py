"""A statement's result equals that of the same statement on the rows, within the error bound of each number."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl
import pytest

from schemas import Amount, AnswersCalibration, Position, StreamStatus
from sotto import Driver, Exhausted, Invalid, Rejected, StatementError, Table, Unknown
from stream.formatting import ROWS_LEFT_OUT
from stream.processing.topic_names import partition_of
from stream.tables.rows import Frame
from stream.testing.driver import MemoryCalls
from tests.builders import OTHER_KEY, installation, source, stream
from tests.commands import connect_commands, run_connected

RNG = random.Random(7)
ROWS = 400
FRAME = pl.DataFrame(
    {
        "age": [RNG.randint(20, 29) for _ in range(ROWS)],
        "Sex": [RNG.choice(["F", "M", "it's"]) for _ in range(ROWS)],
        "bmi": [RNG.choice([12.0, 20.0, 29.5, 45.0]) for _ in range(ROWS)],
    }
)
SOURCE = source(
    "patients",
    "table",
    epsilon=1000,
    path="patients.parquet",
    attributes={
        "age": {"kind": "integers", "minimum": 20, "maximum": 29},
        "Sex": ["F", "M", "it's"],
        "bmi": {"kind": "bins", "edges": [10, 18.5, 30, 60]},
    },
)
LAPLACE = {"kind": "laplace", "answers": 10}
PMW = {"kind": "pmw", "attributes": ["age", "Sex", "bmi"]}


def opened(
    mechanism: Mapping[str, object], epsilon: float = 900, frame: Frame = FRAME, name: str = "s", **changes: Any
) -> Driver:
    """Return an installation with one stream on the patients; `changes` replace fields of the source."""
    one = stream(name, "patients", mechanism=mechanism, epsilon=epsilon)
    return installation(
        one, sources=[{**SOURCE, **changes}], rows={"patients": frame}, key=OTHER_KEY, partitions=4
    )


def query_table(statement: str, mechanism: Mapping[str, object]) -> Table:
    """Return the result from a stream whose budget makes the answers almost exact."""
    return opened(mechanism).sql(statement)


@pytest.mark.parametrize("mechanism", [LAPLACE, PMW], ids=["laplace", "pmw"])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT COUNT(*) AS n FROM patients",
        "SELECT COUNT(*) AS n, AVG(age) AS m, SUM(age) AS s FROM patients WHERE \"Sex\" <> 'M' AND age < 27",
        "SELECT COUNT(*) FILTER (WHERE \"Sex\" = 'it''s') AS n FROM patients WHERE NOT age IN (21, 23)",
        "SELECT SUM(CASE WHEN \"Sex\" = 'F' THEN age ELSE 0 END) AS s FROM patients",
        'SELECT "Sex", MEDIAN(age) AS m FROM patients GROUP BY "Sex" ORDER BY "Sex"',
        'SELECT "Sex", COUNT(*) AS n FROM patients WHERE age BETWEEN 22 AND 26 GROUP BY "Sex" ORDER BY "Sex"',
        'SELECT "Sex", AVG(age) AS m, SUM(age) AS s, COUNT(*) AS n FROM patients GROUP BY "Sex" ORDER BY "Sex" DESC',
        'SELECT age, "Sex", COUNT(*) AS n FROM patients GROUP BY age, "Sex" ORDER BY age, "Sex"',
    ],
)
def test_results_are_near_those_of_the_rows(statement: str, mechanism: Mapping[str, object]) -> None:
    expected = pl.SQLContext(patients=FRAME).execute(statement.replace("NOT age IN", "age NOT IN"), eager=True)
    found = query_table(statement, mechanism)
    assert len(found) == len(expected)
    for row, truth in zip(found, expected.to_dicts(), strict=True):
        for name, value in truth.items():
            if f"{name} ±" in row:
                assert abs(row[name] - value) <= row[f"{name} ±"] + 1e-9, name
                assert row[f"{name} ±"] < 60
            else:
                assert row[name] == value


@pytest.mark.parametrize("mechanism", [LAPLACE, PMW], ids=["laplace", "pmw"])
def test_bins_are_grouped_by_their_edges(mechanism: Mapping[str, object]) -> None:
    found = query_table("SELECT bmi, COUNT(*) AS n, AVG(age) AS m FROM patients GROUP BY bmi", mechanism)
    for row, (label, low, high) in zip(
        found, [("[10, 18.5)", 10, 18.5), ("[18.5, 30)", 18.5, 30), ("[30, 60]", 30, 61)], strict=True
    ):
        inside = FRAME.filter(pl.col("bmi").is_between(low, high, closed="left"))["age"]
        assert row["bmi"] == label
        assert abs(row["n"] - len(inside)) <= row["n ±"]
        mean = inside.mean()
        assert isinstance(mean, float)
        assert abs(row["m"] - mean) <= row["m ±"] + 1e-9


def test_groups_are_in_the_declared_order_of_their_values() -> None:
    attributes = {
        "bmi": {"kind": "bins", "edges": [0, 5, 10, 20, 100]},
        "level": ["none", "little", "much"],
        "age": {"kind": "integers", "minimum": 8, "maximum": 11},
    }
    rows: Frame = {"bmi": [1.0, 50.0], "level": ["none", "much"], "age": [8, 11]}
    made = opened(LAPLACE, frame=rows, attributes=attributes)

    def values(by: str, rest: str = "") -> list[object]:
        statement = f"SELECT {by}, COUNT(*) AS n FROM s GROUP BY {by} ORDER BY {by} {rest}"  # noqa: S608
        return [row[by] for row in made.sql(statement)]

    assert values("bmi") == ["[0, 5)", "[5, 10)", "[10, 20)", "[20, 100]"]
    assert values("bmi", "DESC LIMIT 1") == ["[20, 100]"]
    assert values("level") == ["none", "little", "much"]
    assert values("age", "DESC") == [11, 10, 9, 8]
    both = made.sql("SELECT level, bmi, COUNT(*) FROM s GROUP BY bmi, level ORDER BY level DESC, bmi LIMIT 5")
    assert [(row["level"], row["bmi"]) for row in both] == [
        *(("much", label) for label in ("[0, 5)", "[5, 10)", "[10, 20)", "[20, 100]")),
        ("little", "[0, 5)"),
    ]


def test_share_is_one_of_all_rows() -> None:
    for statement in (
        "SELECT AVG(CASE WHEN \"Sex\" = 'F' THEN 1 ELSE 0 END) AS f FROM patients",
        "SELECT COUNT(*) FILTER (WHERE \"Sex\" = 'F') * 1.0 / COUNT(*) AS f FROM patients",
    ):
        [row] = query_table(statement, PMW)
        assert abs(row["f"] - (FRAME["Sex"] == "F").mean()) <= row["f ±"]


def driver(epsilon: float = 4.0, answers: int = 4) -> Driver:
    """Return an installation with one stream of few answers."""
    return opened({"kind": "laplace", "answers": answers}, epsilon, name="few")


def test_cost_of_a_statement_is_the_charge_of_its_stream() -> None:
    few = driver()
    assert few.sql("SELECT COUNT(*) FROM patients").epsilon == pytest.approx(1.0)
    assert few.sql("SELECT age, COUNT(*) FROM patients GROUP BY age").epsilon == pytest.approx(1.0)
    assert few.sql(
        "SELECT COUNT(*) AS a, COUNT(*) FILTER (WHERE age > 25) AS b FROM few"
    ).epsilon == pytest.approx(2.0)


def test_answers_paid_by_an_extension_cost_as_much() -> None:
    few = driver(epsilon=2.0, answers=2)
    few.extend("patients", "few", epsilon=1.0)
    costs = [few.sql("SELECT COUNT(*) FROM few").epsilon for _ in range(3)]
    assert costs == pytest.approx([1.0, 1.0, 1.0])


def test_free_answer_of_pmw_costs_nothing() -> None:
    made = opened(PMW, 50)
    first, again = (made.sql("SELECT COUNT(*) FROM patients WHERE age < 25") for _ in range(2))
    assert 0 < first.epsilon <= 50
    spent = made.grant("patients", "s").spent.epsilon
    assert first.epsilon == pytest.approx(spent)
    assert again.epsilon == 0


@pytest.mark.parametrize(("mechanism", "warns"), [(PMW, False), ({**PMW, "worst_case": True, "rows": 500}, True)])
def test_table_warns_of_estimates_only_if_a_number_has_no_interval(mechanism: dict[str, Any], warns: bool) -> None:
    table = opened(mechanism, 50).sql("SELECT COUNT(*) FROM patients WHERE age < 25")
    assert ("count(*) 95% low" in table.columns) is not warns
    assert any("numbers without a 95 % interval" in one for one in table.warnings) is warns


def test_statement_beyond_the_grant_is_refused_uncharged() -> None:
    """A grant that pays for only a part of a statement's questions is not charged for this part."""
    few = driver(answers=2)
    few.sql("SELECT COUNT(*) FROM few")
    two = "SELECT COUNT(*) AS a, COUNT(*) FILTER (WHERE age > 25) AS b FROM {}"
    for table in ("few", "patients"):
        with pytest.raises(
            StatementError, match=r"asks 2 questions, and the grant of stream 'few' pays for 1 more; "
        ):
            few.sql(two.format(table))
    assert few.grant("patients", "few").tops == 1
    few.sql("SELECT COUNT(*) FROM few")
    with pytest.raises(Exhausted):
        few.sql(two.format("few"))


def test_statement_with_one_question_of_too_many_values_is_refused_uncharged() -> None:
    """A worker refuses the median of each group, after the other column was charged."""
    made = Driver(OTHER_KEY)
    attributes = {"ward": 4, "cost": 300_001}
    columns = {"ward": [0, 1, 2, 3], "cost": [10, 20, 30, 40]}
    made.register(source("visits", "table", path="in memory", epsilon=9.0, attributes=attributes), columns)
    made.open(stream("paid", "visits", "laplace", epsilon=4.0), acknowledge=True)
    for statement in (
        "SELECT ward, MEDIAN(cost) AS m FROM paid GROUP BY ward",
        "SELECT ward, COUNT(*) AS n, MEDIAN(cost) AS m FROM paid GROUP BY ward",
    ):
        with pytest.raises(
            StatementError, match="column 'm': the groups have more than 1,048,576 values of 'cost'"
        ):
            made.sql(statement)
    assert made.grant("visits", "paid").spent.epsilon == 0.0


def test_informative_stream_is_preferred_to_a_free_one() -> None:
    """An estimate without measurements left has no bound, so laplace answers."""
    made = opened({**PMW, "updates": 1, "warm_start": 0}, 50, name="guess")
    made.ask("guess", where="age < 25")
    grant = made.grant("patients", "guess")
    assert grant.tops == grant.calibration.cutoff == 1
    counts = "SELECT COUNT(*) FROM patients WHERE bmi < 30"
    assert made.sql(counts).why is None
    made.open(stream("exact", "patients", mechanism=LAPLACE, epsilon=900.0))
    assert made.sql(counts).why == "cheapest open stream: laplace, least ε, 90"
    made.close("patients", "exact")


@pytest.mark.parametrize(
    ("neighbors", "chosen", "why"),
    [
        (
            "add-remove",
            "better",
            "cheapest of the accurate open streams: laplace, least ε, 1; a count may err by ",
        ),
        ("replace", "other", "cheapest open stream: laplace, least ε, 0.05; a count may err by "),
    ],
)
def test_private_row_count_lets_accuracy_decide_before_price(neighbors: str, chosen: str, why: str) -> None:
    """Only a public row count shows that a cheap stream is informative; `why` names the stream passed over."""
    one = {**LAPLACE, "answers": 1}
    made = opened(one, 0.05, name="other", neighbors=neighbors)
    made.open(stream("better", "patients", mechanism=one, epsilon=1.0))
    made.open(stream("best", "patients", mechanism=one, epsilon=1.5))
    table = made.sql("SELECT COUNT(*) FROM patients WHERE bmi < 30")
    assert table.stream == chosen
    assert (table.why or "").startswith(why)
    assert (table.why or "").endswith(
        "'other' by 60 for ε 0.05" if chosen == "better" else "'best' by 2 for ε 1.5"
    )


def test_reason_has_the_error_of_a_histogram_for_the_sum_of_cells() -> None:
    """A count that sums cells errs by more than the histogram's α for one cell, here 4."""
    made = opened({**LAPLACE, "answers": 1}, 0.05, name="other", neighbors="replace")
    cells = {"kind": "histogram", "attributes": ["Sex"]}
    made.open(stream("cells", "patients", mechanism=cells, epsilon=2.0))
    why = made.sql("SELECT COUNT(*) FROM patients WHERE \"Sex\" = 'F'").why or ""
    assert why.endswith("; a count may err by 60, and in stream 'cells' by 12 for ε 2")


def test_reason_names_a_far_better_stream_that_cannot_pay() -> None:
    made = opened({**LAPLACE, "answers": 2}, 0.1, name="coarse")
    made.open(stream("fine", "patients", mechanism={**LAPLACE, "answers": 1}, epsilon=2.0))
    table = made.sql("SELECT COUNT(*) AS a, COUNT(*) FILTER (WHERE age > 25) AS b FROM patients")
    assert table.stream == "coarse"
    assert (table.why or "").startswith("cheapest open stream: laplace, least ε, 0.1; a count may err by ")
    assert (table.why or "").endswith("and in stream 'fine' by 1, but its grant pays for only 1 of 2 questions")


def test_from_names_a_stream_or_the_source_of_one_stream() -> None:
    few = driver()
    with pytest.raises(Unknown, match="no such source or stream"):
        few.sql("SELECT COUNT(*) FROM nobody")
    few.open(stream("another", "patients", mechanism=LAPLACE))
    assert few.sql("SELECT COUNT(*) FROM another").stream == "another"
    few.close("patients", "few")
    assert few.sql("SELECT COUNT(*) FROM patients").stream == "another"


def test_cheapest_open_stream_of_a_source_answers() -> None:
    made = driver(epsilon=4.0, answers=4)
    counts, sums = 'SELECT "Sex", COUNT(*) AS n FROM patients GROUP BY "Sex"', "SELECT SUM(age) FROM patients"
    assert made.sql(counts).why is None
    made.open(stream("cells", "patients", mechanism={"kind": "histogram", "attributes": ["Sex"]}, epsilon=2.0))
    # The histogram would cost ε 2, and an answer of the other stream ε 1; after its payment, the histogram is free.
    table = made.sql(counts)
    assert (table.stream, table.epsilon, table.why) == (
        "few",
        1.0,
        "cheapest open stream: laplace, least ε, 1",
    )
    made.sql("SELECT COUNT(*) FROM cells WHERE \"Sex\" = 'F'")
    table = made.sql(counts)
    assert (table.stream, table.epsilon) == ("cells", 0.0)
    assert "its release is paid for" in repr(table)
    assert made.sql(sums).stream == "few"
    made.open(stream("guess", "patients", mechanism=PMW, epsilon=20.0))
    made.sql("SELECT COUNT(*) FROM guess")
    assert made.sql(sums).stream == "guess"
    assert made.sql(counts).stream == "cells"


def test_stream_that_waits_for_its_table_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen only if FROM names it, or if no other stream supports the statement; the list names its cause."""
    driver = opened(LAPLACE, epsilon=90, name="cheap", neighbors="replace")
    driver.open(stream("dear", "patients", mechanism=LAPLACE, epsilon=900))
    asked = "SELECT COUNT(*) FROM patients"
    assert driver.sql(asked, max_price=0).stream == "cheap"
    append_refusal(driver, "patients", "cheap")
    assert driver.sql(asked, max_price=0).stream == "dear"
    assert driver.sql("SELECT COUNT(*) FROM cheap", max_price=0).stream == "cheap"
    connect_commands(monkeypatch, driver)
    assert "cheap is not answering: table: differs" in run_connected("stream", "list", "patients")
    driver.close("patients", "dear")
    assert driver.sql(asked, max_price=0).stream == "cheap"
    driver.open(stream("equal", "patients", mechanism=LAPLACE, epsilon=90))
    assert driver.sql(asked, max_price=0).stream == "equal", "it has the same plan and a later name"
    driver._append((driver.topics.status, partition_of(b"cheap", 4)), b"cheap", b'{"field":"of a later version"}')
    assert driver.sql(asked, max_price=0).stream == "equal", "what was known is kept"


async def test_statements_at_the_same_time_read_the_status_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = opened(LAPLACE, epsilon=90, name="cheap")
    driver.open(stream("dear", "patients", mechanism=LAPLACE, epsilon=900))
    append_refusal(driver, "patients", "cheap")
    reads: list[str] = []
    read_all = MemoryCalls.statuses

    async def read(self: MemoryCalls, streams: Iterable[str]) -> Any:
        reads.append("status")
        await asyncio.sleep(0)
        return await read_all(self, streams)

    monkeypatch.setattr(MemoryCalls, "statuses", read)
    monkeypatch.setattr(MemoryCalls, "_refusals_seconds", 60.0)
    calls = driver._get_portal()
    tables = await asyncio.gather(*(calls.sql("SELECT COUNT(*) FROM patients", max_price=0) for _ in range(3)))
    assert ([one.stream for one in tables], reads) == (["dear"] * 3, ["status"])


def append_refusal(driver: Driver, source: str, name: str) -> None:
    """Append the status of a worker that waits for the stream's table."""
    status = StreamStatus(
        stream=name,
        source=source,
        incarnation=driver.grant(source, name).identity.incarnation,
        state="open",
        answered=0,
        tops=0,
        tops_left=None,
        spent=Amount(epsilon=0.0, delta=0.0),
        alpha=1.0,
        position=Position(topic="queries", partition=0, offset=0),
        refused="table: differs",
    )
    partition = partition_of(name.encode(), driver.topics.partitions)
    driver._append((driver.topics.status, partition), name.encode(), status.model_dump_json().encode())


def test_free_stream_that_measured_the_pair_is_preferred_to_a_guess() -> None:
    """A mean by groups has two attributes; after a warm start of single ones, it would be a marked guess."""
    made = opened({**PMW, "warm_start": 1}, 60, name="a")
    made.open(stream("b", "patients", mechanism={**PMW, "warm_start": 2}, epsilon=20.0))
    for name in "ab":
        made.ask(name, where="age < 25")
    assert made.sql("SELECT AVG(age) FROM patients").stream == "a"
    assert made.sql('SELECT "Sex", AVG(age) FROM patients GROUP BY "Sex"').stream == "b"
    made.close("patients", "b")
    assert made.sql('SELECT "Sex", AVG(age) FROM patients GROUP BY "Sex"').stream == "a"


def test_unsupported_statement_is_refused_with_each_streams_reason() -> None:
    made = opened({"kind": "histogram", "attributes": ["Sex"]}, 1, name="cells")
    made.open(stream("guess", "patients", mechanism={"kind": "pmw", "attributes": ["bmi"]}))
    with pytest.raises(StatementError, match=r"none of its streams answers this statement; cells: .*; guess: .*"):
        made.sql("SELECT COUNT(*) FROM patients WHERE age < 25")
    with pytest.raises(StatementError, match="which answers counts, shares, quantiles and spreads of rows"):
        made.sql("SELECT SUM(age) FROM cells")


def test_histogram_answers_quantiles_and_spreads_as_ask_does() -> None:
    made = opened({"kind": "histogram", "attributes": ["age", "Sex"]}, name="cells")
    table = made.sql(
        'SELECT "Sex", MEDIAN(age) AS m, QUANTILE(age, 0.9) AS q, STDDEV(age) AS d FROM cells GROUP BY "Sex"'
    )
    asked: list[dict[str, Any]] = [{"quantile": "age"}, {"quantile": "age", "q": 0.9}, {"stddev": "age"}]
    for name, fields in zip("mqd", asked, strict=True):
        assert [row[name] for row in table] == list(made.ask("cells", group_by=["Sex"], **fields).estimates or ())
    assert table.epsilon > 0.0
    assert made.sql("SELECT VARIANCE(age) FROM cells").epsilon == 0.0


def test_stream_with_too_few_answers_left_is_not_chosen() -> None:
    made = driver(epsilon=1.0, answers=1)
    made.open(stream("dear", "patients", mechanism=LAPLACE, epsilon=12.0))
    two = "SELECT COUNT(*) AS a, COUNT(*) FILTER (WHERE age > 25) AS b FROM patients"
    assert made.sql(two).stream == "dear"
    assert made.sql("SELECT COUNT(*) FROM patients").stream == "few"


@pytest.mark.parametrize(
    "mechanism",
    [LAPLACE, PMW, {"kind": "histogram", "attributes": ["age", "Sex"]}],
    ids=["laplace", "pmw", "cells"],
)
def test_rates_by_group_are_near_those_of_the_rows(mechanism: Mapping[str, object]) -> None:
    statement = (
        'SELECT "Sex", AVG(CASE WHEN age < 25 THEN 1 ELSE 0 END) AS r FROM s WHERE age > 21 GROUP BY "Sex" '
        "HAVING r >= 0 ORDER BY r DESC LIMIT 2"
    )
    made = opened(mechanism)
    table = made.sql(statement)
    inside = FRAME.filter(pl.col("age") > 21)
    assert len(table) == 2
    assert table[0]["r"] >= table[1]["r"]
    for row in table:
        truth = (inside.filter(pl.col("Sex") == row["Sex"])["age"] < 25).mean()
        assert abs(row["r"] - truth) <= row["r ±"] + 1e-9
    assert len(table.results) == 1


def test_people_are_counted_by_group_and_by_subquery() -> None:
    people = FRAME.with_columns(who=(pl.int_range(pl.len()) // 4).cast(pl.String))
    made = opened(LAPLACE, frame=people, person="who", contribution=4)
    table = made.sql('SELECT "Sex", COUNT(DISTINCT who) AS n FROM s GROUP BY "Sex"')
    assert len(table.results) == 1
    for row in table:
        truth = people.filter(pl.col("Sex") == row["Sex"])["who"].n_unique()
        assert abs(row["n"] - truth) <= row["n ±"]
    [row] = made.sql(
        "SELECT COUNT(*) AS n FROM (SELECT who FROM s WHERE age < 25 GROUP BY who HAVING COUNT(*) >= 3)"
    )
    rows = people.filter(pl.col("age") < 25).group_by("who").len()
    assert abs(row["n"] - rows.filter(pl.col("len") >= 3).height) <= row["n ±"]
    [row] = made.sql("SELECT SUM(LEAST(s, 90)) AS t FROM (SELECT who, SUM(age) AS s FROM s GROUP BY who)")
    sums = people.group_by("who").agg(pl.col("age").sum())["age"].clip(upper_bound=90)
    assert abs(row["t"] - sums.sum()) <= row["t ±"]
    with pytest.raises(StatementError, match="by the column that the source declares as person"):
        made.sql("SELECT COUNT(*) FROM (SELECT age FROM s GROUP BY age HAVING COUNT(*) >= 3)")


def test_missing_numbers_and_missing_rows_have_different_errors() -> None:
    made = opened({"kind": "above_threshold", "threshold": 10}, 1, name="vector")
    with pytest.raises(Unknown, match="open one"):
        made.sql("SELECT COUNT(*) FROM patients")
    with pytest.raises(Invalid, match="above_threshold"):
        made.sql("SELECT COUNT(*) FROM vector")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("AVG(bmi)", "is declared neither as integers nor as decimals"),
        ("COUNT(nosuch)", "COUNT: no attribute is called 'nosuch'"),
        ("COUNT(CASE WHEN age > 3 THEN nosuch END)", "no attribute is called 'nosuch'"),
        ("COUNT(nosuch) FILTER (WHERE age > 3) / COUNT(*)", "no attribute is called 'nosuch'"),
        ("COUNT_IF(age > 3) / COUNT(nosuch)", "no attribute is called 'nosuch'"),
        ("COUNT(*) FILTER (WHERE height > 3) AS b", "where height > 3: character 1: no declared"),
        ("COUNT(*) FILTER (WHERE age IS NULL) AS b", "IS is not allowed"),
        ("COUNT(*) FILTER (WHERE age LIKE 5) AS b", "LIKE is not allowed"),
        ("COUNT(*) FILTER (WHERE \"Sex\" = 'X') AS b", "not a declared value of 'Sex'"),
        ("COUNT(*) FILTER (WHERE age > 2" + "0" * 5000 + ") AS b", "more than 2048 characters"),
    ],
)
def test_invalid_column_is_refused_before_others_are_charged(columns: str, words: str) -> None:
    few = driver()
    with pytest.raises(StatementError) as refused:
        few.sql(f"SELECT COUNT(*) AS n, {columns} FROM few")  # noqa: S608
    assert words in str(refused.value)
    with pytest.raises(StatementError, match="did you mean 'age'"):
        few.sql("SELECT COUNT(*) FROM few GROUP BY agee")
    with pytest.raises(StatementError, match="twice"):
        few.sql("SELECT age, COUNT(*) FROM few GROUP BY age, AGE")
    assert few.grant("patients", "few").answered == 0


@pytest.mark.parametrize(
    ("mechanism", "column", "words"),
    [
        (
            {"attributes": ["age"]},
            "COUNT(*) FILTER (WHERE \"Sex\" = 'F') AS b",
            "'Sex' is not among the mechanism.attributes",
        ),
        ({"attributes": ["Sex"]}, "SUM(age) AS b", "'age' is not among the mechanism.attributes"),
        ({"attributes": ["age"], "worst_case": True}, "SUM(age) AS b", "multiplicative weights"),
        ({"attributes": ["age"]}, "COUNT(DISTINCT who) AS b", "counts rows but not people"),
    ],
)
def test_column_that_pmw_does_not_answer_is_refused_uncharged(
    mechanism: Mapping[str, object], column: str, words: str
) -> None:
    """The refusal comes before the other columns are charged."""
    people = FRAME.with_columns(who=pl.int_range(pl.len()).cast(pl.String))
    worst = {"rows": ROWS} if "worst_case" in mechanism else {}
    made = opened({"kind": "pmw", **mechanism, **worst}, 50, people, person="who", contribution=1)
    with pytest.raises(StatementError, match=f"column 'b': .*{words}"):
        made.sql(f"SELECT COUNT(*) AS n, {column} FROM s")  # noqa: S608
    assert made.grant("patients", "s").answered == 0


def test_quantile_of_too_many_values_for_pmw_is_refused_uncharged() -> None:
    """`pmw` compares at most 4,096 numbers with the table; FROM with the source then names another stream."""
    cents = {"kind": "decimal", "minimum": 0, "maximum": 1000, "step": 0.01}
    frame = pl.DataFrame({"cost": [5.0] * ROWS})
    made = opened({"kind": "pmw", "attributes": ["cost"]}, 50, frame, attributes={"cost": cents})
    with pytest.raises(StatementError, match="column 'm': there are more than 4,096 cells of 'cost'"):
        made.sql("SELECT COUNT(*) AS n, MEDIAN(cost) AS m FROM s")
    assert made.grant("patients", "s").answered == 0
    made.open(stream("paid", "patients", mechanism=LAPLACE, epsilon=900))
    assert made.sql("SELECT COUNT(*) AS n, MEDIAN(cost) AS m FROM patients").stream == "paid"


def test_statement_result_states_the_contribution_bound() -> None:
    """Results with only counts of people do not state it, except by groups, which count counted rows only."""
    people = FRAME.with_columns(who=(pl.int_range(pl.len()) // 8).cast(pl.String))
    made = opened(LAPLACE, frame=people, person="who", contribution=5)
    words = ("of each 'who' at most 5 rows count", ROWS_LEFT_OUT)
    assert made.sql("SELECT COUNT(DISTINCT who) AS n, AVG(age) AS a FROM s").warnings[:2] == words[::-1]
    table = made.sql("SELECT COUNT(*) AS n FROM s")
    assert table.warnings == words
    assert table[0]["n"] == pytest.approx(ROWS // 8 * 5, abs=table[0]["n ±"])
    assert words[0] in repr(table)
    assert made.sql("SELECT COUNT(DISTINCT who) AS n FROM s").warnings == words[1:]
    assert made.sql('SELECT "Sex", COUNT(DISTINCT who) AS n FROM s GROUP BY "Sex"').warnings == words
    assert driver().sql("SELECT COUNT(*) FROM few").warnings == words[1:]


def test_more_groups_than_any_stream_answers_are_refused() -> None:
    ages = {"kind": "integers", "minimum": 0, "maximum": 99}
    made = opened(LAPLACE, 1, attributes={"age": ages, "bmi": {**ages, "maximum": 59}})
    with pytest.raises(StatementError, match="6,000 groups; group by"):
        made.sql("SELECT age, bmi, COUNT(*) FROM s GROUP BY age, bmi")
    with pytest.raises(StatementError, match="6,000 groups, counting those that WHERE excludes; group by"):
        made.sql("SELECT age, bmi, COUNT(*) FROM s WHERE age < 3 GROUP BY age, bmi")


def test_unambiguous_name_in_another_case_is_found() -> None:
    assert [row["sex"] for row in driver().sql("SELECT sex, COUNT(*) FROM few GROUP BY sex")] == ["F", "M", "it's"]


def test_sums_by_too_many_groups_are_refused_uncharged() -> None:
    made = opened(LAPLACE, 1, attributes={"age": {"kind": "integers", "minimum": 0, "maximum": 999}})
    with pytest.raises(Invalid, match="256"):
        made.sql("SELECT age, SUM(age) FROM s GROUP BY age")
    assert made.grant("patients", "s").answered == 0


@pytest.mark.parametrize(
    ("rest", "shown", "questions"),
    [
        ("LIMIT 2", ["F", "M"], 2),
        ('ORDER BY "Sex" DESC LIMIT 1', ["it's"], 1),
        ('ORDER BY "Sex" LIMIT 9', ["F", "M", "it's"], 3),
        ("ORDER BY mean LIMIT 1", None, 3),
        ('ORDER BY "Sex", mean LIMIT 1', ["F"], 3),
        ('HAVING mean > 0 ORDER BY "Sex" LIMIT 2', ["F", "M"], 3),
    ],
)
def test_limit_saves_questions_only_in_an_order_of_groups(
    rest: str, shown: list[str] | None, questions: int
) -> None:
    """Groups beyond LIMIT are neither asked nor charged, unless answers decide which groups are shown."""
    made = opened(LAPLACE)
    table = made.sql(f'SELECT "Sex", AVG(age) AS mean FROM s GROUP BY "Sex" {rest}')  # noqa: S608
    assert shown is None or [row["Sex"] for row in table] == shown
    assert len(table.results) == made.grant("patients", "s").tops == questions


@pytest.mark.parametrize(
    ("clauses", "is_chosen"),
    [
        ("ORDER BY n DESC LIMIT 2", True),
        ("HAVING n > 45", True),
        ("HAVING n > 0", False),
        ("HAVING n > 9999", True),
        ("ORDER BY n LIMIT 99", False),
        ("ORDER BY age LIMIT 2", False),
        ("LIMIT 2", False),
    ],
)
def test_groups_chosen_by_numbers_say_what_their_intervals_hold_for(clauses: str, is_chosen: bool) -> None:
    """The largest of many noisy numbers is larger than the true one more often than 95 % intervals allow."""
    table = opened(LAPLACE).sql(f"SELECT age, COUNT(*) AS n FROM patients WHERE age > 21 GROUP BY age {clauses}")  # noqa: S608
    assert any("named in advance; ± holds" in line for line in table.warnings) == is_chosen


def test_table_is_a_frame_and_a_page() -> None:
    table = driver().sql('SELECT "Sex", COUNT(*) AS n FROM few GROUP BY "Sex" ORDER BY n DESC LIMIT 2')
    frame = table.to_polars()
    assert frame.columns == ["Sex", "n", "n ±", "n 95% low", "n 95% high"]
    assert frame["n"].to_list() == sorted(frame["n"].to_list(), reverse=True)
    assert len(frame) == 2
    assert "<table>" in table._repr_html_()
    assert "1 question for ε = 1" in repr(table)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT COUNT(*) FROM s WHERE age::int > 4", "where age::int > 4: character 4: ::"),
        ("SELECT COUNT(*) FROM s AS t WHERE t.age > NOW()", "where t.age > NOW(): a function call instead of"),
        ("SELECT COUNT(*) FROM s WHERE age > DATE '2020-01-01'", "character 7: DATE is not allowed"),
        ("SELECT COUNT_IF(age > 'x') FROM s", "where age > 'x': character 7: "),
        (
            "SELECT SUM(age) FILTER (WHERE (age > 4) AND size > 3) FROM s WHERE age < 9 ORDER BY 1",
            "where (age > 4) AND size > 3: character 15: no declared attribute has this name",
        ),
        ("SELECT COUNT(*)::float FROM s", "column 'COUNT(*)::float': CAST cannot be asked"),
        ("SELECT age, COUNT(*) * 2 AS n FROM s GROUP BY age", "column 'COUNT(*) * 2 AS n': this expression"),
        ("SELECT SUM((age > 4)::int) FROM s", "column 'SUM((age > 4)::int)': SUM: name an attribute alone"),
    ],
)
def test_refusal_quotes_the_statement_as_written(statement: str, message: str) -> None:
    with pytest.raises(StatementError) as refused:
        query_table(statement, LAPLACE)
    assert message in str(refused.value)


def test_price_of_a_statement_on_pmw_is_at_most_the_rest_of_its_grant() -> None:
    """Each of three means on a new stream may pay for the opening, but only one does; a dry run charges nothing."""
    driver = opened(PMW, epsilon=9.0)
    table = driver.sql('SELECT "Sex", AVG(age) FROM s GROUP BY "Sex"', max_price=0)
    assert len(table.results) == 3
    assert driver.budget("patients").spent.epsilon == 0.0
    assert table.price == 9.0


@pytest.mark.parametrize("limit", [0, 0.5, "50%"])
def test_max_price_of_a_release_limits_its_first_answer(limit: float | str) -> None:
    """The plan fixes the price of a histogram: its first answer costs the whole grant, and later ones nothing."""
    driver = opened({"kind": "histogram", "attributes": ["Sex"]}, epsilon=1.0)
    statement = "SELECT COUNT(*), COUNT_IF(\"Sex\" = 'F') FROM s"
    assert driver.sql(statement, max_price=0).price == 1.0
    if limit:
        with pytest.raises(Rejected, match="costs ε = 1, and the limit is"):
            driver.sql(statement, max_price=limit)
    assert driver.budget("patients").spent.epsilon == 0.0
    assert driver.sql(statement, max_price="100%").epsilon == 1.0
    assert driver.sql(statement, max_price=limit).epsilon == 0.0
    with pytest.raises(Invalid, match="max_price"):
        driver.sql("SELECT COUNT(*) FROM s", max_price="cheap")


def test_column_is_named_as_it_was_written() -> None:
    statement = "SELECT ALL COUNT_IF(age\n> 24), COUNT( * ), COUNT_IF(age<23)::float / COUNT(*) FROM s ORDER BY count_if(age > 24)"
    [row] = query_table(statement, LAPLACE)
    assert [name for name in row if not name.endswith((" ±", "% low", "% high"))] == [
        "COUNT_IF(age > 24)",
        "count(*)",
        "COUNT_IF(age<23)::float / COUNT(*)",
    ]


def test_comment_is_no_part_of_a_condition() -> None:
    [row] = query_table("SELECT COUNT(*) AS n FROM s WHERE age < 27 /* the young */ -- and no others", LAPLACE)
    assert abs(row["n"] - len(FRAME.filter(pl.col("age") < 27))) <= row["n ±"]


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("SELECT SEX, COUNT(*) AS n FROM s GROUP BY Sex ORDER BY sex", "SEX"),
        ('SELECT "Sex" AS who, COUNT(*) AS n FROM s GROUP BY who ORDER BY WHO', "who"),
        ("SELECT sex AS sex, COUNT(*) AS N FROM s GROUP BY sex ORDER BY 1, n", "sex"),
        ("SELECT s.sex, COUNT(*) AS n FROM s GROUP BY s.sex ORDER BY s.sex", "sex"),
    ],
)
def test_groups_are_named_as_sql_names_them(statement: str, name: str) -> None:
    """The name is the attribute in upper or lower case, or the name of its column."""
    assert [row[name] for row in query_table(statement, LAPLACE)] == ["F", "M", "it's"]


def test_ambiguous_group_name_is_refused() -> None:
    with pytest.raises(StatementError, match=r"'age' is an attribute and also the alias"):
        query_table('SELECT "Sex" AS age, COUNT(*) FROM s GROUP BY age', LAPLACE)


def test_attributes_that_differ_only_in_case_are_distinct() -> None:
    both = {"Sex": ["F", "M"], "sex": ["f", "m"]}
    made = opened(LAPLACE, frame={"Sex": ["F"], "sex": ["m"]}, attributes=both)
    with pytest.raises(StatementError, match="'Sex' is neither grouped by"):
        made.sql('SELECT "Sex", COUNT(*) FROM s GROUP BY sex')
    assert [row["sex"] for row in made.sql("SELECT sex, COUNT(*) FROM s GROUP BY sex ORDER BY sex")] == ["f", "m"]


@pytest.mark.parametrize(("delta", "method"), [(0.0, "basic"), (1e-9, "gaussian")])
def test_sum_that_no_noise_hides_is_refused_before_other_charges(delta: float, method: str) -> None:
    """The public range decides the refusal; the mean moves by less, and is answered."""
    stamps = {"at": {"kind": "integers", "minimum": 10**13, "maximum": 10**13 + 9}}
    budget = {"epsilon": 9, "delta": 2e-9, "accountant": "zcdp"}
    made = installation(
        stream("s", "patients", "laplace", mechanism={"answers": 1000}, epsilon=0.01, delta=delta),
        sources=[{**SOURCE, **budget, "attributes": stamps}],
        rows={"patients": {"at": [10**13 + 3] * 100}},
        key=OTHER_KEY,
        partitions=4,
    )
    calibration = made.grant("patients", "s").calibration
    assert isinstance(calibration, AnswersCalibration)
    assert calibration.method == method
    with pytest.raises(StatementError, match=r"column 't': its noise would not fit 52 binary digits; ask of an"):
        made.sql("SELECT COUNT(*) AS n, SUM(at) AS t FROM s")
    assert made.grant("patients", "s").spent.epsilon == 0
    assert made.sql("SELECT AVG(at) AS m FROM s").results[0].outcome == "answer"


@pytest.mark.parametrize(
    ("column", "source_fields", "stream_fields", "reason"),
    [
        (
            "STDDEV(age)",
            {"delta": 2e-9, "accountant": "zcdp"},
            {"delta": 1e-9},
            "stddev: the Gaussian noise of this stream is planned for 2 numbers in one answer",
        ),
        ("MEDIAN(age)", {"person": "id", "contribution": 1000}, {}, "quantile: its noise would be too wide"),
        ("MEDIAN(age)", {}, {}, "quantile: one answer would need .* weights, and the limit is"),
    ],
    ids=["gaussian", "wide", "large"],
)
def test_statistic_that_the_stream_cannot_answer_is_refused_before_other_charges(
    column: str, source_fields: dict[str, Any], stream_fields: dict[str, Any], reason: str
) -> None:
    wards = [str(number) for number in range(900)]
    attributes = {"age": {"kind": "integers", "minimum": 0, "maximum": 999}, "ward": wards}
    made = installation(
        stream("s", "patients", "laplace", mechanism={"answers": 10}, **{"epsilon": 1, **stream_fields}),
        sources=[{**SOURCE, "epsilon": 9, "attributes": attributes, **source_fields}],
        rows={"patients": {"age": [40] * 100, "ward": ["7"] * 100, "id": list(range(100))}},
        key=OTHER_KEY,
        partitions=4,
    )
    with pytest.raises(StatementError, match=f"column 'd': {reason}"):
        made.sql(f"SELECT ward, COUNT(*) AS n, {column} AS d FROM s GROUP BY ward")  # noqa: S608
    assert made.grant("patients", "s").spent.epsilon == 0


@pytest.mark.parametrize("name", ["Patients", "PATIENTS", "patient", "FEW"])
def test_unknown_name_after_from_is_refused_with_the_closest(name: str) -> None:
    """A name that differs from a source's or a stream's name in case or in a letter is refused with the right name."""
    meant = "few" if name == "FEW" else "patients"
    with pytest.raises(Unknown, match=f"did you mean '{meant}'"):
        driver().sql(f"SELECT COUNT(*) FROM {name}")  # noqa: S608


def test_unknown_names_in_calls_are_refused_with_the_closest() -> None:
    """A source, a stream or an attribute in the wrong case or with a wrong letter is refused with the existing name."""
    few = driver()
    with pytest.raises(Unknown, match="did you mean 'patients'"):
        few.budget("Patient")
    with pytest.raises(Unknown, match="did you mean 'few'"):
        few.grant("patients", "Few")
    for question in ({"group_by": ["sex"]}, {"sum": "AGE"}):
        reason = few.ask("few", **question, outcomes=True).reason
        assert reason is not None
        assert reason.endswith("did you mean 'Sex'?" if "group_by" in question else "did you mean 'age'?")


@pytest.mark.parametrize("mechanism", [LAPLACE, PMW], ids=["laplace", "pmw"])
def test_quantile_of_each_group_is_one_question(mechanism: Mapping[str, object]) -> None:
    statement = 'SELECT "Sex", PERCENTILE_DISC(0.75) WITHIN GROUP (ORDER BY age) AS q FROM patients GROUP BY "Sex" ORDER BY "Sex"'
    found = query_table(statement, mechanism)
    assert len(found.results) == 1
    for row, sex in zip(found, ["F", "M", "it's"], strict=True):
        ages = FRAME.filter(pl.col("Sex") == sex)["age"]
        assert abs(row["q"] - float(ages.quantile(0.75, "higher") or 0.0)) <= row["q ±"]


@pytest.mark.parametrize("mechanism", [LAPLACE, PMW], ids=["laplace", "pmw"])
def test_deviation_and_variance_are_those_of_the_population(mechanism: Mapping[str, object]) -> None:
    [row] = query_table(
        "SELECT STDDEV(age) AS d, VARIANCE(age) AS v FROM patients WHERE \"Sex\" <> 'M'", mechanism
    )
    ages = FRAME.filter(pl.col("Sex") != "M")["age"]
    assert abs(row["d"] - (ages.std(ddof=0) or 0.0)) <= row["d ±"]
    assert abs(row["v"] - (ages.var(ddof=0) or 0.0)) <= row["v ±"]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ('SELECT MEDIAN("Sex") FROM s', "not declared as numbers, bins, dates or ordered categories"),
        ("SELECT STDDEV(bmi) FROM s", "not declared as integers"),
        ("SELECT age, MEDIAN(age) FROM s GROUP BY age", "also the attribute of a column"),
    ],
)
def test_statistic_of_an_unfit_attribute_is_refused(statement: str, reason: str) -> None:
    with pytest.raises(StatementError, match=reason):
        opened(LAPLACE).sql(statement)


def test_groups_that_where_excludes_are_not_listed() -> None:
    """Only the statement's own WHERE decides, by public domains, and neither a FILTER nor the data; the price does not change."""
    every = opened(LAPLACE).sql("SELECT age, COUNT(*) AS n FROM patients GROUP BY age")
    table = opened(LAPLACE).sql("SELECT age, COUNT(*) AS n FROM patients WHERE age > 23 GROUP BY age")
    assert [row["age"] for row in table] == [24, 25, 26, 27, 28, 29]
    assert table.epsilon == every.epsilon
    summed = opened(LAPLACE).sql("SELECT age, SUM(age) AS years FROM patients WHERE age > 23 GROUP BY age")
    assert ([row["age"] for row in summed], len(summed.results)) == ([24, 25, 26, 27, 28, 29], 6)
    assert not any("holds for no row" in line for line in summed.warnings)
    assert (
        len(opened(LAPLACE).sql("SELECT age, SUM(age) AS n FROM patients WHERE age > 40 GROUP BY age").results)
        == 1
    )
    mixed = 'SELECT "Sex", age, COUNT(*) AS n FROM patients WHERE {} GROUP BY "Sex", age'
    asked_about = mixed.format("(age = 20 OR \"Sex\" = 'F') AND age < 22 AND bmi < 30")
    assert [(row["Sex"], row["age"]) for row in opened(LAPLACE).sql(asked_about)] == [
        ("F", 20),
        ("F", 21),
        ("M", 20),
        ("it's", 20),
    ]
    filtered = "SELECT age, COUNT(*) FILTER (WHERE age > 23) AS n FROM patients GROUP BY age"
    assert len(opened(LAPLACE).sql(filtered)) == 10
    empty = opened(LAPLACE).sql(mixed.format("age > 200"))
    assert len(empty) == 0
    assert "age > 200 holds for no row" in empty.warnings[0]


def test_numbers_that_are_not_informative_are_marked_in_each_row() -> None:
    """Rows have a column of marks only if one of the rows shown is marked; warnings count these rows."""
    rows: Frame = {"age": [20] * 300 + [21], "Sex": ["F"] * 301, "bmi": [20.0] * 301}
    few = opened(LAPLACE, epsilon=2, frame=rows)
    table = few.sql("SELECT age, COUNT(*) AS n FROM patients WHERE age < 22 GROUP BY age")
    assert [(row["age"], row["n informative"]) for row in table] == [(20, True), (21, False)]
    assert table.columns[-1] == "n informative"
    assert table.warnings[-1] == "not informative: 1 of 2 numbers; the error may exceed the number itself"
    clear = few.sql("SELECT age, COUNT(*) AS n FROM patients WHERE age < 22 GROUP BY age HAVING COUNT(*) > 100")
    assert ("n informative" in clear.columns, str(clear.warnings).count("informative")) == (False, 0)
    with pytest.raises(StatementError, match=r"n informative.*another name"):
        few.sql('SELECT COUNT(*) AS "n informative" FROM patients')


def test_chosen_groups_are_judged_by_the_bound_of_all_answers() -> None:
    """A number that exceeds its interval's error but not ± is marked if HAVING or LIMIT chose its group by it."""
    rows: Frame = {"age": [20] * 300 + [21] * 7, "Sex": ["F"] * 307, "bmi": [20.0] * 307}
    few = opened(LAPLACE, epsilon=8, frame=rows)
    counted = "SELECT age, COUNT(*) AS n FROM patients WHERE age < 22 GROUP BY age"
    [_, named] = few.sql(counted)
    assert named["n 95% high"] - named["n"] < named["n"] < named["n ±"]
    assert "n informative" not in named
    for choice in (" HAVING COUNT(*) < 100", " ORDER BY n LIMIT 1"):
        assert [row["n informative"] for row in few.sql(counted + choice)] == [False]


def test_statement_on_a_zcdp_source_names_its_rho() -> None:
    """Two streams of Gaussian noise that nobody has asked: the one with the smaller ρ answers, and ρ is the cost."""
    streams = [
        stream(name, "patients", mechanism=LAPLACE, epsilon=epsilon, delta=1e-7)
        for name, epsilon in (("large", 4), ("small", 2))
    ]
    budget = {"epsilon": 50, "delta": 1e-6, "accountant": "zcdp"}
    made = installation(*streams, sources=[{**SOURCE, **budget}], rows={"patients": FRAME}, key=OTHER_KEY)
    first, second = (made.sql("SELECT COUNT(*) AS n FROM patients WHERE age > 21") for _ in range(2))
    assert (first.stream, first.cost.rho) == ("small", made.grant("patients", "small").cost.rho)
    assert f"for ρ = {first.cost.rho:.4g} (cheapest open stream: laplace, least ρ, " in repr(first)
    paid = "for ρ = 0, because a stream pays ρ with its first answer"
    assert f"{paid} (cheapest open stream: laplace, its grant counts as spent in full" in repr(second)
    pure = stream("pure", "patients", mechanism={**LAPLACE, "answers": 10}, epsilon=0.4)
    made = installation(pure, sources=[{**SOURCE, **budget}], rows={"patients": FRAME}, key=OTHER_KEY)
    _, third = (made.sql("SELECT COUNT(*) AS n FROM pure WHERE age > 21") for _ in range(2))
    assert "for ρ = 0 (ε 0.04 added up), because a stream pays ρ with its first answer" in repr(third)


def test_count_of_a_column_warns_that_missing_categories_count() -> None:
    attributes = {
        "level": {"kind": "categories", "values": ["none", "much"], "other": "none"},
        "age": {"kind": "integers", "minimum": 8, "maximum": 11},
    }
    rows: Frame = {"level": ["much", None], "age": [8, 11]}
    made = opened(LAPLACE, frame=rows, attributes=attributes)
    warning = "COUNT(Level) counts as COUNT(*): 'level': 'none' also counts missing and undeclared categories"
    assert made.sql("SELECT COUNT(Level), COUNT(age) FROM s").warnings.count(warning) == 1
    for statement in ("SELECT COUNT(age) FROM s", "SELECT COUNT(Level) FROM s WHERE level <> 'none'"):
        assert not any("COUNT(*)" in one for one in made.sql(statement).warnings)
    made.close("patients", "s")
    assert made.sql("SELECT COUNT(Level) FROM s", outcomes=True).warnings == ()
