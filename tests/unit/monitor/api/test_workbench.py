"""Responses to the page's forms: declarations, plans with their curve, questions and statements."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from schemas import Query
from stream.cli.app import app
from stream.errors import Timeout
from stream.formatting import ROWS_LEFT_OUT
from stream.monitor.api import forms
from stream.monitor.api.http_requests import ProblemError
from stream.monitor.api.question_routes import MAX_WAITING, Asker
from stream.questions import Result
from stream.settings import Settings
from stream.tables.schema_proposals import READ_PARTS
from tests.builders import source, stream, topic_source
from tests.unit.monitor.installation import (
    ANALYST,
    FEED,
    OPERATOR,
    VIEWER,
    Installation,
    WebClient,
    get,
    post,
    spec,
    status,
)
from tests.unit.monitor.survey import PEOPLE, ROWS, surveyed


async def ask(client: WebClient, stream: str, **fields: Any) -> dict[str, Any]:
    return await post(client, "/api/questions", {"id": f"q-{stream}", "stream": stream, **fields})


async def test_preview_shows_sizes_cells_neighbors_and_budget() -> None:
    """A declaration is previewed without a registration."""
    installation = Installation()
    async with installation.web() as client:
        response = await post(client, "/api/declarations", PEOPLE, VIEWER)
        assert [(one["name"], one["kind"], one["size"]) for one in response["attributes"]] == [
            ("age", "integers", 100),
            ("sex", "categories", 2),
            ("pay", "bins", 2),
        ]
        assert response["cells"] == 400
        assert response["total"]["epsilon"] == 8.0
        assert "one row more" in response["neighbors"]
        assert response["source"]["accountant"] == "pure"
        assert [one["outside"].split()[0] for one in response["attributes"]] == ["values", "any", "rows"]
        topic = source("calls", "events", topic="calls", person="who", time="at", attributes={"ward": ["A", "B"]})
        live = await post(client, "/api/declarations", topic, VIEWER)
        assert live["attributes"][0]["outside"] == "events with any other value are refused"
        fine = {**FEED, "grid": 1e-9}
        refused = await post(client, "/api/declarations", fine, VIEWER, status=409)
        assert "grid" in refused["message"]
        wrong = await post(client, "/api/declarations", {**PEOPLE, "attributes": {"age": 0}}, VIEWER, status=400)
        assert wrong["fields"][0]["field"].startswith("attributes.age")
        empty = {**PEOPLE, "source": "a b", "attributes": {"sex": {"kind": "categories", "values": []}}}
        half = await post(client, "/api/declarations", empty, VIEWER, status=400)
        name, values = half["fields"]
        assert (name["field"], name["message"][:25]) == ("source", "a name has only letters f")
        assert values == {"field": "attributes.sex.values", "message": "has too few items; give at least 1"}
    assert installation.requested == []


async def test_declaration_of_a_view_names_the_place_of_an_error() -> None:
    """A view's SQL is refused at its line and column; an accepted one says which tables are public."""
    view = {
        "select": "SELECT v.age FROM visits v\nJOIN wards w ON w.beds = v.ward",
        "tables": {
            "visits": {"path": "visits.csv", "columns": {"ward": "text"}},
            "wards": {"path": "wards.csv", "key": ["code"], "columns": {"code": "text"}},
        },
    }
    fields = {name: value for name, value in PEOPLE.items() if name != "path"}
    source = {**fields, "attributes": {"age": 100}, "view": view}
    async with Installation().web() as client:
        refused = await post(client, "/api/declarations", source, VIEWER, status=409)
        assert refused["message"].startswith(
            "view: line 2, column 17: the lookup table 'wards' is not joined on its key"
        )
        view["select"] = "SELECT v.age FROM visits v JOIN wards w ON w.code = v.ward"
        response = await post(client, "/api/declarations", source, VIEWER)
    assert "lookup tables are public, no person may decide their rows: wards" in response["remarks"]


