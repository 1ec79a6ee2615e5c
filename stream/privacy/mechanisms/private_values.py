"""The private values of a query: numbers rounded to the declared grid, and counts of texts.

Numbers are compared as integers: v becomes ⌊v/γ + ½⌋, where v, the grid γ and the sensitivity Δ are exact decimals. If
|v − v′| ≤ Δ, the integers differ by at most ⌈Δ/γ⌉, to which noise is calibrated. A number is rounded from its double,
or from its decimal if the double is so near to a tie that its own rounding error matters. Proof: ``docs/noise.md``.

The texts of one window have together at most ``MOST_WINDOW_BYTES``, measured by ``text_size``, so that a
record can hold them with their counts. If a window's texts are larger, its record has None instead.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.base import STRING
from stream.privacy.accuracy.intervals import clip_interval
from stream.privacy.accuracy.source_facts import LARGEST_TOTAL, MAX_STEPS, clamping_range
from stream.privacy.composition.costs import RefusedError, shortest_decimal
from stream.privacy.planning.unknown_groups_plans import MOST_WINDOW_BYTES, text_size

THRESHOLD_STEPS = 2 * MAX_STEPS
"""Thresholds are clamped to ±2⁵¹ steps, because values in queries are at most 2⁵⁰ steps."""

_ROUNDING = 6 * 2.0**-53
"""Upper bound of the error of ½ + v/γ in doubles, divided by 1 + |v/γ|."""

_EXACT_GUESSES = MAX_STEPS // 4

_exact = Context(prec=120, traps=[Inexact])
_multiply = _exact.multiply

Scalar = TypeVar("Scalar", np.int64, np.float64)
Steps = npt.NDArray[np.int64]
ExactDecimal = Callable[[int], Decimal]
"""Returns the decimal of the number at an index of an array."""


def published_numbers(steps: Iterable[int], grid: float, divisor: int | Fraction = 1) -> list[float]:
    """Return the doubles nearest to steps·γ/``divisor``, as they are published."""
    numerator, denominator = _grid_ratio(grid)
    numerator *= divisor.denominator
    denominator *= divisor.numerator
    # A quotient of two integers is rounded once; a product of doubles would be rounded twice.
    return [step * numerator / denominator for step in steps]


def published_interval(
    steps: int,
    half: int,
    grid: float,
    divisor: int | Fraction = 1,
    *,
    low: float | None = None,
    high: float | None = None,
    rounded: bool = False,
) -> tuple[float, float]:
    """Return the published interval of ±``half`` steps around steps·γ/``divisor``.

    The interval is cut off at the public limits ``low`` and ``high`` of the true number. If values were
    ``rounded`` to the grid, the interval is wider by half a step on each side.
    """
    extra = 1 if rounded else 0
    first, last = published_numbers((2 * (steps - half) - extra, 2 * (steps + half) + extra), grid, 2 * divisor)
    return clip_interval((first, last), low, high)


def _clamp(numbers: npt.NDArray[Scalar], low: float, high: float) -> npt.NDArray[Scalar]:
    """Clamp numbers, for short arrays three times as fast as ``numpy.clip``."""
    clamped: npt.NDArray[Scalar] = np.minimum(np.maximum(numbers, low), high)
    return clamped


@lru_cache(maxsize=4096)
def _grid_ratio(grid: float) -> tuple[int, int]:
    return shortest_decimal(grid).as_integer_ratio()


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of ``gamma``; private numbers are clamped from ``low`` to ``high`` steps."""

    gamma: Decimal
    low: int = -MAX_STEPS
    high: int = MAX_STEPS

    @classmethod
    def for_values(cls, grid: float, minimum: float | None = None, maximum: float | None = None) -> Grid:
        """Return the grid of the values in queries, with their declared or default range."""
        gamma = shortest_decimal(grid)
        low, high = (cls(gamma).step_of(end) for end in clamping_range(grid, minimum, maximum))
        return cls(gamma, low, high)

    @classmethod
    def for_table(cls, grid: float) -> Grid:
        """Return the grid of a table's counts and totals, which are multiples of it."""
        return cls(shortest_decimal(grid), -LARGEST_TOTAL, LARGEST_TOTAL)

    def round_private(self, doubles: npt.ArrayLike, exact_decimal: ExactDecimal) -> Steps:
        """Return ⌊v/γ + ½⌋, clamped, for numbers v; ``doubles`` are the nearest doubles.

        ``exact_decimal`` is called only for the few numbers that are next to a tie.
        """
        return self._round_to_steps(doubles, exact_decimal, self.low, self.high)

    def round_public(self, doubles: npt.ArrayLike) -> Steps:
        """Return the steps of thresholds, each of which is the shortest decimal of its double."""
        numbers = np.asarray(doubles, dtype=np.float64)
        return self._round_to_steps(
            numbers, lambda place: shortest_decimal(float(numbers[place])), -THRESHOLD_STEPS, THRESHOLD_STEPS
        )

    def step_of(self, number: Decimal) -> int:
        """Return the step of one number, clamped to ±2⁵⁰."""
        return int(self._round_to_steps([float(number)], lambda _: number, -MAX_STEPS, MAX_STEPS)[0])

    def _round_to_steps(self, doubles: npt.ArrayLike, exact_decimal: ExactDecimal, low: int, high: int) -> Steps:
        gamma = float(self.gamma)
        end = 2.0 * max(THRESHOLD_STEPS, -low, high) * gamma
        quotients = _clamp(np.asarray(doubles, dtype=np.float64), -end, end) / gamma
        shifted = quotients + 0.5
        steps = np.floor(shifted).astype(np.int64)
        near_tie = np.abs(shifted - np.rint(shifted)) <= _ROUNDING * (np.abs(quotients) + 1.0)
        if near_tie.any():
            # Numbers far beyond the ends need no exact rounding, because they are clamped.
            near_tie &= (quotients > low - 16.0) & (quotients < high + 16.0)
            places = np.flatnonzero(near_tie)
            guesses = np.rint(shifted[places])
            # Up to 2⁴⁸ steps a guess is wrong by less than ½; beyond, by less than 2 (so by at most 1 as an integer).
            guesses += np.where(np.abs(guesses) < _EXACT_GUESSES, 0.0, 2.0)
            half = _exact.divide(self.gamma, Decimal(2))
            steps[places] = [
                _round_exactly(guess, exact_decimal(place), half)
                for place, guess in zip(places.tolist(), guesses.astype(np.int64).tolist(), strict=True)
            ]
        return _clamp(steps, low, high)


