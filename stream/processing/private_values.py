"""The private values in a query: numbers as exact decimals, and the counts of a window's texts.

Doubles only approximate the numbers. The texts of one window have at most ``MOST_WINDOW_BYTES`` by
``text_size``, so that a record can hold them. The record of a window with more says "too large" and
has no texts.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from schemas.base import STRING
from stream.privacy.composition.costs import shortest_decimal
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.mechanisms.grid import ExactDecimal
from stream.privacy.planning.unknown_groups_plans import MOST_WINDOW_BYTES, text_size

_OUT_OF_RANGE = {True: b"-1e300", False: b"1e300"}
"""Replacements of numbers too large for doubles, by "is negative"; both are outside every declared range."""

_MAX_NUMBER_LENGTH = 1024
"""Most characters of a number that stays as written; some parsers limit the number of digits."""

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
    """Return a valid query's ``value`` within the range of doubles."""
    return _decode_value(payload).value


def values_of(payload: bytes) -> ExactDecimal:
    """Return a lazy reader of a valid query's ``values`` within the range of doubles."""
    return _lazy_reader(lambda: _decode_raw_values(payload).values or [])


def scores_of(payload: bytes) -> ExactDecimal:
    """Return a lazy reader of the ``value`` of each candidate."""
    return _lazy_reader(lambda: [candidate.value for candidate in _decode_raw_scores(payload).candidates or []])


def _lazy_reader(read: Callable[[], list[msgspec.Raw]]) -> ExactDecimal:
    texts: list[msgspec.Raw] = []

    def read_at(index: int) -> Decimal:
        if not texts:
            texts.extend(read())
        return Decimal(str(texts[index], "ascii"))

    return read_at


def require_exact_doubles(request: bytes) -> None:
    """Refuse a source with a number that no double represents, because the promise is about the double."""
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
    """Replace numbers that are too large or too long for some parsers, and change nothing else."""
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
"""Most characters of encoded counts."""

MOST_TEXT_COUNT: Final = 1 << 62
"""Largest accepted count of a text; no topic has as many events."""

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
        ValueError: ``encoded`` has no counts of texts.
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
