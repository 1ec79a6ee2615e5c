"""Lists all events and topics of the contract, and generates the events' JSON Schemas.

The schemas differ from pydantic's in three points. Fields that the JSON leaves out if they have their
default value are not required, and never null. The schemas of events that Sotto writes allow unknown
fields and, in fields marked ``x-open``, unknown values. The schema of a query is a choice between its
forms; each form is a separate object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

import schemas
from schemas import (
    AnswersCalibration,
    HypothesisCalibration,
    MemberStatus,
    PartitionStatus,
    Query,
    ReleaseCalibration,
    SparseVectorCalibration,
)
from schemas.queries import COMPANION_FIELDS, QUESTION_FIELDS

CONTRACT_VERSION: Final = "0.3.0"
"""Version of the contract. A new major number breaks readers or producers; a new minor number only adds to it."""


@dataclass(frozen=True)
class Channel:
    """A topic with its writer, keys and purpose: a channel of the AsyncAPI document."""

    name: str
    """The topic's name without the prefix, and the name of an attribute of ``Topics``."""

    direction: Literal["input", "output", "internal"]
    """``input`` to Sotto, ``output`` from Sotto, or ``internal``."""
    key: str
    writer: str
    summary: str


CHANNELS: Final = (
    Channel("queries", "input", "the stream's name", "producers and feeds", "Questions, one event each."),
    Channel("answers", "output", "the stream's name", "workers", "Exactly one answer to each query."),
    Channel(
        "requests",
        "input",
        "the source's name or the population's name",
        "operators",
        "Requests to register sources and populations, allot budgets, and open, extend or end streams.",
    ),
    Channel(
        "ledger",
        "output",
        "source|SOURCE, grant|SOURCE|STREAM, receipt|REQUEST, waiting|DIGEST|REQUEST, population|POPULATION, "
        "allotment|source|SOURCE|ALLOTMENT, allotment|population|POPULATION|ALLOTMENT, retired|SOURCE|ANALYST, retired_names|NUMBER or @progress",
        "the budget service",
        "Budgets, allotments, grants, refunds, receipts of requests, and requests that wait for a table; the latest "
        "record of each key is valid. A retired stream's grant is deleted.",
    ),
    Channel(
        "trail",
        "output",
        "the source's name, or nothing",
        "the budget service",
        "The audit trail: each request, its decision and effects; chained by digests and kept for ever.",
    ),
    Channel(
        "rejected",
        "output",
        "the refused event's own key",
        "workers and the budget service",
        "Dead letters: the refused event's bytes and headers, with its reason and origin in further headers.",
    ),
    Channel(
        "status",
        "output",
        "the stream's name, or @ROLE|PARTITION",
        "workers and the budget service",
        "Status for dashboards; the latest record of each key is valid.",
    ),
    Channel(
        "control",
        "internal",
        "the stream's name, or @retired|DIGEST",
        "the budget service",
        "Each stream's definition and whether it may answer. Retired streams have digests instead.",
    ),
    Channel(
        "charges", "internal", "the source's name", "workers", "The charge of each stream, as a running total."
    ),
    Channel(
        "state",
        "internal",
        "the stream's name, @update|NUMBER|STREAM or @progress",
        "workers",
        "The workers' changelog.",
    ),
    Channel(
        "partials",
        "internal",
        "the stream's name",
        "feeds",
        "The counts of each partition of a live topic in each closed window of a standing stream; private.",
    ),
    Channel(
        "merges",
        "internal",
        "the stream's name, @partial|STREAM|START|PARTITION, @node|STREAM|NUMBER, @texts|STREAM or @progress",
        "feeds",
        "The changelog of merging; private.",
    ),
    Channel(
        "feed_state",
        "internal",
        "stream|STREAM, piece|NUMBER or @progress",
        "feeds",
        "The changelog of the counts of one live topic, with the same partitions as that topic; private.",
    ),
)


@dataclass(frozen=True)
class EventKind:
    """A kind of event: its model, its topic without the prefix, and the most bytes of its JSON."""

    model: type[BaseModel]
    channel: str
    max_bytes: int | None
    """The most bytes of the event's JSON; None if the size is not limited."""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.__name__


def _kinds_of(union: Any) -> tuple[type[BaseModel], ...]:
    """Return the members of a union that ``kind`` discriminates."""
    return get_args(get_args(union)[0])


*_LEDGER_MODELS, _PROGRESS = _kinds_of(schemas.LedgerRecord)
_MODELS_BY_CHANNEL: Final[tuple[tuple[str, int | None, tuple[type[BaseModel], ...]], ...]] = (
    ("queries", schemas.MAX_EVENT_BYTES, (schemas.Query,)),
    ("answers", schemas.MAX_ANSWER_BYTES, (schemas.Answer,)),
    ("requests", schemas.MAX_DEFINITION_BYTES, _kinds_of(schemas.Request)),
    ("ledger", schemas.MAX_RECORD_BYTES, (*_LEDGER_MODELS,)),
    ("ledger", None, (_PROGRESS,)),
    ("trail", None, _kinds_of(schemas.TrailRecord)),
    ("status", None, (schemas.StreamStatus, schemas.PartitionStatus, schemas.MemberStatus)),
    ("control", schemas.MAX_RECORD_BYTES, (*_kinds_of(schemas.Control), schemas.RetiredStreams)),
    ("charges", schemas.MAX_DEFINITION_BYTES, (schemas.Charge,)),
    ("state", None, (schemas.Checkpoint, schemas.Progress)),
    ("partials", None, (schemas.Partial,)),
    ("merges", None, (schemas.MergedStream, schemas.NodeSums, schemas.TextTotals)),
    ("feed_state", None, (schemas.FeedProgress, schemas.FeedStream)),
    ("state", None, (schemas.HypothesisUpdate, schemas.Measurement, schemas.ReleasedTexts)),
)
EVENTS: Final = tuple(
    EventKind(model, channel, max_bytes) for channel, max_bytes, models in _MODELS_BY_CHANNEL for model in models
)
"""All JSON events; dead letters have arbitrary bytes, and the pieces of feeds' changelogs are binary."""


