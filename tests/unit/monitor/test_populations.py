"""Populations, allotments and renewal in the API, and the requests that analysts may make in their names."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import ExtendStream, OpenStream
from stream.monitor.api.budget_models import TrailQuery
from stream.monitor.api.budget_views import list_trail
from stream.monitor.api.routes import ROUTES
from tests.builders import source, stream
from tests.unit.monitor.installation import ANALYST, FEED, HIGH, OPERATOR, VIEWER, Installation, get, post, spec

PATIENTS = {"population": "patients", "epsilon": 12.0}
LAB = {**FEED, "source": "lab"}
ANA = {"request": "allot", "allotment": "ana", "source": "feed", "epsilon": 3.0}


def installation_with_allotment() -> Installation:
    """Return an installation with a source of ε 10, of which ana has an allotment of ε 3."""
    installation = Installation()
    installation.open()
    installation.driver.allot("ana", 3.0, source="feed")
    installation.driver.open(spec("others"))
    installation.flow()
    return installation


def open_request(stream: str, request: str = "o", **fields: Any) -> dict[str, Any]:
    return {"request": request, "stream": spec(stream), **fields}


async def test_analyst_opens_only_in_own_name() -> None:
    installation = installation_with_allotment()
    async with installation.web() as client:
        for number, said in enumerate(({}, {"analyst": "ben"}, {"analyst": "ana"})):
            body = open_request(f"s{number}", f"o{number}", **said)
            assert (await post(client, "/api/streams", body, ANALYST))["outcome"] == "opened"
        extension = {"request": "x", "source": "feed", "stream": "s0", "epsilon": 1.0, "analyst": "ben"}
        problem = await post(client, "/api/extensions", extension, ANALYST, status=409)
        spending = await get(client, "/api/spending", source="feed")
    assert "allotment 'ana'" in problem["message"]
    asked = [one for one in installation.requested if isinstance(one, OpenStream | ExtendStream)]
    assert {one.analyst for one in asked} == {"ana"}
    assert {one["analyst"]: one["streams"] for one in spending["analysts"]} == {"ana": 3, None: 1}
    trail = list_trail(installation.tables.trail, TrailQuery(analyst="ana")).items
    assert [row.stream for row in trail if row.outcome == "opened"] == ["s2", "s1", "s0"]


async def test_analyst_gets_no_more_than_allotment() -> None:
    installation = installation_with_allotment()
    async with installation.web() as client:
        for number in range(3):
            await post(client, "/api/streams", open_request(f"s{number}", f"o{number}"), ANALYST)
        problem = await post(client, "/api/streams", open_request("s3", "o3"), ANALYST, status=409)
        assert (problem["code"], problem["asked"]["epsilon"], problem["left"]["epsilon"]) == ("refused", 1.0, 0.0)
        assert (await post(client, "/api/streams", open_request("s3", "o4"), OPERATOR))["outcome"] == "opened"
        (row,) = (await get(client, "/api/allotments", analyst="ana"))["items"]
    assert (row["granted"]["epsilon"], row["left"]["epsilon"], row["streams"]) == (3.0, 0.0, 3)


async def test_allotment_has_no_more_left_than_its_budget() -> None:
    """The source of ε 10 has 1 left for ana's 3, and its population then only 0.5 of its 9.5."""
    installation = installation_with_allotment()
    installation.driver.open(spec("own", epsilon=8.0), acknowledge=True)
    for budget, left in ((None, 1.0), ({"population": "patients", "epsilon": 9.5}, 0.5)):
        if budget is not None:
            installation.driver.register_population(budget)
            installation.driver.join("feed", "patients")
        installation.flow()
        async with installation.web() as client:
            (row,) = (await get(client, "/api/allotments", analyst="ana"))["items"]
        limit = "source feed (ε)" if budget is None else "population patients (ε)"
        assert (row["left"]["epsilon"], row["left_share"]) == (left, pytest.approx(left / 3))
        assert row["limited_by"] == [limit]


