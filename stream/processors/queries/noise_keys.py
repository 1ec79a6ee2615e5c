"""What the noise of a partition's streams is derived from."""

from __future__ import annotations

from collections.abc import KeysView, Sequence

import numpy as np
import numpy.typing as npt

from schemas import FIRST_VERSION
from stream.noise import NoiseKey, Role, stream_subkey


class StreamKeys:
    """Each stream's noise key, incarnation and digest, by slot.

    ``keyless`` has the missing noise key's name of each stream that lacks its key: such a stream is refused by the processor
    and never draws. ``incarnations`` is the hosted streams' own list.
    """

    def __init__(self, key: NoiseKey, incarnations: Sequence[str]) -> None:
        self.keyless: dict[int, str] = {}
        self._key = key
        self._incarnations = incarnations
        self._digests: list[bytes] = []
        self._key_of: list[NoiseKey] = []
        self._versions: dict[int, bytes] = {}
        self._found: dict[str, NoiseKey | None] = {}

    def add(self) -> None:
        """Make room for one more stream."""
        self._digests.append(b"")
        self._key_of.append(self._key)

    def begin(self, slot: int, digest: str, key_id: str) -> None:
        """Take a stream's digest and the name of its noise key."""
        self._digests[slot] = bytes.fromhex(digest)
        self._versions.pop(slot, None)
        if key_id not in self._found:
            self._found[key_id] = self._key.find(key_id)
        if (key := self._found[key_id]) is None:
            self.keyless[slot] = key_id
            self._key_of[slot] = self._key
        else:
            self.keyless.pop(slot, None)
            self._key_of[slot] = key

    def renew(self, slot: int, version: int) -> None:
        """Draw the noise of questions for another version of the data.

        A question that is answered once more from other data, its first answer having never been committed, must not meet the
        same noise: the two together would tell how the data differ.
        """
        self._versions[slot] = version.to_bytes(8, "big") if version > FIRST_VERSION else b""

    def subkey(self, slot: int, role: Role) -> bytes:
        """The key that a stream's noise in one role is derived from; the threshold's is that of all versions."""
        version = b"" if role is Role.THRESHOLD else self._versions.get(slot, b"")
        return stream_subkey(
            self._key_of[slot],
            incarnation=self._incarnations[slot],
            definition=self._digests[slot] + version,
            role=role,
        )

    @property
    def renewed(self) -> KeysView[int]:
        """The streams that answer from a later version of their data than the first."""
        return self._versions.keys()

    def others(self) -> npt.NDArray[np.bool_]:
        """Which streams have another key than the one that new streams get."""
        own = self._key
        return np.fromiter((key is not own for key in self._key_of), dtype=np.bool_, count=len(self._key_of))
