"""``sotto plan`` without a mechanism compares all of them and recommends one."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sotto import Driver, Refused
from stream.cli.app import app
from stream.privacy.planning.choices import MODELS
from stream.privacy.planning.form_accuracy import FORMS

SMALL = ["--sizes", "8,2"]
MANY = ["--sizes", "85,2,16,5,2"]
WIDE = ["--sizes", "121,3,4,4,61"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    return result.stdout


def compared(*arguments: str) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return printed


def test_plan_shows_rows_that_a_bound_leaves_out_of_a_table(tmp_path: Path) -> None:
    """With --table the plan counts the rows beyond the contribution in a public table, and lists larger contributions."""
    rows = [f"{person},1" for person in range(10) for _ in range(1 + person)]
    (tmp_path / "public.csv").write_text("who,age\n" + "\n".join(rows) + "\n")
    declared = {"kind": "table", "source": "a", "neighbors": "add-remove", "epsilon": 1, "path": "private.csv"}
    source = json.dumps({**declared, "attributes": {"age": 10}, "person": "who", "contribution": 4})
    wanted = ("--source", source, "--epsilon", "1", "--form", "count", "--table", str(tmp_path / "public.csv"))
    assert "beyond the contribution of 4: 21 rows, which counts and sums leave out" in run(*wanted)
    people = compared(*wanted)["people"]
    assert (people["rows_beyond"], people["bounds"]) == (
        21,
        [{"contribution": 8, "rows_beyond": 3}, {"contribution": 10, "rows_beyond": 0}],
    )


def alphas(printed: dict[str, Any]) -> dict[str, float]:
    """Return the α of each mechanism that applies; mechanisms over attributes use all of them."""
    return {
        one["mechanism"]: one["alpha"] for one in printed["mechanisms"] if one["applies"] and one["over"] is None
    }


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        (["--queries", "2", *MANY], "laplace"),
        (["--queries", "2000", *SMALL], "histogram"),
        (["--queries", "2000", *MANY], "pmw"),
        (["--queries", "2000", "--form", "sum", *MANY], "pmw"),
        (["--form", "terms", *SMALL], "pmw"),
        (["--form", "groups", "--queries", "1", *SMALL], "laplace"),
        (["--form", "groups", "--queries", "9", *SMALL], "histogram"),
        (["--form", "groups", "--queries", "40", *WIDE], "laplace"),
        (["--form", "groups", "--queries", "1", *WIDE, "--group-by", "3"], "laplace"),
        (["--form", "groups", "--queries", "40", *WIDE, "--group-by", "1", "--group-by", "4"], "histogram"),
        (["--form", "alarm", "--cutoff", "3"], "above_threshold"),
        (["--form", "value", "--queries", "10"], "laplace"),
        (["--form", "values", "--dimensions", "3"], "laplace"),
        (["--form", "candidates", "--queries", "3"], "noisy_max"),
        (["--form", "cells", "--universe", "1000000000"], "lazy_histogram"),
        (["--form", "running", "--queries", "365", "--universe", "3"], "running_count"),
        (["--form", "category", "--queries", "1000", "--categories", "4"], "randomized_response"),
    ],
)
def test_wanted_form_decides_the_recommended_mechanism(arguments: list[str], taken: str) -> None:
    printed = compared("--epsilon", "1", *arguments)
    assert printed["choice"] == taken
    found = [one["alpha"] for one in printed["mechanisms"] if one["applies"]]
    assert found[0] <= 1.001 * min(found)
    assert {one["mechanism"] for one in printed["mechanisms"]} == set(MODELS)
    assert all(one["why"] for one in printed["mechanisms"])


def test_live_topic_defaults_to_running_counts() -> None:
    """A running count needs the source's total, which bounds people in all windows."""
    topic = {
        "source": "a",
        "kind": "events",
        "neighbors": "add-remove",
        "epsilon": 1,
        "topic": "a",
        "person": "p",
        "time": "t",
    }
    beside = ["--epsilon", "1", "--queries", "30"]
    printed = compared("--source", json.dumps({**topic, "total": 3}), *beside)
    assert (printed["wanted"]["form"], printed["choice"]) == ("running", "running_count")
    assert alphas(printed) == alphas(compared("--form", "running", "--total", "3", *beside))
    assert "groups, declared or of texts, have a larger α" in printed["least_alpha"]
    refused = CliRunner().invoke(app, ["plan", *beside, "--source", json.dumps(topic)])
    assert refused.exit_code != 0
    assert "declare the source's total" in str(refused.exception)


