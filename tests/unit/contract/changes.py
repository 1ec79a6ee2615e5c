"""Changes to the contract, seeded one at a time: those that break somebody, and those that do not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stream.dev.contract.contract_events import EVENTS, side_of

Json = dict[str, Any]
Change = Callable[[Json], None]
"""Edits an object's schema in place."""


@dataclass(frozen=True)
class Seed:
    """One change to the object at ``place`` in the document."""

    place: tuple[str | int, ...]
    what: str
    change: Change

    def sown(self, document: Json) -> Json:
        changed = copy.deepcopy(document)
        self.change(at(changed, self.place))
        return changed

    def __str__(self) -> str:
        return f"{'/'.join(map(str, self.place))}: {self.what}"


def at(document: Any, place: tuple[str | int, ...]) -> Any:
    for step in place:
        document = document[step]
    return document


def objects(document: Json, side: str, *, read_back: bool = False) -> list[tuple[str | int, ...]]:
    """Where the schemas of the objects stand that events of one side consist of."""
    found: dict[tuple[str | int, ...], None] = {}
    for event in EVENTS:
        if side_of(event) == side or (read_back and event.read_back):
            _collect(document, ("components", "schemas", event.name), found)
    return [place for place in found if "properties" in at(document, place)]


def _collect(document: Json, place: tuple[str | int, ...], found: dict[tuple[str | int, ...], None]) -> None:
    if place in found:
        return
    found[place] = None
    schema = at(document, place)
    if "$ref" in schema:
        _collect(document, tuple(schema["$ref"].removeprefix("#/").split("/")), found)
    for keyword in ("anyOf", "oneOf"):
        for number in range(len(schema.get(keyword, ()))):
            _collect(document, (*place, keyword, number), found)
    for name in schema.get("properties", ()):
        _collect(document, (*place, "properties", name), found)
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            _collect(document, (*place, keyword), found)


def breaking_outputs(document: Json) -> Iterator[Seed]:
    for place, name, schema, required in _properties(document, "output"):
        yield Seed(place, f"{name} removed", _removed(name))
        yield Seed(place, f"{name} renamed", _renamed(name))
        yield Seed(
            place,
            f"{name} nullable or text",
            _replaced(name, {"anyOf": [schema, {"type": "null"}, {"type": "string"}]}),
        )
        yield Seed(place, f"{name} an array", _replaced(name, {"type": "array", "items": schema}))
        if required:
            yield Seed(place, f"{name} optional", _required(name, wanted=False))
        yield from _bounded(place, name, schema, looser=True)
        if "enum" in schema:
            yield Seed(
                place, f"{name} one word more", _replaced(name, {**schema, "enum": [*schema["enum"], "more"]})
            )


def harmless_outputs(document: Json) -> Iterator[Seed]:
    for place in objects(document, "output"):
        yield Seed(place, "a new field", _added(required=False))
        yield Seed(place, "a new field, always there", _added(required=True))
    for place, name, schema, required in _properties(document, "output"):
        if not required:
            yield Seed(place, f"{name} always there", _required(name, wanted=True))
        yield Seed(place, f"{name} described", _replaced(name, {**schema, "description": "Something."}))
        yield from _bounded(place, name, schema, looser=False)
        if "enum" in schema:
            yield Seed(place, f"{name} one word less", _replaced(name, {**schema, "enum": schema["enum"][1:]}))
        if schema.get("x-open"):
            words = [*schema["examples"], "more"]
            yield Seed(place, f"{name} one word more", _replaced(name, {**schema, "examples": words}))
        if "oneOf" in schema:
            kind = {
                "type": "object",
                "properties": {"kind": {"const": "new", "type": "string"}},
                "required": ["kind"],
            }
            yield Seed(place, f"{name} one kind more", _replaced(name, {"oneOf": [*schema["oneOf"], kind]}))


