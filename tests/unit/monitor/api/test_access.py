"""Requests without a token, changes with a viewer's token, and too large or too frequent requests are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from schemas import MAX_DEFINITION_BYTES
from stream.monitor.api.models import Readiness
from stream.monitor.api.routes import ROUTES
from stream.settings import Settings
from tests.unit.monitor.installation import FEED, OPERATOR, VIEWER, Installation, bearer, get, post, spec

BODIES: dict[str, dict[str, Any]] = {
    "/api/extensions": {"request": "e", "source": "feed", "stream": "ward", "epsilon": 1.0},
    "/api/populations": {"request": "f", "population": {"population": "patients", "epsilon": 10.0}},
    "/api/joins": {"request": "g", "source": "feed", "population": "people"},
    "/api/allotments": {"request": "h", "allotment": "ana", "source": "feed", "epsilon": 2.0},
    "/api/sources": {"request": "a", "source": {**FEED, "source": "another"}},
    "/api/streams": {"request": "b", "stream": spec("another")},
    "/api/halts": {"kind": "halt", "request": "c", "source": "feed", "stream": "ward"},
    "/api/closes": {"request": "d", "source": "feed", "stream": "ward"},
}
READ = [
    *(route.path for route in ROUTES if route.method == "GET" and route.access is not None),
    *("/metrics", "/openapi.json", "/api/events", "/nowhere"),
]


def place(path: str) -> str:
    return path.replace("{source}", "feed").replace("{stream}", "ward").replace("{population}", "people")


def open_installation(settings: Settings | None = None) -> Installation:
    installation = Installation(settings or Settings())
    installation.open(spec("ward"))
    installation.driver.register_population({"population": "people", "epsilon": 20.0})
    installation.flow()
    return installation


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("0" * 41),
        bearer(OPERATOR[:-1]),
        bearer(OPERATOR + "0"),
        bearer(VIEWER.upper()),
        {"Authorization": OPERATOR},
        {"Authorization": f"Basic {OPERATOR}"},
        {"Authorization": "Bearer \udcff"},
        {"Cookie": f"token={OPERATOR}"},
    ],
    ids=str,
)
async def test_requests_without_valid_token_are_refused(headers: dict[str, str]) -> None:
    installation = open_installation(Settings(monitor_burst=1000))
    async with installation.web() as client:
        for path in READ:
            async with client.get(place(path), headers=headers) as response:
                assert response.status == 401, path
                assert response.headers["WWW-Authenticate"] == "Bearer"
                assert (await response.json())["code"] == "unauthorized"
        for path, body in {**BODIES, "/api/plan": spec("plan")}.items():
            async with client.post(path, json=body, headers=headers) as response:
                assert response.status == 401, path
    assert installation.requested == []


async def test_token_in_address_is_ignored() -> None:
    async with (
        open_installation().web() as client,
        client.get("/api/overview", params={"token": OPERATOR}) as response,
    ):
        assert response.status == 401


async def test_routes_allow_reading_with_each_token_and_show_its_role() -> None:
    async with open_installation().web() as client:
        assert await get(client, "/api/session", VIEWER) == {
            "name": "vera",
            "role": "viewer",
            "expires": None,
            "asks": True,
        }
        assert await get(client, "/api/session", OPERATOR) == {
            "name": "olga",
            "role": "operator",
            "expires": None,
            "asks": True,
        }
        for token in (VIEWER, OPERATOR):
            for route in ROUTES:
                if route.method == "GET" and route.access != "operator":
                    answer = await get(client, place(route.path), token)
                    assert route.response_type.model_validate(answer)


@pytest.mark.parametrize("path", BODIES)
async def test_viewer_cannot_change_anything(path: str) -> None:
    installation = open_installation()
    async with installation.web() as client:
        problem = await post(client, path, BODIES[path], VIEWER, status=403)
    assert problem["code"] == "forbidden"
    assert "is a viewer; ask for a token of that role ('sotto token create NAME --role " in problem["message"]
    assert installation.requested == []


async def test_health_needs_no_token_and_reveals_nothing() -> None:
    installation = open_installation()
    installation.readiness = Readiness(
        ready=False, behind=7, reason="the monitor has not yet read its topics to their ends"
    )
    async with installation.web() as client:
        async with client.get("/healthz") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
        async with client.get("/readyz") as response:
            assert (response.status, (await response.json())["behind"]) == (503, 7)
        installation.readiness = Readiness(ready=True, behind=0)
        async with client.get("/readyz") as response:
            assert response.status == 200


@pytest.mark.parametrize("path", [*BODIES, "/api/plan"])
async def test_large_body_is_refused_without_change(path: str) -> None:
    installation = open_installation()
    async with installation.web() as client:
        problem = await post(client, path, b'"' + b"x" * MAX_DEFINITION_BYTES + b'"', status=413)
    assert problem["code"] == "too-large"
    assert str(MAX_DEFINITION_BYTES) in problem["message"]
    assert installation.requested == []


@pytest.mark.parametrize("path", [*BODIES, "/api/plan", "/api/declarations", "/api/curves", "/api/questions"])
async def test_body_with_too_many_or_too_deep_fields_is_refused_unread(path: str) -> None:
    """A body with 30,000 fields, or nested 10,000 deep, is refused on every route before it is validated."""
    installation = open_installation()
    async with installation.web() as client:
        many = await post(client, path, {f"k{number}": 1 for number in range(30_000)}, status=400)
        deep = await post(client, path, b'{"a":' * 10_000 + b"1" + b"}" * 10_000, status=400)
        wrong = await post(client, path, {f"k{number}": {} for number in range(4000)}, status=400)
    assert many["message"] == "body: 30000 fields; give at most 9216"
    assert many["code"] == "malformed"
    assert deep["message"] == "body: 10000 fields; give at most 9216"
    assert re.match(r"body: (1 field is|\d+ fields are) wrong; ", wrong["message"])
    assert len(wrong["fields"]) <= 10
    assert installation.requested == []


SECRET = "secret-that-must-not-come-back"  # noqa: S105


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/halts", b"", "body"),
        ("/api/halts", b"{", "body"),
        ("/api/halts", b"[]", "body"),
        ("/api/halts", b"{}", "kind"),
        ("/api/halts", {"kind": SECRET}, "kind"),
        ("/api/halts", {"kind": "halt", "request": "r", "source": "feed"}, "stream"),
        ("/api/halts", {**BODIES["/api/halts"], SECRET: 1}, SECRET),
        ("/api/closes", {**BODIES["/api/closes"], "stream": 7}, "stream"),
        ("/api/closes", {**BODIES["/api/closes"], "stream": f" {SECRET}"}, "stream"),
        ("/api/closes", {**BODIES["/api/closes"], "reason": "x" * 2000}, "reason"),
        ("/api/streams", {"request": "r", "stream": {**spec("s"), "epsilon": -1.0}}, "stream.epsilon"),
        ("/api/streams", {"request": "r", "stream": {**spec("s"), "epsilon": "1"}}, "stream.epsilon"),
        ("/api/sources", {"request": "", "source": FEED}, "request"),
        ("/api/plan", {**spec("s"), "beta": 2.0}, "beta"),
    ],
)
async def test_wrong_field_of_body_is_named_without_quoting_it(path: str, body: Any, field: str) -> None:
    installation = open_installation()
    async with installation.web() as client:
        problem = await post(client, path, body, status=400)
    assert problem["code"] == "malformed"
    assert field in {one["field"] for one in problem["fields"]}
    assert SECRET not in "".join(one["message"] for one in problem["fields"]) + problem["message"]
    assert installation.requested == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"request":"d","source":"feed","stream":"ward","stream":"ward"}',
        b'{"request":"d","source":"feed","stream":"other","str\\u0065am":"ward"}',
    ],
)
async def test_repeated_field_is_refused(body: bytes) -> None:
    installation = open_installation()
    async with installation.web() as client:
        problem = await post(client, "/api/closes", body, status=400)
        assert "given twice" in problem["message"]
        for path in ("/api/streams?limit=5&limit=6", "/api/events?views=overview&views=streams"):
            async with client.get(path, headers=bearer(VIEWER)) as response:
                assert response.status == 400
                assert "given twice" in (await response.json())["message"]
    assert installation.requested == []


async def test_body_without_json_content_type_is_refused() -> None:
    installation = open_installation()
    async with installation.web() as client:
        body = json.dumps(BODIES["/api/halts"])
        for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
            async with client.post("/api/halts", data=body, headers={**bearer(OPERATOR), **headers}) as response:
                assert response.status == 415
    assert installation.requested == []


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/api/streams?limit=0", "limit"),
        ("/api/streams?limit=501", "limit"),
        ("/api/streams?offset=-1", "offset"),
        ("/api/streams?sort=secret", "sort"),
        ("/api/streams?state=open,weird", "state.1"),
        ("/api/streams?nonsense=1", "nonsense"),
        ("/api/streams?search=" + "x" * 129, "search"),
        ("/api/sources?state=closed", "state"),
        ("/api/events", "views"),
        ("/api/events?views=", "views"),
        ("/api/events?views=overview,secrets", "views.1"),
        ("/api/events?views=overview&search=x", "search"),
        ("/api/events?views=stream", "stream"),
        ("/api/events?views=streams&limit=9999", "limit"),
    ],
)
async def test_wrong_parameter_is_named(path: str, field: str) -> None:
    async with open_installation().web() as client, client.get(path, headers=bearer(VIEWER)) as response:
        assert response.status == 400
        problem = await response.json()
    assert [one["field"] for one in problem["fields"]] == [field]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not-found"),
        ("GET", "/api/streams/nobody", 404, "not-found"),
        ("GET", "/api/budgets/nobody", 404, "not-found"),
        ("DELETE", "/api/streams", 405, "method-not-allowed"),
        ("PUT", "/api/streams/ward", 405, "method-not-allowed"),
        ("GET", "/api/session?role=operator", 400, "malformed"),
    ],
)
async def test_failure_is_problem_with_code(method: str, path: str, status: int, code: str) -> None:
    async with (
        open_installation().web() as client,
        client.request(method, path, headers=bearer(OPERATOR)) as response,
    ):
        assert (response.status, (await response.json())["code"]) == (status, code)
        assert response.content_type == "application/json"


async def test_response_headers_forbid_storing_framing_and_sniffing() -> None:
    async with open_installation().web() as client:
        live = "/api/events?views=overview"
        for path, token in (("/api/overview", VIEWER), ("/healthz", ""), ("/nowhere", ""), (live, VIEWER)):
            async with client.get(path, headers=bearer(token)) as response:
                assert response.headers["Cache-Control"] == "no-store"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["X-Frame-Options"] == "DENY"
                assert "default-src 'none'" in response.headers["Content-Security-Policy"]
                assert "Access-Control-Allow-Origin" not in response.headers
                assert response.headers["Server"] == "sotto"


async def test_rate_limit_delays_only_its_token() -> None:
    installation = open_installation(Settings(monitor_burst=3, monitor_requests_per_second=0.001))
    async with installation.web() as client:
        statuses = []
        for _ in range(5):
            async with client.get("/api/session", headers=bearer(VIEWER)) as response:
                statuses.append(response.status)
        assert statuses == [200, 200, 200, 429, 429]
        assert int(response.headers["Retry-After"]) >= 1
        assert await get(client, "/api/session", OPERATOR) == {
            "name": "olga",
            "role": "operator",
            "expires": None,
            "asks": True,
        }
        async with client.get("/healthz") as response:
            assert response.status == 200


async def test_rate_limit_slows_token_guesses() -> None:
    installation = open_installation(Settings(monitor_burst=3, monitor_requests_per_second=0.001))
    async with installation.web() as client:
        statuses = []
        for guess in range(5):
            async with client.get("/api/session", headers=bearer(f"{guess}" * 40)) as response:
                statuses.append(response.status)
    assert statuses == [401, 401, 401, 429, 429]


async def test_internal_error_reveals_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    installation = open_installation()

    def broken() -> Readiness:
        raise RuntimeError(SECRET)

    installation.monitor.readiness = broken
    async with installation.web() as client, client.get("/api/overview", headers=bearer(VIEWER)) as response:
        assert response.status == 500
        text = await response.text()
    assert json.loads(text)["code"] == "internal"
    assert SECRET not in text
    captured = capsys.readouterr()
    assert "RuntimeError" in captured.out + captured.err
    assert SECRET not in captured.out + captured.err


async def test_message_quotes_at_most_a_name_of_input() -> None:
    async with open_installation().web() as client:
        for name in ("nobody", SECRET * 100):
            async with client.get(f"/api/budgets/{name}", headers=bearer(VIEWER)) as response:
                assert (await response.json())["message"] == f"there is no source '{name[:128]}'"
        async with client.get("/api/populations/peopel", headers=bearer(VIEWER)) as response:
            assert (await response.json())["message"] == "there is no population 'peopel'; did you mean 'people'?"
        described = (await get(client, "/openapi.json"))["components"]["schemas"]["Problem"]["description"]
    assert "may quote names" in described
