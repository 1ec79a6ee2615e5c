"""The compiled kernel and its Python twin give the same bytes."""

from __future__ import annotations

import json
import platform
import runpy
import subprocess
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import MAX_EVENT_BYTES, Query
from schemas.base import repeats_a_field
from schemas.wire import encode, struct
from stream.kernel import SOURCE_FOLDER, describe_missing_kernel, digest_sources, load_kernel
from stream.kernel.array_operations import group_rows, keyed_words, pack_rows
from stream.kernel.byte_columns import Column, Spans, concatenate_spans, spans_of
from stream.kernel.json_fields import SlotNames
from stream.kernel.key_numbering import KeyNumbering, add_counts, count_up_to_bound
from stream.privacy.noise.keyed_noise import DrawRole, event_words, round_words, stream_subkey, stream_subkeys
from stream.privacy.noise.keys import NoiseKey
from tests.kernels import ROOT, kernel, use_kernel

texts = st.lists(st.binary(max_size=200), min_size=1, max_size=30)
long_texts = st.lists(
    st.builds(
        lambda size, seed: (seed * 37 % 251).to_bytes(1, "big") * size, st.integers(0, 2200), st.integers(0, 999)
    ),
    min_size=1,
    max_size=20,
)
numbers = st.integers(-(2**63), 2**63 - 1)


def column(values: list[int]) -> Column:
    return np.array(values, dtype=np.int64)


@given(
    messages=long_texts,
    prefix=st.binary(max_size=70),
    count=st.integers(1, 20),
    first=st.none() | st.integers(0, 2**62),
)
@settings(deadline=None, max_examples=40)
def test_keyed_words_equal_pythons(messages: list[bytes], prefix: bytes, count: int, first: int | None) -> None:
    keys = spans_of([bytes([place % 256]) * 32 for place in range(len(messages))])
    places = None if first is None else first + np.arange(len(messages), dtype=np.int64)
    with use_kernel(kernel()):
        ours = keyed_words(keys, prefix, places, spans_of(messages), count)
    with use_kernel(None):
        assert (ours == keyed_words(keys, prefix, places, spans_of(messages), count)).all()


@given(payloads=long_texts, count=st.integers(1, 16))
@settings(deadline=None, max_examples=25)
def test_event_words_of_columns_equal_single_events(payloads: list[bytes], count: int) -> None:
    rows = len(payloads)
    key, digests = NoiseKey(bytes(range(32))), [bytes([place % 256]) * 32 for place in range(rows)]
    incarnations = [f"{place:032x}" for place in range(rows)]
    alone = [
        stream_subkey(key, incarnation=incarnation, definition=digest, role=DrawRole.QUERY)
        for incarnation, digest in zip(incarnations, digests, strict=True)
    ]
    with use_kernel(kernel()):
        subkeys = stream_subkeys(
            key,
            incarnations=spans_of([one.encode() for one in incarnations]),
            definitions=spans_of(digests),
            role=DrawRole.QUERY,
        )
        assert list(subkeys) == alone
        words, low = event_words(subkeys, "queries", 3, column(list(range(rows))), spans_of(payloads), count)
        expected, expected_low = event_words(alone, "queries", 3, range(rows), payloads, count)
        assert (words == expected).all()
        assert (low(rows - 1) == expected_low(rows - 1)).all()
        rounds, _ = round_words(subkeys, column(list(range(rows))), count)
        assert (rounds == round_words(alone, range(rows), count)[0]).all()


@given(data=st.data(), own=texts, shared=texts, constant=st.binary(max_size=20))
@settings(deadline=None, max_examples=40)
def test_pack_rows_equals_pythons(
    data: st.DataObject, own: list[bytes], shared: list[bytes], constant: bytes
) -> None:
    count = len(own)
    figures = column(data.draw(st.lists(numbers, min_size=count, max_size=count)))
    which = column(data.draw(st.lists(st.integers(0, len(shared) - 1), min_size=count, max_size=count)))
    parts = (constant, spans_of(own), figures, (spans_of(shared), which), b"!")
    with use_kernel(kernel()):
        ours = list(pack_rows(count, parts))
    with use_kernel(None):
        assert ours == list(pack_rows(count, parts))
    assert ours == [
        constant + text + str(figure).encode() + shared[place] + b"!"
        for text, figure, place in zip(own, figures.tolist(), which.tolist(), strict=True)
    ]


_Plain: Any = struct(Query, only=frozenset({"id", "stream", "value", "threshold"}))
STREAMS = [f"stream-{number}" for number in range(700)]

