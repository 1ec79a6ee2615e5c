"""States, counters, limits and noise keys of streams: arrays with one entry for each slot."""

from __future__ import annotations

from collections.abc import KeysView, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Self, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from schemas import FIRST_VERSION
from stream.kernel.byte_columns import LINE_BYTES, RowLayout, Spans, empty_rows, grow_to, mapped_zeros, rows_of
from stream.privacy.noise.keyed_noise import SUBKEY_BYTES, DrawRole, stream_subkey, stream_subkeys
from stream.privacy.noise.keys import NoiseKey
from stream.worker.stream_records import StreamDefinition

NO_CUTOFF: Final = 1 << 62
"""The cutoff of a stream whose first charge pays for all answers."""

_INITIAL_CAPACITY: Final = 64


class SlotArrays:
    """Arrays of equal length, one for each annotation of a subclass, initially zero.

    The entries of a slot are adjacent in memory, so that they share cache lines. The arrays named in
    ``SEPARATE_ARRAYS`` are stored separately, because they are rarely read, or are scanned as a whole.
    ``grow`` replaces all arrays, so callers must not keep references to them.
    """

    SEPARATE_ARRAYS: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        kinds = _entry_types(type(self))  # type: ignore[arg-type]  # classes are hashable
        self._separate = {name: kind for name, kind in kinds.items() if name in self.SEPARATE_ARRAYS}
        self._record = _adjacent_layout(type(self))  # type: ignore[arg-type]
        self._layout = RowLayout(self._record)
        self._gathered_names = [name for name in self._record.names or () if not kinds[name].shape]
        self._capacity = 0
        self.rows: npt.NDArray[np.uint8] = np.zeros((0, self._record.itemsize), dtype=np.uint8)
        self.grow(_INITIAL_CAPACITY)

    def grow(self, count: int) -> None:
        """Make room for ``count`` slots."""
        if count <= self._capacity:
            return
        before, self._capacity = self._capacity, max(self._capacity, _INITIAL_CAPACITY)
        while self._capacity < count:
            self._capacity *= 2
        rows = empty_rows(self._capacity, self._record.itemsize)
        rows[:before] = self.rows
        self.rows, records = rows, rows.view(self._record)[:, 0]
        for name in self._record.names or ():
            setattr(self, name, records[name])
        for name, kind in self._separate.items():
            grown = mapped_zeros((self._capacity,), kind)
            grown[:before] = getattr(self, name, grown)[:before]
            setattr(self, name, grown)

    def clear_slot(self, slot: int) -> None:
        """Set all entries of a slot to zero."""
        self.rows[slot] = 0
        for name in self._separate:
            getattr(self, name)[slot] = 0

    def gather(self, slots: npt.NDArray[np.intp]) -> Self:
        """Gather the entries of some slots, except ``SEPARATE_ARRAYS`` and arrays of bytes."""
        found = object.__new__(type(self))
        arrays = self._layout.gather(self.rows, self._gathered_names, np.ascontiguousarray(slots, dtype=np.int64))
        for name, array in zip(self._gathered_names, arrays, strict=True):
            setattr(found, name, array)
        return found

    def write_entries(
        self, slots: npt.NDArray[np.intp], before: Self, entries: Mapping[str, npt.NDArray[Any]]
    ) -> Self:
        """Write entries of distinct slots.

        ``before`` was gathered for these slots; return a copy with the new entries.
        """
        self._layout.scatter(self.rows, entries, np.ascontiguousarray(slots, dtype=np.int64))
        found = object.__new__(type(self))
        found.__dict__.update(before.__dict__)
        for name, array in entries.items():
            setattr(found, name, array)
        return found

    def byte_spans(self, name: str, slots: npt.NDArray[np.intp]) -> Spans:
        """Return the entries of some slots in an array of bytes."""
        kind, offset = self._layout.field_of(name)
        at = slots * self._layout.size + offset
        return Spans(self.rows.reshape(-1), at, np.full(len(slots), kind.itemsize, dtype=np.int32))


