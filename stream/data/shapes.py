"""Predicates that differ from one read before in their numbers alone: what was read of it serves them all.

Where the shape is a conjunction of comparisons of integer attributes with whole numbers, and of categories with constants, a
predicate says a range of each attribute that it names, and its numbers are all that is left to read. Any other shape is
left to the parser. A shape is only learned from a text that the parser takes, and that it reads alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from schemas import Categories, Integers
from stream.data.comparisons import Attribute
from stream.data.expressions import TRUE, AllOf, Codes, Predicate

MOST_SHAPES: Final = 1 << 12
LONGEST: Final = 512
"""Longer texts have shapes that hardly come again."""

Ranges = tuple[tuple[str, int, int, int], ...]
"""For each attribute, by name: its size and the half-open range of its codes, neither empty nor all."""

_Ends = tuple[tuple[int, int], ...]
"""Which numbers of the text cut a range, each with what is taken from it."""
_Range = tuple[str, int, int, int, _Ends, _Ends]
"""An attribute, its size, the range of it that constants leave, and what cuts that from below and from above."""
_Shape = tuple[_Range, ...]

_HOLE: Final = "\0"
_numbers = re.compile(r"""(?<![\w.'"])(0|[1-9][0-9]{0,8})(?![\w.'"])""")
_item = re.compile(
    r"""\s*([A-Za-z_]\w*|"[^"\0]+")(?:\s*(>=|<=|=|>|<)\s*(?:\0|('[^'\0]*'))|\s+BETWEEN\s+\0\s+AND\s+\0)""",
    re.IGNORECASE | re.ASCII,
)
_and = re.compile(r"\s+AND\s", re.IGNORECASE | re.ASCII)


def predicate_of(ranges: Ranges) -> Predicate:
    """The predicate in normal form of which these are the ranges."""
    leaves = [Codes(attribute, size, (low, high)) for attribute, size, low, high in ranges]
    if len(leaves) > 1:
        return AllOf(tuple(leaves))
    return leaves[0] if leaves else TRUE


class Shapes:
    """The shapes that were met; safe to use from several threads."""

    def __init__(self, find: Callable[[str], Attribute | None], parse: Callable[[str], Predicate]) -> None:
        """Take what finds an attribute by its name, and what reads a text of any shape."""
        self._find = find
        self._parse = parse
        self._known: dict[tuple[str, ...], _Shape] = {}

    def ranges(self, text: str) -> Ranges | None:
        """The ranges that a text says; None if its shape is another or has not been met, or no row can be within them all."""
        if len(text) > LONGEST:
            return None
        parts = _numbers.split(text)
        known = self._known.get(tuple(parts[::2]))
        return None if known is None else _cut(known, parts)

    def parse(self, text: str) -> Predicate:
        """What a text says, which the parser reads if its shape does not tell; errors are the parser's."""
        if (ranges := self.ranges(text)) is not None:
            return predicate_of(ranges)
        predicate = self._parse(text)
        if len(text) <= LONGEST:
            self._learn(text, predicate)
        return predicate

    def _learn(self, text: str, predicate: Predicate) -> None:
        parts = _numbers.split(text)
        shape = tuple(parts[::2])
        if (
            shape in self._known
            or _HOLE in text
            or (found := self._read(shape)) is None
            or (ranges := _cut(found, parts)) is None
        ):
            return
        if predicate_of(ranges) == predicate:
            if len(self._known) >= MOST_SHAPES:
                self._known = {}
            self._known[shape] = found

    def _read(self, shape: tuple[str, ...]) -> _Shape | None:
        """The meaning of a shape, if it has one here."""
        text = _HOLE.join(shape)
        ranges: dict[str, _Range] = {}
        at, place = 0, 1
        while (item := _item.match(text, at)) is not None:
            name, operator, constant = item.groups()
            if (attribute := self._find(name.strip('"'))) is None:
                return None
            known = ranges.get(attribute.name) or _all_of(attribute)
            if (cut := _held(attribute, known, operator, constant, place)) is None:
                return None
            ranges[attribute.name] = cut
            place += 2 * item[0].count(_HOLE)
            if not text[item.end() :].strip():
                return tuple(ranges[name] for name in sorted(ranges))
            if (word := _and.match(text, item.end())) is None:
                return None
            at = word.end()
        return None


def _all_of(attribute: Attribute) -> _Range:
    size = attribute.domain.size
    return (attribute.name, size, 0, size, (), ())


def _held(
    attribute: Attribute, known: _Range, operator: str | None, constant: str | None, place: int
) -> _Range | None:
    """A range that one more comparison cuts: with the number at a place, or with a constant; no operator is BETWEEN."""
    name, size, low, high, lows, highs = known
    domain = attribute.domain
    if constant is not None:
        if operator != "=" or not isinstance(domain, Categories) or constant[1:-1] not in domain.values:
            return None
        code = attribute.code(constant[1:-1])
        return (name, size, max(low, code), min(high, code + 1), lows, highs)
    if not isinstance(domain, Integers):
        return None
    if operator in {None, ">=", "=", ">"}:
        lows += ((place, domain.minimum - (operator == ">")),)
    if operator in {None, "<=", "=", "<"}:
        highs += ((place if operator else place + 2, domain.minimum - (operator != "<")),)
    return (name, size, low, high, lows, highs)


def _cut(shape: _Shape, parts: Sequence[str]) -> Ranges | None:
    found = []
    for attribute, size, least, most, lows, highs in shape:
        low, high = least, most
        for place, less in lows:
            low = max(low, int(parts[place]) - less)
        for place, less in highs:
            high = min(high, int(parts[place]) - less)
        if low >= high:
            return None
        if low > 0 or high < size:
            found.append((attribute, size, low, high))
    return tuple(found)