written_numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.sampled_from(
        [
            "0",
            "-0",
            "-0.0",
            "1e5",
            "1E+22",
            "1e23",
            "1e-22",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "NaN",
            "null",
            "true",
        ]
    ),
)
written_texts = st.one_of(
    st.sampled_from([*STREAMS, "nobody", "", "x" * 128, "x" * 129]).map(json.dumps),
    st.text(max_size=10).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(max_size=10).map(json.dumps),
)


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """Draw queries; many are plain, and some are broken."""
    fields = draw(st.permutations(["id", "stream", "value"]))
    fields += draw(st.lists(st.sampled_from(["threshold", "value", "id", "where"]), max_size=2))
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    written = [
        f'{space}"{field}"{space}:{space}{draw(written_texts if field in {"id", "stream", "where"} else written_numbers)}'
        for field in fields
    ]
    event = bytearray(("{" + ",".join(written) + space + "}").encode())
    if draw(st.integers(0, 4)) == 0 and event:
        event[draw(st.integers(0, len(event) - 1))] = draw(st.integers(0, 255))
    return bytes(event)


@given(log=st.lists(events(), min_size=1, max_size=12))
@settings(deadline=None, max_examples=150)
def test_scanned_query_equals_parsed_query(log: list[bytes]) -> None:
    names = SlotNames()
    names.texts.extend([name.encode() for name in STREAMS])
    with use_kernel(kernel()):
        found = names.scan(spans_of(log), MAX_EVENT_BYTES)
    assert found is not None
    for place, event in enumerate(log):
        if found.is_read[place]:
            query = msgspec.json.decode(event, type=_Plain)
            assert not repeats_a_field(event)
            assert STREAMS[found.slots[place]] == query.stream
            assert found.ids[place] == encode(query.id)[1:-1]
            assert repr(float(found.values[place])) == repr(query.value)
            asked = None if np.isnan(found.thresholds[place]) else repr(float(found.thresholds[place]))
            assert asked == (None if query.threshold is None else repr(query.threshold))


def test_scan_accepts_exactly_plain_text_at_any_position() -> None:
    names = SlotNames()
    names.texts.extend([b"alarms"])
    size = 18
    texts = [
        b"a" * place + bytes([byte]) + b"z" * (size - 1 - place) for place in range(size) for byte in range(256)
    ]
    with use_kernel(kernel()):
        found = names.scan(
            spans_of([b'{"id":"%b","stream":"alarms","value":1}' % text for text in texts]), MAX_EVENT_BYTES
        )
    assert found is not None
    plain = [text.isascii() and text.decode().isprintable() and not {*text} & {*b'"\\'} for text in texts]
    assert found.is_read.tolist() == plain
    assert [own for own, is_plain in zip(found.ids, plain, strict=True) if is_plain] == [
        text for text, is_plain in zip(texts, plain, strict=True) if is_plain
    ]


@pytest.mark.parametrize("threshold", ["", ',"threshold":7.5'])
def test_scan_reads_ordinary_queries_and_leaves_others(threshold: str) -> None:
    names = SlotNames()
    names.texts.extend([name.encode() for name in STREAMS])
    log = [
        f'{{"id":"query-{number}","stream":"{name}","value":{number / 10}{threshold}}}'.encode()
        for number, name in enumerate([*STREAMS, "nobody"])
    ]
    others = [
        b'{"id":"1","stream":"stream-1","where":"age < 3"}',
        b"",
        b"{}",
        log[0][:-1],
        log[0] + b" x",
        b"{" * 500,
    ]
    with use_kernel(kernel()):
        found = names.scan(spans_of(log + others), MAX_EVENT_BYTES)
        assert found is not None
        assert found.is_read.tolist() == [True] * len(STREAMS) + [False] * (1 + len(others))
        assert found.slots[: len(STREAMS)].tolist() == list(range(len(STREAMS)))
        assert found.values[: len(STREAMS)].tolist() == [number / 10 for number in range(len(STREAMS))]
        too_long = names.scan(spans_of(log), 10)
    assert too_long is not None
    assert not too_long.is_read.any()


def test_spans_are_found_after_concatenation_and_gather() -> None:
    one, other = spans_of([b"a", b"", b"ccc"]), spans_of([b"dd"])
    both = concatenate_spans((one, other))
    assert list(both) == [b"a", b"", b"ccc", b"dd"]
    assert list(both.gather(np.array([3, 0]))) == [b"dd", b"a"]
    assert both.gather(np.array([3, 0])).joined_bytes() == b"dda"
    assert isinstance(both[1:], Spans)
    assert list(both[1:]) == [b"", b"ccc", b"dd"]