def test_other_streams_on_a_live_topic_refer_to_standing_plans() -> None:
    arguments = ["plan", "--epsilon", "1", "--form", "alarm", "--source", json.dumps(TOPIC)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code != 0
    assert "give one of running; --standing plans any other stream on a live topic" in str(refused.exception)


def test_every_form_of_question_has_a_mechanism() -> None:
    for form in FORMS:
        beside = ["--delta", "1e-6"] if form == "texts" else []
        assert alphas(compared("--epsilon", "1", "--queries", "3", "--form", form, *SMALL, *beside)), form


def test_several_rows_per_person_add_noise_to_counts_of_rows() -> None:
    """Counts of people keep their noise."""
    table = {"source": "a", "kind": "table", "neighbors": "add-remove", "epsilon": 1, "path": "a.csv"}
    several = {**table, "attributes": {"age": 85}, "person": "id", "contribution": 5}
    beside = ["--epsilon", "1", "--queries", "3"]
    one = alphas(compared("--sizes", "85", *beside))["laplace"]
    rows = alphas(compared("--source", json.dumps(several), *beside))["laplace"]
    people = alphas(compared("--source", json.dumps(several), "--form", "people", *beside))["laplace"]
    assert rows == pytest.approx(5 * one, rel=0.1)
    assert people == one


def test_comparison_states_the_contribution_bound_of_a_source() -> None:
    """It does not if people are counted."""
    table = {"source": "a", "kind": "table", "neighbors": "add-remove", "epsilon": 1, "path": "a.csv"}
    several = json.dumps({**table, "attributes": {"age": 85}, "person": "id", "contribution": 5})
    beside = ["--epsilon", "1", "--queries", "3", "--source", several]
    words = "of each 'id' at most 5 rows count"
    assert words in run(*beside)
    assert words in run(*beside, "--form", "alarm", "--cutoff", "3")
    assert compared(*beside)["counted"] == words
    assert words not in run(*beside, "--form", "people")
    assert not compared(*beside, "--form", "people")["counted"]


@pytest.mark.parametrize(
    ("kind", "form", "compared_by", "arguments"),
    [
        ("laplace", "count", [], ["--queries", "40", "--cutoff", "40"]),
        ("pmw", "count", [], ["--queries", "40"]),
        ("above_threshold", "alarm", [], ["--queries", "40", "--cutoff", "3", "--monotone"]),
        ("laplace", "groups", ["--group-by", "2"], ["--queries", "40", "--cutoff", "40", "--dimensions", "2"]),
        ("histogram", "groups", ["--group-by", "1", "--group-by", "2"], ["--queries", "40"]),
    ],
)
def test_compared_figures_are_those_of_the_mechanisms_own_plan(
    kind: str, form: str, compared_by: list[str], arguments: list[str]
) -> None:
    shared = ["--epsilon", "0.7", "--delta", "1e-6", *SMALL]
    beside = alphas(compared(*shared, "--form", form, *compared_by, *arguments))[kind]
    alone = json.loads(run("--mechanism", kind, *shared, *arguments, "--json"))
    assert beside == alone["alpha"]


def test_comparison_without_epsilon_takes_the_least_epsilon() -> None:
    """It is the least one that keeps the wanted error."""
    wanted = ["--queries", "200", *MANY]
    printed = compared("--alpha", "500", *wanted)
    found = {one["mechanism"]: one["epsilon"] for one in printed["mechanisms"] if one["applies"]}
    assert found[printed["choice"]] == min(found.values())
    reached = alphas(compared("--epsilon", str(found[printed["choice"]]), *wanted))
    assert 0.99 * 500 <= reached[printed["choice"]] <= 500


def test_count_of_a_histogram_has_more_error_than_a_cell() -> None:
    cell = json.loads(run("--mechanism", "histogram", "--epsilon", "1", *MANY, "--json"))["alpha"]
    assert alphas(compared("--epsilon", "1", *MANY))["histogram"] > 10 * cell


def by(*attributes: str) -> list[str]:
    return [word for name in attributes for word in ("--group-by", name)]


def test_group_of_a_histogram_adds_up_the_other_attributes_cells() -> None:
    grouped = ["--epsilon", "1", "--queries", "40", "--form", "groups", *WIDE]
    coarse, finer = (alphas(compared(*grouped, *by(*places)))["histogram"] for places in ("3", "34"))
    assert coarse > 1.5 * finer


@pytest.mark.parametrize("kind", ["histogram", "pmw"])
def test_stream_over_the_grouped_attributes_is_compared_too(
    kind: str,
) -> None:
    """It is next to the stream over all attributes."""
    grouped = ["--epsilon", "1", "--queries", "40", "--form", "groups"]
    printed = compared(*grouped, *WIDE, *by("3", "4"))
    over_all, alone = (
        next(one["alpha"] for one in printed["mechanisms"] if one["mechanism"] == kind and one["over"] == over)
        for over in (None, ["3", "4"])
    )
    assert alone == alphas(compared(*grouped, "--sizes", "4,4", *by("1", "2")))[kind]
    assert alone < over_all


def test_least_group_by_error_is_that_of_a_smaller_histogram() -> None:
    """Its histogram has only the attributes of the group-by."""
    arguments = ["--epsilon", "1", "--queries", "40", "--form", "groups", *WIDE, *by("3")]
    first, *others = compared(*arguments)["mechanisms"]
    assert (first["mechanism"], first["over"]) == ("histogram", ["3"])
    assert all(one["alpha"] > 5 * first["alpha"] for one in others if one["applies"] and one["over"] is None)
    shown = run(*arguments)
    assert "→ take histogram over the attribute 3 only: the smallest α" in shown
    alone = json.loads(
        run("--mechanism", "histogram", "--epsilon", "1", "--queries", "40", "--sizes", "4", "--json")
    )
    assert alone["alpha"] <= first["alpha"]
    assert "--mechanism histogram --epsilon 1 --queries 40 --beta 0.05 --sizes 4" in shown


def test_group_by_over_all_attributes_lists_each_mechanism_once() -> None:
    kinds = [one["mechanism"] for one in compared(*GROUPS, *SMALL, *by("2", "1"))["mechanisms"]]
    assert sorted(kinds) == sorted(MODELS)


def test_group_by_without_attributes_takes_the_worst_group_by() -> None:
    """The error holds for every possible group-by."""
    sizes = [8, 2, 5]
    grouped = ["--epsilon", "1", "--queries", "9", "--delta", "1e-6", "--form", "groups", "--sizes", "8,2,5"]
    of_any = alphas(compared(*grouped))
    places = [str(place + 1) for place in range(len(sizes))]
    each = [
        alphas(compared(*grouped, *by(*one)))
        for count in (1, 2, 3)
        for one in itertools.combinations(places, count)
    ]
    assert of_any == {kind: max(one[kind] for one in each) for kind in of_any}
    assert "of every possible group-by" in run(*grouped)
    assert "every group-by" not in run(*grouped, *by("2"))


def test_group_by_attributes_have_their_names_in_a_source() -> None:
    grouped = ["--epsilon", "1", "--queries", "9", "--form", "groups"]
    source = {**REPLACED, "neighbors": "add-remove"}
    named = compared(*grouped, "--source", json.dumps(source), *by("sex"))
    placed = compared(*grouped, "--sizes", "85,2", *by("2"))
    assert named["wanted"].pop("group_by") == ["sex"]
    assert placed["wanted"].pop("group_by") == ["2"]
    assert [one.pop("over") for one in named["mechanisms"]].count(["sex"]) == 2
    assert [one.pop("over") for one in placed["mechanisms"]].count(["2"]) == 2
    assert named == placed


@pytest.mark.parametrize("groups", [by("3"), by("1", "4")])
@pytest.mark.parametrize(("kind", "alone"), [("histogram", False), ("histogram", True), ("laplace", False)])
def test_group_by_error_is_the_one_that_the_answer_has(kind: str, groups: list[str], *, alone: bool) -> None:
    sizes = {"age": 12, "sex": 3, "ward": 4, "bmi": 5}
    planned = [
        "--epsilon",
        "1",
        "--queries",
        "5",
        "--form",
        "groups",
        "--sizes",
        ",".join(map(str, sizes.values())),
    ]
    names = [list(sizes)[int(place) - 1] for place in groups[1::2]]
    [planned_alpha] = [
        one["alpha"]
        for one in compared(*planned, *groups)["mechanisms"]
        if (one["mechanism"], one["over"] is not None) == (kind, alone)
    ]
    driver = Driver(bytes(32))
    table = {"source": "a", "kind": "table", "neighbors": "add-remove", "epsilon": 1, "path": "a.csv"}
    driver.register({**table, "attributes": sizes}, {name: [0, 1] for name in sizes})
    over = names if alone else list(sizes)
    fields: dict[str, Any] = {"attributes": over} if kind == "histogram" else {"answers": 5}
    stream = {"stream": "s", "source": "a", "epsilon": 1.0, "expected_queries": 5}
    driver.open({**stream, "mechanism": {"kind": kind, **fields}})
    answer = driver.ask({"id": "1", "stream": "s", "group_by": names})
    assert answer.alpha == planned_alpha


def test_largest_group_of_an_estimate_has_more_error_than_a_count() -> None:
    planned = ["--epsilon", "1", "--queries", "40", "--sizes", "64,63", "--neighbors", "replace"]
    counted, grouped, by_any = (
        alphas(compared(*planned, *form))["pmw"]
        for form in ([], ["--form", "groups", *by("1")], ["--form", "groups"])
    )
    assert counted < grouped < by_any


@pytest.mark.parametrize("output", [[], ["--json"]])
def test_comparison_with_epsilon_and_alpha_judges_the_error(output: list[str]) -> None:
    """If no mechanism keeps α, the comparison is printed, and the error names the least ε that is enough."""
    arguments = ["plan", "--epsilon", "1", "--queries", "10", *SMALL, *output, "--alpha"]
    assert CliRunner().invoke(app, [*arguments, "1000"]).exit_code == 0
    result = CliRunner().invoke(app, [*arguments, "1"])
    assert (result.exit_code, "laplace" in result.stdout) == (1, True)
    found = re.fullmatch(
        r"--alpha: no plan above keeps an α of 1; give --epsilon (\S+) or a larger --alpha", str(result.exception)
    )
    assert found is not None
    assert CliRunner().invoke(app, [*arguments, "1", "--epsilon", found[1]]).exit_code == 0


def test_source_supplies_sizes_form_and_sensitivity(tmp_path: Path) -> None:
    path = tmp_path / "source.json"
    table = {"source": "a", "kind": "table", "neighbors": "add-remove", "epsilon": 1, "path": "a.csv"}
    path.write_text(json.dumps({**table, "attributes": {"age": 85, "sex": ["F", "M"]}}))
    beside = ["--epsilon", "1", "--queries", "30"]
    assert compared("--source", str(path), *beside) == compared("--sizes", "85,2", *beside)
    feed = {"source": "a", "kind": "values", "neighbors": "replace", "epsilon": 1, "sensitivity": 3.0}
    printed = compared("--source", json.dumps(feed), *beside)
    assert printed["wanted"]["form"] == "value"
    assert alphas(printed)["laplace"] == pytest.approx(
        3 * alphas(compared("--form", "value", *beside))["laplace"], rel=0.01
    )


def test_comparison_table_shows_choice_and_reasons_uncut() -> None:
    shown = run("--epsilon", "1", "--alpha", "3000", "--queries", "500", *MANY)
    lines = shown.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("  sotto plan"))
    words = set(shown.replace(",", " ").replace(":", " ").split())
    assert set(MODELS) <= words
    assert "→ take pmw: the smallest α" in shown
    printed = compared("--epsilon", "1", "--alpha", "3000", "--queries", "500", *MANY)
    for one in printed["mechanisms"]:
        assert set(one["why"].replace(",", " ").replace(":", " ").split()) <= words


