"""Builds fast msgspec structs of the models, decodes events, and describes faults in events.

The models are the only definition. For frequent events (queries, answers and checkpoints) structs are built from the
models' fields and constraints. An event that a struct refuses is read again by its model, whose error names the field. A
property test compares structs and models.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Mapping
from decimal import Decimal
from difflib import get_close_matches
from functools import cache, cached_property, partial
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
import msgspec
from pydantic import BaseModel, StringConstraints, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, from_json

from schemas.base import (
    KIND_ERROR,
    MAX_DEFINITION_BYTES,
    MAX_FAULTS,
    MAX_NAMES,
    REPEATED_FIELD,
    Event,
    cut_at_word,
    message_of_pattern,
    repeats_a_field,
    shape_fault,
)

ModelType = TypeVar("ModelType", bound=BaseModel)

_LIMITS: Final[dict[type, str]] = {
    annotated_types.Ge: "ge",
    annotated_types.Gt: "gt",
    annotated_types.Le: "le",
    annotated_types.Lt: "lt",
    annotated_types.MinLen: "min_length",
    annotated_types.MaxLen: "max_length",
}

DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for unreadable bytes, for invalid UTF-8 and for deep nesting."""

MAX_DESCRIPTION: Final = 500
_MAX_REASON: Final = 320
"""Maximum length of the reason why one field is wrong; the list of all mechanisms fits."""

MAX_DIGITS: Final = 400
"""Maximum number of digits of a JSON integer; longer integers become infinite floats."""

MAX_DESCRIBED_FAULTS: Final = 3
"""Maximum number of faults that are described for one event; of further faults only the number is given."""


class MalformedEventError(ValueError):
    """Bytes that are not a valid event.

    The message may be published: it has words of the contract, positions and remedies, but neither values nor unknown
    field names of the event.
    """