def _round_exactly(steps: int, number: Decimal, half: Decimal) -> int:
    """Return ⌊number/γ + ½⌋ exactly, given the upper bound ``steps`` and γ/2."""
    while number < _multiply(2 * steps - 1, half):
        steps -= 1
    return steps


_OUT_OF_RANGE = {True: b"-1e300", False: b"1e300"}
"""Replacements of negative (True) and positive numbers that are too large for doubles; no declared range contains them."""

_MAX_NUMBER_LENGTH = 1024
"""Maximum number of characters of a number that is not rewritten; some parsers limit the number of digits."""

_STRING_OR_NUMBER = re.compile(STRING + rb"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.DOTALL)


class _Value(msgspec.Struct, gc=False):
    value: Decimal


_NULL = msgspec.Raw(b"null")


class _RawValue(msgspec.Struct, gc=False):
    value: msgspec.Raw = _NULL


class _RawValues(msgspec.Struct, gc=False):
    values: list[msgspec.Raw] | None = None


class _RawScores(msgspec.Struct, gc=False):
    candidates: list[_RawValue] | None = None


class _RawFeed(msgspec.Struct, gc=False):
    sensitivity: msgspec.Raw = _NULL
    grid: msgspec.Raw = _NULL
    minimum: msgspec.Raw = _NULL
    maximum: msgspec.Raw = _NULL


class _RawRegistration(msgspec.Struct, gc=False):
    source: _RawFeed


_decode_raw_registration: Callable[[bytes], _RawRegistration] = msgspec.json.Decoder(_RawRegistration).decode
_decode_value: Callable[[bytes], _Value] = msgspec.json.Decoder(_Value).decode
_decode_raw_values: Callable[[bytes], _RawValues] = msgspec.json.Decoder(_RawValues).decode
_decode_raw_scores: Callable[[bytes], _RawScores] = msgspec.json.Decoder(_RawScores).decode


def value_of(payload: bytes) -> Decimal:
    """Return the exact ``value`` of a valid query."""
    return _decode_value(payload).value


def values_of(payload: bytes) -> ExactDecimal:
    """Return a function that reads the exact ``values`` of a valid query on its first call."""
    return _lazy_reader(lambda: _decode_raw_values(payload).values or [])


def scores_of(payload: bytes) -> ExactDecimal:
    """Return a function that reads the exact values of a valid query's candidates on its first call."""
    return _lazy_reader(lambda: [candidate.value for candidate in _decode_raw_scores(payload).candidates or []])


def _lazy_reader(read: Callable[[], list[msgspec.Raw]]) -> ExactDecimal:
    texts: list[msgspec.Raw] = []

    def read_at(index: int) -> Decimal:
        if not texts:
            texts.extend(read())
        return Decimal(str(texts[index], "ascii"))

    return read_at


def require_exact_doubles(request: bytes) -> None:
    """Refuse a source with a number that is not the shortest decimal of a double.

    The promise holds for the double.
    """
    source = _decode_raw_registration(request).source
    for name in _RawFeed.__struct_fields__:
        text = str(getattr(source, name), "ascii")
        try:
            is_exact = text == "null" or Decimal(text) == shortest_decimal(float(text))
        except InvalidOperation:
            is_exact = False
        if not is_exact:
            raise RefusedError(
                f"source.{name}: has more digits than a double keeps; write it with at most 15 digits"
            )


def replace_extreme_numbers(payload: bytes) -> bytes:
    """Replace numbers in JSON that are too large or too long for some parsers; change nothing else."""
    return _STRING_OR_NUMBER.sub(_replace_extreme, payload)


def _replace_extreme(match: re.Match[bytes]) -> bytes:
    text = match[0]
    if text.startswith(b'"'):
        return text
    nearest = float(text)
    if math.isinf(nearest):
        return _OUT_OF_RANGE[nearest < 0.0]
    return repr(nearest).encode() if len(text) > _MAX_NUMBER_LENGTH else text


TextCounts = Mapping[bytes, int]

MAX_ENCODED: Final = 4 * (MOST_WINDOW_BYTES // 3 + 1) + 16
"""Maximum number of characters of encoded counts."""

MOST_TEXT_COUNT: Final = 1 << 62
"""Largest accepted count of a text; no topic has so many events."""

_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], dict[bytes, int] | None] = msgspec.msgpack.Decoder(dict[bytes, int] | None).decode


