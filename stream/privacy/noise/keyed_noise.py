"""Derives uniform 64-bit words from the noise key; an event at a position always has the same words.

Each part of a hashed message has a fixed length or is preceded by its length, so that two different lists
of parts never give the same message. A stream's subkey depends on the version of this derivation, the key's
id, the stream's incarnation, the whole definition (mechanism, calibration, source with its fingerprint) and
the role of the noise. An event's words depend on the subkey, the event's position and its bytes. Because
they depend on the position, the noise of two events with equal bytes is independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from blake3 import blake3

from stream.kernel.array_operations import Part, keyed_output, keyed_words, pack_rows
from stream.kernel.byte_columns import Column, Spans, spans_of
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.noise.samplers import IntegerArray, LowWords, Sampler, Words

_VERSION = b"sotto noise v1"
_WORD_BYTES = 8
SUBKEY_BYTES = 32
_LITTLE_ENDIAN_WORD = "<u8"
_CELLS_PER_BLOCK: Final = 1 << 15


class DrawRole(StrEnum):
    """The purpose of noise; noise of different roles is independent."""

    THRESHOLD = "threshold"
    QUERY = "query"
    ANSWER = "answer"
    RELEASE = "release"
    ROWS = "rows"
    NODES = "nodes"
    KEYS = "keys"
    CHOICE = "choice"
    TYPICAL = "typical"


def _length_prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def stream_subkey(key: NoiseKey, *, incarnation: str, definition: bytes, role: DrawRole) -> bytes:
    """Derive the 32-byte key of one stream's noise in one role.

    ``definition`` is the canonical encoding of everything that is public about the stream.
    """
    context = _length_prefixed(_VERSION, key.key_id.encode(), incarnation.encode(), definition, role.encode())
    return blake3(context, key=key.secret).digest()


def stream_subkeys(key: NoiseKey, *, incarnations: Spans, definitions: Spans, role: DrawRole) -> Spans:
    """Derive the subkeys of many streams.

    All incarnations must have one length, and so must all definitions.
    """
    count = len(incarnations)
    parts: list[Part] = [
        _length_prefixed(_VERSION, key.key_id.encode()),
        _length_prefix(incarnations),
        incarnations,
    ]
    contexts = pack_rows(
        count, [*parts, _length_prefix(definitions), definitions, _length_prefixed(role.encode())]
    )
    subkeys = keyed_words(_repeat_text(key.secret, count), b"", None, contexts, SUBKEY_BYTES // _WORD_BYTES).view(
        np.uint8
    )
    starts: Column = SUBKEY_BYTES * np.arange(count, dtype=np.int64)
    return Spans(subkeys.reshape(-1), starts, np.full(count, SUBKEY_BYTES, dtype=np.int32))


def _length_prefix(texts: Spans) -> bytes:
    if len(texts) and np.any(texts.size != texts.size[0]):
        raise ValueError("texts have several lengths; give texts of one length")
    return (int(texts.size[0]) if len(texts) else 0).to_bytes(8, "big")


def round_words(subkeys: Sequence[bytes], rounds: Sequence[int] | Column, count: int) -> tuple[Words, LowWords]:
    """Derive words that depend only on the stream's subkey and its round, one row per subkey."""
    empty_texts = _repeat_text(b"", len(subkeys)) if isinstance(subkeys, Spans) else [b""] * len(subkeys)
    return _derive_words(subkeys, b"", rounds, empty_texts, count)


def cell_words(subkey: bytes, cells: Sequence[bytes], count: int) -> tuple[Words, LowWords]:
    """Derive words that depend only on the stream's subkey and the cell, one row per cell."""
    return _derive_words_of_messages([subkey] * len(cells), cells, count)


def cell_noise(law: Sampler, subkey: bytes, cells: Sequence[bytes]) -> IntegerArray:
    """Return the noise of named cells, drawn block by block to bound memory.

    The noise depends only on the stream's subkey and the cell, never on the question or its time.
    """
    blocks = [cells[start : start + _CELLS_PER_BLOCK] for start in range(0, len(cells), _CELLS_PER_BLOCK)]
    drawn = [law.draw(*cell_words(subkey, names, law.words)) for names in blocks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *drawn])


