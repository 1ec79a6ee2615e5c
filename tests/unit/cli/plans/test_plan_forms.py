"""``sotto plan --form`` prints the α of answers of the form, or says what else its α means."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from typer.testing import CliRunner

from sotto import Driver
from stream.cli.app import app
from stream.privacy.planning.noise_layouts import PlanError

ROWS = 20_000
AGES = {"kind": "integers", "minimum": 16, "maximum": 27}
ATTRIBUTES: dict[str, Any] = {
    "age": AGES,
    "sex": ["F", "M"],
    "dose": {"kind": "integers", "minimum": -3, "maximum": 1},
}
QUERIES = 5


def source(neighbors: str) -> dict[str, Any]:
    table = {"source": "a", "kind": "table", "epsilon": 1, "path": "a.csv"}
    return {**table, "neighbors": neighbors, "attributes": ATTRIBUTES}


def compared(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    printed: dict[str, Any] = json.loads(result.stdout)
    return printed


def planned_alphas(neighbors: str, *arguments: str) -> dict[str, float]:
    """Return the α of each mechanism that applies, at ε = 1."""
    asked = ["--epsilon", "1", "--queries", str(QUERIES), "--source", json.dumps(source(neighbors))]
    mechanisms = compared(*asked, *arguments)["mechanisms"]
    return {one["mechanism"]: one["alpha"] for one in mechanisms if one["applies"]}


def answered_alpha(neighbors: str, kind: str, query: dict[str, Any], over: Iterable[str] = ATTRIBUTES) -> float:
    """Return the α of an answer about the same number of rows."""
    driver = Driver(bytes(32))
    columns = {
        "age": [16 + n % 12 for n in range(ROWS)],
        "sex": ["FM"[n % 2] for n in range(ROWS)],
        "dose": [n % 5 - 3 for n in range(ROWS)],
    }
    driver.register(source(neighbors), columns)
    fields: dict[str, Any] = {"answers": QUERIES} if kind == "laplace" else {"attributes": list(over)}
    stream = {"stream": "s", "source": "a", "epsilon": 1.0, "expected_queries": QUERIES}
    driver.open({**stream, "mechanism": {"kind": kind, **fields}})
    answer = driver.ask({"id": "1", "stream": "s", **query})
    assert answer.alpha is not None
    return float(answer.alpha)


@pytest.mark.parametrize("kind", ["laplace", "histogram"])
def test_share_of_public_rows_has_the_error_of_its_answer(
    kind: str,
) -> None:
    shares = planned_alphas("replace", "--form", "fraction", "--rows", str(ROWS))
    assert shares[kind] == pytest.approx(answered_alpha("replace", kind, {"where": "TRUE", "fraction": True}))


def test_estimated_share_is_within_the_planned_error() -> None:
    shares = planned_alphas("replace", "--form", "fraction", "--rows", str(ROWS))
    counts = planned_alphas("replace", "--form", "count", "--rows", str(ROWS))
    assert shares["pmw"] == pytest.approx(counts["pmw"] / ROWS)
    assert answered_alpha("replace", "pmw", {"where": "age < 20", "fraction": True}) <= shares["pmw"]


@pytest.mark.parametrize("kind", ["laplace", "pmw", "histogram"])
def test_share_of_private_rows_has_about_the_planned_error(kind: str) -> None:
    """The planned error is divided by the number of rows."""
    in_rows = planned_alphas("add-remove", "--form", "fraction")[kind]
    # The number of rows errs by less than a hundredth.
    half, few = (
        ROWS * answered_alpha("add-remove", kind, {"where": where, "fraction": True})
        for where in ("sex = 'F'", "age = 16")
    )
    assert max(half, few) <= 1.02 * in_rows
    if kind == "laplace":
        assert min(half, few) >= 0.97 * in_rows


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_rates_and_people_have_the_planned_error(neighbors: str) -> None:
    rates = planned_alphas(neighbors, "--form", "rate")
    grouped = planned_alphas(neighbors, "--form", "rate", "--group-by", "sex")
    for kind in ("laplace", "histogram", "pmw"):
        rate = {"rate": "age < 20"}
        assert ROWS * answered_alpha(neighbors, kind, rate) <= 1.02 * rates[kind]
        assert ROWS / 2 * answered_alpha(neighbors, kind, {**rate, "group_by": ["sex"]}) <= 1.02 * grouped[kind]
    people = planned_alphas(neighbors, "--form", "people_groups", "--group-by", "age")
    assert people == {"laplace": answered_alpha(neighbors, "laplace", {"people": True, "group_by": ["age"]})}
    bound = 40
    found = answered_alpha(neighbors, "laplace", {"person_sum": "age", "bound": bound})
    assert found == pytest.approx(bound * planned_alphas(neighbors, "--form", "person_sum")["laplace"], rel=0.02)


def test_wanted_share_needs_the_epsilon_that_keeps_it() -> None:
    table = ["--source", json.dumps(source("replace")), "--form", "fraction", "--rows", str(ROWS)]
    printed = compared("--alpha", "0.01", "--queries", "100", *table)
    least = {one["mechanism"]: one["epsilon"] for one in printed["mechanisms"] if one["applies"]}
    assert printed["least_alpha"] == "a share of the 20,000 rows"
    reached = compared("--epsilon", str(least["laplace"]), "--queries", "100", *table)
    [alpha] = [one["alpha"] for one in reached["mechanisms"] if one["mechanism"] == "laplace"]
    assert 0.0098 <= alpha <= 0.01
    assert not any(one["vacuous"] for one in reached["mechanisms"])


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("attribute", ["age", "dose"])
def test_error_of_a_sum_depends_on_the_range_of_its_attribute(attribute: str, neighbors: str) -> None:
    sums = planned_alphas(neighbors, "--form", "sum", "--attribute", attribute)
    assert sums["laplace"] == answered_alpha(neighbors, "laplace", {"sum": attribute})
    assert answered_alpha(neighbors, "pmw", {"sum": attribute}) <= sums["pmw"]
    assert sums["pmw"] > 2 * planned_alphas(neighbors, "--form", "count")["pmw"]


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("attribute", ["age", "dose"])
def test_mean_has_at_most_about_the_planned_error(attribute: str, neighbors: str) -> None:
    """The planned error is divided by the number of rows."""
    means = planned_alphas(neighbors, "--form", "mean", "--attribute", attribute)
    assert ROWS * answered_alpha(neighbors, "pmw", {"mean": attribute}) <= 1.02 * means["pmw"]
    alone = ROWS * answered_alpha(neighbors, "laplace", {"mean": attribute})
    assert 0.45 * means["laplace"] <= alone <= 1.02 * means["laplace"]


def test_sums_and_means_without_attribute_assume_the_widest() -> None:
    for form in ("sum", "mean"):
        each = [planned_alphas("add-remove", "--form", form, "--attribute", name) for name in ("age", "dose")]
        assert planned_alphas("add-remove", "--form", form) == {
            kind: max(one[kind] for one in each) for kind in each[0]
        }


def test_worst_case_estimate_is_not_planned_for_rejected_forms() -> None:
    beside = ["--epsilon", "1", "--queries", "2000", "--sizes", "8,2", "--worst-case", "--rows", "100000"]
    for form, applies in {"sum": False, "mean": False, "groups": False, "fraction": True}.items():
        found = {one["mechanism"]: one for one in compared(*beside, "--form", form)["mechanisms"]}
        assert found["pmw"]["applies"] == applies, form
    driver = Driver(bytes(32))
    driver.register(source("replace"), {"age": [20] * 9, "sex": ["F"] * 9, "dose": [0] * 9})
    mechanism = {"kind": "pmw", "attributes": ["age", "sex"], "worst_case": True, "updates": 2}
    spec = {"stream": "s", "source": "a", "epsilon": 1.0, "expected_queries": 5, "mechanism": mechanism}
    driver.open(spec, acknowledge=True)
    asked: list[dict[str, Any]] = [
        {"sum": "age"},
        {"mean": "age"},
        {"group_by": ["sex"]},
        {"where": "TRUE", "fraction": True},
    ]
    answers = driver.ask_many([{"id": str(place), "stream": "s", **one} for place, one in enumerate(asked)])
    assert [one.outcome for one in answers] == ["rejected"] * 3 + ["answer"]


@pytest.mark.parametrize(
    ("arguments", "of"),
    [
        (["--form", "count", "--sizes", "8,2"], ""),
        (["--form", "fraction", "--sizes", "8,2"], "about this divided by the number of rows, which is private"),
        (
            ["--form", "fraction", "--sizes", "8,2", "--neighbors", "replace"],
            "a share's α is this divided by the number of rows, --rows",
        ),
        (["--form", "sum", "--sizes", "8,2"], "of a count: a sum's α is this times the most by which one row"),
        (
            ["--form", "mean", "--sizes", "8,2"],
            "of a mean times its number of rows, in multiples of its attribute's range",
        ),
        (["--form", "sum", "--source", json.dumps(source("replace"))], "--attribute selects one"),
    ],
)
def test_plan_states_the_unit_of_an_error(arguments: list[str], of: str) -> None:
    """It does so if the error is not that of one answer."""
    asked = ["--epsilon", "1", "--queries", "3", *arguments]
    assert of in compared(*asked)["least_alpha"]
    assert of in CliRunner().invoke(app, ["plan", *asked]).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--form", "fraction", "--sizes", "8,2"],
            "--alpha: a share's error depends on the number of rows, which is private",
        ),
        (
            ["--form", "fraction", "--sizes", "8,2", "--neighbors", "replace"],
            "--alpha: a share's error depends on the number of rows; give --rows",
        ),
        (
            ["--form", "sum", "--sizes", "8,2"],
            "--alpha: a sum's error depends on the range of its attribute; give --source",
        ),
        (
            ["--form", "mean", "--source", json.dumps(source("add-remove"))],
            "--alpha: a mean's error depends on how many",
        ),
        (
            ["--form", "count", "--sizes", "8,2", "--attribute", "age"],
            "--attribute: the α of form count does not depend on an attribute; give --form sum, mean or quantile",
        ),
        (
            ["--form", "person_sum", "--sizes", "8,2", "--attribute", "age"],
            "--attribute: the α of form person_sum does not depend on an attribute; leave it out: α is in bounds",
        ),
        (
            ["--form", "sum", "--sizes", "8,2", "--attribute", "age"],
            "--attribute: its range is unknown; give --source",
        ),
        (
            ["--form", "sum", "--attribute", "sex", "--source", json.dumps(source("add-remove"))],
            "--attribute: 'sex' is not an attribute of integers or decimals of the source, which has age, dose; give one of them",
        ),
        (
            ["--form", "mean", "--source", json.dumps({**source("replace"), "attributes": {"sex": ["F", "M"]}})],
            "--form: a mean needs an attribute of integers or decimals; choose one, if the source has one",
        ),
    ],
)
def test_unknowable_error_is_refused_with_the_missing_option(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["plan", "--alpha", "0.01", "--queries", "100", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)


def test_plan_without_counts_states_people_for_certain_release() -> None:
    asked = ["--form", "texts", "--no-counts", "--epsilon", "1", "--delta", "1e-6", "--queries", "1"]
    [best] = [one for one in compared(*asked)["mechanisms"] if one["applies"]]
    assert (best["mechanism"], best["alpha"]) == ("unknown_groups", 28.0)
    printed = CliRunner().invoke(app, ["plan", *asked], catch_exceptions=False).stdout
    command = next(line for line in printed.splitlines() if "--mechanism unknown_groups" in line).split()
    again = CliRunner().invoke(app, command[1:], catch_exceptions=False)
    sentence = " ".join(again.stdout.split())
    assert "a text is released for certain from 28 people on" in sentence
    assert "a text with 14 people is released with probability 50 %" in sentence


@pytest.mark.parametrize("kind", ["laplace", "histogram", "pmw"])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_quantile_s_error_in_rank_is_that_of_its_answers(kind: str, neighbors: str) -> None:
    asked = ["--epsilon", "1", "--queries", str(QUERIES), "--source", json.dumps(source(neighbors))]
    planned = compared(*asked, "--form", "quantile", "--attribute", "age", "--q", "0.9")["mechanisms"]
    shown = {tuple(one["over"] or ATTRIBUTES): one["alpha"] for one in planned if one["mechanism"] == kind}
    assert set(shown) == {tuple(ATTRIBUTES)} | ({("age",)} if kind != "laplace" else set())
    for over, alpha in shown.items():
        answered = answered_alpha(neighbors, kind, {"quantile": "age", "q": 0.9}, over)
        # An estimate, or a warm start that has the answer, errs less than a charged answer.
        assert alpha == pytest.approx(answered, rel=1e-6) or (kind == "pmw" and alpha > answered)


def test_charged_quantile_of_an_estimate_is_planned_with_the_noise_of_its_cells() -> None:
    """Of an attribute with many values, the noise of the measured cells exceeds the promise for estimates."""
    costs = {
        "cost": {"kind": "integers", "minimum": 0, "maximum": 400},
        "day": {"kind": "integers", "minimum": 0, "maximum": 9},
    }
    table = {**source("replace"), "attributes": costs}
    driver = Driver(bytes(32))
    driver.register(table, {"cost": [n * n % 200 for n in range(ROWS)], "day": [n % 10 for n in range(ROWS)]})
    mechanism = {"kind": "pmw", "attributes": ["cost", "day"]}
    spec = {"stream": "s", "source": "a", "epsilon": 1.0, "expected_queries": 9, "mechanism": mechanism}
    driver.open(spec, acknowledge=True)
    answer = driver.ask("s", quantile="cost")
    assert answer.basis == "noisy"
    asked = ["--epsilon", "1", "--queries", "9", "--source", json.dumps(table), "--form", "quantile"]
    [planned] = [one["alpha"] for one in compared(*asked)["mechanisms"] if one["mechanism"] == "pmw"]
    assert planned == pytest.approx(answer.alpha, rel=1e-6)


def test_quantile_is_compared_over_its_attribute_alone() -> None:
    large = {**source("add-remove"), "attributes": {"age": ATTRIBUTES["age"], **{f"c{n}": 64 for n in range(6)}}}
    asked = ["--epsilon", "1", "--queries", "1000", "--source", json.dumps(large), "--form", "quantile"]
    found = compared(*asked, "--attribute", "age")
    assert (found["choice"], found["mechanisms"][0]["over"]) == ("histogram", ["age"])
    printed = CliRunner().invoke(app, ["plan", *asked, "--attribute", "age"]).stdout
    assert "→ take histogram over the attribute age only" in printed


def test_quantile_s_error_in_value_needs_the_rows() -> None:
    asked = ["--epsilon", "1", "--source", json.dumps(source("add-remove")), "--form", "quantile"]
    with_rows = compared(*asked, "--attribute", "age", "--rows", "1000")["mechanisms"]
    [laplace] = [one for one in with_rows if one["mechanism"] == "laplace"]
    assert laplace["value_error"] == pytest.approx(min(11.0, laplace["alpha"] / 1000 * 11))
    assert "value_error" not in compared(*asked)["mechanisms"][0]
    printed = CliRunner().invoke(app, ["plan", *asked, "--rows", "100000"]).stdout
    assert "in rows of rank" in printed
    without = CliRunner().invoke(app, ["plan", *asked]).stdout
    assert "; --rows gives the error in value" in without  # --source is given already
    assert "if the 100,000 rows are spread evenly over the range" in printed.replace("\n", " ")


def test_quantile_needs_an_ordered_attribute() -> None:
    for arguments in (("--attribute", "sex"), ("--attribute", "nobody")):
        asked = ["--epsilon", "1", "--source", json.dumps(source("add-remove")), "--form", "quantile"]
        with pytest.raises(PlanError, match="has no quantiles; give one of age, dose"):
            CliRunner().invoke(app, ["plan", *asked, *arguments], catch_exceptions=False)


def test_quantiles_that_a_worker_refuses_are_not_planned() -> None:
    asked = ["--form", "quantile", "--sizes", "300", "--neighbors", "replace", "--rows", "300000"]
    found = compared(*asked, "--queries", "20", "--epsilon", "4", "--sensitivity", "300")
    [why] = [one["why"] for one in found["mechanisms"] if one["mechanism"] == "laplace"]
    assert "would draw from 1,064,678 weights, and the limit is 524,288" in why
    assert found["counted"] == "of each person at most 300 rows count"
