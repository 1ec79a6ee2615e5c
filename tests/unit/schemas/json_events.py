"""Query events as bytes: valid, invalid, and damaged."""

from __future__ import annotations

import json
from random import Random

from hypothesis import strategies as st

FIELDS = ("id", "stream", "value", "where", "threshold")

numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers().map(str),
    st.integers(-(10**15) - 2, 10**15 + 2).map(str),
    st.sampled_from(
        [
            "1e15",
            "-1e15",
            "1000000000000000.0625",
            "1000000000000000.0626",
            "-1000000000000000.125",
            "999999999999999.9375",
            "1e400",
            "-1e400",
            "1e-400",
            "9" * 400,
            "0." + "1" * 400,
            "9007199254740993",
            "18446744073709551616",
            "-0",
            "-0.0",
            "0e0",
            "1E+2",
            "01",
            "1.",
            ".5",
            "+1",
            "NaN",
            "Infinity",
            "-Infinity",
            "0x10",
        ]
    ),
)

strings = st.one_of(
    st.text(max_size=5).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(max_size=5).map(json.dumps),
    st.sampled_from([127, 128, 129, 2048, 2049]).map(lambda length: json.dumps("𝄞" * length, ensure_ascii=False)),
    st.sampled_from(
        [
            r'"\ud800"',
            r'"\udc00"',
            r'"\ud83d\ude00"',
            r'"\ude00\ud83d"',
            r'"a\u0000"',
            r'"\/\b"',
            r'"\x41"',
            '"a\nb"',
        ]
    ),
)

literals = st.sampled_from(["null", "true", "false", "None", ""])

garbage = st.recursive(
    st.one_of(numbers, strings, literals),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
        st.lists(inner, max_size=3).map(lambda items: "{" + ",".join(f'"id":{item}' for item in items) + "}"),
    ),
    max_leaves=6,
)

_suitable = {
    "id": strings,
    "stream": strings,
    "value": st.one_of(numbers, st.just("null")),
    "where": st.one_of(strings, st.just("null")),
    "threshold": st.one_of(numbers, st.just("null")),
}


@st.composite
def _field(draw: st.DrawFn, name: str) -> str:
    value = draw(_suitable[name] if draw(st.integers(0, 9)) else garbage)
    key = draw(st.sampled_from([name] * 9 + ["".join(f"\\u{ord(letter):04x}" for letter in name)]))
    return f'"{key}":{value}'


@st.composite
def _objects(draw: st.DrawFn) -> bytes:
    """Draw JSON objects with the fields of a query; some are missing, repeated or unknown."""
    names = ["id", "stream", draw(st.sampled_from(["value", "where"]))]
    names += draw(st.lists(st.sampled_from(FIELDS), max_size=2))
    fields = [draw(_field(name)) for name in draw(st.permutations(names))]
    if not draw(st.integers(0, 19)):
        fields.append(f'"unknown":{draw(garbage)}')
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    return ("{" + ("," + space).join(fields) + "}" + space).encode()


_TEMPLATES = (
    b'{"id":"a","stream":"s","value":1.5,"threshold":-2e3}',
    b'{"id":"a\\u00e9\\ud83d\\ude00","stream":"s:x","where":"age > 3 AND \\"x\\" = \'b\'"}',
    '{"id":"é𝄞","stream":"ü","value":999999999999999.9375,"where":null}'.encode(),
)
_FRAGMENTS = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"-", b"+", b".", b"e", b"0", b"1", b" ", b"\n", b"\r"),
    *(b"null", b"true", b"NaN", b"9" * 30, b"1e15", b"1e-400", b"0.1", b"//", b"\\u", b"d800", b"\\udfff", b"\\b"),
    *(b"\x00", b"\x0b", b"\x7f", b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"),
    *(b"\xef\xbb\xbf", b"\xe2\x80\xa8", b'"id"', b'"value":', b'"where"', b'"stream":"', b'"threshold":'),
)


def draw_damaged_query(randomness: Random) -> bytes:
    """Draw a query with removed, inserted, replaced or repeated bytes."""
    data = bytearray(randomness.choice(_TEMPLATES))
    for _ in range(randomness.choice((1, 1, 1, 2, 2, 3, 5))):
        start = randomness.randrange(len(data) + 1)
        end = min(len(data), start + randomness.choice((0, 0, 0, 1, 2, 5, 12)))
        new = randomness.choice((b"", randomness.choice(_FRAGMENTS), bytes([randomness.randrange(256)])))
        if not randomness.randrange(12):
            new = bytes(data[randomness.randrange(len(data) + 1) : start])
        data[start:end] = new
    return bytes(data)


valid_queries = st.fixed_dictionaries(
    {"id": st.text(min_size=1, max_size=128), "stream": st.text(min_size=1, max_size=128)},
    optional={"threshold": st.floats(-1e15, 1e15)},
).flatmap(
    lambda head: st.one_of(
        st.floats(-1e15, 1e15).map(lambda value: {**head, "value": value}),
        st.text(min_size=1, max_size=40).map(lambda where: {**head, "where": where}),
    )
)
"""Valid queries as objects."""

queries = st.one_of(valid_queries.map(lambda query: json.dumps(query).encode()), _objects())
"""Valid and invalid queries as bytes."""


def repeats_a_name(data: bytes) -> bool:
    """Return whether any object in a JSON text gives a name twice."""
    repeated = False

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal repeated
        repeated |= len({name for name, _ in pairs}) < len(pairs)

    json.loads(data, object_pairs_hook=look)
    return repeated