async def test_preview_shows_population_and_renewal() -> None:
    async with Installation().web() as client:
        response = await post(
            client, "/api/declarations", {**PEOPLE, "population": "all", "renews": "30d"}, VIEWER
        )
    assert any("population 'all'" in one for one in response["remarks"])
    assert any("renews every 30d" in one for one in response["remarks"])
    assert any("larger tables need the engine duckdb" in one for one in response["remarks"])
    assert any("each row is taken as one person" in one for one in response["remarks"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"neighbors": "replace"}, "another person's"),
        ({"person": "patient", "contribution": 3}, "of each 'patient', at most 3 rows count"),
        ({"kind": "records", "neighbors": "replace", "contributions": 4}, "up to 4 events"),
        ({"kind": "values", "sensitivity": 2.5}, "at most 2.5"),
        ({"kind": "values", "sensitivity": 2.5, "neighbors": "replace"}, "one person is exchanged for another"),
    ],
)
async def test_preview_explains_neighbors_for_every_kind_of_source(changes: dict[str, Any], words: str) -> None:
    body: dict[str, Any] = {**PEOPLE, **changes}
    if body["kind"] != "table":
        del body["path"], body["attributes"]
    async with Installation().web() as client:
        assert words in (await post(client, "/api/declarations", body, VIEWER))["neighbors"]


async def test_source_page_shows_its_declaration() -> None:
    async with surveyed().web() as client:
        shown = await get(client, "/api/sources/people")
        assert shown["row"]["source"] == "people"
        assert shown["declaration"]["source"]["attributes"]["sex"]["values"] == ["F", "M"]
        assert shown["declaration"]["cells"] == 400
        async with client.get("/api/sources/nobody", headers={"Authorization": f"Bearer {VIEWER}"}) as answer:
            assert answer.status == 404


async def whole_curve(client: WebClient, stream: dict[str, Any], against: str = "epsilon") -> dict[str, Any]:
    """Return all parts of a curve as one response."""
    whole: dict[str, Any] = {"lines": {}, "method": None}
    start: int | None = 0
    while start is not None:
        part = await post(client, "/api/curves", {"stream": stream, "against": against, "start": start}, VIEWER)
        assert part["following"] is None or part["following"] > start
        for line in part["lines"]:
            whole["lines"].setdefault(line["method"], []).extend(line["points"])
        whole |= {"method": whole["method"] or part["method"], "chosen": part["chosen"], "total": part["total"]}
        start = part["following"]
    return whole


async def test_curve_has_the_choice_of_the_planner() -> None:
    """The parts together have each point once, with the planned one among them."""
    installation = surveyed()
    wanted = spec("new", source="people", cutoff=3, epsilon=0.5)
    async with installation.web() as client:
        found = await whole_curve(client, wanted)
        assert found["chosen"] == 0.5
        curve = {point["value"]: point["alpha"] for point in found["lines"][found["method"]]}
        assert list(curve) == sorted(curve)
        assert len(curve) == found["total"] == forms.CURVE_POINTS
        plan = await post(client, "/api/plan", wanted, VIEWER)
        assert curve[0.5] == plan["calibration"]["alpha"]
        assert plan["promises"][0]["alpha"] == plan["calibration"]["alpha"]
        cutoffs = await whole_curve(client, wanted, "cutoff")
        assert cutoffs["chosen"] == 3.0
        once = stream("new", "people", "histogram", mechanism={"attributes": ["sex"]}, epsilon=0.5)
        refused = await post(client, "/api/curves", {"stream": once, "against": "cutoff"}, VIEWER, status=409)
        assert "charged once" in refused["message"]


async def test_curve_marks_vacuous_promises() -> None:
    replaced = {**PEOPLE, "neighbors": "replace"}
    installation = Installation()
    installation.driver.register(replaced, pl.DataFrame(ROWS))
    installation.flow()
    mechanism = {"attributes": ["age", "sex"], "rows": 4000}
    wanted = stream("new", "people", "pmw", mechanism=mechanism, epsilon=0.1)
    async with installation.web() as client:
        found = await whole_curve(client, wanted)
    points = [point for line in found["lines"].values() for point in line]
    assert all(point["vacuous"] == (point["alpha"] >= 2000) for point in points)
    assert {point["vacuous"] for point in points} == {True, False}


