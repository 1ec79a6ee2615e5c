"""Words depend only on the key, the stream, the place and the bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stream.privacy.noise.keyed_noise import DrawRole, event_words, round_words, stream_subkey
from tests.builders import KEY, OTHER_KEY

SUBKEY = bytes(range(32, 64))

Place = tuple[str, int, int, bytes]

# A tiny alphabet makes neighboring fields run into each other as often as possible.
topics = st.text("a\x00\x01", max_size=4)
payloads = st.binary(max_size=4) | st.lists(st.sampled_from([b"a", b"\x00", b"\x01"]), max_size=9).map(b"".join)
places: st.SearchStrategy[Place] = st.tuples(topics, st.integers(0, 3), st.integers(0, 3), payloads)


def words_of(place: Place, count: int = 2, subkey: bytes = SUBKEY) -> list[int]:
    topic, partition, offset, payload = place
    words, _ = event_words([subkey], topic, partition, [offset], [payload], count)
    return [int(word) for word in words[0]]


@given(first=places, second=places)
@settings(deadline=None, max_examples=250)
def test_words_are_equal_only_for_equal_places_and_bytes(first: Place, second: Place) -> None:
    assert (words_of(first) == words_of(second)) == (first == second)


@given(place=places, moved=st.integers(1, 4))
def test_words_change_if_a_byte_moves_to_the_next_field(place: Place, moved: int) -> None:
    topic, partition, offset, payload = place
    tail = topic[-moved:].encode()
    assume(tail)
    assert words_of(place) != words_of((topic[:-moved], partition, offset, tail + payload))


def test_words_separate_offset_and_payload() -> None:
    eight_zero_bytes = bytes(8)
    assert words_of(("t", 0, 0, eight_zero_bytes)) != words_of(("t", 0, 0, b""))
    assert words_of(("t", 0, 1, b"")) != words_of(("t", 1, 0, b""))


@given(
    events=st.lists(
        st.tuples(st.integers(0, 2**62), st.binary(max_size=20), st.sampled_from([b"x", b"y"])), max_size=6
    ),
    count=st.integers(1, 60),
)
@settings(deadline=None)
def test_words_of_an_event_are_the_same_in_any_batch(events: list[tuple[int, bytes, bytes]], count: int) -> None:
    subkeys = [letter * 32 for _, _, letter in events]
    offsets = [offset for offset, _, _ in events]
    contents = [payload for _, payload, _ in events]
    words, _ = event_words(subkeys, "queries", 3, offsets, contents, count)
    assert words.shape == (len(events), count)
    alone = [words_of(("queries", 3, o, p), count, s) for o, p, s in zip(offsets, contents, subkeys, strict=True)]
    assert words.tolist() == alone


@given(place=places, count=st.integers(1, 60))
def test_low_words_continue_the_same_output(place: Place, count: int) -> None:
    topic, partition, offset, payload = place
    other = (SUBKEY, offset + 1, payload + b"other")
    _, low = event_words([other[0], SUBKEY], topic, partition, [other[1], offset], [other[2], payload], count)
    longer = words_of(place, 2 * count)
    assert words_of(place, count) == longer[:count]
    assert [int(word) for word in low(1)] == longer[count:]


definitions = st.fixed_dictionaries(
    {
        "incarnation": st.text("0a", max_size=3),
        "definition": st.binary(max_size=2),
        "role": st.sampled_from(DrawRole),
    }
)


@given(first=definitions, second=definitions)
@settings(max_examples=150)
def test_subkey_belongs_to_one_stream_and_one_role(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert (stream_subkey(KEY, **first) == stream_subkey(KEY, **second)) == (first == second)


def test_subkey_depends_on_the_noise_key() -> None:
    other = OTHER_KEY
    assert stream_subkey(KEY, incarnation="a", definition=b"", role=DrawRole.QUERY) != stream_subkey(
        other, incarnation="a", definition=b"", role=DrawRole.QUERY
    )


def test_keyed_noise_never_changes() -> None:
    # These values must never change: otherwise open streams would have other noise after an upgrade.
    subkey = stream_subkey(KEY, incarnation="0" * 32, definition=b"definition", role=DrawRole.QUERY)
    assert subkey.hex()[:16] == "aa71b470eb115e2d"
    assert words_of(("sotto.queries", 3, 7, b'{"id":"a"}'), 2, subkey) == [
        16863144302969601167,
        9463068591796876838,
    ]
    rounds, _ = round_words([subkey], [2], 2)
    assert rounds[0].tolist() == [10077206666638971124, 13211934163334263915]


@given(
    rounds=st.lists(st.tuples(st.integers(0, 2**62), st.sampled_from([b"x", b"y"])), max_size=6, unique=True),
    count=st.integers(1, 60),
)
@settings(deadline=None)
def test_round_words_belong_to_one_stream_and_one_round(rounds: list[tuple[int, bytes]], count: int) -> None:
    subkeys = [letter * 32 for _, letter in rounds]
    numbers = [number for number, _ in rounds]
    words, _ = round_words(subkeys, numbers, count)
    rows = [tuple(row) for row in words.tolist()]
    assert len(set(rows)) == len(rounds)
    for row, (subkey, number) in enumerate(zip(subkeys, numbers, strict=True)):
        alone, low = round_words([subkey], [number], count)
        longer, _ = round_words([subkey], [number], 2 * count)
        assert tuple(alone[0].tolist()) == rows[row]
        assert [*rows[row], *low(0).tolist()] == longer[0].tolist()
