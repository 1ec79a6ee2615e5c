"""Bounds of a JSON text's shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import MAX_DEFINITION_BYTES, Query, Request
from schemas.base import MAX_FAULTS, MAX_NAMES, MAX_NESTING, nesting_of, shape_fault
from schemas.wire import Codec, MalformedEventError
from tests.builders import source

REQUESTS: Codec[Any] = Codec(Request, limit=MAX_DEFINITION_BYTES)
QUERIES: Codec[Any] = Codec(Query, limit=MAX_DEFINITION_BYTES)

trees = st.recursive(
    st.text('ab{}[]:,"\\é', max_size=6) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a{[:"\\', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def _facts(tree: Any) -> tuple[int, int]:
    """Return the number of names in a tree, and the depth of its nesting."""
    if not isinstance(tree, dict | list):
        return 0, 0
    inner = [_facts(one) for one in (tree.values() if isinstance(tree, dict) else tree)]
    own = len(tree) if isinstance(tree, dict) else 0
    return own + sum(names for names, _ in inner), 1 + max((depth for _, depth in inner), default=0)


@given(trees, st.booleans(), st.integers(0, 10), st.integers(0, 6))
def test_shape_fault_counts_names_and_nesting_outside_strings(
    tree: Any, ascii_only: bool, names: int, nesting: int
) -> None:
    """A text is within bounds exactly if its names, its objects and lists, and its nesting are; its strings do not matter."""
    text = json.dumps(tree, ensure_ascii=ascii_only)
    found, depth = _facts(tree)
    assert nesting_of(text.encode()) == depth
    fault = shape_fault(text, names=names, nesting=nesting)
    assert fault == shape_fault(text.encode(), names=names, nesting=nesting)
    if found > names:
        assert fault == f"{found} fields; give at most {names}"
    elif depth > nesting:
        assert fault is not None
    elif fault is not None:
        assert "objects and lists" in fault


def _unknown(count: int) -> bytes:
    return json.dumps({f"k{number}": 1 for number in range(count)}).encode()


@pytest.mark.parametrize("codec", [REQUESTS, QUERIES], ids=["requests", "queries"])
def test_codec_refuses_many_names_and_deep_nesting_unread(codec: Codec[Any]) -> None:
    """An event with 30,000 fields, or nested deeper than the bound, is refused by its shape and not field by field."""
    with pytest.raises(MalformedEventError, match=rf"^event: 30000 fields; give at most {MAX_NAMES}$"):
        codec.decode(_unknown(30_000))
    with pytest.raises(MalformedEventError, match=rf"^event: nested deeper than {MAX_NESTING}"):
        codec.decode(b'{"id":' + b"[" * 5000 + b"]" * 5000 + b"}")


def test_codec_counts_faults_that_are_too_many_to_list() -> None:
    """With more than MAX_FAULTS faults, the message has their number; otherwise it has the first ones."""
    with pytest.raises(MalformedEventError, match=r"^event: 5002 fields are wrong; compare it with the contract$"):
        QUERIES.decode(_unknown(5000))
    with pytest.raises(MalformedEventError, match=f"and {MAX_FAULTS - 3} more$"):
        QUERIES.decode(_unknown(MAX_FAULTS - 2))


@pytest.mark.parametrize(
    "domain", [{"kind": "categories", "values": [0] * 150_000}, {"kind": "bins", "edges": [""] * 100_000}]
)
def test_codec_stops_at_first_wrong_value_of_a_domain(domain: dict[str, Any]) -> None:
    """A domain with 100,000 wrong values is one fault, not 100,000."""
    table = source("a", "table", attributes={"c": domain})
    request = {"kind": "register", "request": "a", "source": table}
    with pytest.raises(MalformedEventError, match="attributes") as refused:
        REQUESTS.decode(json.dumps(request).encode())
    assert "more" not in str(refused.value)


def test_codec_takes_a_definition_with_most_attributes() -> None:
    """A definition with 1,024 timestamps, each with all fields and a column, is within the bounds."""
    days = {"minimum": "2024-01-01", "maximum": "2024-12-31", "zone": "Europe/Berlin", "outside": "reject"}
    names = [f"attribute-{number}" for number in range(1024)]
    attributes = {name: {"kind": "timestamp", "granularity": "day", **days} for name in names}
    table = source("a", "table", attributes=attributes, columns={name: f"{name} at" for name in names})
    request = {"kind": "register", "request": "a", "source": table}
    assert len(REQUESTS.decode(json.dumps(request).encode()).source.attributes) == 1024
