"""Writes the contract's files and compares them with released versions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from stream.dev.contract.asyncapi import document
from stream.dev.contract.contract_events import CONTRACT_VERSION, EVENTS, EventKind, side_of
from stream.dev.contract.json_schemas import KIND, Json, schema_of, standalone

_NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "x-open", "dependencies", "$defs", "$schema"}
)
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_KNOWN: Final = frozenset(
    {
        *("type", "const", "enum", "pattern", "items", "properties", "required", "additionalProperties"),
        *("propertyNames", *_LOWER, *_UPPER),
    }
)
_FIXED: Final = {"address": "its address", "x-partitioner": "its partitioner"}


class UnknownKeywordError(ValueError):
    """A schema uses a keyword, or a combination, that the comparison does not support."""


def breaks(old: Json, new: Json) -> list[str]:
    """Return the incompatibilities of ``new`` for producers and consumers of ``old``.

    Raises:
        UnknownKeywordError: a schema uses an unsupported keyword.
    """
    return [*_channels(old, new), *_events(old, new), *_headers(old, new)]


def _channels(old: Json, new: Json) -> Iterator[str]:
    for name, before in old["channels"].items():
        after = new["channels"].get(name)
        if after is None:
            yield f"{name}: the topic is gone"
            continue
        for field, called in _FIXED.items():
            if before.get(field) != after.get(field):
                yield f"{name}: {called} has changed"
        if not _keys(before) <= _keys(after):
            yield f"{name}: its key has changed"
        for message in sorted(before["messages"].keys() - after["messages"].keys()):
            yield f"{name}: {message} is gone"


def _keys(channel: Json) -> set[str]:
    """Return a topic's kinds of keys; new kinds of events may add some."""
    return set(str(channel.get("x-key")).replace(" or ", ", ").split(", "))


def _events(old: Json, new: Json) -> Iterator[str]:
    kinds = {event.name: event for event in EVENTS}
    for name in sorted(old["components"]["schemas"].keys() & new["components"]["schemas"].keys() & kinds.keys()):
        event = kinds[name]
        before = _Side(old["components"]["schemas"][name], old)
        after = _Side(new["components"]["schemas"][name], new)
        sizes = tuple(document["components"]["messages"][name].get("x-max-bytes") for document in (old, new))
        yield from _event(event, before, after, sizes)


def _headers(old: Json, new: Json) -> Iterator[str]:
    """Compare headers of written messages; all headers of read messages are optional."""
    inputs = {event.name for event in EVENTS if side_of(event) == "input"}
    written = new["components"]["messages"]
    for name, message in old["components"]["messages"].items():
        if "headers" in message and name in written and name not in inputs:
            before, after = (_Side(one.get("headers", {}), one) for one in (message, written[name]))
            yield from _refused(before, after, f"{name} (headers)", outside=True)


def _event(event: EventKind, old: _Side, new: _Side, sizes: tuple[int | None, ...]) -> Iterator[str]:
    before, after = (size if size is not None else float("inf") for size in sizes)
    side = side_of(event)
    if side == "input":
        yield from _refused(new, old, event.name)
        if after < before:
            yield f"{event.name}: at most {after:g} bytes are accepted, no longer {before:g}"
        return
    if side == "output":
        yield from _refused(old, new, event.name, outside=True)
        if after > before:
            yield f"{event.name}: may have {after:g} bytes, no longer only {before:g}"
    if event.read_back:
        reading = schema_of(event.model, "validation")
        for problem in _refused(_Side(reading, reading), old, event.name):
            yield f"{problem} (as earlier versions wrote it)"


def _judge(keywords: Iterable[str], known: Collection[str]) -> None:
    if unknown := set(keywords) - set(known) - _NOTES:
        raise UnknownKeywordError(
            f"cannot compare {', '.join(sorted(unknown))}; add it to the comparison, or do not use it"
        )