VALUES = {"source": "a", "kind": "values", "neighbors": "replace", "epsilon": 1, "sensitivity": 0.3, "grid": 0.1}
RECORDS = {"source": "a", "kind": "records", "epsilon": 1, "contributions": 3}
TOPIC = {
    "source": "a",
    "kind": "events",
    "neighbors": "replace",
    "epsilon": 1,
    "topic": "a",
    "person": "p",
    "time": "t",
    "total": 6,
    "contribution": 2,
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--epsilon", "1", "--queries", "2000", "--delta", "1e-6", *MANY],
        ["--alpha", "300", "--queries", "7"],
        *(
            ["--epsilon", "0.7", "--queries", "7", "--form", form, "--sizes", "85,30"]
            for form in FORMS
            if form not in {"category", "texts"}
        ),
        ["--epsilon", "0.7", "--queries", "7", "--form", "texts", "--delta", "1e-6", "--sizes", "85,30"],
        ["--epsilon", "1", "--form", "groups", "--queries", "2000", *SMALL, "--neighbors", "replace"],
        ["--epsilon", "1", "--form", "groups", "--queries", "40", *WIDE, "--group-by", "1", "--group-by", "4"],
        ["--epsilon", "1", "--form", "alarm", "--cutoff", "3", "--rows", "500"],
        ["--epsilon", "1", "--form", "alarm", "--cutoff", "3", "--monotone"],
        ["--epsilon", "1", "--queries", "2000", "--typical-error", *MANY],
        ["--epsilon", "1", "--queries", "2000", "--no-typical-error", *MANY],
        ["--epsilon", "1", "--form", "value", "--sensitivity", "0.3", "--grid", "0.1"],
        ["--epsilon", "1", "--form", "values", "--dimensions", "3"],
        ["--epsilon", "1", "--form", "cells", "--universe", "1000000000", "--sparsity", "7"],
        ["--epsilon", "1", "--form", "category", "--categories", "5", "--contributions", "2"],
        ["--epsilon", "1", "--form", "running", "--total", "4", "--sensitivity", "2", "--universe", "3"],
        ["--epsilon", "1", "--form", "count", "--sizes", "3,4", "--sensitivity", "5"],
        ["--epsilon", "1", "--queries", "7", "--source", json.dumps(VALUES)],
        ["--epsilon", "1", "--queries", "7", "--source", json.dumps(RECORDS), "--categories", "4"],
        ["--epsilon", "1", "--queries", "7", "--source", json.dumps(TOPIC)],
    ],
)
def test_printed_command_plans_the_recommended_mechanism(arguments: list[str]) -> None:
    [command] = [line for line in run(*arguments).splitlines() if line.startswith("  sotto plan")]
    alone = json.loads(run(*command.split()[2:], "--json"))
    taken = compared(*arguments)["mechanisms"][0]
    assert (alone["spec"]["mechanism"]["kind"], alone["choice"]) == (taken["mechanism"], taken["calibration"])
    if "its calibrations:" in run(*arguments):
        assert alone["alpha"] == taken["alpha"]
    else:
        what = "cell" if taken["mechanism"] == "histogram" else "count"
        assert f"its calibrations (its table shows the α of one {what}):" in run(*arguments)
        assert alone["alpha"] < taken["alpha"]