async def test_plan_of_auto_names_the_opened_mechanism() -> None:
    installation = surveyed()
    auto = {"stream": "new", "source": "people", "mechanism": {"kind": "auto", "rows": 5000}, "epsilon": 0.5}
    async with installation.web() as client:
        plan = await post(client, "/api/plan", auto, VIEWER)
        curve = await whole_curve(client, auto)
        useless = await post(client, "/api/plan", {**auto, "epsilon": 0.001}, VIEWER)
    receipt = installation.driver.open(auto)
    assert plan["compared"] == [one.model_dump() for one in receipt.compared]
    assert curve["method"] == plan["calibration"]["method"]
    assert plan["uninformative"] is None
    assert useless["uninformative"].startswith("not informative: the expected error of a count")


async def test_plan_of_a_live_stream_names_its_contribution_bound() -> None:
    installation = Installation()
    visits = topic_source("add-remove", 3, zone={"kind": "categories", "values": ["a", "b"]})
    installation.driver.register(visits)
    installation.flow()
    standing = {"by": ["zone"], "window": {"size": "1h"}}
    wanted = stream("new", visits["source"], "laplace", mechanism={"answers": 100}, standing=standing)
    async with installation.web() as client:
        [promise] = (await post(client, "/api/plan", wanted, VIEWER))["promises"]
    assert f"of each '{visits['person']}' at most 3 events count in a window" in promise["remark"]


async def test_part_of_a_curve_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part ends after the first point beyond its time, so that others have their turn."""
    monkeypatch.setattr(forms, "CURVE_SECONDS", 0.0)
    installation = surveyed()
    async with installation.web() as client:
        found = await post(client, "/api/curves", {"stream": spec("new", source="people")}, VIEWER)
    assert found["following"] == 1
    assert {len(line["points"]) for line in found["lines"]} == {1}


async def test_plan_warns_by_guesses_of_rows_and_answer() -> None:
    """The guesses of a private number of rows and of an expected answer are used only for the warning."""
    wanted = stream("new", "people", "laplace", mechanism={"answers": 100}, epsilon=0.5)
    async with surveyed().web() as client:
        plain = await post(client, "/api/plan", wanted, VIEWER)
        assert plain["uninformative"] is None
        few = await post(client, "/api/plan?rows=900", wanted, VIEWER)
        assert "more than a third of the 900 rows" in few["uninformative"]
        small = await post(client, "/api/plan?rows=900000&answer=40", wanted, VIEWER)
        assert "more than the expected answer 40" in small["uninformative"]
        enough = await post(client, "/api/plan?rows=900000&answer=4000", wanted, VIEWER)
        assert enough == plain
        wrong = await post(client, "/api/plan?rows=0", wanted, VIEWER, status=400)
        assert wrong["fields"][0]["field"] == "rows"


@pytest.mark.parametrize(
    "asked",
    [
        {"epsilon": 0.5},
        {"alpha": 50.0, "rows": 4000, "queries": 40},
        {"epsilon": 1.0, "form": "groups", "queries": 9, "group_by": ["sex"], "delta": 1e-6},
        {"epsilon": 1.0, "form": "quantile", "queries": 5, "attribute": "age", "q": 0.9, "rows": 4000},
    ],
)
async def test_comparison_has_the_numbers_of_the_command(asked: dict[str, Any]) -> None:
    """The page and ``sotto plan`` compare the same mechanisms with the same figures."""
    options = {"group_by": "group-by"}
    arguments = ["plan", "--source", json.dumps(PEOPLE), "--json"]
    for name, value in asked.items():
        for one in value if isinstance(value, list) else [value]:
            arguments += [f"--{options.get(name, name)}", str(one)]
    printed = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    async with surveyed().web() as client:
        found = await post(client, "/api/comparisons", {"source": "people", **asked}, VIEWER)
    rows = [{name: value for name, value in row.items() if value is not None} for row in found["mechanisms"]]
    assert rows == [
        {name: value for name, value in row.items() if value is not None} for row in printed["mechanisms"]
    ]
    assert {name: found[name] for name in ("choice", "keeps", "least_alpha", "counted")} == {
        name: printed[name] for name in ("choice", "keeps", "least_alpha", "counted")
    }
    assert found["form"] in found["forms"]


async def test_comparison_over_attributes_is_that_of_a_smaller_table() -> None:
    """A stream over one of two attributes has the accuracy of a table that has only this attribute."""
    asked = {"source": "people", "epsilon": 1.0, "form": "count"}
    small = json.dumps({**PEOPLE, "attributes": {"sex": PEOPLE["attributes"]["sex"]}})
    arguments = ["plan", "--source", small, "--json", "--epsilon", "1", "--form", "count"]
    printed = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    async with surveyed().web() as client:
        everything = await post(client, "/api/comparisons", asked, VIEWER)
        found = await post(client, "/api/comparisons", {**asked, "attributes": ["sex"]}, VIEWER)
    assert (everything["attributes"], found["attributes"]) == (list(PEOPLE["attributes"]), ["sex"])
    alphas = [
        {row["mechanism"]: row["alpha"] for row in one["mechanisms"]} for one in (printed, found, everything)
    ]
    assert alphas[0] == alphas[1]
    assert alphas[1]["histogram"] < alphas[2]["histogram"]


async def test_comparison_refuses_forms_that_the_source_does_not_support() -> None:
    """The reason of the refusal is the planner's."""
    async with surveyed().web() as client:
        unknown = {"source": "people", "epsilon": 1.0, "attributes": ["height"]}
        refused = await post(client, "/api/comparisons", unknown, VIEWER, status=409)
        assert "no 'height'" in refused["message"]
        refused = await post(
            client, "/api/comparisons", {"source": "people", "epsilon": 1.0, "form": "value"}, VIEWER, status=409
        )
        assert "no questions of form value" in refused["message"]
        nothing = await post(client, "/api/comparisons", {"source": "people"}, VIEWER, status=409)
        assert "epsilon" in nothing["message"]