def breaking_inputs(document: Json) -> Iterator[Seed]:
    for place in objects(document, "input"):
        yield Seed(place, "a new required field", _added(required=True))
    for place, name, schema, required in _properties(document, "input"):
        yield Seed(place, f"{name} removed", _removed(name))
        yield Seed(place, f"{name} renamed", _renamed(name))
        yield Seed(place, f"{name} another type", _replaced(name, {"type": "null"}))
        if not required:
            yield Seed(place, f"{name} required", _required(name, wanted=True))
        yield from _bounded(place, name, schema, looser=False)
        if "enum" in schema:
            yield Seed(place, f"{name} one word less", _replaced(name, {**schema, "enum": schema["enum"][1:]}))
        if schema.get("type") == "number":
            yield Seed(place, f"{name} whole", _replaced(name, {**schema, "type": "integer"}))


def harmless_inputs(document: Json) -> Iterator[Seed]:
    for place in objects(document, "input"):
        yield Seed(place, "a new field", _added(required=False))
    for place, name, schema, required in _properties(document, "input"):
        if required:
            yield Seed(place, f"{name} optional", _required(name, wanted=False))
        yield Seed(place, f"{name} nullable", _replaced(name, {"anyOf": [schema, {"type": "null"}]}))
        yield from _bounded(place, name, schema, looser=True)
        if "enum" in schema:
            yield Seed(
                place, f"{name} one word more", _replaced(name, {**schema, "enum": [*schema["enum"], "more"]})
            )


def unreadable_pasts(document: Json) -> Iterator[Seed]:
    """What an earlier version may have written that this one does not read."""
    for place in objects(document, "none", read_back=True):
        yield Seed(place, "a field more", _added(required=False))
    for place, name, schema, _ in _properties(document, "none", read_back=True):
        yield Seed(
            place, f"{name} an array of itself", _replaced(name, {"type": "array", "items": {"type": "boolean"}})
        )
        if "enum" in schema:
            yield Seed(
                place, f"{name} one word more", _replaced(name, {**schema, "enum": [*schema["enum"], "more"]})
            )


def _properties(
    document: Json, side: str, *, read_back: bool = False
) -> Iterator[tuple[tuple[str | int, ...], str, Json, bool]]:
    for place in objects(document, side, read_back=read_back):
        schema = at(document, place)
        for name, field in schema["properties"].items():
            if name != "kind":
                yield place, name, field, name in schema.get("required", ())


def _bounded(place: tuple[str | int, ...], name: str, schema: Json, *, looser: bool) -> Iterator[Seed]:
    for keyword, sign in (("maximum", 1), ("maxLength", 1), ("maxItems", 1), ("minimum", -1), ("minLength", -1)):
        if keyword in schema:
            moved = schema[keyword] + (sign if looser else -sign) * max(1, abs(schema[keyword]) // 8)
            what = f"{name} with a {'looser' if looser else 'tighter'} {keyword}"
            yield Seed(place, what, _replaced(name, {**schema, keyword: moved}))


def _removed(name: str) -> Change:
    def change(schema: Json) -> None:
        del schema["properties"][name]
        _required(name, wanted=False)(schema)

    return change


def _renamed(name: str) -> Change:
    def change(schema: Json) -> None:
        schema["properties"][f"{name}_renamed"] = schema["properties"].pop(name)
        schema["required"] = [f"{name}_renamed" if one == name else one for one in schema.get("required", ())]

    return change


def _replaced(name: str, by: Json) -> Change:
    def change(schema: Json) -> None:
        schema["properties"][name] = by

    return change


def _required(name: str, *, wanted: bool) -> Change:
    def change(schema: Json) -> None:
        others = [one for one in schema.get("required", ()) if one != name]
        schema["required"] = [*others, name] if wanted else others

    return change


def _added(*, required: bool) -> Change:
    def change(schema: Json) -> None:
        schema["properties"]["added"] = {"type": "string"}
        _required("added", wanted=required)(schema)

    return change