REPLACED = {
    "source": "a",
    "kind": "table",
    "neighbors": "replace",
    "epsilon": 1,
    "path": "a.csv",
    "attributes": {"age": 85, "sex": ["F", "M"]},
}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--form", "alarm", "--source", json.dumps(REPLACED)],
        ["--form", "alarm", *SMALL, "--neighbors", "replace"],
        ["--mechanism", "above_threshold", *SMALL, "--neighbors", "replace"],
    ],
)
def test_monotone_plan_is_refused_if_its_opening_would_be(
    arguments: list[str],
) -> None:
    """Under replace, counts are not monotone."""
    beside = ["--epsilon", "1", "--cutoff", "3", "--queries", "40"]
    refused = CliRunner().invoke(app, ["plan", *arguments, *beside, "--monotone"])
    assert refused.exit_code != 0
    driver = Driver(bytes(32))
    driver.register(REPLACED, {"age": [1, 2], "sex": ["F", "M"]})
    mechanism = {"kind": "above_threshold", "threshold": 1, "cutoff": 3, "monotone": True}
    with pytest.raises(Refused) as opening:
        driver.open({"stream": "s", "source": "a", "epsilon": 1.0, "mechanism": mechanism})
    assert str(refused.exception) == str(opening.value)
    run(*arguments, *beside)