async def test_api_asks_every_form_of_question() -> None:
    """Each answer has its error bars, its groups and its price."""
    installation = surveyed()
    async with installation.web() as client:
        count = await ask(client, "counts", where="age >= 65")
        assert count["answer"]["basis"] == "noisy"
        assert count["rows"][0]["alpha"] == count["answer"]["alpha"] > 0
        assert count["cost"]["epsilon"] == pytest.approx(1 / 40)
        groups = await post(client, "/api/questions", {"id": "g", "stream": "cells", "group_by": ["sex"]})
        assert [row["sex"] for row in groups["rows"]] == ["F", "M"]
        assert groups["cost"]["epsilon"] == pytest.approx(1.0)
        again = await post(client, "/api/questions", {"id": "h", "stream": "cells", "where": "sex = 'M'"})
        assert again["cost"]["epsilon"] == 0.0
        mean = await post(client, "/api/questions", {"id": "m", "stream": "model", "mean": "age"})
        assert mean["rows"][0]["estimate"] is not None
        share = await post(
            client, "/api/questions", {"id": "s", "stream": "model", "where": "sex = 'M'", "fraction": True}
        )
        assert share["rows"][0]["estimate"] is not None
        candidates = [{"name": one, "where": f"sex = '{one}'"} for one in "FM"]
        choice = await post(client, "/api/questions", {"id": "c", "stream": "choices", "candidates": candidates})
        assert choice["answer"]["choice"] in "FM"
        assert choice["cost"]["epsilon"] == pytest.approx(1 / 3)
        below = await ask(client, "alarms", where="age >= 99")
        assert (below["answer"]["outcome"], below["cost"]["epsilon"] > 0) == ("below", True)
        free = await post(client, "/api/questions", {"id": "f", "stream": "alarms", "where": "age >= 98"})
        assert (free["answer"]["outcome"], free["cost"]["epsilon"]) == ("below", 0.0)


async def test_question_with_an_alpha_costs_its_price() -> None:
    installation = surveyed()
    async with installation.web() as client:
        exact = await ask(client, "counts", where="age >= 65", alpha=30.0, max_price="100%")
    assert exact["cost"]["epsilon"] == exact["answer"]["price"] > 0
    assert exact["answer"]["alpha"] <= 30.0


async def test_costs_of_answers_add_up_to_the_spent_amount() -> None:
    installation = surveyed()
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("counts", {"where": f"age >= {age}"}) for age in (20, 50, 65)),
        *(("alarms", {"where": f"age >= {age}"}) for age in (0, 99, 10, 98)),
        *(("model", {"where": f"age >= {age}"}) for age in (30, 60)),
    ]
    total: dict[str, float] = {}
    spent: dict[str, float] = {}
    async with installation.web() as client:
        for number, (stream, fields) in enumerate(asked):
            response = await post(client, "/api/questions", {"id": f"{number}", "stream": stream, **fields})
            total[stream] = total.get(stream, 0.0) + response["cost"]["epsilon"]
            spent[stream] = response["answer"]["spent"]["epsilon"]
    assert total == {stream: pytest.approx(one, rel=1e-6) for stream, one in spent.items()}