def _read_limits(metadata: tuple[Any, ...] | list[Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):
            limits |= _read_limits(item.metadata)
        elif isinstance(item, StringConstraints):
            given = {"min_length": item.min_length, "max_length": item.max_length, "pattern": item.pattern}
            limits |= {name: value for name, value in given.items() if value is not None}
            if item.pattern is not None:
                # Python's $ also matches before a newline at the end; the $ of pydantic's engine does not.
                limits["pattern"] = str(item.pattern).removesuffix("$") + r"\Z"
        elif (name := _LIMITS.get(type(item))) is not None:
            limits[name] = getattr(item, name)
    return limits


def _constrained_type(kind: Any, metadata: tuple[Any, ...] | list[Any]) -> Any:
    limits = _read_limits(metadata)
    return Annotated[kind, msgspec.Meta(**limits)] if limits else kind


def _struct_type(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> Any:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _struct_type(inner, [*more, *metadata])
    if origin in {Union, types.UnionType}:
        members = [
            _struct_type(member, metadata if member is not type(None) else ()) for member in get_args(annotation)
        ]
        return Union[tuple(members)]  # noqa: UP007  (built at run time)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return struct(annotation)
    if origin in {tuple, dict}:
        parts = tuple(part if part is Ellipsis else _struct_type(part) for part in get_args(annotation))
        return _constrained_type(origin[parts], metadata)
    if origin is Literal or annotation in {bool, type(None)}:
        return annotation
    if annotation in {str, int, float}:
        return _constrained_type(annotation, metadata)
    raise TypeError(f"no fast path for {annotation!r}")


@cache
def struct(model: type[BaseModel], *, only: frozenset[str] | None = None) -> type[msgspec.Struct]:
    """Build the struct of a model, with its fields, constraints and defaults.

    With ``only``, the struct has only these fields, and refuses events with other fields.
    """
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, info in model.model_fields.items():
        if only is not None and name not in only:
            continue
        kind = _struct_type(info.annotation, info.metadata)
        fields.append((name, kind) if info.is_required() else (name, kind, info.default))
    try:
        return msgspec.defstruct(
            model.__name__,
            fields,
            frozen=True,
            forbid_unknown_fields=True,
            omit_defaults=getattr(model, "wire_omits_defaults", False),
            gc=False,
        )
    except TypeError as error:
        raise TypeError(f"{model.__name__}: {error}") from None


class Codec(Generic[ModelType]):
    """Encodes and decodes the events of one model or union of models."""

    def __init__(self, model: Any, *, limit: int) -> None:
        self._model = model
        self._limit = limit
        # A larger limit of bytes allows more field names, because records have a definition and more.
        self._max_names = MAX_NAMES * max(1, limit // MAX_DEFINITION_BYTES)
        self._omit_defaults: bool = getattr(model, "wire_omits_defaults", False)

    @cached_property
    def _adapter(self) -> TypeAdapter[ModelType]:
        return TypeAdapter(self._model)

    def decode(self, data: bytes | None) -> ModelType:
        """Decode and validate one event; MalformedEventError if it is invalid."""
        if data is None:
            raise MalformedEventError("event: has no value; send a JSON object")
        if len(data) > self._limit:
            raise MalformedEventError(f"event: {len(data)} bytes; send at most {self._limit}")
        if fault := shape_fault(data, names=self._max_names):
            raise MalformedEventError(f"event: {fault}")
        event = self.decode_trusted(data)
        if repeats_a_field(data):
            raise MalformedEventError(REPEATED_FIELD)
        return event

    def decode_trusted(self, data: bytes) -> ModelType:
        """Decode an event that Sotto wrote; repeated fields are not checked."""
        try:
            return self._adapter.validate_json(data)
        except ValidationError as error:
            place_of = partial(locate_fault, parse_or_none(data), public=True)
            raise MalformedEventError(describe_faults(error, place_of)) from None

    def encode(self, event: ModelType) -> bytes:
        """Encode the event as compact JSON."""
        return self._adapter.dump_json(event, exclude_defaults=self._omit_defaults)


def describe(error: ValidationError, name: Callable[[str], str] = str, given: Any = None) -> str:
    """Describe, for the input's writer, which fields are wrong and why; numbers beyond a limit are quoted.

    ``name`` translates the name of an outermost field into the name of an option or a variable. ``given`` is the validated
    input: with it, fields are named as in the input. Without it, the names also have the kinds that pydantic inserts for
    members of unions.
    """

    def place_of(detail: ErrorDetails) -> list[str]:
        steps = [str(step) for step in detail["loc"]] if given is None else locate_fault(given, detail)
        return [name(steps[0]), *steps[1:]] if steps and steps[0] else []

    def explain(detail: ErrorDetails) -> str:
        return _suggest_word(detail, given, error.title) or explain_to_writer(detail)

    return describe_faults(error, place_of, whole="", explain=explain)


def _suggest_word(detail: ErrorDetails, given: Any, title: str) -> str:
    """Return the message about an unknown field or kind that is like one of the contract; else an empty text."""
    at, is_unknown_field = given, detail["type"] == "extra_forbidden"
    for step in detail["loc"][:-1] if is_unknown_field else detail["loc"]:
        if isinstance(at, Mapping):
            at = at.get(step, at)
        elif isinstance(at, list) and isinstance(step, int):
            at = at[step]
    if detail["type"] == KIND_ERROR:
        word, known = at.get("kind") if isinstance(at, Mapping) else None, re.findall("'([^']*)'", detail["msg"])
    elif is_unknown_field:
        word, model = detail["loc"][-1], title if len(detail["loc"]) == 1 else None
        kind = at.get("kind", model) if isinstance(at, Mapping) else model
        known = [*(_fields_of_models().get(str(kind)) or _fields_like(at, word))]
    else:
        return ""
    near = get_close_matches(word, known, n=1, cutoff=_MIN_SIMILARITY) if isinstance(word, str) else []
    if not near or word in near:
        return ""
    hint = f"did you mean '{near[0]}'?"
    return f"unknown field; {hint}" if is_unknown_field else f"{hint} {explain_fault(detail)}"


def read_json(text: str) -> Any:
    """Read JSON as Python does, except that integers too long for Python become infinite floats.

    Raises:
        ValueError: the text is not JSON.
    """
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else float(digits))


def parse_or_none(document: bytes | str) -> Any:
    """Decode a JSON document; None if the text is not JSON."""
    try:
        return from_json(document)
    except ValueError:
        return None


def describe_faults(
    error: ValidationError,
    place_of: Callable[[ErrorDetails], list[str]],
    *,
    whole: str = "event",
    explain: Callable[[ErrorDetails], str] | None = None,
) -> str:
    """Describe faults with the fields that ``place_of`` names; ``whole`` is the place of faults without a field.

    ``explain`` replaces ``explain_fault``. Refusals of events do not suggest words, because refusals are public.
    """
    parts = []
    if error.error_count() > MAX_FAULTS:
        return f"{whole or 'document'}: {error.error_count()} fields are wrong; compare it with the contract"
    faults = error.errors(include_url=False)
    # Pydantic counts only valid items, so it may also report a list with invalid items as too short.
    lists_with_faults = {fault["loc"][:end] for fault in faults for end in range(len(fault["loc"]))}
    faults = [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in lists_with_faults]
    for detail in faults[:MAX_DESCRIBED_FAULTS]:
        steps = place_of(detail)
        if detail["type"] == KIND_ERROR:
            steps.append("kind")
        place = ".".join(steps) or whole
        reason = (explain or explain_fault)(detail)
        parts.append(f"{place[:80]}: {reason}" if place else reason)
    more = f"; and {len(faults) - MAX_DESCRIBED_FAULTS} more" if len(faults) > MAX_DESCRIBED_FAULTS else ""
    return cut_at_word("; ".join(parts), MAX_DESCRIPTION - len(more)) + more


_MIN_SIMILARITY: Final = 0.75
"""Least similarity, from 0 to 1, of an unknown word to the word that a message suggests."""

_LIMIT_FAULTS: Final = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
_NOT_AN_OBJECT: Final = "is not an object; give one with its fields, in braces"
_NOT_AN_INTEGER: Final = "is not an integer; give one"
_MESSAGE_TEMPLATES: Final = {
    "finite_number": "is not a finite number; give one",
    "float_type": "is not a number; give one, without quotes",
    "float_parsing": "is not a number; give one, as 0.05",
    "greater_than": "is too small; give a number above {gt}",
    "greater_than_equal": "is too small; give at least {ge}",
    "less_than": "is too large; give a number below {lt}",
    "less_than_equal": "is too large; give at most {le}",
    "literal_error": "is unknown; give {expected}",
    "missing": "is missing; give it",
    "string_too_long": "is too long; give at most {max_length} characters",
    "string_too_short": "is too short; give {min_length} or more characters",
    "string_type": "is not a text; give one, in quotes",
    "too_long": "has too many items; give at most {max_length}",
    "too_short": "has too few items; give at least {min_length}",
    "tuple_type": "is not a list; give one, in brackets",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _NOT_AN_OBJECT),
    **dict.fromkeys(("bool_type", "bool_parsing"), "is not a truth value; give true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), _NOT_AN_INTEGER),
}
"""Messages for pydantic's types of faults; their limits are filled in from the contract."""

_MISSING_FIELD_MESSAGES: Final = {
    "neighbors": "is missing; give 'add-remove' (recommended: how many people there are stays private) or 'replace' (their number is public)"
}

_EQUIVALENT_FIELDS: Final = {"cutoff": "answers", "answers": "cutoff"}
"""The two names of the number of charged answers; each mechanism has one of them."""


def explain_fault(detail: ErrorDetails) -> str:
    """Return why a field is wrong and what to give, without quoting its value."""
    # Pydantic puts "Value error, " before the messages of the contract's validators.
    return cut_at_word(_message_of_fault(detail).removeprefix("Value error, "), _MAX_REASON)


def explain_to_writer(detail: ErrorDetails) -> str:
    """Return why a field is wrong and what to give; a number beyond a limit is quoted."""
    number = f"{str(detail['input'])[:32]} " if detail["type"] in _LIMIT_FAULTS else ""
    return number + explain_fault(detail)


def _message_of_fault(detail: ErrorDetails) -> str:
    kind, loc = detail["type"], detail["loc"]
    if kind == "extra_forbidden":
        other = _EQUIVALENT_FIELDS.get(str(loc[-1]))
        kind = str(loc[-2]) if len(loc) > 1 else ""
        # A histogram over a table is charged once: it has neither 'cutoff' nor 'answers'.
        if other is not None and kind != "histogram" and other in _fields_of_models().get(kind, ()):
            return f"unknown field; give '{other}' in its place"
        sum_and_events = "ask for the sum on one stream and for the events on another, or for a quantile"
        return f"unknown field; {sum_and_events if loc[-2:] == ('standing', 'mean') else 'remove it'}"
    if kind == "missing" and loc[-1] in _MISSING_FIELD_MESSAGES:
        return _MISSING_FIELD_MESSAGES[str(loc[-1])]
    if kind == "string_pattern_mismatch":
        return message_of_pattern(detail["ctx"]["pattern"]) or detail["msg"]
    if (template := _MESSAGE_TEMPLATES.get(kind)) is None:
        return detail["msg"].partition(", unable ")[0].replace("Input should be ", "is wrong; give ")
    limits = {name: _format_limit(limit) for name, limit in detail.get("ctx", {}).items()}
    return template.format_map(limits)


def _format_limit(limit: object) -> str:
    return f"{Decimal(repr(limit)):f}".removesuffix(".0") if isinstance(limit, float) else str(limit)


def locate_fault(given: Any, detail: ErrorDetails, *, public: bool = False) -> list[str]:
    """Return the names of the input's fields from the outermost to the wrong field.

    With ``public``, a name that is not of the contract is replaced by its number. Pydantic's location also has the
    kinds of union members. A step that is not in the input is such a kind, and is left out, unless it is the last
    step of a missing field.
    """
    at, words = given, []
    for left, step in enumerate(detail["loc"], 1 - len(detail["loc"])):
        inside = isinstance(at, Mapping) and step in at
        if inside and public and step not in contract_words():
            words.append(f"field {list(at).index(step) + 1}")
        elif inside or isinstance(step, int) or (left == 0 and detail["type"] == "missing"):
            words.append(str(step))
        if inside or (isinstance(at, list | tuple) and isinstance(step, int) and step < len(at)):
            at = at[step]
    return words


def event_models() -> list[type[Event]]:
    """Return all event models, base classes first."""
    found: list[type[Event]] = [Event]
    for model in found:
        found += model.__subclasses__()
    return found


@cache
def _fields_of_models() -> dict[str, tuple[str, ...]]:
    """Return the fields of each model by its name and, if it has kinds, by each kind."""
    found = {model.__name__: tuple(model.model_fields) for model in event_models()}
    for model in event_models():
        if "kind" in model.model_fields:
            found |= dict.fromkeys(get_args(model.model_fields["kind"].annotation), tuple(model.model_fields))
    return found


def _fields_like(given: Any, unknown: Any) -> list[str]:
    """Return the fields of all models that have the other fields of ``given``; none if it has no such field."""
    models = _fields_of_models().values()
    others = set(given if isinstance(given, Mapping) else ()) - {unknown}
    others = {name for fields in models for name in fields if name in others}
    return [name for fields in models if others and others <= {*fields} for name in fields]


@cache
def contract_words() -> frozenset[str]:
    """Return all field names and kinds of the contract, which messages may show."""
    words: set[str] = set()
    for model in event_models():
        for name, field in model.model_fields.items():
            words.add(name)
            if name == "kind":
                words.update(get_args(field.annotation))
    return frozenset(words)


encode = msgspec.json.Encoder().encode