@pytest.mark.parametrize(
    ("patients", "expected"),
    [
        ({"epsilon": 8.0, "delta": 1e-5}, [(8.0, "patients"), (8.0, "patients"), (8.0, "patients")]),
        ({"epsilon": 8.0}, [(8.0, "patients"), (8.0, "patients"), (8.0, "patients")]),
        ({"epsilon": 9.25}, [(9.0, None), (9.0, None), (9.0, None)]),
        ({"epsilon": 9.75}, [(9.0, None), (9.0, None), (9.0, None)]),
    ],
)
async def test_plan_shows_the_budget_that_cannot_pay_or_the_lesser(
    patients: dict[str, Any], expected: list[tuple[float, str | None]]
) -> None:
    """The population has more δ than the source, or none."""
    installation = Installation()
    table = source("people", "table", epsilon=9.0, delta=1e-6, attributes={"sex": ["F", "M"]})
    installation.driver.register(table, {"sex": ["F", "M"] * 50})
    installation.driver.register_population({"population": "patients", **patients})
    installation.driver.join("people", "patients")
    installation.flow()
    async with installation.web() as client:
        for epsilon, shown in zip((8.5, 9.5, 7.5), expected, strict=True):
            wanted = stream("counts", "people", epsilon=epsilon, mechanism={"kind": "laplace", "answers": 9})
            plan = await post(client, "/api/plan", wanted, VIEWER)
            assert plan["affordable"] is (epsilon <= min(9.0, patients["epsilon"]))
            assert (plan["left"]["epsilon"], plan["left_of"]) == shown


async def test_plan_names_what_is_halted() -> None:
    """A restore may halt sources and populations, whatever is left of their budgets."""
    installation = Installation()
    for name in ("people", "others"):
        table = source(name, "table", epsilon=9.0, attributes={"sex": ["F", "M"]})
        installation.driver.register(table, {"sex": ["F", "M"] * 50})
    installation.driver.register_population({"population": "patients", "epsilon": 9.0})
    installation.driver.join("people", "patients")
    installation.driver.halt("others")
    installation.flow()
    known = installation.tables.populations
    async with installation.web() as client:

        async def planned(source: str) -> tuple[bool, str | None]:
            wanted = stream("counts", source, epsilon=1.0, mechanism={"kind": "laplace", "answers": 9})
            plan = await post(client, "/api/plan", wanted, VIEWER)
            return plan["affordable"], plan["halted"]

        assert await planned("people") == (True, None)
        population, at = known["patients"]
        known["patients"] = population.model_copy(update={"state": "halted"}), at
        assert await planned("people") == (False, "population")
        assert await planned("others") == (False, "source")


async def test_allotted_delta_is_left_out_if_the_population_has_none() -> None:
    """The allotment has the source's δ by default; it is not used up, but no grant can have it."""
    installation = Installation()
    installation.driver.register_population({"population": "patients", "epsilon": 2.0})
    table = source(
        "people", "table", epsilon=2.0, delta=1e-5, population="patients", attributes={"sex": ["F", "M"]}
    )
    installation.driver.register(table, {"sex": ["F", "M"] * 50})
    installation.driver.allot("ana", 0.5, source="people")
    installation.flow()
    async with installation.web() as client:
        (row,) = (await get(client, "/api/allotments", analyst="ana"))["items"]
    assert (row["total"], row["left"]["epsilon"]) == ({"epsilon": 0.5, "delta": 0.0}, 0.5)
    assert (row["left_share"], row["limited_by"]) == (1.0, [])


@pytest.mark.parametrize(
    ("budget", "allotted", "others", "expected"),
    [
        ({"epsilon": 2.0, "delta": 1e-5}, 0.5, {"epsilon": 0.5, "delta": 1e-6}, ["source people (δ)"]),
        ({"epsilon": 2.0, "delta": 1e-5}, 1.9, {"epsilon": 0.5, "delta": 1e-6}, ["source people (ε, δ)"]),
        (
            {"epsilon": 2.0, "delta": 1e-6, "accountant": "zcdp"},
            1.9,
            {"epsilon": 1.0, "delta": 1e-7},
            ["source people (ρ)"],
        ),
        ({"epsilon": 2.0, "delta": 1e-6, "accountant": "zcdp"}, 1.9, {"epsilon": 0.5}, []),
    ],
    ids=["delta", "both", "gaussian-zcdp", "rho-suffices"],
)
async def test_allotment_names_the_amounts_that_its_budget_limits(
    budget: dict[str, Any], allotted: float, others: dict[str, Any], expected: list[str]
) -> None:
    installation = Installation()
    installation.driver.register(
        source("people", "table", attributes={"sex": ["F", "M"]}, **budget), {"sex": ["F", "M"] * 50}
    )
    installation.driver.allot("ana", allotted, source="people")
    installation.driver.open(
        stream("counts", "people", mechanism={"kind": "laplace", "answers": 40}, **others), acknowledge=True
    )
    installation.flow()
    async with installation.web() as client:
        (row,) = (await get(client, "/api/allotments", analyst="ana"))["items"]
    assert row["limited_by"] == expected