async def test_gaussian_stream_reports_its_rho_with_the_first_answer() -> None:
    """Later answers add no cost; each answer counts as one charged answer."""
    installation = Installation()
    installation.driver.register({**PEOPLE, "accountant": "zcdp", "delta": 1e-6}, pl.DataFrame(ROWS))
    installation.driver.open(stream("many", "people", "laplace", mechanism={"answers": 40}, delta=1e-7))
    installation.flow()
    async with installation.web() as client:
        first, second = [
            await post(client, "/api/questions", {"id": f"{age}", "stream": "many", "where": f"age >= {age}"})
            for age in (20, 30)
        ]
    assert first["cost"]["rho"] == first["answer"]["spent"]["rho"] > 0
    assert (second["cost"]["rho"], second["cost"]["epsilon"]) == (0.0, 0.0)
    assert (first["charged"], second["charged"]) == (1, 1)


async def test_constant_outside_its_domain_is_reported() -> None:
    """This holds for questions and for statements."""
    expected = [
        "where: age >= 200 holds for no row; 'age' is declared as whole numbers from 0 to 99, and values outside count as 0 or 99"
    ]
    async with surveyed().web() as client:
        assert (await ask(client, "counts", where="age >= 200"))["warnings"][:1] == expected
        assert (await ask(client, "model", where="age >= 20"))["warnings"] == [ROWS_LEFT_OUT]
        select = "SELECT COUNT(*), AVG(age) FROM model WHERE age >= "
        for constant, warnings in (("200", expected), ("20", [])):
            table = await post(client, "/api/statements", {"id": f"s-{constant}", "statement": select + constant})
            assert table["questions"] == 2
            others = ("not informative", "count as its ends", ROWS_LEFT_OUT, "without a 95 % interval")
            assert [text for text in table["warnings"] if not any(one in text for one in others)] == warnings
        schemas = (await get(client, "/openapi.json"))["components"]["schemas"]
    for name in ("QuestionAnswered", "StatementAnswered"):
        assert schemas[name]["properties"]["warnings"]["items"] == {"type": "string"}


async def test_contribution_bound_is_shown_with_promises_and_statements() -> None:
    words = "of each 'who' at most 5 rows count"
    installation = Installation()
    rows = pl.DataFrame({**ROWS, "who": [f"p{number // 8}" for number in range(400)]})
    installation.driver.register({**PEOPLE, "person": "who", "contribution": 5}, rows)
    opened = stream("counts", "people", "laplace", mechanism={"answers": 40})
    installation.driver.open(opened)
    installation.flow()
    async with installation.web() as client:
        [row] = (await get(client, "/api/streams"))["items"]
        assert words in row["promises"][0]["remark"]
        plan = await post(client, "/api/plan", {**opened, "stream": "new"}, VIEWER)
        assert words in plan["promises"][0]["remark"]
        statement = {"id": "s", "statement": "SELECT COUNT(*) FROM counts"}
        assert (await post(client, "/api/statements", statement))["warnings"][0] == words


async def test_rejected_and_halted_questions_cost_nothing() -> None:
    installation = surveyed()
    async with installation.web() as client:
        wrong = await ask(client, "counts", where="height > 3")
        assert (wrong["answer"]["outcome"], wrong["cost"]["epsilon"]) == ("rejected", 0.0)
        installation.driver.halt("people", "counts", "audit")
        installation.flow()
        halted = await post(client, "/api/questions", {"id": "later", "stream": "counts", "where": "age >= 3"})
        assert (halted["answer"]["outcome"], halted["cost"]["epsilon"]) == ("halted", 0.0)
        assert (await post(client, "/api/questions", {"id": "x", "stream": "no", "where": "a = 1"}, status=404))[
            "code"
        ] == "not-found"


