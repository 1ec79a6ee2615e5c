"""Commands, page and documents state promises in the same words, and the answers keep them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from schemas import (
    Answer,
    Calibration,
    EstimateCalibration,
    GrantRecord,
    LedgerRecord,
    Receipt,
    SparseVectorCalibration,
    StreamSpec,
)
from sotto import Driver
from stream.cli.app import app
from stream.cli.manage import stream_commands
from stream.formatting import describe_table_bound, format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.accuracy.sparse_vector_accuracy import gap_bias
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.promises import VACUOUS, Promise, _describe_release, laplace_answers, promises
from stream.questions.question_forms import as_source
from tests.builders import PEOPLE, installation, parse_spec, source, stream
from tests.privacy.service import definition_of

_ledger: TypeAdapter[LedgerRecord] = TypeAdapter(LedgerRecord)

KEY = NoiseKey(bytes(range(3, 35)))
QUERIES = 40
TABLE = source("people", "table", epsilon=1000.0)
CELLS = [{"at": {"age": age, "sex": "F"}} for age in range(3)]
BOTH = {"attributes": ["age", "sex"]}
MULTIPLICATIVE = {**BOTH, "rows": 100_000, "updates": 20}
CANDIDATES = [{"name": str(age), "where": f"age < {age}"} for age in range(1, 257)]

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "above_threshold": (
        {"threshold": 50.0},
        {"where": "age < 50"},
        "each 'above' and 'below' is right about values further than A from the threshold over the first 40 answers",
    ),
    "numeric_sparse": (
        {"threshold": -1e6},
        {"where": "age < 50"},
        "each number beside an 'above' is within ±A over the first 40 answers",
    ),
    "laplace": ({"answers": 7}, {"where": "age < 50"}, "each number is within ±A over the first 7 answers"),
    "histogram": (BOTH, {"cells": CELLS[:1]}, "each cell is within ±A over all cells, however often asked"),
    "lazy_histogram": (
        {**BOTH, "sparsity": 3},
        {"cells": [*CELLS[:2], {**CELLS[2], "weight": 0.5}]},
        "each answer about up to 3 cells is within ±A over the first 40 answers",
    ),
    "sparse_project": (
        {**BOTH, "sparsity": 3},
        {"cells": CELLS},
        "the noise in each answer about up to 3 cells is within ±A over the first 40 answers",
    ),
    "pmw": (
        MULTIPLICATIVE,
        {"where": "age < 50"},
        "each count is within ±A over all answers while its measurements last",
    ),
    "sparse_pmw": (MULTIPLICATIVE, {"cells": CELLS}, "each count is within ±A over the first 40 answers"),
    "noisy_max": (
        {},
        {"candidates": CANDIDATES},
        "each choice among up to 256 candidates is at most A below the best over the first answer",
    ),
    "exponential": (
        {},
        {"candidates": CANDIDATES},
        "each choice among up to 256 candidates is at most A below the best over the first answer",
    ),
}


def open_stream(kind: str) -> tuple[Driver, GrantRecord]:
    """Return a stream of the kind, and its grant."""
    spec = stream(kind, "people", kind, mechanism=CASES[kind][0], expected_queries=QUERIES)
    driver = installation(spec, sources=[TABLE], key=KEY)
    [grant] = [
        record
        for one in driver.records(driver.topics.ledger)
        if isinstance(record := _ledger.validate_json(one.value or b""), GrantRecord)
    ]
    return driver, grant


def normalize_promise(promise: Promise) -> str:
    """Return the promise with a letter in place of its figure, and without its probability."""
    return f"{promise.before}A{promise.after} {promise.over}"


@pytest.mark.parametrize("kind", sorted(CASES))
def test_promises_match_alpha_of_answers(kind: str) -> None:
    driver, grant = open_stream(kind)
    found = promises(grant.spec, grant.calibration)
    assert CASES[kind][2] in {normalize_promise(one) for one in found}
    assert {one.probability for one in found} == {0.95}
    [answer] = driver.ask_many([{"id": "q", "stream": kind, **CASES[kind][1]}])
    assert answer.outcome in {"answer", "above", "below"}
    if kind == "above_threshold":
        assert answer.alpha is None
    elif kind == "sparse_project":
        assert answer.alpha is not None
        assert answer.alpha > found[-1].alpha
    elif kind == "pmw":
        # Measurements may bound an answer more tightly than the promise.
        assert 0.0 < (answer.alpha or 0.0) <= found[-1].alpha
    else:
        assert answer.alpha == found[-1].alpha


def test_promises_of_projection_are_for_worst_table() -> None:
    """With a public number of rows the promise is for the worst table, and says that answers carry less."""
    kind = "sparse_project"
    driver = installation(
        stream("s", "people", kind, mechanism=CASES[kind][0], epsilon=100.0, expected_queries=QUERIES),
        sources=[{**TABLE, "neighbors": "replace"}],
        rows={"people": {name: [*values] * 20 for name, values in PEOPLE.items()}},
        key=KEY,
    )
    [grant] = [
        record
        for one in driver.records(driver.topics.ledger)
        if isinstance(record := _ledger.validate_json(one.value or b""), GrantRecord)
    ]
    [promise] = promises(grant.spec, grant.calibration)
    assert normalize_promise(promise) == "each answer about up to 3 cells is within ±A over the first 40 answers"
    assert promise.remark.startswith("for the worst table")
    [answer] = driver.ask_many([{"id": "q", "stream": "s", "cells": CELLS}])
    assert 0.0 < (answer.alpha or 0.0) < 0.5 * promise.alpha


def test_promises_say_that_larger_changes_carry_own_alpha() -> None:
    """Answers about larger changes than the promise is for carry a larger alpha."""
    driver, grant = open_stream("histogram")
    [wide] = driver.ask_many([{"id": "q", "stream": "histogram", "where": "TRUE"}])
    [promise] = promises(grant.spec, grant.calibration)
    assert (wide.alpha or 0.0) > promise.alpha
    assert promise.remark == "sums of cells carry their own alpha"
    driver, grant = open_stream("laplace")
    grouped, summed = driver.ask_many(
        [{"id": "q", "stream": "laplace", "group_by": ["sex"]}, {"id": "q", "stream": "laplace", "sum": "age"}]
    )
    [promise] = promises(grant.spec, grant.calibration)
    assert min(grouped.alpha or 0.0, summed.alpha or 0.0) > promise.alpha
    assert "carry their own alpha" in promise.remark


@pytest.mark.parametrize("kind", sorted(CASES))
def test_promises_are_same_on_every_surface(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, grant = open_stream(kind)
    bounded = as_source({**TABLE, "person": "who", "contribution": 5})
    sentences = [
        str(one) for one in promises(grant.spec, grant.calibration, counted=describe_table_bound(bounded))
    ]
    assert all("; of each 'who' at most 5 rows count" in sentence for sentence in sentences)

    receipt_fields = {"request": "r", "digest": "0" * 64, "sequence": 0, "outcome": "opened"}
    opening = Receipt.model_validate({**receipt_fields, "source": grant.spec.source, "stream": kind})
    client = MagicMock()
    client.__enter__.return_value = client
    client.open.return_value, client.grant.return_value = opening, grant
    client.budget.return_value.source = bounded
    monkeypatch.setattr(stream_commands, "Client", lambda: client)
    receipt = CliRunner().invoke(app, ["stream", "open", grant.spec.model_dump_json()], catch_exceptions=False)
    assert all(sentence in receipt.stdout for sentence in sentences), receipt.stdout
    assert "queries" not in receipt.stdout
    document = Path("docs/mechanisms.md").read_text()
    for promise in promises(grant.spec, grant.calibration):
        # The page names the fields of a single stream's ErrorSummary.
        phrase = re.sub(r"up to \d+ cells", "up to `sparsity` cells", promise.before).strip(" ±")
        assert phrase in document, phrase


def test_promises_state_bias_of_gaps_far_above_threshold() -> None:
    driver = installation(sources=[TABLE], key=KEY)
    mechanism = {"threshold": -1e6, "cutoff": 5, "monotone": True, "numbers": "gap"}
    errors: list[float] = []
    for number in range(40):
        driver.open(stream(f"s{number}", "people", "numeric_sparse", mechanism=mechanism))
        answers = driver.ask_many(
            [{"id": f"{one}", "stream": f"s{number}", "where": "age < 50"} for one in range(5)]
        )
        errors += [(answer.estimate or 0.0) - 100.0 for answer in answers]
    grant = driver.grant("people", "s0")
    assert isinstance(grant.calibration, SparseVectorCalibration)
    lean = gap_bias(grant.calibration)
    assert lean > 0.4 * grant.calibration.answer_alpha
    assert sum(errors) / len(errors) == pytest.approx(-lean, rel=0.2)
    remark = promises(grant.spec, grant.calibration)[-1].remark
    assert remark == f"of values far above the threshold they are {format_error_bound(lean)} too low on average"
    _, fresh = open_stream("numeric_sparse")
    assert not promises(fresh.spec, fresh.calibration)[-1].remark


@pytest.mark.parametrize(("most", "words"), [(1, "at most 1 row counts"), (5_000, "at most 5,000 rows count")])
def test_promises_state_rows_that_count_per_person(most: int, words: str) -> None:
    plain, bounded = as_source(TABLE), as_source({**TABLE, "person": "who", "contribution": most})
    for spec, remark in (
        (parse_spec("noisy_max"), f"fewer candidates carry a smaller alpha; of each 'who' {words}"),
        (parse_spec("noisy_max", people=True), "fewer candidates carry a smaller alpha"),
    ):
        [promise] = promises(spec, choose_calibration(spec, SourceFacts()), counted=describe_table_bound(bounded))
        assert promise.remark == remark
    assert not describe_table_bound(plain)


def test_plan_command_has_promises_in_same_words() -> None:
    """The command names no other number of queries than the promise."""
    arguments = ["plan", "--epsilon", "1", "--mechanism", "laplace", "--cutoff", "1"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"}).stdout
    assert "with probability 0.95 over the first answer" in shown
    assert "1000" not in shown
    plan = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    spec = StreamSpec.model_validate(plan["spec"])
    calibration: Calibration = TypeAdapter(Calibration).validate_python(
        next(one for one in plan["calibrations"] if one["method"] == plan["choice"])
    )
    assert plan["promises"] == [asdict(one) for one in promises(spec, calibration)]


@pytest.mark.parametrize(
    ("mechanism", "rows", "vacuous"),
    [
        ({"kind": "histogram", "attributes": ["age"]}, 20, True),
        ({"kind": "histogram", "attributes": ["age"]}, 21, False),
        ({"kind": "histogram", "attributes": ["age"]}, None, False),
        ({"kind": "laplace"}, 5, True),
        ({"kind": "noisy_max"}, 15, True),
        ({"kind": "noisy_max"}, 17, False),
        ({"kind": "above_threshold", "threshold": 3.0}, 12, True),
        ({"kind": "sparse_pmw", "attributes": ["age"], "rows": 1000, "updates": 50}, 1000, True),
        ({"kind": "sparse_pmw", "attributes": ["age"], "rows": 10**6, "updates": 50}, 10**6, False),
    ],
)
def test_promises_mark_bound_that_a_constant_keeps(
    mechanism: dict[str, Any], rows: int | None, vacuous: bool
) -> None:
    spec = parse_spec(**mechanism)
    chosen = choose_calibration(spec, SourceFacts(universe=1000, rows=rows))
    assert chosen.vacuous == vacuous, chosen.alpha
    assert all((VACUOUS in str(one)) == vacuous for one in promises(spec, chosen))


def test_alpha_of_value_includes_its_rounding() -> None:
    names = [f"s{number}" for number in range(50)]
    driver = installation(
        *(stream(name, kind="laplace", epsilon=20.0) for name in names),
        sources=[source(epsilon=1e3, grid=1.0)],
        key=KEY,
    )
    answers: Sequence[Answer] = driver.ask_many([{"id": "q", "stream": name, "value": 10.5} for name in names])
    # With so large an ε there is hardly any noise; the remaining error of one half comes from rounding.
    assert {answer.alpha for answer in answers} == {definition_of(driver, "s0").calibration.alpha} == {0.5}
    assert sum(abs((answer.estimate or 0.0) - 10.5) > (answer.alpha or 0.0) for answer in answers) <= 5


def test_plan_command_compares_sparse_pmw_with_lazy_histogram() -> None:
    arguments = [
        "plan",
        "--epsilon",
        "0.1",
        "--mechanism",
        "sparse_pmw",
        "--rows",
        "50000",
        "--sparsity",
        "200",
        "--gap",
        "0.001",
    ]
    arguments += ["--neighbors", "replace", "--cutoff"]
    better = CliRunner().invoke(app, [*arguments, "2"], catch_exceptions=False, env={"COLUMNS": "200"}).stdout
    assert "a lazy_histogram with the same ε answers such questions within ±1,866" in better
    assert "each count is within ±1,308" in better
    guaranteed = [one for one in arguments if one not in {"--gap", "0.001"}]
    worse = CliRunner().invoke(app, [*guaranteed, "60"], catch_exceptions=False, env={"COLUMNS": "200"}).stdout
    assert VACUOUS in worse


def test_promises_of_pmw_name_tables_without_use() -> None:
    spec = parse_spec("pmw", attributes=["age", "sex"])
    calibration = choose_calibration(spec, SourceFacts(sizes=(90, 2), universe=180))
    assert isinstance(calibration, EstimateCalibration)
    [promise] = promises(spec, calibration)
    count = laplace_answers(calibration, calibration.alpha / 10.0)
    assert f"of fewer than {math.ceil(10.0 * calibration.alpha):,} rows this error is more than a tenth" in str(
        promise
    )
    assert f"laplace answers {count:,} questions within ±" in str(promise)
    for answers, keeps in ((count, True), (count + 1, False)):
        found = choose_calibration(parse_spec("laplace", answers=answers, expected_queries=answers), SourceFacts())
        assert (found.alpha <= calibration.alpha / 10.0) == keeps


def test_promises_of_pmw_name_no_alternative_if_laplace_fails() -> None:
    spec = parse_spec("pmw", attributes=["age", "sex"], epsilon=1.0)
    calibration = choose_calibration(spec, SourceFacts(sizes=(90, 2), universe=180))
    assert isinstance(calibration, EstimateCalibration)
    assert laplace_answers(calibration, 1.0) == 0
    assert "a larger epsilon is needed" in str(promises(spec, calibration.model_copy(update={"alpha": 10.0}))[0])


@pytest.mark.parametrize("counts", [True, False])
def test_promise_of_texts_covers_no_more_answers_than_granted(counts: bool) -> None:
    """A grant of two answers promises nothing about a third, whatever ``expected_queries`` is."""
    spec = parse_spec("unknown_groups", answers=2, counts=counts, delta=1e-6, expected_queries=1000)
    [promise] = promises(spec, choose_calibration(spec, SourceFacts()))
    assert promise.over == "over the first 2 answers"


def test_promise_of_texts_names_one_number_once() -> None:
    assert _describe_release({0.5: 4, 0.95: 4}.__getitem__, "people") == (
        "a text with 4 people is released with probability 95 % or more"
    )
    assert _describe_release({0.5: 14, 0.95: 17}.__getitem__, "rows").endswith(
        "50 % or more, one with 17 with 95 %"
    )
