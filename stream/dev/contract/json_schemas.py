"""JSON Schemas of the events, made from the models: what is taken in, and what is really written.

Three things differ from what pydantic says by itself. Fields that the wire leaves out at their defaults are neither
required nor null. What Sotto writes may gain fields and, in open lists, words: those schemas refuse neither. A query
is one of its forms, each an object of its own.
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
"""The field that tells apart the members of a union: it must always be there, whatever the model's default."""

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
"""Fields that Sotto writes whose lists of words are open: readers must expect others. All other lists are closed."""

_NULL: Final[Json] = {"type": "null"}


class _WireSchema(GenerateJsonSchema):
    """Pydantic's generator, with the rules of the wire."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        found = super().tagged_union_schema(schema)
        # The kinds tell the members apart; "discriminator" means different things to OpenAPI and AsyncAPI.
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
        if written:
            found.pop("additionalProperties", None)
        return found


def _always_there(model: type[BaseModel], name: str, info: FieldInfo, *, written: bool) -> bool:
    return info.is_required() or (written and not _is_omitted(model, name))


def _is_omitted(model: type[BaseModel], name: str) -> bool:
    """Whether a field at its default is left out of the JSON."""
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
        shown["description"] = "An open list: expect other words, too."
    return shown


def standalone(event: EventKind) -> Json:
    """The JSON Schema of one event as it goes over the wire, complete in itself."""
    found = schema_of(event.model, mode_of(event))
    return {"$schema": DIALECT, **found}


def mode_of(event: EventKind) -> Mode:
    """Inputs are described as they are taken in, all others as they are written."""
    return "validation" if side_of(event) == "input" else "serialization"


@cache
def schema_of(model: type[BaseModel], mode: Mode) -> Json:
    """The JSON Schema of a model as it is taken in or written."""
    found = TypeAdapter(model).json_schema(mode=mode, schema_generator=_WireSchema)
    return in_forms(found) if model is Query else found


def bundled(events: Sequence[EventKind], template: str) -> tuple[dict[str, Json], dict[str, Json]]:
    """The schemas of several events by name, and those that they share; references follow ``template``."""
    inputs: list[tuple[str, Mode, TypeAdapter[Any]]] = [
        (event.name, mode_of(event), TypeAdapter(event.model)) for event in events
    ]
    _, definitions = TypeAdapter.json_schemas(inputs, ref_template=template, schema_generator=_WireSchema)
    shared: dict[str, Json] = definitions["$defs"]
    shared[Query.__name__] = in_forms(shared[Query.__name__])
    own = {event.name: shared.pop(event.name) for event in events}
    return own, shared


def in_forms(query: Mapping[str, Any]) -> Json:
    """A query's schema as a choice of its forms, of which a query takes exactly one."""
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