def window_text_size(texts: Iterable[bytes]) -> int:
    """Return the size of a window's texts, which ``MOST_WINDOW_BYTES`` limits."""
    return sum(map(text_size, texts))


def encode_text_counts(counts: TextCounts | None) -> str:
    """Encode counts in the order of the texts; None means that the window's texts are too large."""
    ordered = None if counts is None else dict(sorted(counts.items()))
    return binascii.b2a_base64(_encode(ordered), newline=False).decode()


def decode_text_counts(encoded: str) -> dict[bytes, int] | None:
    """Decode counts; None if the window's texts were too large.

    Raises:
        ValueError: ``encoded`` is not an encoding of counts of texts.
    """
    if len(encoded) > MAX_ENCODED:
        raise ValueError(f"texts: {len(encoded)} characters; at most {MAX_ENCODED} are read")
    try:
        counts = _decode(binascii.a2b_base64(encoded.encode(), strict_mode=True))
    except (ValueError, msgspec.MsgspecError):
        raise ValueError("texts: cannot be decoded as counts of texts; allow only feeds to write them") from None
    if counts is not None and not all(text and 0 < count <= MOST_TEXT_COUNT for text, count in counts.items()):
        raise ValueError("texts: a text is empty, or its count is out of range; allow only feeds to write them")
    return counts