async def test_gaussian_noise_of_others_does_not_limit_an_allotment() -> None:
    """Under zCDP it gives the source's rest a δ, which the rest of an allotment without Gaussian noise lacks."""
    installation = Installation()
    table = source("people", "table", epsilon=2.0, delta=1e-6, accountant="zcdp", attributes={"sex": ["F", "M"]})
    installation.driver.register(table, {"sex": ["F", "M"] * 50})
    installation.driver.allot("ana", 0.5, source="people")
    counts = stream("counts", "people", epsilon=0.5, delta=1e-7, mechanism={"kind": "laplace", "answers": 40})
    installation.driver.open(counts, acknowledge=True)
    installation.flow()
    async with installation.web() as client:
        (row,) = (await get(client, "/api/allotments", analyst="ana"))["items"]
        (budget,) = (await get(client, "/api/sources", search="people"))["items"]
    assert (budget["left"]["delta"], row["limited_by"], row["left_share"]) == (1e-6, [], 1.0)


async def test_analyst_without_allotment_cannot_open() -> None:
    installation = Installation()
    installation.open(spec("others"))
    async with installation.web() as client:
        problem = await post(client, "/api/streams", open_request("mine"), ANALYST, status=409)
        extension = {"request": "x", "source": "feed", "stream": "others", "epsilon": 1.0}
        await post(client, "/api/extensions", extension, ANALYST, status=409)
        assert (
            await post(
                client, "/api/streams", {**open_request("mine"), "stream": spec("mine", source="no")}, ANALYST, 404
            )
        )["code"] == "not-found"
    assert "ana has no allotment" in problem["message"]
    assert installation.requested == []
    # If others have an allotment, the ledger refuses.
    installation.driver.allot("ben", 3.0, source="feed")
    installation.flow()
    async with installation.web() as client:
        problem = await post(client, "/api/streams", open_request("mine"), ANALYST, status=409)
    assert "analyst 'ana' has no allotment" in problem["message"]


async def test_analyst_may_use_allotment_of_population() -> None:
    installation = Installation()
    installation.open()
    installation.driver.register_population(PATIENTS)
    installation.driver.join("feed", "patients")
    installation.driver.allot("team", 1.5, population="patients", analysts=["ana", "ben"])
    installation.flow()
    async with installation.web() as client:
        assert (await post(client, "/api/streams", open_request("mine"), ANALYST))["outcome"] == "opened"
        problem = await post(client, "/api/streams", open_request("more", "o2"), ANALYST, status=409)
    assert "team" in problem["message"]


async def test_analyst_closes_own_streams_only() -> None:
    installation = installation_with_allotment()
    async with installation.web() as client:
        await post(client, "/api/streams", open_request("mine"), ANALYST)
        close = {"request": "c", "source": "feed", "stream": "mine"}
        sent = len(installation.requested)
        assert (await post(client, "/api/closes", {**close, "stream": "others"}, ANALYST, 403))[
            "code"
        ] == "forbidden"
        assert (await post(client, "/api/closes", {**close, "stream": "nobody"}, ANALYST, 404))[
            "code"
        ] == "not-found"
        assert len(installation.requested) == sent
        assert (await post(client, "/api/closes", close, ANALYST))["outcome"] == "closing"


