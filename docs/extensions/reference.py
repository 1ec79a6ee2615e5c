"""Generates parts of pages from the code: commands, settings, events, audit cases, topics, roles, alert rules.

The build replaces a mark such as ``*`make docs` inserts: commands*`` in a page. A clone shows the mark.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import typer
import typer.cli
import yaml
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

import schemas
from schemas import Mechanism, Source, StandingQuery, StreamSpec, Windows
from stream.alerts.alerts_file import AlertmanagerTarget, AlertsFile, WebhookTarget
from stream.cli.app import app as command_line
from stream.dev.contract_events import CHANNELS, EVENTS
from stream.dev.contract_files import build_document
from stream.dev.shipped_cases import cases_of
from stream.kafka.acls import AclRole, Operation, Resource, role_access
from stream.kafka.topic_layouts import layout
from stream.processing.topic_names import Topics
from stream.settings import (
    KEY_COMMAND_VARIABLE,
    KEY_FILE_VARIABLE,
    KEY_VARIABLE,
    Settings,
    variable_of,
)

_ALERT_RULES = Path(__file__).parents[2] / "deploy/prometheus/alerts.yml"
_MARK = re.compile(r"\*`make docs` inserts: (\w+)\*")
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}


def commands() -> str:
    """Every command with its arguments and options, as in ``--help``."""
    group = typer.main.get_command(command_line)
    context = typer.Context(group, info_name="sotto")
    text = typer.cli.get_docs_for_click(obj=group, ctx=context, name="sotto")
    # The page has its own title, and usage lines are not commands that could be typed.
    return re.sub(r"^# `sotto`\n", "", text).replace("```console", "```text")


def settings() -> str:
    """Every setting: variable, type, default and documentation."""
    documented = ModuleAnalyzer.for_module(Settings.__module__).find_attr_docs()
    entries = []
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        given = (
            f", {_value(default)} if not set" if isinstance(default, str | int | float) and default != "" else ""
        )
        text = " ".join(documented[Settings.__name__, name]).strip()
        entries.append(f"`{variable_of(name)}` ({_type_of(_properties(Settings)[name])}{given})\n: {text}")
    return "\n\n".join(entries)


def key_variables() -> str:
    """The variables that name the noise key."""
    lines = [
        (
            f"`{KEY_VARIABLE}`",
            "the keys themselves, 64 hexadecimal digits each, the current key first",
        ),
        (f"`{KEY_FILE_VARIABLE}`", "an owner-only file with them, as `sotto key new` makes it"),
        (f"`{KEY_COMMAND_VARIABLE}`", "a command that prints them, such as a secret store's client"),
    ]
    return _table(("variable", "content"), lines)


def events() -> str:
    """Every event, topic by topic."""
    parts = []
    bindings = {name: channel["bindings"]["kafka"] for name, channel in build_document()["channels"].items()}
    for channel in CHANNELS:
        policy = bindings[channel.name]["topicConfiguration"]["cleanup.policy"]
        compacted = " Compacted." if "compact" in policy else ""
        parts.append(
            f"## `{channel.name}`\n\n{channel.summary} Written by {channel.writer}, keyed by {channel.key}.{compacted}"
        )
        parts += [_model(event.model) for event in EVENTS if event.channel == channel.name]
    return "\n\n".join(parts)


def definitions() -> str:
    """The fields of sources, domains, streams, mechanisms and the targets of alerts."""
    sources, mechanisms = (get_args(get_args(union)[0]) for union in (Source, Mechanism))
    domains = (schemas.Integers, schemas.Categories, schemas.Decimals, schemas.Dates, schemas.Bins)
    groups: dict[str, Iterable[type[BaseModel]]] = {
        "Sources": sources,
        "Domains of attributes": domains,
        "Streams": (StreamSpec, StandingQuery, Windows),
        "Mechanisms": mechanisms,
        "Alert targets": (AlertsFile, WebhookTarget, AlertmanagerTarget),
    }
    return "\n\n".join(f"## {title}\n\n" + "\n\n".join(map(_model, models)) for title, models in groups.items())


def audit_cases() -> str:
    """Every case of ``sotto audit``."""
    lines = [
        (
            case.kind,
            str(case.stream.get("calibration", "best")),
            f"{case.epsilon:g}" + (f", δ {case.delta:g}" if case.delta else ""),
            str(case.source["kind"]),
            case.pair,
        )
        for case in cases_of()
    ]
    return _table(("mechanism", "calibration", "ε", "source", "neighbors"), lines)


def channels() -> str:
    """Every topic with its writers and contents."""
    lines = [(f"`{one.name}`", one.writer, one.summary) for one in CHANNELS]
    return _table(("topic", "written by", "contents"), lines)


def topic_configurations() -> str:
    """Every topic with its configuration."""
    lines = [
        (f"`{one.name}`", ", ".join(f"`{setting}={value}`" for setting, value in one.configuration.items()))
        for one in layout(Topics("sotto"))
    ]
    return _table(("topic", "configuration"), lines)


def role_rights() -> str:
    """The rights of each role."""
    columns = {
        "writes": (Resource.TOPIC, Operation.WRITE),
        "reads": (Resource.TOPIC, Operation.READ),
        "describes": (Resource.TOPIC, Operation.DESCRIBE),
        "reads the configuration of": (Resource.TOPIC, Operation.DESCRIBE_CONFIGS),
        "groups": (Resource.GROUP, Operation.READ),
        "describes groups": (Resource.GROUP, Operation.DESCRIBE),
        "transactional ids": (Resource.TRANSACTIONAL_ID, Operation.WRITE),
    }
    access = role_access(Settings(prefix="sotto"))
    lines = []
    for role in AclRole:
        cells = [
            ", ".join(
                f"`{right.name.removeprefix('sotto.')}{'*' if right.prefixed else ''}`"
                for right in access[role]
                if (right.resource, right.operation) == column
            )
            for column in columns.values()
        ]
        lines.append((role.value, *(cell or "–" for cell in cells)))
    return _table(("role", *columns), lines)


def alert_rules() -> str:
    """Every alert rule with its condition and its remedy."""
    groups = yaml.safe_load(_ALERT_RULES.read_text(encoding="utf-8"))["groups"]
    lines = [
        (f"`{rule['alert']}`", f"`{' '.join(rule['expr'].split())}`", rule["annotations"]["description"])
        for group in groups
        for rule in group["rules"]
    ]
    return _table(("rule", "condition", "remedy"), lines)


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "keys": key_variables,
    "events": events,
    "definitions": definitions,
    "audit": audit_cases,
    "channels": channels,
    "topics": topic_configurations,
    "roles": role_rights,
    "alerts": alert_rules,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the marks of every page when it is read."""
    app.connect("source-read", _fill_in)
    app.connect("autodoc-process-signature", _plain_aliases)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _fill_in(_app: Sphinx, _page: str, source: list[str]) -> None:
    source[0] = _MARK.sub(lambda mark: GENERATED[mark[1]](), source[0])


def _plain_aliases(
    _app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show the names of type aliases, which autodoc wraps."""
    plain = (text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (signature, returns))
    return next(plain), next(plain)


def _model(model: type[BaseModel]) -> str:
    lines = [
        (f"`{name}`", _type_of(schema), "" if "default" not in schema else _value(schema["default"]))
        for name, schema in _properties(model).items()
    ]
    table = _table(("field", "takes", "default"), lines)
    return "\n\n".join((f"### {model.__name__}", inspect.getdoc(model) or "", table))


def _properties(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    schema = model.model_json_schema()
    found: dict[str, dict[str, Any]] = schema["properties"]
    return found


def _type_of(schema: dict[str, Any]) -> str:
    """A field's JSON Schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return _value(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(map(_value, schema["enum"]))
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(map(_type_of, schema[union])))
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        kind = f"list of {_type_of(schema.get('items', {}))}"
    bounds = [text.format(f"{schema[name]:.12g}") for name, text in _BOUNDS.items() if name in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


def _value(value: Any) -> str:
    """A value as JSON; strings without quotation marks."""
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _table(titles: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    rows = [titles, tuple("---" for _ in titles), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
