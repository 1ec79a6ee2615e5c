"""Events become columns independently of each other, by the rules of tables' cells; flaws have reasons from a fixed list."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import polars as pl
import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import Bins, Categories, Integers
from schemas.windows import parse_event_time
from stream.feeds.event_decoding import digests_of, partitions_of
from stream.feeds.event_fields import MAX_BYTES, MAX_DEPTH, NESTED, FieldCodes
from stream.processing.topic_names import partition_of
from stream.tables.encoding import encode
from tests.unit.feeds.event_readers import SOURCE, event_bytes, reader


def row(value: bytes) -> Any:
    """Return the result of reading one event: its flaw, or its columns."""
    events = reader().read([value])
    if events.flaws:
        return events.flaws[0]
    codes = {name: int(column[0]) for name, column in events.codes.items()}
    return (events.people.tolist(), events.homes.tolist(), events.times.tolist(), codes)


def test_event_reader_encodes_valid_event() -> None:
    people, homes, times, codes = row(event_bytes())
    assert codes == {"city": 1, "size": 0, "delay": 8, "exact": 2, "weight": 1}
    assert times == [1_767_225_600_000]
    assert homes == [partition_of(b"ann", 4)]
    assert people == digests_of([b"ann"]).tolist()


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({"delay": 10**400}, {"delay": 15}),
        ({"delay": -(10**400)}, {"delay": 0}),
        ({"delay": "7"}, {"delay": 12}),
        ({"delay": " 7.0 "}, {"delay": 12}),
        ({"delay": True}, {"delay": 6}),
        ({"size": None}, {"size": 1}),
        ({"size": 12}, {"size": 1}),
        ({"weight": -3}, {"weight": 0}),
        ({"weight": 5}, {"weight": 1}),
        ({"more": None}, {}),
    ],
)
def test_event_reader_accepts_cells_that_tables_accept(changed: dict[str, Any], codes: dict[str, int]) -> None:
    _, _, _, found = row(event_bytes(**changed))
    assert {name: found[name] for name in codes} == codes


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "malformed"),
        (b"", "malformed"),
        (b"{", "malformed"),
        (b"[]", "malformed"),
        (b"7", "malformed"),
        (b"\xff\xfe", "malformed"),
        (event_bytes()[:-1] + b',"delay":NaN}', "malformed"),
        (b'{"user":{"id":"\xff"},"at":1}', "malformed"),
        (event_bytes()[:-1] + b',"delay":4}', "malformed"),
        (b'{"user":{"id":"a","id":"b"},' + event_bytes()[1:], "malformed"),
        (event_bytes()[:-1] + b',"del\\u0061y":4}', "malformed"),
        (event_bytes(more="x" * MAX_BYTES), "oversize"),
        (b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "oversize"),
        (b'{"more":' + b"[" * 3_000 + b"]" * 3_000 + b"," + event_bytes()[1:], "malformed"),
        (b"[" * 3_000, "malformed"),
        (event_bytes(user={}), "person"),
        (event_bytes(user="ann"), "person"),
        (event_bytes(user=None), "person"),
        (event_bytes(user={"id": ""}), "person"),
        (event_bytes(user={"id": " \t"}), "person"),
        (event_bytes(user={"id": 1.5}), "person"),
        (event_bytes(user={"id": True}), "person"),
        (event_bytes(user={"id": ["ann"]}), "person"),
        (event_bytes(user={"id": "x" * 300}), "person"),
        (event_bytes(at=None), "time"),
        (event_bytes(at="2026-01-01T00:00:00"), "time"),
        (event_bytes(at="yesterday"), "time"),
        (event_bytes(at=-1), "time"),
        (event_bytes(at=10**30), "time"),
        (event_bytes(at=1.5), "time"),
        (event_bytes(at="1969-12-31T23:59:59Z"), "time"),
        (event_bytes(place={"city": "C"}), "unknown category"),
        (event_bytes(place=None), "unknown category"),
        (event_bytes(delay=None), "number"),
        (event_bytes(delay=3.5), "number"),
        (event_bytes(delay="fast"), "number"),
        (event_bytes(delay={"of": 3}), "number"),
        (event_bytes(exact=4), "number"),
        (event_bytes()[:-1] + b',"more":1e999}', None),
        (event_bytes(), None),
    ],
)
def test_event_flaw_has_fixed_words_and_affects_no_other_event(value: bytes | None, code: str | None) -> None:
    events = reader().read([event_bytes(), value, event_bytes()])
    assert {place: flaw.code for place, flaw in events.flaws.items()} == ({} if code is None else {1: code})
    assert events.indices.tolist() == ([0, 2] if code else [0, 1, 2])
    for flaw in events.flaws.values():
        words = flaw.message.split(":")[0]
        assert words in {"event", "person", "time", *SOURCE["attributes"]}
        assert "ann" not in flaw.message
        assert len(flaw.message) < 200


def test_event_reader_identifies_people_by_digits_of_numbers() -> None:
    assert row(event_bytes(user={"id": 12})) == row(event_bytes(user={"id": "12"}))
    assert row(event_bytes(user={"id": 10**40})) == row(event_bytes(user={"id": str(10**40)}))


def test_event_reader_reads_field_and_its_part() -> None:
    odd = reader(person="user.id", time="at", attributes={"user": ["x"]}, fields={})
    assert odd.read([event_bytes()]).flaws[0].code == "unknown category"


def test_event_reader_treats_events_independently() -> None:
    """An event gives the same row or flaw regardless of the other events and the batch boundaries."""
    chance = random.Random(7)
    pieces: list[bytes | None] = [
        event_bytes(),
        event_bytes(user={"id": 7}, at=123),
        event_bytes(size=None, delay="4"),
        event_bytes(delay=10**30),
        event_bytes(weight=1e308, at="2026-05-05T05:05:05.123456+02:00"),
        event_bytes(user={"id": "\\"}),
        event_bytes(at="2026-05-05T05:05:05.123Z"),
        event_bytes()[:-1] + b',"delay":1}',
        b"{",
        None,
        b'{"user":{"id":"a"},"at":1',
        b'"delay":2}',
        b"{},{}",
        event_bytes(more="x" * MAX_BYTES),
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    ]
    alone = [reader().read([piece]) for piece in pieces]
    for _ in range(60):
        chosen = [chance.randrange(len(pieces)) for _ in range(chance.randrange(1, 9))]
        together = reader().read([pieces[one] for one in chosen])
        for place, one in enumerate(chosen):
            assert together.flaws.get(place) == alone[one].flaws.get(0)
        rows = {place: at for at, place in enumerate(together.indices.tolist())}
        for place, at in rows.items():
            single = alone[chosen[place]]
            assert together.times[at] == single.times[0]
            assert together.homes[at] == single.homes[0]
            assert together.people[at].tolist() == single.people[0].tolist()
            for name, column in together.codes.items():
                assert column[at] == single.codes[name][0]


def test_event_reader_refuses_deep_unterminated_event_quickly() -> None:
    """A search that starts again at each quotation mark would delay a feed for fifteen seconds."""
    deep = b"{" * (MAX_DEPTH + 1)
    event = deep + b'\\"' * ((MAX_BYTES - len(deep)) // 2)
    started = time.process_time()
    for _ in range(20):
        assert reader().read([event]).flaws[0] is NESTED
    assert time.process_time() - started < 5.0


TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXTS,
    st.sampled_from(["A", "1", " 2 ", "1e1"]),
)
DOMAINS = [
    Categories(values=("A", "1", "true")),
    Categories(values=("A", "other"), other="other"),
    Integers(minimum=-3, maximum=12),
    Integers(minimum=-3, maximum=12, outside="reject"),
    Bins(edges=(0.0, 1.5, 10.0)),
    Bins(edges=(0.0, 1.5, 10.0), outside="reject"),
]


@given(values=st.lists(VALUES, min_size=1, max_size=8), domain=st.sampled_from(DOMAINS))
@settings(max_examples=150, deadline=None)
def test_field_codes_of_batch_equal_single_codes(values: list[Any], domain: Any) -> None:
    cells = FieldCodes(domain)
    codes, known = cells.codes(values)
    for place, value in enumerate(values):
        code, one = cells.codes([value])
        assert known[place] == one[0]
        assert not one[0] or codes[place] == code[0]


@given(
    values=st.one_of(
        st.lists(st.sampled_from(["A", "1", "true", "x", " A", ""]), min_size=1, max_size=8),
        st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=8),
        st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
        st.lists(st.booleans(), min_size=1, max_size=8),
    ),
    domain=st.sampled_from(DOMAINS),
)
@settings(max_examples=150, deadline=None)
def test_field_codes_equal_codes_of_table_cells(values: list[Any], domain: Any) -> None:
    if isinstance(domain, Categories) and isinstance(values[0], float):
        values = [float(math.floor(value)) for value in values]
    codes, known = FieldCodes(domain).codes(values)
    table, counted = encode("cell", domain, pl.Series("cell", values))
    assert known.tolist() == counted.tolist()
    assert codes[known].tolist() == table[counted].tolist()


@given(names=st.lists(TEXTS.map(str.encode), min_size=1, max_size=20), partitions=st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_partitions_of_names_match_kafkas_partitioner(names: list[bytes], partitions: int) -> None:
    names = [*names, *(name * 7 for name in names)]
    assert partitions_of(names, partitions).tolist() == [
        int(murmur2(name) & 0x7FFFFFFF) % partitions for name in names
    ]


@pytest.mark.parametrize(
    "text", ["2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:60:00Z"]
)
def test_event_time_of_an_impossible_date_is_missing(text: str) -> None:
    assert list(map(parse_event_time, [text, "2026-01-01T00:00:00Z"])) == [-1, 1_767_225_600_000]