class StreamColumns(SlotArrays):
    """The entries of a partition's streams.

    - ``cutoff``: number of ordinary charged answers that the grant pays for.
    - ``tops``: number of charged answers so far; ``surplus``: their cost beyond one ordinary charge
      each, in parts of a charge (0 for sparse vectors).
    - ``threshold``: the threshold of a sparse vector; ``is_plain``: True for a sparse vector over values in
      queries.
    - ``start_number``: a new number at the opening, and for each later version of the table; 0 for a slot
      without a stream.
    - ``terms_of``: index of the stream's terms in ``HostedStreams.terms``.
    - ``refused``: True if this worker cannot answer, for example because it lacks the noise key or the table.
    - ``status_changed``: True if the next status record must contain the stream.
    - ``written_at``: time of the checkpoint that was restored, in ms; 0 if there was none.
    - ``due``: value of ``Shares.served`` at which the stream's admitted work is done.
    - ``name_at``, ``name_size``: position of the name among all names.
    """

    SEPARATE_ARRAYS = frozenset({"status_changed", "is_plain", "threshold", "written_at"})

    name_at: npt.NDArray[np.int64]
    name_size: npt.NDArray[np.int32]
    incarnation: Annotated[npt.NDArray[np.uint8], 32]
    terms_of: npt.NDArray[np.int32]
    start_number: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.float64]
    is_plain: npt.NDArray[np.bool_]
    cutoff: npt.NDArray[np.int64]
    state: npt.NDArray[np.uint8]
    refused: npt.NDArray[np.bool_]
    status_changed: npt.NDArray[np.bool_]
    tops: npt.NDArray[np.int64]
    surplus: npt.NDArray[np.int64]
    answered: npt.NDArray[np.int64]
    last_offset: npt.NDArray[np.int64]
    written_at: npt.NDArray[np.int64]
    due: npt.NDArray[np.int64]

    @property
    def tops_left(self) -> npt.NDArray[np.int64]:
        """Number of charged answers that each stream may still give."""
        left: npt.NDArray[np.int64] = self.cutoff - self.tops
        return left