GROUPS = ["--epsilon", "1", "--form", "groups"]


def test_running_count_has_no_command_of_a_plan() -> None:
    assert "sotto plan" not in run("--epsilon", "1", "--queries", "1", "--form", "running")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "epsilon: missing, and so is alpha"),
        (["--epsilon", "1", "--plot", "x.svg"], "--plot: name the mechanism"),
        (["--mechanism", "laplace"], "--epsilon: is missing; give the budget"),
        (["--mechanism", "laplace", "--epsilon", "1", "--form", "count"], "--form: only for the comparison"),
        (
            ["--mechanism", "laplace", "--epsilon", "1", "--source", "{}"],
            "describe the source by --neighbors, --rows",
        ),
        (
            ["--mechanism", "noisy_max", "--epsilon", "1", "--alpha", "1e-9", "--cutoff", "1000000"],
            "give a larger --alpha",
        ),
        (
            ["--about", "pairs", "--epsilon", "1", "--sizes", "7"],
            "--sizes: pairs need at least 2 attributes, not 1",
        ),
        (
            ["--about", "pairs", "--epsilon", "1", "--sizes", "70,60"],
            "--sizes: no two attributes have at most 4,096",
        ),
        (["--mechanism", "laplace", "--epsilon", "1", "--group-by", "1"], "omit either --group-by or --mechanism"),
        (["--epsilon", "1", "--form", "terms"], "no mechanism answers these questions"),
        (["--epsilon", "1", *SMALL, *by("1")], "--group-by: form count has no groups; give --form"),
        (
            [*GROUPS, "--universe", "16"],
            "--sizes: missing, and so the groups are unknown; give --sizes or --source",
        ),
        (
            [*GROUPS, *by("1")],
            "--group-by: the attributes are unknown; give --sizes or --source as",
        ),
        (
            [*GROUPS, *SMALL, *by("3")],
            "--group-by: '3' is not a position in --sizes, whose positions are 1, 2; give one",
        ),
        ([*GROUPS, *SMALL, *by("2", "2")], "--group-by: '2' is given twice; give it once"),
        (
            [*GROUPS, *WIDE, *by("1", "5")],
            "--group-by: there are 7,381 groups, and an answer lists 4,096 at most; group by fewer",
        ),
        (
            [*GROUPS, "--sizes", "5000,6000"],
            "--group-by: each attribute has 5,000 groups or more, and an answer lists 4,096 at most",
        ),
        (
            [*GROUPS, "--source", json.dumps(REPLACED), *by("town")],
            "--group-by: 'town' is not an attribute of the source, which has age, sex; give one of them",
        ),
        (
            [
                *["--epsilon", "1", "--form", "count", "--source"],
                '{"source": "a", "kind": "values", "neighbors": "add-remove", "epsilon": 1, "sensitivity": 1}',
            ],
            "has no questions of form count",
        ),
    ],
)
def test_impossible_comparison_is_one_clear_error(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)