async def test_statement_results_are_tables_with_error_bars_and_costs() -> None:
    installation = surveyed()
    async with installation.web() as client:
        body = {"id": "s-1", "statement": "SELECT sex, COUNT(*) AS people FROM model GROUP BY sex"}
        table = await post(client, "/api/statements", body)
        assert (table["stream"], table["columns"], table["questions"]) == (
            "model",
            ["sex", "people", "people ±", "people 95% low", "people 95% high"],
            1,
        )
        assert [row["sex"] for row in table["rows"]] == ["F", "M"]
        assert table["cost"]["epsilon"] > 0
        assert await post(client, "/api/statements", body) == table
        assert len(installation.asks) == 1
        for statement, status, words in (
            ("DROP TABLE people", 400, "SELECT"),
            ("SELECT COUNT(*) FROM nowhere", 404, "nowhere"),
            ("SELECT MAX(age) FROM model", 400, "QUANTILE"),
            ("SELECT COUNT(*) FROM model WHERE height > 3", 400, "no declared attribute"),
        ):
            refused = await post(client, "/api/statements", {"id": "s-2", "statement": statement}, status=status)
            assert words in refused["message"]


async def test_statement_price_counts_its_questions_and_asks_none() -> None:
    """The price is that of an ordinary charge for each question; a stream that has ended has none."""
    installation = surveyed()
    async with installation.web() as client:
        path = "/api/statements/price"
        priced = await post(client, path, {"statement": "SELECT COUNT(*), AVG(age) FROM counts"}, VIEWER)
        single = await get(client, "/api/streams/counts/asking")
        assert (priced["stream"], priced["questions"]) == ("counts", 2)
        assert priced["charged"]["epsilon"] == pytest.approx(2 * single["charged"]["epsilon"])
        assert installation.asks == []
        installation.driver.halt("people", "counts", "audit")
        installation.flow()
        ended = await post(client, path, {"statement": "SELECT COUNT(*) FROM counts"}, status=409)
        assert ended["message"] == "stream 'counts' is halted, and answers no statement"


async def test_statement_avoids_a_stream_that_waits_for_its_table() -> None:
    installation = surveyed()
    asked = {"statement": "SELECT COUNT(*) FROM people"}
    async with installation.web() as client:
        first = (await post(client, "/api/statements/price", asked, VIEWER))["stream"]
        waiting = status(installation, first, 9, 0, 7).model_copy(update={"refused": "table: differs"})
        installation.show(waiting)
        assert (await post(client, "/api/statements/price", asked, VIEWER))["stream"] != first


async def test_repeated_statement_uses_the_stream_of_its_first_attempt() -> None:
    """At that time another open stream of the source may be cheaper, but the retry must not be charged there."""
    installation = surveyed()
    async with installation.web() as client:
        body = {"id": "s-1", "statement": "SELECT sex, COUNT(*) AS n FROM people GROUP BY sex"}
        first = await post(client, "/api/statements", body)
        assert "cheapest" in first["why"]
        asks = len(installation.asks)
        other = {"id": "s-2", "statement": f"SELECT COUNT(*) AS n FROM {first['stream']}"}  # noqa: S608
        assert (await post(client, "/api/statements", other))["why"] is None
        again = await post(client, "/api/statements", body)
        assert (again["stream"], again["rows"]) == (first["stream"], first["rows"])
        assert len(installation.asks) == asks + 1


async def test_answers_beyond_the_promise_of_their_stream_have_a_warning() -> None:
    installation = surveyed()
    installation.driver.open(stream("few", "people", "histogram", expected_queries=1))
    installation.flow()
    async with installation.web() as client:
        first, second = [await ask(client, "few", id=f"q-{n}", where="age >= 65") for n in range(2)]
        stated = await post(client, "/api/statements", {"id": "s", "statement": "SELECT COUNT(*) FROM few"})
        page = await get(client, "/api/streams/few/answers")
    words = "more than the 1 answer for which α is promised"
    assert words not in str(first["warnings"])
    assert words in second["warnings"][0]
    assert words in stated["warnings"][0]
    assert [words in str(row["warnings"]) for row in page["items"]] == [True, True, False]


async def test_threshold_below_the_error_of_decisions_has_a_warning() -> None:
    installation = surveyed()
    alarm = stream("alarm", "people", "above_threshold", mechanism={"threshold": 400, "cutoff": 3})
    installation.driver.open(alarm, acknowledge=True)
    installation.flow()
    async with installation.web() as client:
        answered = [
            await ask(client, "alarm", id=f"q-{limit}", where="age >= 65", threshold=limit)
            for limit in (1.0, 900.0)
        ]
        page = await get(client, "/api/streams/alarm/answers")
    words = "not informative: the error may exceed the threshold"
    assert [words in one["warnings"] for one in answered] == [True, False]
    assert [row["uninformative"] for row in page["items"]] == [[], [0]]