def name_words(subkey: bytes, names: Sequence[bytes]) -> Words:
    """Return one word for each name, which depends only on the key and the name."""
    blocks = (names[start : start + _CELLS_PER_BLOCK] for start in range(0, len(names), _CELLS_PER_BLOCK))
    parts = [cell_words(subkey, block, 1)[0][:, 0] for block in blocks]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *parts])


def block_words(subkey: bytes, block: bytes, cells: int, count: int) -> tuple[Words, LowWords]:
    """Derive the words of all cells of a block, one row per cell; faster than ``cell_words``."""
    width = cells * count * _WORD_BYTES
    high = blake3(_length_prefixed(b"high", block), key=subkey).digest(width)

    def low(row: int) -> Words:
        message = _length_prefixed(b"low", block, row.to_bytes(8, "big"))
        return np.frombuffer(blake3(message, key=subkey).digest(count * _WORD_BYTES), dtype=_LITTLE_ENDIAN_WORD)

    return np.frombuffer(high, dtype=_LITTLE_ENDIAN_WORD).reshape(cells, count), low


def event_words(
    subkeys: Sequence[bytes],
    topic: str,
    partition: int,
    offsets: Sequence[int] | Column,
    payloads: Sequence[bytes],
    count: int,
) -> tuple[Words, LowWords]:
    """Derive the words of events of one partition; ``subkeys`` has the key of each event's stream.

    Returns:
        The high words, of shape (n, count), and a function that derives a row's low words when they are needed.
    """
    return _derive_words(
        subkeys, _length_prefixed(topic.encode(), partition.to_bytes(4, "big")), offsets, payloads, count
    )


def event_subkey(subkey: bytes, topic: str, partition: int, offset: int, payload: bytes) -> bytes:
    """Derive the 32-byte key of one event's noise, for answers about cells that are not known beforehand.

    ``subkey`` must be of a role for which ``event_words`` is never called, because the first words of the
    same event would equal the key.
    """
    prefix = _length_prefixed(topic.encode(), partition.to_bytes(4, "big"))
    return blake3(prefix + offset.to_bytes(8, "big") + payload, key=subkey).digest(SUBKEY_BYTES)


def _derive_words(
    subkeys: Sequence[bytes], prefix: bytes, numbers: Sequence[int] | Column, texts: Sequence[bytes], count: int
) -> tuple[Words, LowWords]:
    if not isinstance(subkeys, Spans) or not isinstance(texts, Spans):
        # For a few short messages, building columns for the kernel takes longer than a loop in Python.
        messages = [
            prefix + int(number).to_bytes(8, "big") + text for number, text in zip(numbers, texts, strict=True)
        ]
        return _derive_words_of_messages(subkeys, messages, count)
    column = np.asarray(numbers, dtype=np.int64)

    def low(row: int) -> Words:
        longer = keyed_output(subkeys, prefix, column, texts, row, 2 * count * _WORD_BYTES)
        return np.frombuffer(longer, dtype=_LITTLE_ENDIAN_WORD)[count:]

    return keyed_words(subkeys, prefix, column, texts, count), low


def _derive_words_of_messages(
    subkeys: Sequence[bytes], messages: Sequence[bytes], count: int
) -> tuple[Words, LowWords]:
    width = count * _WORD_BYTES
    digests = b"".join(
        [blake3(message, key=subkey).digest(width) for subkey, message in zip(subkeys, messages, strict=True)]
    )

    def low(row: int) -> Words:
        longer = blake3(messages[row], key=subkeys[row]).digest(2 * width)
        return np.frombuffer(longer, dtype=_LITTLE_ENDIAN_WORD)[count:]

    return np.frombuffer(digests, dtype=_LITTLE_ENDIAN_WORD).reshape(len(messages), count), low


def _repeat_text(text: bytes, count: int) -> Spans:
    return spans_of([text]).gather(np.zeros(count, dtype=np.int64))
