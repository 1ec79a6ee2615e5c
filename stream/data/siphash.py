"""SipHash-2-4 (Aumasson & Bernstein 2012) of many messages at once, each under a key of its own.

A keyed hash that cannot be told from chance without the key, in operations that whole columns go through, and the same in
every version of every library.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_BLOCK: Final = 1 << 14
"""Messages that are hashed at a time: few enough to stay in a core's cache."""
_END: Final = 0xFF


def siphash(keys: Words, messages: Words) -> Words:
    """The hash of each row of ``messages``, which has one column for each 64-bit word, under the same row of ``keys`` or the only one."""
    found = np.empty(len(messages), dtype=np.uint64)
    for start in range(0, len(messages), _BLOCK):
        block = slice(start, start + _BLOCK)
        found[block] = _hashed(keys if len(keys) == 1 else keys[block], messages[block])
    return found


def _hashed(keys: Words, messages: Words) -> Words:
    state = [np.full(len(messages), word, dtype=np.uint64) for word in _START]
    for place in range(4):
        state[place] ^= keys[:, place % 2]
    length = np.full(len(messages), (8 * messages.shape[1] & 0xFF) << 56, dtype=np.uint64)
    for word in (*np.ascontiguousarray(messages.T), length):
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= np.uint64(_END)
    _rounds(state, 4)
    found: Words = state[0] ^ state[1] ^ state[2] ^ state[3]
    return found


def _rounds(state: list[Words], count: int) -> None:
    """Rounds of the hash, in place; sums are modulo 2⁶⁴."""
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 += v1
        _rotate(v1, 13)
        v1 ^= v0
        _rotate(v0, 32)
        v2 += v3
        _rotate(v3, 16)
        v3 ^= v2
        v0 += v3
        _rotate(v3, 21)
        v3 ^= v0
        v2 += v1
        _rotate(v1, 17)
        v1 ^= v2
        _rotate(v2, 32)


def _rotate(word: Words, by: int) -> None:
    low = word >> np.uint64(64 - by)
    word <<= np.uint64(by)
    word |= low
