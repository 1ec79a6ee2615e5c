"""Noise drawn with the key follows the exact law, and is independent if any of its inputs differs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from stream.privacy.noise.keyed_noise import DrawRole, event_words, round_words, stream_subkey
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.noise.samplers import Sampler, Words, sampler
from tests.builders import KEY
from tests.privacy.chance import fits, follows, unrelated
from tests.privacy.exact import law_of

EVENTS = 40_000
RATES = [Fraction(1, 13), Fraction(0.2381), Fraction(1), Fraction(7, 3)]


@dataclass(frozen=True)
class SourceFacts:
    """Everything that the noise of a run of events depends on; event i has payload ``prefix`` + i."""

    key: NoiseKey = KEY
    incarnation: str = "0123456789abcdef" * 2
    definition: bytes = bytes(32)
    role: DrawRole = DrawRole.QUERY
    topic: str = "sotto.queries"
    partition: int = 0
    first_offset: int = 0
    prefix: bytes = b"payload "
    same_payload: bool = False

    @property
    def subkey(self) -> bytes:
        return stream_subkey(self.key, incarnation=self.incarnation, definition=self.definition, role=self.role)

    def words(self, count: int, events: int = EVENTS) -> Words:
        offsets = range(self.first_offset, self.first_offset + events)
        payloads = [self.prefix + (b"" if self.same_payload else str(i).encode()) for i in range(events)]
        return event_words([self.subkey] * events, self.topic, self.partition, offsets, payloads, count)[0]

    def draws(self, law: Sampler, events: int = EVENTS) -> npt.NDArray[np.int64]:
        def never(row: int) -> Words:
            raise AssertionError(f"row {row}: a tie has probability 2^-64")

        return law.draw(self.words(law.words, events), never)


USUAL = SourceFacts()


def threshold_draws(subkeys: list[bytes], rounds: list[int], law: Sampler) -> npt.NDArray[np.int64]:
    words, low = round_words(subkeys, rounds, law.words)
    return law.draw(words, low)


OTHERS = {
    "another key": replace(USUAL, key=NoiseKey(bytes(range(1, 33)))),
    "another incarnation": replace(USUAL, incarnation="0123456789abcdef" + "0123456789abcdee"),
    "another definition": replace(USUAL, definition=bytes(31) + b"\x01"),
    "another role": replace(USUAL, role=DrawRole.THRESHOLD),
    "another topic": replace(USUAL, topic="sotto.querie"),
    "another partition": replace(USUAL, partition=1),
    "the next offset": replace(USUAL, first_offset=1),
    "another payload": replace(USUAL, prefix=b"Payload "),
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("noise", ["one_sided", "two_sided"])
def test_event_noise_follows_the_exact_law(noise: str, rate: Fraction) -> None:
    law = sampler("one_sided" if noise == "one_sided" else "two_sided", rate)
    assert follows(USUAL.draws(law), law_of(law))
    assert follows(replace(USUAL, same_payload=True).draws(law), law_of(law))


@pytest.mark.parametrize("noise", ["one_sided", "two_sided"])
def test_threshold_noise_follows_the_exact_law_over_rounds(noise: str) -> None:
    law = sampler("one_sided" if noise == "one_sided" else "two_sided", Fraction(1, 2))
    subkey = replace(USUAL, role=DrawRole.THRESHOLD).subkey
    draws = threshold_draws([subkey] * 5000, list(range(5000)), law)
    assert follows(draws, law_of(law))


def test_threshold_noise_follows_the_exact_law_over_streams() -> None:
    law = sampler("one_sided", Fraction(1, 2))
    streams = [replace(USUAL, incarnation=f"{number:032x}", role=DrawRole.THRESHOLD) for number in range(5000)]
    assert follows(threshold_draws([one.subkey for one in streams], [0] * 5000, law), law_of(law))


def test_check_notices_another_law() -> None:
    draws = USUAL.draws(sampler("one_sided", Fraction(1)))
    assert not follows(draws, law_of(sampler("one_sided", Fraction(21, 20))))


@pytest.mark.parametrize("difference", OTHERS)
def test_words_are_independent_under(difference: str) -> None:
    other = OTHERS[difference]
    assert unrelated(USUAL.words(4), other.words(4))


@pytest.mark.parametrize("difference", OTHERS)
@pytest.mark.parametrize("noise", ["one_sided", "two_sided"])
def test_pairs_of_draws_follow_the_product_law_under(noise: str, difference: str) -> None:
    law = sampler("one_sided" if noise == "one_sided" else "two_sided", Fraction(7, 3))
    ours, theirs = USUAL.draws(law), OTHERS[difference].draws(law)
    exact = law_of(law)
    size = len(exact.weights)
    counts = np.bincount((ours - exact.first) * size + theirs - exact.first, minlength=size * size)
    chances = [float(exact.probability(value)) for value in range(exact.first, exact.last + 1)]
    # Sorted, so that merged cells have similarly few expected draws.
    expected = EVENTS * np.outer(chances, chances).reshape(-1)
    order = np.argsort(expected)
    assert fits(counts[order].tolist(), expected[order].tolist())


def test_payload_at_successive_offsets_has_independent_noise() -> None:
    words = replace(USUAL, same_payload=True).words(4)
    for distance in (1, 2, 7, 256):
        assert unrelated(words[:-distance], words[distance:])


def test_other_payloads_at_one_offset_have_independent_noise() -> None:
    payloads = [f"payload {i}".encode() for i in range(EVENTS)]
    words, _ = event_words([USUAL.subkey] * EVENTS, USUAL.topic, 0, [5] * EVENTS, payloads, 4)
    assert unrelated(words[:-1], words[1:])


def test_words_of_one_event_are_independent() -> None:
    """They are also independent of its low words."""
    payloads = [str(i).encode() for i in range(5000)]
    words, low = event_words([USUAL.subkey] * 5000, USUAL.topic, 0, range(5000), payloads, 4)
    lows = np.array([low(row) for row in range(5000)])
    for digit in range(3):
        assert unrelated(words[:, digit], words[:, digit + 1])
    assert unrelated(words, lows)


def test_bytes_moved_between_fields_give_other_noise() -> None:
    def of(topic: str, partition: int, offset: int, payload: bytes) -> bytes:
        return event_words([USUAL.subkey], topic, partition, [offset], [payload], 4)[0].tobytes()

    def keyed(incarnation: str, definition: bytes) -> bytes:
        return stream_subkey(USUAL.key, incarnation=incarnation, definition=definition, role=DrawRole.QUERY)

    assert of("a", 0, 0, b"b") != of("ab", 0, 0, b"")
    assert of("a", 0, 0, b"\x00x") != of("a", 0, 0, b"x")
    assert of("a", 0, 1, b"") != of("a", 1, 0, b"")
    assert keyed("ab", b"c") != keyed("a", b"bc")


@pytest.mark.parametrize("noise", ["one_sided", "two_sided"])
def test_events_give_the_same_bytes_in_any_batches(noise: str) -> None:
    law = sampler("one_sided" if noise == "one_sided" else "two_sided", Fraction(1, 2))
    whole = USUAL.words(law.words, 200)
    again = [
        event_words([USUAL.subkey], USUAL.topic, 0, [i], [USUAL.prefix + str(i).encode()], law.words)[0]
        for i in range(200)
    ]
    assert whole.tobytes() == np.concatenate(again).tobytes()
    assert USUAL.draws(law, 200).tolist() == USUAL.draws(law, 200).tolist()
    thresholds = threshold_draws([USUAL.subkey] * 20, list(range(20)), law)
    alone = [int(threshold_draws([USUAL.subkey], [number], law)[0]) for number in range(20)]
    assert thresholds.tolist() == alone
