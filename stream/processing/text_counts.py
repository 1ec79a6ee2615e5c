"""The counts of a window's texts, as a feed writes them into partials and questions.

The texts of one window have at most ``MOST_WINDOW_BYTES`` by ``text_size``, so that a record can
hold them. A window with more is written as too large, without its texts.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from stream.privacy.planning.window_texts import MOST_WINDOW_BYTES, text_size

TextCounts = Mapping[bytes, int]

MAX_ENCODED: Final = 4 * (MOST_WINDOW_BYTES // 3 + 1) + 16
"""Most characters of encoded counts."""

MOST_TEXT_COUNT: Final = 1 << 62
"""Largest count of a text that is read: more than there are events."""

_encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], dict[bytes, int] | None] = msgspec.msgpack.Decoder(dict[bytes, int] | None).decode


def window_size(texts: Iterable[bytes]) -> int:
    """Return the size of a window's texts, by which it is too large or not."""
    return sum(map(text_size, texts))


def encode_text_counts(counts: TextCounts | None) -> str:
    """Encode counts in the order of the texts; None means that the texts are too large."""
    ordered = None if counts is None else dict(sorted(counts.items()))
    return binascii.b2a_base64(_encode(ordered), newline=False).decode()


def decode_text_counts(encoded: str) -> dict[bytes, int] | None:
    """Decode counts; None if the texts are too large.

    Raises:
        ValueError: these are no encoded counts of texts.
    """
    if len(encoded) > MAX_ENCODED:
        raise ValueError(f"texts: {len(encoded)} characters; at most {MAX_ENCODED} are read")
    try:
        found = _decode(binascii.a2b_base64(encoded.encode(), strict_mode=True))
    except (ValueError, msgspec.MsgspecError):
        raise ValueError("texts: these are no counts of texts; allow only feeds to write them") from None
    if found is not None and not all(text and 0 < count <= MOST_TEXT_COUNT for text, count in found.items()):
        raise ValueError("texts: a text is empty, or its count is out of range; allow only feeds to write them")
    return found