async def test_dry_run_of_questions_and_statements_charges_nothing() -> None:
    """With a ``max_price`` of 0, the API shows the price and charges nothing; with a percentage, it refuses a higher price."""
    installation = surveyed()
    async with installation.web() as client:
        priced = await ask(client, "counts", where="age >= 65", alpha=5.0, max_price=0)
        assert (priced["answer"]["outcome"], priced["cost"]["epsilon"], priced["charged"]) == ("rejected", 0.0, 0)
        assert priced["answer"]["price"] == pytest.approx(0.62, abs=0.02)
        refused = await ask(client, "counts", id="q-2", where="age >= 65", alpha=5.0, max_price="10%")
        assert "and the limit is 0.1;" in refused["answer"]["reason"]
        body = {"id": "s", "statement": "SELECT COUNT(*) FROM counts", "max_price": 0}
        [answer] = (await post(client, "/api/statements", body))["answers"]
        assert (answer["outcome"], answer["price"]) == ("rejected", pytest.approx(1 / 40))
        wrong = await post(client, "/api/statements", {**body, "id": "t", "max_price": "much"}, status=400)
        assert wrong["fields"][0]["field"].startswith("max_price")


async def test_stream_without_an_ordinary_answer_left_is_exhausted() -> None:
    """The list, the stream's page and the overview show it as exhausted, and as open after an extension."""
    installation = surveyed()
    while installation.driver.grant("people", "counts").state == "open":
        installation.driver.ask("counts", where="age >= 65", alpha=9.9, outcomes=True)
        installation.driver.ask("counts", where="age >= 65")
    installation.flow()
    async with installation.web() as client:
        page = await get(client, "/api/streams?state=exhausted", VIEWER)
        [row] = page["items"]
        assert (row["stream"], row["state"], row["tops_left"]) == ("counts", "exhausted", 0)
        assert (await get(client, "/api/streams/counts", VIEWER))["row"]["state"] == "exhausted"
        assert (await get(client, "/api/overview", VIEWER))["streams"]["exhausted"] == 1
        installation.driver.extend("people", "counts", 0.5)
        installation.flow()
        assert (await get(client, "/api/streams/counts", VIEWER))["row"]["state"] == "open"


async def test_question_sent_again_under_its_id_is_asked_once() -> None:
    installation = surveyed()
    async with installation.web() as client:
        first = await ask(client, "counts", where="age >= 65")
        assert await ask(client, "counts", where="age >= 65") == first
        assert len(installation.asks) == 1
        refused = await post(
            client, "/api/questions", {"id": "q-counts", "stream": "counts", "where": "age >= 3"}, status=409
        )
        assert "id" in refused["message"]
    assert len(installation.asks) == 1


@pytest.mark.parametrize(
    "private",
    [{"value": 4.0}, {"values": [1.0]}, {"category": "F"}, {"candidates": [{"name": "a", "value": 1.0}]}],
)
async def test_api_accepts_no_private_data(private: dict[str, Any]) -> None:
    installation = surveyed()
    async with installation.web() as client:
        refused = await post(client, "/api/questions", {"id": "q", "stream": "counts", **private}, status=400)
    assert "private" in refused["message"]
    assert installation.asks == []


async def test_api_refuses_questions_of_viewers_and_without_permission() -> None:
    installation = surveyed()
    body = {"id": "q", "stream": "counts", "where": "age >= 3"}
    async with installation.web() as client:
        assert (await get(client, "/api/session"))["asks"] is True
        assert (await post(client, "/api/questions", body, VIEWER, status=403))["code"] == "forbidden"
        installation.monitor.asker = None
        assert (await get(client, "/api/session"))["asks"] is False
        off = await post(client, "/api/questions", body, status=403)
        assert "SOTTO_MONITOR_ASKS" in off["message"]
    assert installation.asks == []