class _Side:
    def __init__(self, schema: Json | bool, document: Json) -> None:
        self.document = document
        self.schema: Json = {} if isinstance(schema, bool) else schema
        while "$ref" in self.schema:
            _judge(self.schema.keys(), {"$ref"})
            found: Any = document
            for step in self.schema["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            self.schema = found
        choices = self.schema.keys() & {"anyOf", "oneOf"}
        _judge(self.schema.keys(), {"type", *sorted(choices)[:1]} if choices else _KNOWN)

    def at(self, schema: Json | bool) -> _Side:
        return _Side(schema, self.document)

    @property
    def members(self) -> list[_Side]:
        """The alternatives of a union, or the schema itself."""
        choice = self.schema.get("anyOf", self.schema.get("oneOf"))
        if choice is None:
            return [self]
        return [inner for member in choice for inner in self.at(member).members]

    @property
    def kind(self) -> str | None:
        """The constant ``kind`` of an object, if any."""
        kind = self.schema.get("properties", {}).get(KIND, {}).get("const")
        return str(kind) if kind is not None else None

    @property
    def allowed(self) -> list[Any] | None:
        """The values of a closed list, or None."""
        return [self.schema["const"]] if "const" in self.schema else self.schema.get("enum")

    @property
    def written(self) -> list[Any] | None:
        """The values of a closed or open list, or None."""
        return self.schema["examples"] if self.schema.get("x-open") else self.allowed


def _refused(reader: _Side, writer: _Side, at: str, *, outside: bool = False) -> Iterator[str]:
    """Yield reasons for which ``reader`` may refuse events of ``writer``.

    Readers ``outside`` Sotto skip unknown kinds, and rely on every known field.
    """
    readers, writers = reader.members, writer.members
    if not reader.schema:
        return
    kinds = {known.kind for known in readers} - {None}
    for one in writers:
        if outside and len(kinds) > 1 and one.kind is not None and one.kind not in kinds:
            continue
        problems = [list(_refused_alone(known, one, at, outside=outside)) for known in _likely(readers, one)]
        if not problems:
            yield f"{at}: {_called(one)} has changed"
        elif all(problems):
            yield from min(problems, key=len)


def _likely(readers: list[_Side], writer: _Side) -> list[_Side]:
    """Return the readers that may accept one alternative: of the same kind, else of the same type."""
    if writer.kind is not None and any(reader.kind is not None for reader in readers):
        return [reader for reader in readers if reader.kind == writer.kind]
    return [reader for reader in readers if _takes_type(reader, writer)]


def _takes_type(reader: _Side, writer: _Side) -> bool:
    wanted, given = reader.schema.get("type"), writer.schema.get("type")
    return wanted is None or wanted == given or (wanted, given) == ("number", "integer")


def _called(side: _Side) -> str:
    return str(side.kind or side.schema.get("title") or side.schema.get("type", "anything"))


def _refused_alone(reader: _Side, writer: _Side, at: str, *, outside: bool) -> Iterator[str]:
    allowed, written = reader.allowed, writer.written
    if allowed is not None:
        unknown = [value for value in written or () if value not in allowed]
        if written is None:
            yield f"{at}: is no longer one of a closed list"
        elif unknown:
            yield f"{at}: {', '.join(map(repr, unknown))} is not in the closed list"
    else:
        yield from _bounds(reader, writer, at)
    if "items" in reader.schema:
        yield from _refused(
            reader.at(reader.schema["items"]),
            writer.at(writer.schema.get("items", {})),
            f"{at}[]",
            outside=outside,
        )
    if reader.schema.get("type") == "object":
        yield from _fields(reader, writer, at, outside=outside)


def _bounds(reader: _Side, writer: _Side, at: str) -> Iterator[str]:
    for names, sign in ((_LOWER, 1), (_UPPER, -1)):
        for name in names:
            if name not in reader.schema:
                continue
            bound, given = reader.schema[name], writer.schema.get(name)
            if given is None or sign * given < sign * bound:
                yield f"{at}: {name} {bound:g} does not hold"
    pattern = reader.schema.get("pattern")
    if pattern is not None and pattern != writer.schema.get("pattern"):
        yield f"{at}: the pattern is another one"


def _fields(reader: _Side, writer: _Side, at: str, *, outside: bool) -> Iterator[str]:
    known: Json = reader.schema.get("properties", {})
    written: Json = writer.schema.get("properties", {})
    always = set(writer.schema.get("required", ()))
    for name in reader.schema.get("required", ()):
        if name not in always:
            yield f"{at}.{name}: is required and not always there"
    if outside:
        for name in sorted(known.keys() - written.keys()):
            yield f"{at}.{name}: is gone"
    for name in sorted(known.keys() & written.keys()):
        yield from _refused(reader.at(known[name]), writer.at(written[name]), f"{at}.{name}", outside=outside)
    yield from _other_fields(
        reader, writer, {name: written[name] for name in written.keys() - known.keys()}, at, outside=outside
    )


def _other_fields(reader: _Side, writer: _Side, unknown: Json, at: str, *, outside: bool) -> Iterator[str]:
    others = reader.schema.get("additionalProperties", True)
    more = writer.schema.get("additionalProperties", True)
    if others is False:
        yield from (f"{at}.{name}: is not accepted" for name in sorted(unknown))
        if isinstance(more, dict):
            yield f"{at}: additional fields are not accepted"
    elif isinstance(others, dict):
        if isinstance(more, dict):
            unknown = {**unknown, "*": more}
        for name in sorted(unknown):
            yield from _refused(reader.at(others), writer.at(unknown[name]), f"{at}.{name}", outside=outside)
    names: Json = reader.schema.get("propertyNames", {})
    yield from _bounds(reader.at(names), writer.at(writer.schema.get("propertyNames", {})), f"{at} (names)")


DOCUMENT: Final = "asyncapi.json"
SCHEMAS: Final = "schemas"
VERSIONS: Final = "versions"


class ContractError(RuntimeError):
    """A contract file is missing, unreadable or already released; the message has the remedy."""


def files() -> dict[str, str]:
    """Return the text of every generated file by its path in the folder."""
    schemas = {f"{SCHEMAS}/{_file_name(event.name)}": standalone(event) for event in EVENTS}
    return {name: _text(content) for name, content in {DOCUMENT: document(), **schemas}.items()}


def export(folder: Path) -> list[str]:
    """Write the generated files, delete obsolete ones, and return the changed names."""
    drifted = drift(folder)
    wanted = files()
    for name in drifted:
        path = folder / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
    return drifted


def drift(folder: Path) -> list[str]:
    """Return the names of generated files that are missing, out of date or obsolete."""
    wanted = files()
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes().decode(errors="replace")
        for path in (folder / DOCUMENT, *(folder / SCHEMAS).glob("*"))
        if path.is_file()
    }
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def release(folder: Path) -> Path:
    """Save the current document as the released version, and return its path.

    Raises:
        ContractError: the version was released already, or breaks a released version.
    """
    path = folder / VERSIONS / ".".join(CONTRACT_VERSION.split(".")[:2]) / DOCUMENT
    if path.exists():
        raise ContractError(
            f"{path} was released already; raise CONTRACT_VERSION, or delete the file if it is unpublished"
        )
    found = broken(folder)
    if found:
        raise ContractError(f"version {CONTRACT_VERSION} breaks released ones: {'; '.join(found[:3])}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(document()), encoding="utf-8")
    return path


def broken(folder: Path) -> list[str]:
    """Return incompatibilities with released versions of the same major number.

    Raises:
        ContractError: a released document cannot be read.
    """
    major = CONTRACT_VERSION.split(".", 1)[0]
    current = document()
    found = []
    for path in sorted((folder / VERSIONS).glob(f"{major}.*/{DOCUMENT}")):
        found += [f"{path.parent.name}: {one}" for one in breaks(_read(path), current)]
    return found


def _read(path: Path) -> Json:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ContractError(f"cannot read {path} ({type(error).__name__}); take it from the release") from None
    if not isinstance(content, dict):
        raise ContractError(f"{path} is no AsyncAPI document; take it from the release")
    return content


def _file_name(event: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", event).lower() + ".json"


def _text(content: Json) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