def test_pack_rows_handles_empty_and_adjacent_constants() -> None:
    parts = (b"", b"a", b"", b"bc", spans_of([b"", b"x"]), b"", spans_of([b"1", b"2"]), b"d", b"")
    for library in (kernel(), None):
        with use_kernel(library):
            assert list(pack_rows(2, parts)) == [b"abc1d", b"abcx2d"]
            assert list(pack_rows(2, (b"", b""))) == [b"", b""]


def test_scan_finds_every_name_despite_collisions() -> None:
    for count in (2, 4, 128, 1000, 4096):
        names = SlotNames()
        names.texts.extend([b"n%d" % number for number in range(count)])
        log = [b'{"id":"1","stream":"n%d","value":1}' % number for number in range(2 * count)]
        with use_kernel(kernel()):
            found = names.scan(spans_of(log), MAX_EVENT_BYTES)
        assert found is not None
        assert found.is_read.tolist() == [True] * count + [False] * count
        assert found.slots[:count].tolist() == list(range(count))


@given(
    listed=st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**12), st.integers(0, 2**63 - 1)), max_size=200)
)
@settings(deadline=None, max_examples=100)
def test_group_rows_equals_pythons(listed: list[int]) -> None:
    with use_kernel(kernel()):
        ours = group_rows(column(listed))
    with use_kernel(None):
        theirs = group_rows(column(listed))
    assert [one.tolist() for one in ours] == [one.tolist() for one in theirs]
    distinct, group_of, order = ours
    assert distinct.tolist() == sorted(set(listed))
    assert distinct[group_of].tolist() == listed
    assert order.tolist() == sorted(range(len(listed)), key=listed.__getitem__)


@given(
    batches=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=80), min_size=1, max_size=6),
    crowded=st.booleans(),
    switched=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_key_numbering_equals_pythons(batches: list[list[int]], crowded: bool, switched: bool) -> None:
    """This includes keys with few different hash places, and a table that one implementation made and the other extends."""
    compiled, plain = KeyNumbering(), KeyNumbering()
    known: dict[int, int] = {}
    for place, batch in enumerate(batches):
        keys = np.array(
            [[3 if crowded else one * 0x9E3779B97F4A7C15 % 2**64, 2 * one + 1] for one in batch], dtype=np.uint64
        )
        expected = [known.setdefault(one, len(known)) for one in batch]
        with use_kernel(kernel() if not switched or place % 2 == 0 else None):
            assert compiled.number_keys(keys).tolist() == expected
        with use_kernel(None):
            assert plain.number_keys(keys).tolist() == expected
        assert len(compiled) == len(plain) == len(known)
        assert (compiled.keys_of(column(expected)) == keys).all()


@given(
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**6 - 1)), min_size=1, max_size=40),
        min_size=1,
        max_size=5,
    ),
    most=st.sampled_from([1, 2, 3, 255, 300, 70_000]),
)
@settings(deadline=None, max_examples=40)
def test_count_up_to_bound_equals_pythons(batches: list[list[tuple[int, int]]], most: int) -> None:
    kind = np.uint8 if most < 256 else np.uint16 if most < 65_536 else np.uint32
    states = [(np.full((10, 8), max(0, most - 3), dtype=kind), np.full(10, -1, dtype=np.int32)) for _ in range(2)]
    plain = states[0][0].astype(np.int64)
    for mark, batch in enumerate(batches):
        numbers, wanted = column([one for one, _ in batch]), np.array([bits for _, bits in batch], dtype=np.uint64)
        found = []
        for library, (counts, marks) in zip((kernel(), None), states, strict=True):
            with use_kernel(library):
                found.append(count_up_to_bound(numbers, wanted, counts, most, marks, mark))
        let = []
        for one, bits in batch:
            columns = [place for place in range(8) if bits >> place & 1 and plain[one, place] < most]
            plain[one, columns] += 1
            let.append(sum(1 << place for place in columns))
        for ours in found:
            assert ours.within_bound.tolist() == let
            assert (ours.first == found[0].first).all()
            assert ours.changed.tolist() == list(
                dict.fromkeys(n for n, bits in zip(numbers.tolist(), let, strict=True) if bits)
            )
        for counts, marks in states:
            assert (counts == plain).all()
            assert (marks == states[0][1]).all()


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 99)), max_size=60),
    is_sum=st.booleans(),
    bit=st.integers(0, 1),
)
@settings(deadline=None, max_examples=40)
def test_add_counts_equals_pythons(rows: list[tuple[int, int, int]], is_sum: bool, bit: int) -> None:
    places, codes = column([one for one, _, _ in rows]), column([code for _, _, code in rows])
    bits = np.array([each for _, each, _ in rows], dtype=np.uint64)
    found = []
    for library in (kernel(), None):
        counts, sums, marks = (
            np.ones(10, dtype=np.int64),
            np.ones(10, dtype=np.int64),
            np.full(10, -1, dtype=np.int32),
        )
        marks[3] = 1
        with use_kernel(library):
            added = add_counts(places, bits, bit, codes if is_sum else None, counts, sums, marks, 5)
        found.append(
            (
                added.changed.tolist(),
                added.newly_marked,
                added.row_count,
                counts.tolist(),
                sums.tolist(),
                marks.tolist(),
            )
        )
    assert found[0] == found[1]
    counted = [(place, code) for place, each, code in rows if each >> bit & 1]
    assert found[0][2] == len(counted)
    assert found[0][3] == [1 + sum(one == place for one, _ in counted) for place in range(10)]
    assert found[0][4] == [1 + is_sum * sum(code for one, code in counted if one == place) for place in range(10)]


