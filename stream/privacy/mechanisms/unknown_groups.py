"""Unknown groups: noisy counts of the texts that enough rows have.

Privacy: docs/proofs/unknown-groups.md. Everything is in integers; the noise of a text depends on the
stream, the question's position and the text alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from schemas import MAX_KEY_BYTES, MAX_KEYS
from stream.privacy.noise.samplers import Words

IntegerArray = npt.NDArray[np.int64]

NO_ROW: Final = 0

_NUMBERS_PER_GROUP: Final = 3
"""Numbers of a group in an answer are three: its count and the two ends of its interval."""
_EXTRA_CHARACTERS: Final = 4
"""Maximum number of characters of such a number beside the count's digits: a digit and signs."""


_NUMBERS_BYTES_PER_TEXT: Final = 64
"""Room in an answer for the numbers of a text of a running count, which grow from answer to answer."""


class ReleasedGroup(NamedTuple):
    """A released text, or name of a group with declared attributes, and its noisy count."""

    text: bytes
    rows: int


def release_groups(
    texts: Sequence[bytes], counts: IntegerArray, noise: IntegerArray, threshold: int
) -> list[ReleasedGroup]:
    """Return the texts whose noisy count is at least ``threshold``, the largest first.

    A text without a row is never released, whatever its noise. Equal counts are sorted by text, so
    that the order depends on the released groups alone.
    """
    noisy = counts + noise
    found = np.flatnonzero((counts > NO_ROW) & (noisy >= threshold)).tolist()
    return sorted((ReleasedGroup(texts[place], int(noisy[place])) for place in found), key=_sort_key)


def json_size(text: bytes) -> int:
    """Return the size of a text as JSON, in bytes."""
    return len(msgspec.json.encode(text.decode()))


def count_fitting_groups(
    groups: Sequence[ReleasedGroup],
    most: int = MAX_KEYS,
    most_bytes: int = MAX_KEY_BYTES,
    size_of: Callable[[bytes], int] = json_size,
) -> int:
    """Return how many of the released groups fit into an answer; it depends on them alone."""
    size = 0
    for place, group in enumerate(groups[:most]):
        number = len(str(group.rows)) + _EXTRA_CHARACTERS
        size += size_of(group.text) + 1 + _NUMBERS_PER_GROUP * number
        if size > most_bytes:
            return place
    return min(len(groups), most)


@dataclass(slots=True)
class RunningRelease:
    """The texts that a running count has released, and their part of an answer's bytes.

    A released text stays released. ``ended`` says that the texts have become too large.
    """

    texts: set[bytes] = field(default_factory=set)
    size: int = 0
    ended: bool = False

    def admit(self, text: bytes) -> bool:
        """Release a text, unless answers are full; that depends on the released texts alone."""
        size = self.size + json_size(text) + _NUMBERS_BYTES_PER_TEXT
        if len(self.texts) == MAX_KEYS or size > MAX_KEY_BYTES:
            return False
        self.texts.add(text)
        self.size = size
        return True

    def release(
        self, texts: Sequence[bytes], counts: IntegerArray, noise: IntegerArray, threshold: int
    ) -> tuple[list[bytes], list[ReleasedGroup]]:
        """Return the texts that reach the threshold first now, and all released ones with noisy counts."""
        reached = release_groups(texts, counts, noise, threshold)
        new = [group.text for group in reached if group.text not in self.texts and self.admit(group.text)]
        noisy = zip(texts, (counts + noise).tolist(), strict=True)
        return new, sorted((ReleasedGroup(*one) for one in noisy if one[0] in self.texts), key=_sort_key)


def release_keys(names: Sequence[bytes], people: IntegerArray, words: Words, rule: Words) -> list[bytes]:
    """Return the sorted names that ``rule`` releases without counts.

    ``words`` has a uniform word for each name. ``rule`` has the number of words out of 2⁶³ for each number of people. A name without a person is
    never released: its entry of the rule is 0.
    """
    chance = rule[np.minimum(people, len(rule) - 1)]
    return sorted(names[place] for place in np.flatnonzero((words >> np.uint64(1)) < chance).tolist())


def _sort_key(group: ReleasedGroup) -> tuple[int, bytes]:
    return -group.rows, group.text