def find_channel(name: str) -> Channel:
    """Return the channel with this name."""
    return next(channel for channel in CHANNELS if channel.name == name)


Mode = Literal["validation", "serialization"]
Json = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

KIND_FIELD: Final = "kind"
"""The discriminator of unions; always required, even with a default."""

EXTENSIBLE_FIELDS: Final[frozenset[tuple[type[BaseModel], str]]] = frozenset(
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
"""Fields that may have further values in later versions; all other enums are final."""

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
        for_output = self.mode == "serialization"
        properties: Json = found.get("properties", {})
        required = []
        for name, info in model.model_fields.items():
            properties[name] = _field_schema(model, name, properties[name], for_output=for_output)
            if name == KIND_FIELD or info.is_required() or (for_output and not _is_omitted(model, name)):
                required.append(name)
        found["required"] = required
        if "description" in found:  # the examples are about Python
            found["description"] = found["description"].partition("\n\nExamples:")[0]
        if for_output:
            found.pop("additionalProperties", None)
        return found


def _is_omitted(model: type[BaseModel], name: str) -> bool:
    return getattr(model, "wire_omits_defaults", False) or name in getattr(model, "wire_omits", ())


def _field_schema(model: type[BaseModel], name: str, schema: Json, *, for_output: bool) -> Json:
    field_schema = dict(schema)
    if name == KIND_FIELD or (for_output and not _is_omitted(model, name)):
        field_schema.pop("default", None)
    if _is_omitted(model, name) and field_schema.get("default", False) is None:
        del field_schema["default"]
        others = [member for member in field_schema.pop("anyOf") if member != _NULL]
        field_schema |= others[0] if len(others) == 1 else {"anyOf": others}
    if for_output and (model, name) in EXTENSIBLE_FIELDS:
        field_schema["examples"] = field_schema.pop("enum")
        field_schema["x-open"] = True
        field_schema["description"] = "An open list: expect other words too."
    return field_schema


def standalone_schema(event: EventKind) -> Json:
    """Return the self-contained JSON Schema of one event."""
    found = schema_of(event.model, mode_of(event))
    return {"$schema": DIALECT, **found}


def mode_of(event: EventKind) -> Mode:
    """Return the schema mode: ``validation`` for events to Sotto, ``serialization`` for events from Sotto."""
    return "validation" if find_channel(event.channel).direction == "input" else "serialization"


@cache
def schema_of(model: type[BaseModel], mode: Mode) -> Json:
    """Return the JSON Schema of a model."""
    found = TypeAdapter(model).json_schema(mode=mode, schema_generator=_WireSchema)
    return split_query_forms(found) if model is Query else found


def bundle_schemas(events: Sequence[EventKind], template: str) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the schemas of events by name, and their shared schemas."""
    inputs: list[tuple[str, Mode, TypeAdapter[Any]]] = [
        (event.name, mode_of(event), TypeAdapter(event.model)) for event in events
    ]
    _, definitions = TypeAdapter.json_schemas(inputs, ref_template=template, schema_generator=_WireSchema)
    shared: dict[str, Json] = definitions["$defs"]
    shared[Query.__name__] = split_query_forms(shared[Query.__name__])
    own = {event.name: shared.pop(event.name) for event in events}
    return own, shared


def split_query_forms(query: Mapping[str, Any]) -> Json:
    """Convert a query's schema to a choice of exactly one form."""
    forms = [
        _form_schema(query, "where", "fraction", *COMPANION_FIELDS["where"]),
        _form_schema(query, "people", "min_rows"),
    ]
    forms += [
        _form_schema(query, field, *(["where"] if allows_where else []), *COMPANION_FIELDS.get(field, ()))
        for field, _, allows_where in QUESTION_FIELDS
    ]
    unchanged = {
        name: part
        for name, part in query.items()
        if name not in {"properties", "required", "additionalProperties"}
    }
    return {**unchanged, "oneOf": forms}


_TRUE: Final[Json] = {"const": True}
_FORM_CONDITIONS: Final[dict[str, Json]] = {
    "where": {
        "dependentSchemas": {"min_rows": {"required": ["people"], "properties": {"people": _TRUE}}},
        "not": {"required": ["people", "fraction"], "properties": {"people": _TRUE, "fraction": _TRUE}},
    },
    "people": {"allOf": [{"properties": {"people": _TRUE}}]},
}
"""For each form of a query, the conditions on the fields that must be given together."""


def _form_schema(query: Mapping[str, Any], field: str, *companions: str) -> Json:
    named = {"where", "fraction", *(name for name, _, _ in QUESTION_FIELDS)}
    named |= {name for names in COMPANION_FIELDS.values() for name in names}
    properties: Mapping[str, Json] = query["properties"]
    return {
        "title": f"Query by {field}",
        "type": "object",
        "properties": {
            name: schema
            for name, schema in properties.items()
            if name not in named or name in {field, *companions}
        },
        "required": [*query["required"], field, *(["bound"] if field == "person_sum" else [])],
        "additionalProperties": False,
        **_FORM_CONDITIONS.get(field, {}),
    }
