"""The streams that one partition hosts, in columns.

A million idle streams must fit one worker and a batch over thousands of them must be answered with whole-array
operations; hence one numpy column per figure, and one shared ``Terms`` object for all streams of equal terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import StreamState
from stream.noise import NoiseKey, Role, round_words, stream_subkey
from stream.processors.exhaustion import exhausted_reason
from stream.processors.queries.definitions import Definition
from stream.processors.queries.terms import Terms, TermsTable

STATES: tuple[StreamState, ...] = ("open", "exhausted", "halted", "closed")
OPEN, EXHAUSTED, HALTED, CLOSED = range(4)
_STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}

UNLIMITED = 1 << 62
"""Stands for the charged answers left where one charge pays for all."""

_COLUMNS: dict[str, Any] = {
    "terms_of": np.int32,
    "state": np.uint8,
    "fresh": np.bool_,
    "refused": np.bool_,
    "changed": np.bool_,
    "ready": np.bool_,
    "threshold": np.int64,
    "barrier": np.int64,
    "tops": np.int64,
    "tops_left": np.int64,
    "answered": np.int64,
    "last_offset": np.int64,
    "written_at": np.int64,
    "due": np.int64,
}


class HostedStreams:
    """Slots, one per stream, and their columns.

    ``names[slot]`` is the stream of a slot, ``kinds[slot]`` its mechanism's kind, and ``plain[slot]`` says that it is a
    sparse vector over trusted values. ``keyless`` has the missing noise key's name of each stream that lacks its key. The columns ``fresh``, ``threshold``, ``barrier`` and ``ready`` are those of a
    sparse vector.
    """

    terms_of: npt.NDArray[np.int32]
    state: npt.NDArray[np.uint8]
    fresh: npt.NDArray[np.bool_]
    refused: npt.NDArray[np.bool_]
    changed: npt.NDArray[np.bool_]
    ready: npt.NDArray[np.bool_]
    threshold: npt.NDArray[np.int64]
    barrier: npt.NDArray[np.int64]
    tops: npt.NDArray[np.int64]
    tops_left: npt.NDArray[np.int64]
    answered: npt.NDArray[np.int64]
    last_offset: npt.NDArray[np.int64]
    written_at: npt.NDArray[np.int64]
    due: npt.NDArray[np.int64]

    def __init__(self, key: NoiseKey) -> None:
        self._key = key
        self.slots: dict[str, int] = {}
        self.names: list[str] = []
        self.keys: list[bytes] = []
        self.incarnations: list[str] = []
        self.digests: list[bytes] = []
        self._key_of: list[NoiseKey] = []
        self.kinds: list[str] = []
        self.plain: list[bool] = []
        self.query_keys: list[bytes] = []
        self.reasons: dict[int, str] = {}
        self.terms_table = TermsTable()
        self.terms: list[Terms] = self.terms_table.all
        self.keyless: dict[int, str] = {}
        self._keys: dict[str, NoiseKey | None] = {}
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(64, dtype=kind))

    def __len__(self) -> int:
        return len(self.names)

    def terms_at(self, slot: int) -> Terms:
        """The terms of a slot's stream."""
        return self.terms[int(self.terms_of[slot])]

    def host(self, definitions: Sequence[Definition]) -> list[int]:
        """Take in streams' definitions and give their slots; an unchanged incarnation keeps its figures.

        A new incarnation starts afresh. Of several definitions of one stream the last counts.
        """
        slots = []
        fresh: dict[int, Definition] = {}
        for definition in definitions:
            slot = self.slots.get(definition.stream)
            if slot is None:
                slot = self._new_slot(definition.stream)
            if self.incarnations[slot] != definition.incarnation:
                self.incarnations[slot] = definition.incarnation
                fresh[slot] = definition
            slots.append(slot)
        if fresh:
            self._begin(fresh)
        return slots

    def _begin(self, fresh: dict[int, Definition]) -> None:
        """Start streams as their definitions have them."""
        for slot, definition in fresh.items():
            self._key_of[slot] = self._find_key(slot, definition.key_id)
            self.digests[slot] = bytes.fromhex(definition.digest)
            terms = self.terms[definition.terms]
            self.kinds[slot] = terms.mechanism.kind
            self.plain[slot] = terms.is_sparse_vector and terms.source.kind == "values"
            self.reasons.pop(slot, None)
        slots = np.fromiter(fresh, dtype=np.intp, count=len(fresh))
        terms_of = np.array([definition.terms for definition in fresh.values()], dtype=np.int32)
        thresholds = np.array([definition.threshold for definition in fresh.values()])
        self._grow()
        self.terms_of[slots] = terms_of
        self.state[slots] = OPEN
        self.refused[slots] = False
        self.answered[slots] = 0
        self.last_offset[slots] = -1
        self.tops[slots] = 0
        self.ready[slots] = False
        order = np.argsort(terms_of, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(terms_of[order])) + 1):
            terms, own = self.terms[terms_of[members[0]]], slots[members]
            self.tops_left[own] = terms.calibration.cutoff or UNLIMITED
            if terms.is_sparse_vector:
                self.fresh[own] = terms.sparse_vector.fresh_threshold
                self.threshold[own] = terms.grid.public(thresholds[members])

    def _find_key(self, slot: int, key_id: str) -> NoiseKey:
        """The stream's noise key; a stream whose key is missing is refused by the processor and never draws."""
        if key_id not in self._keys:
            self._keys[key_id] = self._key.find(key_id)
        if (key := self._keys[key_id]) is None:
            self.keyless[slot] = key_id
            return self._key
        self.keyless.pop(slot, None)
        return key

    def advance(self, slots: npt.NDArray[np.intp], tops: npt.NDArray[np.int64]) -> None:
        """Count further ⊤s; a stream that draws its threshold anew enters another round."""
        self.tops[slots] += tops
        self.tops_left[slots] -= tops
        self.ready[slots[self.fresh[slots] & (tops > 0)]] = False

    def prepare(self, slots: npt.NDArray[np.intp]) -> None:
        """Derive what the streams need to answer: their query keys and the barrier of the round under way.

        Left until a stream's first query, so that a restore of many streams is not held up by idle ones.
        """
        waiting = slots[~self.ready[slots]].tolist()
        if not waiting:
            return
        for slot in waiting:
            self.query_keys[slot] = self.subkey(slot, Role.QUERY)
        self.barrier[waiting] = self._barriers(waiting, self.tops[waiting].tolist())
        self.ready[waiting] = True

    def barrier_of_round(self, slot: int, tops: int) -> int:
        """ρ + s of the round that follows so many ⊤s; the same round for ever where ρ is drawn once."""
        return int(self._barriers([slot], [tops])[0])

    def _barriers(self, slots: list[int], tops: list[int]) -> npt.NDArray[np.int64]:
        """ρ + s of many streams, all draws of one law at once."""
        barriers = np.empty(len(slots), dtype=np.int64)
        by_terms: dict[int, list[int]] = {}
        for place, slot in enumerate(slots):
            by_terms.setdefault(int(self.terms_of[slot]), []).append(place)
        for index, places in by_terms.items():
            terms = self.terms[index]
            fresh = terms.sparse_vector.fresh_threshold
            subkeys = [self.subkey(slots[place], Role.THRESHOLD) for place in places]
            rounds = [tops[place] if fresh else 0 for place in places]
            words, low = round_words(subkeys, rounds, terms.threshold_noise.words)
            barriers[places] = terms.threshold_noise.draw(words, low) + terms.sparse_vector.shift
        return barriers

    def resume(self, checkpoints: Sequence[tuple[int, Any, int]]) -> None:
        """Take streams' figures from the changelog: slot, checkpoint of its incarnation, and when it was written."""
        if not checkpoints:
            return
        slots = np.array([slot for slot, _, _ in checkpoints], dtype=np.intp)
        self.written_at[slots] = [written_at for _, _, written_at in checkpoints]
        kept = [checkpoint for _, checkpoint, _ in checkpoints]
        self.state[slots] = [_STATE_NUMBERS[checkpoint.state] for checkpoint in kept]
        self.answered[slots] = [checkpoint.answered for checkpoint in kept]
        self.last_offset[slots] = [checkpoint.offset for checkpoint in kept]
        self.due[slots] = [checkpoint.due for checkpoint in kept]
        tops = np.array([checkpoint.tops for checkpoint in kept], dtype=np.int64)
        # Shown and left add up to the cutoff.
        left = self.tops_left[slots]
        self.tops_left[slots] = np.where(left == UNLIMITED, left, left + self.tops[slots] - tops)
        self.tops[slots] = tops
        self.ready[slots] = False
        for slot, checkpoint, _ in checkpoints:
            if checkpoint.reason is not None:
                self.reasons[slot] = checkpoint.reason

    def resumed(self, recent: int) -> None:
        """Mark the streams changed whose figures were written in the last ``recent`` milliseconds before the crash.

        Records without a time may be as new as any.
        """
        hosted = slice(len(self))
        answered, written_at = self.last_offset[hosted] >= 0, self.written_at[hosted]
        newest = written_at.max(initial=0)
        self.changed[hosted] |= answered & ((written_at >= newest - recent) | (written_at < 0))

    def show_fit(self, over_tables: npt.NDArray[np.bool_]) -> None:
        """Mark the open streams changed that the last worker may have refused: by table, of which ``over_tables`` tells,
        or by noise key.
        """
        hosted = slice(len(self))
        other_key = np.fromiter((key is not self._key for key in self._key_of), dtype=np.bool_, count=len(self))
        self.changed[hosted] |= (self.state[hosted] == OPEN) & (other_key | over_tables[self.terms_of[hosted]])

    def end(self, slot: int, state: int, reason: str) -> None:
        """Move a stream to a final state."""
        self.state[slot] = state
        self.reasons[slot] = reason
        self.changed[slot] = True

    def refuse(self, slot: int, reason: str) -> None:
        """Stop answering here and now, without a checkpoint: another worker may be fit to answer. The next digest says so."""
        self.refused[slot] = True
        self.changed[slot] = True
        self.reasons[slot] = reason

    def reason(self, slot: int) -> str:
        """Why a stream does not answer."""
        if (reason := self.reasons.get(slot)) is not None:
            return reason
        return exhausted_reason(self.terms_at(slot).calibration)

    def ends_at_cutoff(self, slot: int) -> bool:
        """Whether a stream is over when its last charged answer is out."""
        return getattr(self.terms_at(slot).mechanism, "beyond", "end") == "end"

    def shown_left(self, slot: int) -> int | None:
        """How many charged answers a stream may still give; None where one charge pays for all."""
        left = int(self.tops_left[slot])
        return None if left > UNLIMITED // 2 else left

    def spent(self, slot: int) -> Any:
        """A stream's realised cost so far, as the wire shows it."""
        return self.terms_at(slot).spent(int(self.answered[slot]), int(self.tops[slot]))

    def figures(self) -> dict[str, tuple[str, int, int, int, int | None, str]]:
        """Every stream's persistent figures, for comparing a restored state with a live one."""
        return {
            name: (
                STATES[self.state[slot]],
                int(self.answered[slot]),
                int(self.tops[slot]),
                int(self.last_offset[slot]),
                self._barrier_or_none(slot),
                self.incarnations[slot],
            )
            for name, slot in self.slots.items()
        }

    def _barrier_or_none(self, slot: int) -> int | None:
        if self.terms_at(slot).calibration.kind not in {"sparse_vector", "hypothesis", "estimate"}:
            return None
        return self.barrier_of_round(slot, int(self.tops[slot]))

    def _new_slot(self, name: str) -> int:
        slot = len(self.names)
        self.slots[name] = slot
        self.names.append(name)
        self.keys.append(name.encode())
        self.incarnations.append("")
        self.digests.append(b"")
        self._key_of.append(self._key)
        self.kinds.append("")
        self.plain.append(False)
        self.query_keys.append(b"")
        return slot

    def _grow(self) -> None:
        """Make room in the columns for all slots."""
        size = len(self.state)
        while size < len(self):
            size *= 2
        for column in _COLUMNS if size > len(self.state) else ():
            values = getattr(self, column)
            grown = np.zeros(size, dtype=values.dtype)
            grown[: len(values)] = values
            setattr(self, column, grown)

    def subkey(self, slot: int, role: Role) -> bytes:
        """The key that a stream's noise in one role is derived from."""
        return stream_subkey(
            self._key_of[slot],
            incarnation=self.incarnations[slot],
            definition=self.digests[slot],
            role=role,
        )
