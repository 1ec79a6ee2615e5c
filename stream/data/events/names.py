"""People's names as digests, and the partitions that Kafka's default partitioner gives them, many at once.

A digest stands for its person wherever is counted how often somebody came. Nothing secret hangs on it: it never leaves private
topics, and those who may read them may read the names. All that is asked of it is that no two people have the same one, even if
somebody chooses names to that end, for two people that are taken for one have one bound together, and each moves the other's
count. BLAKE2b at 128 bits takes 2⁶⁴ tries for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from stream.kernel import Spans, digests, spans_of

DIGEST_BYTES: Final = 16

Digests = npt.NDArray[np.uint64]
"""Two words a person; the second is odd, so that none is 0."""

_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.uint32(0x9747B28C)


def digests_and_homes(names: Sequence[bytes], partitions: int) -> tuple[Digests, npt.NDArray[np.int64]]:
    """The digest of each name, and the partition that it belongs to."""
    if (found := digests(names if isinstance(names, Spans) else spans_of(names), partitions)) is None:
        return digests_of(names), partitions_of(names, partitions)
    found[0][:, 1] |= np.uint64(1)
    return found


def digests_of(names: Sequence[bytes]) -> Digests:
    """The digest of each name."""
    joined = b"".join([blake2b(name, digest_size=DIGEST_BYTES).digest() for name in names])
    digests = np.frombuffer(joined, dtype="<u8").reshape(-1, 2).astype(np.uint64)
    digests[:, 1] |= np.uint64(1)
    return digests


def partitions_of(names: Sequence[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """The partition that Kafka's default partitioner (murmur2) gives each name."""
    if not names:
        return np.empty(0, dtype=np.int64)
    lengths = np.array([len(name) for name in names], dtype=np.uint32)
    width = int(lengths.max()) // 4 + 1
    words = np.array(names, dtype=f"S{4 * width}").view("<u4").reshape(-1, width).astype(np.uint32)
    found = _SEED ^ lengths
    whole = lengths // np.uint32(4)
    common = int(whole.min())
    for place in range(int(whole.max())):
        mixed = words[:, place] * _MULTIPLIER
        mixed ^= mixed >> np.uint32(24)
        mixed *= _MULTIPLIER
        mixed ^= found * _MULTIPLIER
        found = mixed if place < common else np.where(whole > place, mixed, found)
    rest = words[np.arange(len(names)), whole]
    found = np.where(lengths % np.uint32(4) > 0, (found ^ rest) * _MULTIPLIER, found)
    found ^= found >> np.uint32(13)
    found *= _MULTIPLIER
    found ^= found >> np.uint32(15)
    return (found & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
