"""The counts of a window's texts, as a feed writes them into partials and questions.

The texts of one window have at most ``MOST_WINDOW_BYTES`` by ``text_size``, so that a record can
hold them. The record of a window with more says "too large" and has no texts.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from stream.privacy.planning.unknown_groups_plans import MOST_WINDOW_BYTES, text_size

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
