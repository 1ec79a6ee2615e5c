"""The streams that one partition hosts, in columns.

A million idle streams must fit one worker and a batch over thousands of them must be answered with whole-array
operations; hence one numpy column per figure, and one shared ``Terms`` object for all streams of equal terms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import Amount, Calibration, Checkpoint, Control, Source, StreamState
from schemas.wire import struct
from stream.accounting.costs import realised_cost, to_amount
from stream.mechanisms.above_threshold import query_sampler, threshold_sampler
from stream.mechanisms.grid import to_steps
from stream.noise import NoiseKey, Role, Sampler, round_words, stream_subkey

STATES: tuple[StreamState, ...] = ("open", "exhausted", "halted", "closed")
OPEN, EXHAUSTED, HALTED, CLOSED = range(4)

WireAmount: Any = struct(Amount)

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
}


@dataclass(slots=True, eq=False)
class Terms:
    """Everything that streams of equal spec, source and calibration share."""

    source: Source
    calibration: Calibration
    fingerprint: str | None
    threshold_noise: Sampler
    query_noise: Sampler
    _amounts: dict[tuple[bool, int], Any] = field(default_factory=dict)

    def spent(self, answered: int, tops: int) -> Any:
        """The realised cost after so many answers and ⊤s, as the wire shows it."""
        key = (answered > 0, tops)
        if (amount := self._amounts.get(key)) is None:
            cost = realised_cost(self.calibration, self.source.accountant, answered, tops)
            shown = to_amount(cost, self.source)
            amount = WireAmount(shown.epsilon, shown.delta, shown.rho)
            self._amounts[key] = amount
        return amount


class HostedStreams:
    """Slots, one per stream, and their columns. ``names[slot]`` is the stream of a slot."""

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

    def __init__(self, key: NoiseKey) -> None:
        self._key = key
        self.slots: dict[str, int] = {}
        self.names: list[str] = []
        self.keys: list[bytes] = []
        self.incarnations: list[str] = []
        self.digests: list[bytes] = []
        self.over_values: list[bool] = []
        self.query_keys: list[bytes] = []
        self.reasons: dict[int, str] = {}
        self.terms: list[Terms] = []
        self._terms_index: dict[tuple[str, Calibration, str | None], int] = {}
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(64, dtype=kind))

    def __len__(self) -> int:
        return len(self.names)

    def terms_at(self, slot: int) -> Terms:
        """The terms of a slot's stream."""
        return self.terms[int(self.terms_of[slot])]

    def host(self, definition: Control) -> int:
        """Take in a stream's definition; an unchanged incarnation keeps its figures, a new one starts afresh."""
        name = definition.spec.stream
        slot = self.slots.get(name)
        if slot is not None and self.incarnations[slot] == definition.identity.incarnation:
            return slot
        if slot is None:
            slot = self._new_slot(name)
        self.incarnations[slot] = definition.identity.incarnation
        self.digests[slot] = bytes.fromhex(definition.identity.digest)
        self.over_values[slot] = definition.source.kind == "values"
        self.reasons.pop(slot, None)
        calibration = definition.calibration
        self.terms_of[slot] = self._index_of_terms(definition)
        self.state[slot] = OPEN
        self.refused[slot] = False
        self.fresh[slot] = calibration.fresh_threshold
        self.threshold[slot] = to_steps(definition.spec.mechanism.threshold, calibration.grid)
        self.answered[slot] = 0
        self.last_offset[slot] = -1
        self.set_tops(slot, 0)
        return slot

    def set_tops(self, slot: int, tops: int) -> None:
        """Fix how many ⊤s are out."""
        self.tops[slot] = tops
        self.tops_left[slot] = self.terms_at(slot).calibration.cutoff - tops
        self.ready[slot] = False

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
            self.query_keys[slot] = self._subkey(slot, Role.QUERY)
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
            fresh = terms.calibration.fresh_threshold
            subkeys = [self._subkey(slots[place], Role.THRESHOLD) for place in places]
            rounds = [tops[place] if fresh else 0 for place in places]
            words, low = round_words(subkeys, rounds, terms.threshold_noise.words)
            barriers[places] = terms.threshold_noise.draw(words, low) + terms.calibration.shift
        return barriers

    def resume(self, name: str, checkpoint: Checkpoint, written_at: int) -> None:
        """Take a stream's figures from the changelog; those of another incarnation are not its own."""
        slot = self.slots.get(name)
        if slot is None or self.incarnations[slot] != checkpoint.incarnation:
            return
        self.state[slot] = STATES.index(checkpoint.state)
        self.answered[slot] = checkpoint.answered
        self.last_offset[slot] = checkpoint.offset
        self.written_at[slot] = written_at
        self.set_tops(slot, checkpoint.tops)
        if checkpoint.reason is not None:
            self.reasons[slot] = checkpoint.reason

    def resumed(self, recent: int) -> None:
        """Mark the streams changed whose figures were written in the last ``recent`` milliseconds before the crash."""
        hosted = slice(len(self))
        answered = self.last_offset[hosted] >= 0
        newest = self.written_at[hosted].max(initial=0)
        self.changed[hosted] |= answered & (self.written_at[hosted] >= newest - recent)

    def end(self, slot: int, state: int, reason: str) -> None:
        """Move a stream to a final state."""
        self.state[slot] = state
        self.reasons[slot] = reason
        self.changed[slot] = True

    def refuse(self, slot: int, reason: str) -> None:
        """Stop answering here and now, without a record: another worker may be fit to answer."""
        self.refused[slot] = True
        self.reasons[slot] = reason

    def reason(self, slot: int) -> str:
        """Why a stream does not answer."""
        if (reason := self.reasons.get(slot)) is not None:
            return reason
        return f"exhausted: all {self.terms_at(slot).calibration.cutoff} ⊤s of the cutoff are out"

    def spent(self, slot: int) -> Any:
        """A stream's realised cost so far, as the wire shows it."""
        return self.terms_at(slot).spent(int(self.answered[slot]), int(self.tops[slot]))

    def figures(self) -> dict[str, tuple[str, int, int, int, int, str]]:
        """Every stream's persistent figures, for comparing a restored state with a live one."""
        return {
            name: (
                STATES[self.state[slot]],
                int(self.answered[slot]),
                int(self.tops[slot]),
                int(self.last_offset[slot]),
                self.barrier_of_round(slot, int(self.tops[slot])),
                self.incarnations[slot],
            )
            for name, slot in self.slots.items()
        }

    def _new_slot(self, name: str) -> int:
        slot = len(self.names)
        if slot == len(self.state):
            for column in _COLUMNS:
                values = getattr(self, column)
                setattr(self, column, np.concatenate([values, np.zeros_like(values)]))
        self.slots[name] = slot
        self.names.append(name)
        self.keys.append(name.encode())
        self.incarnations.append("")
        self.digests.append(b"")
        self.over_values.append(False)
        self.query_keys.append(b"")
        return slot

    def _index_of_terms(self, definition: Control) -> int:
        key = (definition.source.model_dump_json(), definition.calibration, definition.fingerprint)
        if (index := self._terms_index.get(key)) is None:
            index = len(self.terms)
            self.terms.append(
                Terms(
                    source=definition.source,
                    calibration=definition.calibration,
                    fingerprint=definition.fingerprint,
                    threshold_noise=threshold_sampler(definition.calibration),
                    query_noise=query_sampler(definition.calibration),
                ),
            )
            self._terms_index[key] = index
        return index

    def _subkey(self, slot: int, role: Role) -> bytes:
        return stream_subkey(
            self._key,
            incarnation=self.incarnations[slot],
            definition=self.digests[slot],
            role=role,
        )