async def test_analyst_cannot_register_halt_or_allot() -> None:
    installation = installation_with_allotment()
    bodies: dict[str, Any] = {
        "/api/sources": {"request": "a", "source": LAB},
        "/api/halts": {"kind": "halt", "request": "b", "source": "feed", "stream": "others"},
        "/api/allotments": {**ANA, "epsilon": 9.0},
        "/api/populations": {"request": "c", "population": PATIENTS},
        "/api/joins": {"request": "d", "source": "feed", "population": "patients"},
        "/api/refreshes": {"request": "e", "source": "feed"},
        "/api/proposals": {"path": "/data/lab.csv"},
    }
    async with installation.web() as client:
        for path, body in bodies.items():
            assert (await post(client, path, body, ANALYST, 403))["code"] == "forbidden"
            await post(client, path, body, VIEWER, 403)
    assert installation.requested == []
    changing = {route.path for route in ROUTES if route.method == "POST" and route.access == "operator"}
    assert set(bodies) == changing


async def test_operator_may_open_for_named_analyst() -> None:
    installation = installation_with_allotment()
    async with installation.web() as client:
        await post(client, "/api/streams", open_request("for-ana", analyst="ana"), OPERATOR)
        (row,) = (await get(client, "/api/allotments", source="feed"))["items"]
    assert row["streams"] == 1


async def test_trail_names_owner_of_token_for_any_request() -> None:
    installation = installation_with_allotment()
    async with installation.web() as client:
        close = {"request": "c", "source": "feed", "stream": "others", "by": "somebody"}
        await post(client, "/api/closes", close, OPERATOR)
        await post(client, "/api/streams", open_request("mine", by="olga"), ANALYST)
        first = await post(client, "/api/closes", close, OPERATOR)
        assert await post(client, "/api/closes", {**close, "by": "another"}, OPERATOR) == first
        mine = (await get(client, "/api/trail", by="ana"))["items"]
    trail = list_trail(installation.tables.trail, TrailQuery()).items
    requesters = {(row.action, row.stream): row.by for row in trail if row.kind == "request"}
    assert requesters["close", "others"] == "olga"
    assert requesters["open", "mine"] == "ana"
    assert requesters["open", "others"] is None  # a request over Kafka names no analyst
    assert [(row["action"], row["stream"]) for row in mine] == [("open", "mine")]


async def test_populations_and_allotments_are_registered_once_and_shown() -> None:
    installation = Installation()
    installation.open(spec("ward"))
    installation.driver.register(LAB)
    installation.flow()
    async with installation.web() as client:
        for path, body in (
            ("/api/populations", {"request": "p", "population": PATIENTS}),
            ("/api/joins", {"request": "j", "source": "feed", "population": "patients"}),
            ("/api/joins", {"request": "k", "source": "lab", "population": "patients"}),
            (
                "/api/allotments",
                {
                    "request": "m",
                    "allotment": "team",
                    "population": "patients",
                    "analysts": ["ana", "ben"],
                    "epsilon": 4.0,
                },
            ),
            ("/api/allotments", ANA),
        ):
            first = await post(client, path, body)
            assert first["outcome"] == "registered"
            assert await post(client, path, body) == first
        (population,) = (await get(client, "/api/populations"))["items"]
        detail = await get(client, "/api/populations/patients")
        listed = (await get(client, "/api/allotments"))["items"]
        mine = (await get(client, "/api/allotments", population="patients"))["items"]
        source = (await get(client, "/api/budgets/feed"))["source"]
    assert (population["sources"], population["streams"], population["left"]["epsilon"]) == (2, 1, 11.0)
    assert population["meaning"] == "privacy is for ever: the budget never renews"
    assert detail["row"] == population
    assert [one["source"] for one in detail["sources"]] == ["feed", "lab"]
    assert detail["points"][-1]["granted"]["epsilon"] == 1.0
    assert [one["window_seconds"] for one in detail["forecasts"]]
    assert [(one["allotment"], one["source"], one["population"]) for one in listed] == [
        ("team", None, "patients"),
        ("ana", "feed", None),
    ]
    assert mine == listed[:1]
    assert (listed[0]["analysts"], listed[0]["total"]["epsilon"]) == (["ana", "ben"], 4.0)
    assert (source["population"], source["renews"]) == ("patients", None)


async def test_join_is_refused_if_grants_exceed_population() -> None:
    installation = Installation()
    installation.open(spec("ward", epsilon=5.0))
    installation.driver.register_population({**PATIENTS, "epsilon": 4.0})
    installation.flow()
    async with installation.web() as client:
        problem = await post(
            client, "/api/joins", {"request": "j", "source": "feed", "population": "patients"}, status=409
        )
        assert (await get(client, "/api/populations/patients"))["sources"] == []
        async with client.get(
            "/api/populations/nobody", headers={"Authorization": f"Bearer {VIEWER}"}
        ) as response:
            assert response.status == 404
    assert problem["code"] == "refused"


