"""Compares the events that the kernel reads with those that Python reads."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.feeds.event_decoding import digests_and_homes, digests_of, partitions_of
from stream.feeds.event_reader import EventReader
from tests.kernels import kernel, use_kernel
from tests.unit.feeds.event_readers import GOOD, event_bytes, reader


def read_columns(values: list[bytes | None]) -> Any:
    """Return all columns and flaws of the events."""
    events = reader().read(values)
    codes = {name: column.tolist() for name, column in events.codes.items()}
    return (
        events.indices.tolist(), events.people.tolist(), events.homes.tolist(), events.times.tolist(), codes,
        dict(sorted(events.flaws.items())),
    )  # fmt: skip


odd_values: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        7,
        10**17,
        10**18,
        10**19,
        3.0,
        2.5,
        -0.0,
        1e300,
        "",
        " ",
        "ann",
        "A",
        "L",
        "é",
        "a\\b",
        'q"',
        "x" * 256,
        "x" * 257,
        "12",
        [],
        {},
        [[{}]],
        {"id": "eve"},
        "2026-02-29T00:00:00Z",
        "2024-02-29T23:59:59.999Z",
        "2026-13-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "2026-01-01T00:00:00+01:00",
        "2026-01-01T24:00:00Z",
        253_402_300_799_999,
        253_402_300_800_000,
    ]
)
odd_texts = st.sampled_from(
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"1",
        b" {} ",
        b"{} x",
        b'{"at":1,}',
        b'{"a":01}',
        b'{"a":1e5,"b":[1, 2 ,{"c":null}]}',
        b"[" * 40 + b"]" * 40,
        b'{"a":' * 33 + b"1" + b"}" * 33,
        b"\xff",
        b'{"a":"\x01"}',
        b'{"user":1,"user":2}',
        b'{"more":tru}',
        b'{"a":-}',
        b'{"a":1.}',
        b'{"a":.5}',
        b'{"a":1E+}',
        b'{"a" 1}',
        b'{"a":1 "b":2}',
        b"{a:1}",
        b'{"a":[1,]}',
        b'{"a":[,1]}',
    ]
)


@st.composite
def written_events(draw: st.DrawFn) -> bytes | None:
    """Draw events with an unusual field, and texts that are cut, changed, doubled or spaced."""
    event: dict[str, Any] = json.loads(json.dumps(GOOD))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(
            st.sampled_from(
                ["user", "at", "place", "size", "delay", "exact", "weight", "more", "user.id", "place.city"]
            )
        )
        value = deepcopy(draw(odd_values))
        if "." in place and isinstance(event[place.split(".")[0]], dict):
            event[place.split(".")[0]][place.split(".")[1]] = value
        else:
            event[place.split(".")[0]] = value
    if draw(st.integers(0, 5)) == 0:
        del event[draw(st.sampled_from(sorted(event)))]
    spaced = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
    text = json.dumps(event, separators=spaced, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    change = draw(st.integers(0, 12))
    if change == 0:
        text = text[: draw(st.integers(0, len(text)))]
    elif change == 1:
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + bytes([draw(st.integers(0, 255))]) + text[at + 1 :]
    elif change == 2:
        text = text[:-1] + b"," + json.dumps({draw(st.sampled_from(["at", "size", "new"])): 1}).encode()[1:]
    elif change == 3:
        text = draw(odd_texts)
    elif change == 4:
        return None
    return text


@given(values=st.lists(written_events(), min_size=1, max_size=12))
@settings(deadline=None, max_examples=150)
def test_events_read_alike_with_and_without_kernel(values: list[bytes | None]) -> None:
    """Reads the same codes, people, partitions, times and flaws of odd events."""
    with use_kernel(kernel()):
        ours = read_columns(values)
    with use_kernel(None):
        assert ours == read_columns(values)


def test_kernel_reads_plain_events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves no plain event to the reader in Python, and reads the same as it."""
    values: list[bytes | None] = [
        event_bytes(delay=one % 9, user={"id": one if one % 2 else f"user {one}"}) for one in range(50)
    ]
    with use_kernel(None):
        expected = read_columns(values)
    monkeypatch.setattr(EventReader, "_read", None)
    with use_kernel(kernel()):
        assert read_columns(values) == expected


def test_kernel_leaves_nested_fields_to_python() -> None:
    """Refuses an event whose field is read as a value and as an object with the right flaw."""
    with use_kernel(kernel()):
        events = reader(person="user", fields={"city": "user.city"}).read(
            [event_bytes(user="ann"), event_bytes(user={"city": "A"})]
        )
    assert {row: flaw.code for row, flaw in events.flaws.items()} == {0: "unknown category", 1: "person"}


@given(
    names=st.lists(st.binary(min_size=1, max_size=256), min_size=1, max_size=20), partitions=st.integers(1, 500)
)
@settings(deadline=None, max_examples=50)
def test_digests_and_homes_of_names_match_python(names: list[bytes], partitions: int) -> None:
    """Computes the digests and partitions of people that Python computes."""
    with use_kernel(kernel()):
        digests, homes = digests_and_homes(names, partitions)
    assert (digests == digests_of(names)).all()
    assert (homes == partitions_of(names, partitions)).all()
