"""Generates JSON Schemas of events from the models.

They differ from pydantic's schemas in three points. Fields that are omitted at their defaults are
neither required nor null. Schemas of Sotto's events allow new fields and, in open lists, new words. The
schema of a query is a choice between its forms, each of which is a separate object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from schemas import (
    AnswersCalibration,
    HypothesisCalibration,
    MemberStatus,
    PartitionStatus,
    Query,
    ReleaseCalibration,
    SparseVectorCalibration,
)
from schemas.queries import QUESTION_FIELDS
from stream.dev.contract.contract_events import EventKind, side_of

Mode = Literal["validation", "serialization"]
Json = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

KIND: Final = "kind"
"""The discriminator of unions; always required, even with a default."""

OPEN_WORDS: Final[frozenset[tuple[type[BaseModel], str]]] = frozenset(
    {
        (SparseVectorCalibration, "method"),
        (SparseVectorCalibration, "noise"),
        (SparseVectorCalibration, "numbers"),
        (AnswersCalibration, "method"),
        (ReleaseCalibration, "method"),
        (HypothesisCalibration, "method"),
        (PartitionStatus, "role"),
        (MemberStatus, "role"),
        (PartitionStatus, "phase"),
    }
)
"""Fields of Sotto's events to whose lists later versions may add words; all other lists are closed."""

_NULL: Final[Json] = {"type": "null"}


class _WireSchema(GenerateJsonSchema):
    """Pydantic's schema generator with Sotto's serialization rules."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        found = super().tagged_union_schema(schema)
        # ``kind`` is enough; OpenAPI and AsyncAPI define "discriminator" differently.
        found.pop("discriminator", None)
        return found

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        written = self.mode == "serialization"
        properties: Json = found.get("properties", {})
        required = []
        for name, info in model.model_fields.items():
            properties[name] = _field(model, name, properties[name], written=written)
            if name == KIND or _always_there(model, name, info, written=written):
                required.append(name)
        found["required"] = required
        if "description" in found:  # the examples are about Python
            found["description"] = found["description"].partition("\n\nExamples:")[0]
        if written:
            found.pop("additionalProperties", None)
        return found


def _always_there(model: type[BaseModel], name: str, info: FieldInfo, *, written: bool) -> bool:
    return info.is_required() or (written and not _is_omitted(model, name))


def _is_omitted(model: type[BaseModel], name: str) -> bool:
    return getattr(model, "wire_omits_defaults", False) or name in getattr(model, "wire_omits", ())


def _field(model: type[BaseModel], name: str, schema: Json, *, written: bool) -> Json:
    shown = dict(schema)
    if name == KIND or (written and not _is_omitted(model, name)):
        shown.pop("default", None)
    if _is_omitted(model, name) and shown.get("default", False) is None:
        del shown["default"]
        others = [member for member in shown.pop("anyOf") if member != _NULL]
        shown |= others[0] if len(others) == 1 else {"anyOf": others}
    if written and (model, name) in OPEN_WORDS:
        shown["examples"] = shown.pop("enum")
        shown["x-open"] = True
        shown["description"] = "An open list: expect other words too."
    return shown


def standalone(event: EventKind) -> Json:
    """Return the self-contained JSON Schema of one event."""
    found = schema_of(event.model, mode_of(event))
    return {"$schema": DIALECT, **found}


def mode_of(event: EventKind) -> Mode:
    """Return the schema mode: ``validation`` for events to Sotto, ``serialization`` for its own."""
    return "validation" if side_of(event) == "input" else "serialization"


@cache
def schema_of(model: type[BaseModel], mode: Mode) -> Json:
    """Return the JSON Schema of a model."""
    found = TypeAdapter(model).json_schema(mode=mode, schema_generator=_WireSchema)
    return in_forms(found) if model is Query else found


def bundled(events: Sequence[EventKind], template: str) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the schemas of events by name, and their shared schemas."""
    inputs: list[tuple[str, Mode, TypeAdapter[Any]]] = [
        (event.name, mode_of(event), TypeAdapter(event.model)) for event in events
    ]
    _, definitions = TypeAdapter.json_schemas(inputs, ref_template=template, schema_generator=_WireSchema)
    shared: dict[str, Json] = definitions["$defs"]
    shared[Query.__name__] = in_forms(shared[Query.__name__])
    own = {event.name: shared.pop(event.name) for event in events}
    return own, shared


def in_forms(query: Mapping[str, Any]) -> Json:
    """Convert a query's schema to a choice of exactly one form."""
    forms = [_form(query, "where", "fraction")]
    forms += [_form(query, field, *(["where"] if beside else [])) for field, _, beside in QUESTION_FIELDS]
    kept = {
        name: part
        for name, part in query.items()
        if name not in {"properties", "required", "additionalProperties"}
    }
    return {**kept, "oneOf": forms}


def _form(query: Mapping[str, Any], field: str, *beside: str) -> Json:
    named = {"where", "fraction", *(name for name, _, _ in QUESTION_FIELDS)}
    properties: Mapping[str, Json] = query["properties"]
    return {
        "title": f"Query by {field}",
        "type": "object",
        "properties": {
            name: schema for name, schema in properties.items() if name not in named or name in {field, *beside}
        },
        "required": [*query["required"], field],
        "additionalProperties": False,
    }
