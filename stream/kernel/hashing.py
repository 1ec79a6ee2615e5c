"""Keyed BLAKE3 of many messages."""

from __future__ import annotations

from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from stream.kernel.columns import Column, Spans, address
from stream.kernel.library import compiled

Words = npt.NDArray[np.uint64]

_WORD_BYTES: Final = 8


def keyed_words(keys: Spans, prefix: bytes, numbers: Column | None, texts: Spans, count: int) -> Words:
    """So many words of 64 bits for each text: the start of the output of a message under the key of the same place.

    A message is the prefix, the text's number in 8 bytes if there are numbers, and the text. Keys have 32 bytes each.
    """
    width = count * _WORD_BYTES
    if (library := compiled()) is None:
        outputs = [
            blake3(head + text, key=key).digest(width)
            for head, text, key in zip(_heads(prefix, numbers), texts, keys, strict=False)
        ]
        return np.frombuffer(b"".join(outputs), dtype="<u8").reshape(len(texts), count)
    rows = len(texts)
    words, done = np.empty((rows, count), dtype="<u8"), 0
    while done < rows:
        done += library.sotto_derive(
            rows - done,
            address(keys.data),
            address(keys.at[done:]),
            prefix,
            len(prefix),
            None if numbers is None else address(numbers[done:]),
            address(texts.data),
            address(texts.at[done:]),
            address(texts.size[done:]),
            width,
            address(words[done:]),
        )
        if done < rows:
            # It is longer than what is hashed side by side.
            output = keyed_output(keys, prefix, numbers, texts, done, width)
            words[done] = np.frombuffer(output, dtype="<u8")
            done += 1
    return words


def keyed_output(keys: Spans, prefix: bytes, numbers: Column | None, texts: Spans, row: int, size: int) -> bytes:
    """So many bytes of one message's output."""
    number = b"" if numbers is None else int(numbers[row]).to_bytes(8, "big")
    return blake3(prefix + number + texts[row], key=keys[row]).digest(size)


def _heads(prefix: bytes, numbers: Column | None) -> repeat[bytes] | list[bytes]:
    return (
        repeat(prefix) if numbers is None else [prefix + number.to_bytes(8, "big") for number in numbers.tolist()]
    )