def test_kernel_of_other_source_is_not_loaded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel()
    built = runpy.run_path(str(ROOT / "hatch_build.py"))["build"](tmp_path / "kernel.so")
    assert load_kernel(built) is not None
    monkeypatch.setenv("SOTTO_KERNEL", "off")
    assert load_kernel(built) is None
    monkeypatch.delenv("SOTTO_KERNEL")
    for source in SOURCE_FOLDER.glob("*.[ch]"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    assert digest_sources(tmp_path) == digest_sources(SOURCE_FOLDER)
    changed = tmp_path / "tables.c"
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert digest_sources(tmp_path) != digest_sources(SOURCE_FOLDER)
    monkeypatch.setattr("stream.kernel.SOURCE_FOLDER", tmp_path)
    assert load_kernel(built) is None
    assert load_kernel(tmp_path / "none.so") is None


def test_describe_missing_kernel_names_missing_or_stale_file(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOTTO_KERNEL", raising=False)
    monkeypatch.setattr("stream.kernel.LIBRARY_FILE", tmp_path / "kernel.so")
    with use_kernel(None):
        assert "is missing" in str(describe_missing_kernel())
        (tmp_path / "kernel.so").touch()
        assert "is of another version or platform" in str(describe_missing_kernel())
        monkeypatch.setenv("SOTTO_KERNEL", "off")
        assert describe_missing_kernel() is None
    with use_kernel(object()):
        assert describe_missing_kernel() is None


def test_build_without_compiler_requires_ziglang(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    required = partial(runpy.run_path(str(ROOT / "hatch_build.py"))["KernelBuild"].dependencies, None)
    monkeypatch.delenv("SOTTO_KERNEL", raising=False)
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    assert required() == ["ziglang>=0.13"]
    monkeypatch.setenv("SOTTO_KERNEL", "off")
    assert required() == []


def test_kernel_is_built_for_every_processor_of_its_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with instructions of this processor only would crash services on older processors."""
    kernel()
    build = runpy.run_path(str(ROOT / "hatch_build.py"))
    for command in build["compilers"]():
        macros = [*command, *build["OPTIONS"], "-dM", "-E", "-x", "c", "/dev/null"]
        text = subprocess.run(macros, capture_output=True, text=True, check=True).stdout
        assert "__linux__" in text or "__APPLE__" in text
        assert not {"__AVX__", "__SSE4_2__"} & set(text.split())
    for zig in ("zig cc", "/opt/tools/bin/python -m ziglang cc"):
        monkeypatch.setenv("CC", zig)
        assert next(build["compilers"]()) == [*zig.split(), "-mcpu=baseline"]


def test_wheel_with_kernel_is_tagged_for_its_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip refuses the wheel on another family; a universal Python compiles for one of its two families."""
    tag = runpy.run_path(str(ROOT / "hatch_build.py"))["platform_tag"]
    assert tag().endswith(platform.machine())
    monkeypatch.setattr("sysconfig.get_platform", lambda: "macosx-11.0-universal2")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert tag() == "macosx_11_0_arm64"


def test_scan_distinguishes_names_with_equal_start() -> None:
    known = ["n" * size for size in (1, 7, 8, 9, 64, 127, 128, 129, 254, 255, 256, 400)]
    names = SlotNames()
    with use_kernel(kernel()):
        for name in known:
            names.texts.extend([name.encode()])
            log = [f'{{"id":"1","stream":"{one}","value":1}}'.encode() for one in known]
            found = names.scan(spans_of(log), MAX_EVENT_BYTES)
            assert found is not None
            entered = known[: known.index(name) + 1]
            # The longest name of a stream has 128 characters.
            assert found.is_read.tolist() == [one in entered and len(one) <= 128 for one in known]
            assert [known[slot] for slot in found.slots[found.is_read].tolist()] == [
                one for one in entered if len(one) <= 128
            ]
