"""Builds the OpenAPI document from the routes' summaries and the models' docstrings."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from stream import VERSION
from stream.monitor.api.answer_views import AnswerQuery
from stream.monitor.api.budget_models import TrailFilter
from stream.monitor.api.live_events_stream import EventQuery
from stream.monitor.api.models import AccessRole, ApiModel, Problem
from stream.monitor.api.routes import ANSWERS_PATH, ROUTES, VIEWS, Route, names_in

_REFERENCE_TEMPLATE = "#/components/schemas/{model}"
_Json = dict[str, Any]
_PROBLEMS = {
    "400": "A parameter or the body is invalid; the fields are named",
    "401": "The token is missing, wrong, expired or revoked",
    "403": "The token's role is too low ('x-role' is the minimum), or the monitor's settings exclude this content",
    "404": "There is no such source, population or stream",
    "408": "The body came too slowly",
    "409": "Refused; nothing was changed",
    "413": "The body is too large",
    "415": "The body is not JSON, or has a Content-Encoding",
    "429": "Too many requests",
    "503": "Unavailable: the names file (with the tokens) cannot be read, or Kafka does not answer; send a change again with the same id",
    "504": "No receipt yet; send the request again with the same id",
}
_ROUTES_WITHOUT_MODEL: tuple[tuple[str, str, str, tuple[type[ApiModel], ...]], ...] = (
    ("/metrics", "The monitor's metrics for Prometheus", "text/plain", ()),
    (
        "/api/trail.csv",
        "The audit trail as CSV, oldest entry first: the entries that the monitor keeps and the parameters select",
        "text/csv",
        (TrailFilter,),
    ),
    (
        f"{ANSWERS_PATH}.csv",
        "A page of a stream's answers as CSV, one line for each number; the header Link has the next page",
        "text/csv",
        (AnswerQuery,),
    ),
    (
        f"{ANSWERS_PATH}.jsonl",
        "A page of a stream's answers as JSON lines; the header Link has the next page",
        "application/x-ndjson",
        (AnswerQuery,),
    ),
    ("/openapi.json", "This document", "application/json", ()),
    (
        "/api/events",
        "Live views as server-sent events; each event contains the answer of the view's route",
        "text/event-stream",
        (EventQuery, *(route.query for route in VIEWS.values() if route.query is not None)),
    ),
)


@cache
def build_document() -> _Json:
    """Return the OpenAPI 3.1 document of all routes except the page."""
    schemas, components = _schemas()
    paths: dict[str, _Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    for path, summary, media, queries in _ROUTES_WITHOUT_MODEL:
        statuses = {"401", "429", "503", *(("400",) if queries else ()), *_statuses_of_answer_routes(path)}
        parameters = [*_path_parameters(path), *_parameters(queries)]
        operation = {
            **_common_fields("GET", path, summary, "viewer"),
            "responses": _responses({media: {"schema": {}}}, statuses, schemas),
        }
        paths[path] = {"get": operation | ({"parameters": parameters} if parameters else {})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sotto monitor", "version": VERSION},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _schemas() -> tuple[dict[Any, _Json], _Json]:
    """Return the schema of each route's response and body, and the schemas that they reference."""
    uses: list[tuple[Any, Literal["validation", "serialization"], TypeAdapter[Any]]] = [
        ("problem", "serialization", TypeAdapter(Problem))
    ]
    for route in ROUTES:
        uses.append(((route.method, route.path, "response"), "serialization", TypeAdapter(route.response_type)))
        if route.body is not None:
            uses.append(((route.method, route.path, "body"), "validation", route.body_adapter))
    schema_by_use, definitions = TypeAdapter.json_schemas(uses, ref_template=_REFERENCE_TEMPLATE)
    components: _Json = definitions["$defs"]
    return {use: dict(schema) for (use, _), schema in schema_by_use.items()}, components


def _operation(route: Route, schemas: dict[Any, _Json]) -> _Json:
    parameters = _path_parameters(route.path)
    if route.query is not None:
        parameters += _parameters((route.query,))
    content = _json_content(schemas[route.method, route.path, "response"])
    operation: _Json = {
        **_common_fields(route.method, route.path, route.summary, route.access),
        "responses": _responses(content, _error_statuses(route), schemas),
    }
    if route.path == "/readyz":
        operation["responses"]["503"] = {
            "description": "Not ready yet; the answer has the reason",
            "content": content,
        }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": _json_content(schemas[route.method, route.path, "body"]),
        }
    return operation


def _path_parameters(path: str) -> list[_Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names_in(path)
    ]


def _statuses_of_answer_routes(path: str) -> set[str]:
    """Return the statuses that only routes of answers have: 403 without access to answers, 404 for an unknown stream."""
    return {"403", "404"} if path.startswith(ANSWERS_PATH) else set()


def _error_statuses(route: Route) -> set[str]:
    statuses = _statuses_of_answer_routes(route.path)
    if route.access is not None:
        statuses |= {"400", "401", "429", "503"}
    if (
        names_in(route.path)
        or route.access == "analyst"
        or route.path in {"/api/plan", "/api/curves", "/api/comparisons"}
    ):
        statuses |= {"404"}
    if route.body is not None:
        statuses |= {"408", "409", "413", "415"}
    if route.access not in {None, "viewer"}:
        statuses |= {"403", "504"}
    return statuses


def _common_fields(method: str, path: str, summary: str, access: AccessRole | None) -> _Json:
    words = [word for word in re.findall(r"\w+", path) if word != "api"]
    return {
        "summary": summary,
        "operationId": "_".join([method.lower(), *words]),
        "security": [] if access is None else [{"token": []}],
        **({} if access is None else {"x-role": access}),
    }


def _parameters(queries: tuple[type[ApiModel], ...]) -> list[_Json]:
    """Return the models' fields as parameters; if two fields have the same name, only the first."""
    parameter_by_name: dict[str, _Json] = {}
    for query in queries:
        schema = TypeAdapter(query).json_schema()
        for name, field in schema["properties"].items():
            shape = {key: value for key, value in field.items() if key not in {"description", "title"}}
            parameter_by_name.setdefault(
                name,
                {
                    "name": name,
                    "in": "query",
                    "required": name in schema.get("required", ()),
                    "schema": shape,
                    **({"description": field["description"]} if "description" in field else {}),
                    **({"style": "form", "explode": False} if shape.get("type") == "array" else {}),
                },
            )
    return list(parameter_by_name.values())


def _responses(content: _Json, statuses: set[str], schemas: dict[Any, _Json]) -> _Json:
    problem = _json_content(schemas["problem"])
    problems = {status: {"description": _PROBLEMS[status], "content": problem} for status in sorted(statuses)}
    return {"200": {"description": "Done", "content": content}, **problems}


def _json_content(schema: _Json) -> _Json:
    return {"application/json": {"schema": schema}}