class ManualClient:
    """Answers only when a test says so."""

    def __init__(self) -> None:
        self.answers: dict[str, asyncio.Future[Result]] = {}

    async def ask(self, question: Query) -> Result:
        self.answers[question.id] = asyncio.get_running_loop().create_future()
        return await self.answers[question.id]


def question(name: str) -> Query:
    return Query(id=name, stream="counts", where="age >= 3")


async def test_late_answer_is_returned_to_a_repeated_request() -> None:
    silent = ManualClient()
    asker = Asker(silent.ask)
    with pytest.raises(Timeout):
        await asker.ask([question("a")], timeout=0.01)
    silent.answers["a"].set_result(Result(id="a", stream="counts", outcome="answer", estimate=3.0))
    [late] = await asker.ask([question("a")])
    assert late.estimate == 3.0
    assert len(silent.answers) == 1


async def test_waiting_questions_have_a_limit() -> None:
    asker = Asker(ManualClient().ask)
    with pytest.raises(Timeout):
        await asker.ask([question(f"{number}") for number in range(MAX_WAITING)], timeout=0.01)
    with pytest.raises(ProblemError) as refused:
        await asker.ask([question("one more")])
    assert refused.value.problem.status == 429
    await asker.close()


async def test_asking_route_has_next_cost_and_an_accepted_statement() -> None:
    """The cost is the one that the next answer reports, and the statement is answered."""
    installation = surveyed()
    for name, mechanism in {
        "few": {"kind": "laplace", "answers": 4},
        "most": {"kind": "noisy_max", "answers": 2},
        "table": {"kind": "histogram", "attributes": ["sex"]},
    }.items():
        installation.driver.open({"stream": name, "source": "people", "epsilon": 1.0, "mechanism": mechanism})
    installation.flow()
    async with installation.web() as client:
        for name, price, statement in (("few", 0.25, True), ("most", 0.5, False), ("table", 1.0, True)):
            before = await get(client, f"/api/streams/{name}/asking")
            assert before["charged"]["epsilon"] == pytest.approx(price)
            assert (before["statement"] is not None) == statement
            if statement:
                asked = await post(client, "/api/statements", {"id": name, "statement": before["statement"]})
                assert asked["cost"]["epsilon"] == pytest.approx(price)
        after = await get(client, "/api/streams/table/asking")
        assert after["charged"]["epsilon"] == after["free"]["epsilon"] == 0.0


async def test_proposal_route_needs_an_operator_and_reads_table_roots(tmp_path: Path) -> None:
    """Without roots, no file is read, and a refusal does not show whether a file exists."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "t.csv").write_text("age,ward\n71,zyxwvu\n")
    settings = Settings().model_copy(update={"table_roots": str(inside)})
    async with Installation(settings=settings).web() as client:
        found = await post(client, "/api/proposals", {"path": str(inside / "t.csv")}, OPERATOR)
        assert [(one["name"], one["missing"]) for one in found["attributes"]] == [
            ("age", ["values"]),
            ("ward", ["values"]),
        ]
        assert found["read"] == READ_PARTS
        assert "a CSV file has no types" in found["remark"]
        refusals = {
            (await post(client, "/api/proposals", {"path": str(path)}, OPERATOR, status=409))["message"]
            for path in (outside / "t.csv", outside / "none.csv", inside / ".." / "outside" / "t.csv")
        }
        assert len(refusals) == 1
        await post(client, "/api/proposals", {"path": str(inside / "t.csv")}, ANALYST, status=403)
        bad = await post(client, "/api/proposals", {"path": "s3://b/x.csv"}, OPERATOR, status=400)
        assert [one["field"] for one in bad["fields"]] == ["path"]
        assert "pydantic" not in str(bad)
    async with Installation().web() as client:
        await post(client, "/api/proposals", {"path": str(inside / "t.csv")}, OPERATOR, status=409)


async def test_question_about_a_newer_definition_answers_503() -> None:
    """A question to a stream whose record a later version wrote says that the monitor must be upgraded."""
    installation = surveyed()
    entry = installation.tables.streams["cells"]
    assert entry.packing is not None
    entry.packed = entry.packing.pack(b'{"kind":"later"}')
    question = {"id": "newer", "stream": "cells", "where": "sex = 'M'"}
    async with installation.web() as client:
        answered = await post(client, "/api/questions", question, status=503)
    assert answered["message"] == "this monitor is older than the definition; upgrade it"
