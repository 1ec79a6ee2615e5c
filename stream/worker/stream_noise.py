"""Noise keys, incarnations and digests of a partition's streams."""

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

    ``keyless`` has, by slot, the id of the key that a stream needs and this worker lacks; such a
    stream never draws.
    """

    def __init__(self, key: NoiseKey, columns: StreamColumns) -> None:
        """Keep the incarnations in ``columns``."""
        self.keyless: dict[int, str] = {}
        self._keys = (key, *key.older)
        self._numbers = {one.key_id: number for number, one in enumerate(self._keys)}
        self._columns = columns
        self._digests = np.zeros((_ROOM_AT_FIRST, _DIGEST_BYTES), dtype=np.uint8)
        self._key_of = np.zeros(_ROOM_AT_FIRST, dtype=np.uint8)
        self._count = 0
        self._versions: dict[int, bytes] = {}

    def begin(self, fresh: Mapping[int, Definition], count: int) -> None:
        """Store the incarnations, digests and key names of new streams among ``count`` slots."""
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
        """Return the incarnations of streams as text."""
        return self._columns.texts("incarnation", slots)

    def renew(self, slot: int, version: int) -> None:
        """Derive the noise of a stream's questions for another version of its table.

        A question whose first answer was not committed may be answered again from other data. It must
        not get the same noise: the two answers together would reveal how the data differ.
        """
        self._versions[slot] = version.to_bytes(8, "big") if version > FIRST_VERSION else b""

    def subkey(self, slot: int, role: DrawRole) -> bytes:
        """Return a stream's subkey for one role; the threshold's is the same in all versions."""
        version = b"" if role is DrawRole.THRESHOLD else self._versions.get(slot, b"")
        return stream_subkey(
            self._keys[self._key_of[slot]],
            incarnation=self._columns.incarnation[slot].tobytes().decode(),
            definition=self._digests[slot].tobytes() + version,
            role=role,
        )

    def subkeys(self, slots: npt.NDArray[np.intp], role: DrawRole) -> npt.NDArray[np.uint8]:
        """Return the subkeys of many streams, one row each."""
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
            found[members] = np.frombuffer(derived.concatenated(), dtype=np.uint8).reshape(-1, SUBKEY_BYTES)
        if self._versions:
            for place, slot in enumerate(slots.tolist()):
                if slot in self._versions:
                    found[place] = np.frombuffer(self.subkey(slot, role), dtype=np.uint8)
        return found

    @property
    def renewed(self) -> KeysView[int]:
        """Slots of the streams whose table was refreshed."""
        return self._versions.keys()

    def others(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the streams that use an older noise key than new streams do."""
        others: npt.NDArray[np.bool_] = self._key_of[: self._count] != 0
        return others