async def test_renewing_budget_states_its_meaning_in_every_view() -> None:
    installation = Installation()
    installation.driver.register({**FEED, "renews": "30d"})
    installation.driver.allot("ana", 3.0, source="feed")
    installation.driver.register_population({**PATIENTS, "renews": "7d"})
    installation.flow()
    async with installation.web() as client:
        source = (await get(client, "/api/budgets/feed"))["source"]
        (row,) = (await get(client, "/api/sources"))["items"]
        (allotment,) = (await get(client, "/api/allotments"))["items"]
        (population,) = (await get(client, "/api/populations"))["items"]
    assert row == source
    assert source["renews_at"] == pytest.approx(installation.now + 30 * 86_400)
    for shown in (source, allotment, population):
        assert "privacy is per period, not for ever" in shown["meaning"]
    assert population["period"]["number"] == 1


async def test_renewing_budget_is_forecast_until_renewal() -> None:
    installation = Installation()
    installation.driver.register({**FEED, "renews": "10d"})
    day = 86_400.0
    for number in range(5):
        installation.now += day
        installation.driver.open(spec(f"s{number}"))
    installation.flow()
    async with installation.web() as client:
        week = (await get(client, "/api/budgets/feed"))["forecasts"][1]
        assert week["outcome"] == "renews-first"
        assert week["at"] == pytest.approx(installation.now + 5 * day)
        for number in range(5):
            installation.ask(f"s{number}", HIGH, HIGH)
        installation.now += 4 * day
        installation.driver.open(spec("much", epsilon=4.5))
        installation.flow()
        assert (await get(client, "/api/budgets/feed"))["forecasts"][0]["outcome"] == "runs-out"
        installation.now += 2 * day
        installation.driver.open(spec("next"))
        installation.flow()
        after = await get(client, "/api/budgets/feed")
    assert after["source"]["left"]["epsilon"] > 0.5
    assert "period 2" in after["source"]["meaning"]


async def test_plan_counts_remaining_budget_of_population() -> None:
    """A population pays for each of its sources' streams, so a plan shows the lesser of both remainders."""
    installation = Installation()
    installation.open(spec("ward", epsilon=1.0))
    installation.driver.register_population(PATIENTS | {"epsilon": 3.0})
    installation.driver.join("feed", "patients")
    installation.flow()
    async with installation.web() as client:
        plan = await post(client, "/api/plan", spec("what-if", epsilon=2.5))
        assert (plan["affordable"], plan["left"]["epsilon"]) == (False, 2.0)
        assert (await post(client, "/api/plan", spec("what-if", epsilon=2.0)))["affordable"]


async def test_sources_are_sorted_by_remaining_budget_of_population() -> None:
    """A source whose population is used up comes before a source with less left of its own budget."""
    installation = Installation()
    installation.driver.register_population(PATIENTS | {"epsilon": 1.0})
    installation.open(spec("ward", epsilon=1.0))
    installation.driver.register(LAB)
    installation.driver.join("feed", "patients")
    installation.driver.open(spec("lab", source="lab", epsilon=9.0))
    installation.flow()
    async with installation.web() as client:
        for sort in ("left_share", "left"):
            used_up, alone = (await get(client, "/api/sources", sort=sort))["items"]
            assert (used_up["source"], used_up["population_left_share"]) == ("feed", 0.0)
            assert (alone["source"], alone["population_left_share"]) == ("lab", None)


async def test_declarations_report_unknown_populations_only() -> None:
    """The page of a registered source names its population without a demand."""
    installation = Installation()
    installation.driver.register_population(PATIENTS)
    installation.flow()
    async with installation.web() as client:
        for population, missing in (("patients", False), ("staff", True)):
            declaration = await post(client, "/api/declarations", {**LAB, "population": population})
            assert f"grants also count against the budget of population '{population}'" in declaration["remarks"]
            assert any("not registered" in one for one in declaration["remarks"]) == missing
