"""What the noise of a partition's streams is derived from."""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from schemas import FIRST_VERSION
from stream.kernel import Spans, rows_of, with_room
from stream.privacy.noise import SUBKEY_BYTES, DrawRole, NoiseKey, stream_subkey, stream_subkeys
from stream.worker.stream_columns import StreamColumns
from stream.worker.stream_definitions import Definition

_DIGEST_BYTES: Final = 32
_ROOM_AT_FIRST: Final = 64


class StreamKeys:
    """Each stream's noise key, incarnation and digest, by slot.

    ``keyless`` has the missing noise key's name of each stream that lacks its key: such a stream is refused by the processor
    and never draws.
    """

    def __init__(self, key: NoiseKey, columns: StreamColumns) -> None:
        """Take the columns of which these keep the incarnations."""
        self.keyless: dict[int, str] = {}
        self._keys = (key, *key.older)
        self._numbers = {one.key_id: number for number, one in enumerate(self._keys)}
        self._columns = columns
        self._digests = np.zeros((_ROOM_AT_FIRST, _DIGEST_BYTES), dtype=np.uint8)
        self._key_of = np.zeros(_ROOM_AT_FIRST, dtype=np.uint8)
        self._count = 0
        self._versions: dict[int, bytes] = {}

    def begin(self, fresh: Mapping[int, Definition], count: int) -> None:
        """Take the incarnations and digests of streams by slot, and the names of their noise keys; there are so many slots."""
        self._count = count
        self._digests = with_room(self._digests, count)
        self._key_of = with_room(self._key_of, count)
        slots = np.fromiter(fresh, dtype=np.intp, count=len(fresh))
        incarnations = "".join([one.incarnation for one in fresh.values()]).encode()
        digests = bytes.fromhex("".join([one.digest for one in fresh.values()]))
        self._columns.incarnation[slots] = np.frombuffer(incarnations, dtype=np.uint8).reshape(len(slots), -1)
        self._digests[slots] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
        self._key_of[slots] = [self._numbers.get(one.key_id, 0) for one in fresh.values()]
        for slot, one in fresh.items():
            self._versions.pop(slot, None)
            if one.key_id in self._numbers:
                self.keyless.pop(slot, None)
            else:
                self.keyless[slot] = one.key_id

    def incarnations(self, slots: npt.NDArray[np.intp]) -> Spans:
        """The incarnations of streams, as they are written."""
        return self._columns.texts("incarnation", slots)

    def renew(self, slot: int, version: int) -> None:
        """Draw the noise of questions for another version of the data.

        A question that is answered once more from other data, its first answer having never been committed, must not meet the
        same noise: the two together would tell how the data differ.
        """
        self._versions[slot] = version.to_bytes(8, "big") if version > FIRST_VERSION else b""

    def subkey(self, slot: int, role: DrawRole) -> bytes:
        """The key that a stream's noise in one role is derived from; the threshold's is that of all versions."""
        version = b"" if role is DrawRole.THRESHOLD else self._versions.get(slot, b"")
        return stream_subkey(
            self._keys[self._key_of[slot]],
            incarnation=self._columns.incarnation[slot].tobytes().decode(),
            definition=self._digests[slot].tobytes() + version,
            role=role,
        )

    def subkeys(self, slots: npt.NDArray[np.intp], role: DrawRole) -> npt.NDArray[np.uint8]:
        """The same of many streams, a row for each."""
        found = np.empty((len(slots), SUBKEY_BYTES), dtype=np.uint8)
        key_of = self._key_of[slots]
        for number in np.unique(key_of).tolist():
            members = np.flatnonzero(key_of == number)
            derived = stream_subkeys(
                self._keys[number],
                incarnations=self.incarnations(slots[members]),
                definitions=rows_of(self._digests, slots[members]),
                role=role,
            )
            found[members] = np.frombuffer(derived.one_behind_another(), dtype=np.uint8).reshape(-1, SUBKEY_BYTES)
        if self._versions:
            for place, slot in enumerate(slots.tolist()):
                if slot in self._versions:
                    found[place] = np.frombuffer(self.subkey(slot, role), dtype=np.uint8)
        return found

    @property
    def renewed(self) -> KeysView[int]:
        """The streams that answer from a later version of their data than the first."""
        return self._versions.keys()

    def others(self) -> npt.NDArray[np.bool_]:
        """Which streams have another key than the one that new streams get."""
        others: npt.NDArray[np.bool_] = self._key_of[: self._count] != 0
        return others
