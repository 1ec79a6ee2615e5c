"""The fast reader of definitions has the same results and refusals as the model."""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import MAX_RECORD_BYTES, Control, StreamOpened
from schemas.wire import Codec, MalformedEventError
from stream.worker import stream_records
from stream.worker.stream_records import DefinitionReader, StreamDefinition
from stream.worker.stream_terms import TermsTable
from tests.unit.histories import asked_installation
from tests.unit.schemas.json_events import garbage, literals, numbers, strings

control: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)


@cache
def written_definitions() -> list[bytes]:
    """Return definitions of opened, halted and closed streams of every mechanism."""
    driver = asked_installation()
    return [record.value for record in driver.records(driver.topics.control) if record.value is not None]


def warm_reader() -> DefinitionReader:
    """Return a reader that has read all definitions."""
    reader = DefinitionReader(TermsTable())
    assert None not in reader.read(written_definitions())
    return reader


def by_the_model(value: bytes) -> Any:
    try:
        return control.decode(value)
    except MalformedEventError:
        return None


def assert_same(reader: DefinitionReader, found: StreamDefinition | None, value: bytes) -> None:
    event = by_the_model(value)
    assert (found is None) == (event is None), value
    if found is None:
        return
    assert found.stream == event.spec.stream
    assert found.kind == event.kind
    assert found.reason == (None if isinstance(event, StreamOpened) else event.reason)
    assert (found.incarnation, found.digest, found.key_id) == (
        event.identity.incarnation,
        event.identity.digest,
        event.identity.key_id,
    )
    terms = reader.terms.all[found.terms]
    mechanism = event.spec.mechanism
    if terms.is_sparse_vector:
        assert found.threshold == mechanism.threshold
        mechanism = mechanism.model_copy(update={"threshold": 0.0})
    assert (terms.source, terms.mechanism, terms.calibration, terms.fingerprint) == (
        event.source,
        mechanism,
        event.calibration,
        event.fingerprint,
    )


def test_reader_agrees_with_the_model_on_every_definition() -> None:
    reader = DefinitionReader(TermsTable())
    for value, found in zip(written_definitions(), reader.read(written_definitions()), strict=True):
        assert_same(reader, found, value)
    kinds = {json.loads(value)["kind"] for value in written_definitions()}
    assert kinds == {"opened", "halted", "closed"}


def test_reader_needs_no_model_for_known_definitions() -> None:
    """Only the stream's name differs from a definition that was read before."""
    reader = warm_reader()
    others = [value.replace(b'"stream":"', b'"stream":"x') for value in written_definitions()]
    with patch.object(stream_records, "control_codec", None):
        found = reader.read(others)
    assert [one.stream for one in found if one] == [
        "x" + json.loads(value)["spec"]["stream"] for value in written_definitions()
    ]


def test_streams_of_equal_definitions_share_one_object() -> None:
    reader = warm_reader()
    names = {"stream-1", "stream-2", "stream-3"}
    assert len({one.terms for one in reader.read(written_definitions()) if one and one.stream in names}) == 1


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON document, including those of objects and arrays."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path] * bool(path) + [place for name, value in inner for place in leaves(value, (*path, name))]


@st.composite
def damaged_definitions(draw: st.DrawFn) -> bytes:
    """Draw a definition in which one value is replaced, or another one is added."""
    tree = json.loads(draw(st.sampled_from(written_definitions())))
    path = draw(st.sampled_from(leaves(tree)))
    holder = tree
    for step in path[:-1]:
        holder = holder[step]
    mark = "damaged-here"
    match draw(st.sampled_from(["replace", "replace", "remove", "add", "repeat"])):
        case "replace":
            holder[path[-1]] = mark
        case "remove":
            del holder[path[-1]]
        case "add" if isinstance(holder, dict):
            holder[draw(st.sampled_from(["surplus", "reason", "kind", "threshold"]))] = mark
        case "repeat" if isinstance(holder, dict):
            holder["\0repeated"] = mark
            text = json.dumps(tree).replace('"\\u0000repeated"', json.dumps(str(path[-1])))
            return text.replace(json.dumps(mark), draw(values)).encode(errors="surrogatepass")
        case _:
            pass
    return json.dumps(tree).replace(json.dumps(mark), draw(values)).encode(errors="surrogatepass")


hexadecimal = st.text("0123456789abcdefABCDEF \n", min_size=30, max_size=66).map(json.dumps)
names = st.text("aZ9._:/@+- \n", max_size=130).map(json.dumps)
values = st.one_of(numbers, strings, literals, garbage, hexadecimal, names)


@settings(max_examples=200, deadline=None)
@given(value=damaged_definitions())
def test_reader_agrees_with_the_model_on_damaged_definitions(value: bytes) -> None:
    reader = warm_reader()
    for one, found in zip(
        [written_definitions()[0], value], reader.read([written_definitions()[0], value]), strict=True
    ):
        assert_same(reader, found, one)
    # The record is also read alone and again, because a reader remembers earlier values.
    assert_same(reader, reader.read([value])[0], value)