@cache
def _entry_types(kind: type[SlotArrays]) -> dict[str, np.dtype[Any]]:
    """Return the entry type of each annotated array; cached, because this is slower than making the arrays."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _entry_type(array) for name, array in hints.items() if name != "SEPARATE_ARRAYS"}


def _entry_type(annotation: Any) -> np.dtype[Any]:
    """Return the entry type of ``npt.NDArray[...]``; ``Annotated`` gives the entry's length.

    The entry's type is the innermost type; the nesting of the outer types differs between versions of numpy.
    """
    kind, *width = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    while parts := get_args(kind):
        kind = parts[-1]
    return np.dtype((kind, tuple(width))) if width else np.dtype(kind)


@cache
def _adjacent_layout(kind: type[SlotArrays]) -> np.dtype[Any]:
    """Lay out the adjacent entries, widest first, padded to whole cache lines."""
    entries = _entry_types(kind)  # type: ignore[arg-type]
    kinds = {name: entry for name, entry in entries.items() if name not in kind.SEPARATE_ARRAYS}
    names = sorted(kinds, key=lambda name: -kinds[name].alignment)
    packed = np.dtype([(name, kinds[name]) for name in names])
    layout = RowLayout(packed)
    offsets = [layout.field_of(name)[1] for name in names]
    size = -(-packed.itemsize // LINE_BYTES) * LINE_BYTES
    formats = [kinds[name] for name in names]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


RowIndices = npt.NDArray[np.intp]


def group_equal_rows(count: int, columns: Sequence[npt.NDArray[Any]]) -> tuple[RowIndices, RowIndices]:
    """Group equal rows; return the index of each group's first row, and each row's group."""
    group = np.zeros(count, dtype=np.intp)
    found = min(count, 1)
    for column in columns:
        if count and (column == column[0]).all():
            continue
        _, number = np.unique(column, return_inverse=True)
        _, group = np.unique(group * count + number, return_inverse=True)
        found = int(group.max(initial=-1)) + 1
    first = np.zeros(found, dtype=np.intp)
    first[group[::-1]] = np.arange(count - 1, -1, -1)
    return first, group


_DIGEST_BYTES: Final = 32


class StreamKeys:
    """Each stream's noise key, incarnation and digest, by slot.

    ``missing_keys`` has, by slot, the id of the key that a stream needs but this worker does not have. No
    noise is drawn for such a stream.
    """

    def __init__(self, key: NoiseKey, columns: StreamColumns) -> None:
        """Keep the incarnations in ``columns``."""
        self.missing_keys: dict[int, str] = {}
        self._keys = (key, *key.older)
        self._key_indices = {one.key_id: index for index, one in enumerate(self._keys)}
        self._columns = columns
        self._digests = np.zeros((_INITIAL_CAPACITY, _DIGEST_BYTES), dtype=np.uint8)
        self._key_of = np.zeros(_INITIAL_CAPACITY, dtype=np.uint8)
        self._count = 0
        self._version_suffixes: dict[int, bytes] = {}

    def add_streams(self, definitions: Mapping[int, StreamDefinition], count: int) -> None:
        """Store the incarnations, digests and noise keys of new streams; ``count`` is the number of all slots."""
        self._count = count
        self._digests = grow_to(self._digests, count)
        self._key_of = grow_to(self._key_of, count)
        slots = np.fromiter(definitions, dtype=np.intp, count=len(definitions))
        incarnations = "".join([one.incarnation for one in definitions.values()]).encode()
        digests = bytes.fromhex("".join([one.digest for one in definitions.values()]))
        self._columns.incarnation[slots] = np.frombuffer(incarnations, dtype=np.uint8).reshape(len(slots), -1)
        self._digests[slots] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
        self._key_of[slots] = [self._key_indices.get(one.key_id, 0) for one in definitions.values()]
        for slot, one in definitions.items():
            self._version_suffixes.pop(slot, None)
            if one.key_id in self._key_indices:
                self.missing_keys.pop(slot, None)
            else:
                self.missing_keys[slot] = one.key_id

    def remove_stream(self, slot: int) -> None:
        """Forget the entries of a stream that are not in columns."""
        self.missing_keys.pop(slot, None)
        self._version_suffixes.pop(slot, None)

    def incarnations(self, slots: npt.NDArray[np.intp]) -> Spans:
        """Return the incarnations of streams as text."""
        return self._columns.byte_spans("incarnation", slots)

    def set_version(self, slot: int, version: int) -> None:
        """Derive the noise of a stream's questions for another version of its table.

        A question whose first answer was not committed may be answered again from other data. The second
        answer must have other noise, because two answers with the same noise would reveal how the data
        differ.
        """
        self._version_suffixes[slot] = version.to_bytes(8, "big") if version > FIRST_VERSION else b""

    def subkey(self, slot: int, role: DrawRole) -> bytes:
        """Return a stream's subkey for one role; the threshold's subkey is the same in all versions."""
        version = b"" if role is DrawRole.THRESHOLD else self._version_suffixes.get(slot, b"")
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
            found[members] = np.frombuffer(derived.joined_bytes(), dtype=np.uint8).reshape(-1, SUBKEY_BYTES)
        if self._version_suffixes:
            for place, slot in enumerate(slots.tolist()):
                if slot in self._version_suffixes:
                    found[place] = np.frombuffer(self.subkey(slot, role), dtype=np.uint8)
        return found

    @property
    def refreshed_slots(self) -> KeysView[int]:
        """Slots of the streams whose table was refreshed."""
        return self._version_suffixes.keys()

    def older_key_mask(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the streams that use an older noise key than new streams do."""
        others: npt.NDArray[np.bool_] = self._key_of[: self._count] != 0
        return others
