"""The streams of one partition, with their definitions, totals and states.

A million idle streams must fit in one worker, and a batch may have questions to thousands of streams. So
each total is a numpy column, in which a stream's *slot* is its index, and streams with equal terms share one
``StreamTerms``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas import FIRST_VERSION, STREAM_STATES, Extensions, TableSource
from stream.kernel.byte_columns import Spans
from stream.kernel.json_fields import SlotNames
from stream.privacy.composition.costs import PARTS_PER_CHARGE, charged_answers, ordinary_charges_left
from stream.privacy.ledger.ledger_records import exhausted_reason
from stream.privacy.ledger.state_machine import may_become
from stream.privacy.noise.keyed_noise import DrawRole
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import MODEL_NOT_ASKED_REASON
from stream.worker.stream_columns import NO_CUTOFF, StreamColumns, StreamKeys
from stream.worker.stream_records import RetiredStreamTable, StreamDefinition
from stream.worker.stream_terms import StreamTerms, TermsTable

OPEN, EXHAUSTED, HALTED, CLOSED = range(4)
_STATE_NUMBERS = {state: number for number, state in enumerate(STREAM_STATES)}


def answering_mask(gathered: StreamColumns) -> npt.NDArray[np.bool_]:
    """Return a mask of the streams that answer on this worker."""
    found: npt.NDArray[np.bool_] = (gathered.state == OPEN) & ~gathered.refused
    return found


class LifeCycle:
    """The states of a partition's streams, by slot.

    ``reasons`` has the reasons why streams have ended or are refused. ``last_turns`` has, for each standing
    stream, the place of its last answered question in the order of windows and groups.
    """

    def __init__(self, columns: StreamColumns) -> None:
        self.reasons: dict[int, str] = {}
        self.last_turns: dict[int, int] = {}
        self._columns = columns

    def open_streams(self, slots: npt.NDArray[np.intp]) -> None:
        """Open new streams."""
        columns = self._columns
        for slot in slots.tolist():
            self.reasons.pop(slot, None)
            self.last_turns.pop(slot, None)
        columns.state[slots] = OPEN
        columns.refused[slots] = False
        columns.answered[slots] = 0
        columns.last_offset[slots] = -1
        columns.tops[slots] = 0
        columns.surplus[slots] = 0

    def resume(self, checkpoints: Sequence[tuple[int, Any, int]]) -> None:
        """Restore totals; an entry has a slot, its checkpoint, and the checkpoint's time in ms."""
        if not checkpoints:
            return
        columns = self._columns
        slots = np.array([slot for slot, _, _ in checkpoints], dtype=np.intp)
        columns.written_at[slots] = [written_at for _, _, written_at in checkpoints]
        kept = [checkpoint for _, checkpoint, _ in checkpoints]
        columns.state[slots] = [_STATE_NUMBERS[checkpoint.state] for checkpoint in kept]
        columns.answered[slots] = [checkpoint.answered for checkpoint in kept]
        columns.last_offset[slots] = [checkpoint.offset for checkpoint in kept]
        columns.due[slots] = [checkpoint.due for checkpoint in kept]
        columns.tops[slots] = [checkpoint.tops for checkpoint in kept]
        columns.surplus[slots] = [checkpoint.surplus for checkpoint in kept]
        self.reopen_exhausted(slots)
        for slot, checkpoint, _ in checkpoints:
            if checkpoint.reason is not None:
                self.reasons[slot] = checkpoint.reason
            if checkpoint.turn:
                self.last_turns[slot] = checkpoint.turn

    def reopen_exhausted(self, slots: npt.NDArray[np.intp]) -> None:
        """Open exhausted streams again if an extension pays for another answer."""
        columns = self._columns
        gathered = columns.gather(slots)
        reopened = (gathered.state == EXHAUSTED) & (gathered.tops_left * PARTS_PER_CHARGE > gathered.surplus)
        columns.state[slots[reopened]] = OPEN

    def can_answer(self, slot: int) -> bool:
        """Return True if a stream answers on this worker."""
        return bool(self._columns.state[slot] == OPEN) and not self._columns.refused[slot]

    def end_stream(self, slot: int, state: int, reason: str) -> bool:
        """End a stream; return False if its current state must not change to ``state``."""
        if not may_become(STREAM_STATES[self._columns.state[slot]], STREAM_STATES[state]):
            return False
        self._columns.state[slot] = state
        self._columns.status_changed[slot] = True
        self.reasons[slot] = reason
        return True

    def refuse_stream(self, slot: int, reason: str) -> None:
        """Refuse a stream on this worker; no checkpoint records it, because another worker may answer."""
        self._columns.refused[slot] = True
        self._columns.status_changed[slot] = True
        self.reasons[slot] = reason


CONTROL_UNREAD: Final = "this worker cannot read the stream's control event; upgrade it"
"""Reason for refusing a stream whose latest control event comes from a later version of Sotto."""

MIN_RETIRED_SLOTS: Final = 64
"""Least number of slots of retired streams that are made free for new streams together."""

PLAIN_FLAG: Final = 1
STANDING_FLAG: Final = 2


class StreamSnapshot(NamedTuple):
    """The part of a stream's state that a restore must reproduce; ``barrier`` is None without a threshold."""

    state: str
    answered: int
    tops: int
    last_offset: int
    barrier: int | None
    incarnation: str
    surplus: int


class HostedStreams:
    """A partition's streams, by slot: ``columns`` has their totals, ``noise`` their keys, ``life`` their states.

    - ``names`` and ``encoded_names``: the names of streams by slot, as ``str`` and as bytes.
    - ``kinds``: the names of the streams' families.
    - ``flags``: ``PLAIN_FLAG`` (a sparse vector over values in queries), ``STANDING_FLAG``, both, or 0.
    - ``extensions``: the extensions of each extended stream.
    - ``unreadable_streams``: names of streams without a slot, whose control events cannot be read.
    - ``retired``: the retired streams, which have no slot.

    The slot of a retired stream may get another stream after ``free_retired_slots``.
    """

    def __init__(self, key: NoiseKey) -> None:
        self.slots: dict[str, int] = {}
        self.unreadable_streams: set[str] = set()
        self.names: list[str] = []
        self.incarnations: list[str] = []
        self.kinds: list[str] = []
        self.flags: list[int] = []
        self.columns = StreamColumns()
        self.encoded_names = SlotNames()
        self.noise = StreamKeys(key, self.columns)
        self.life = LifeCycle(self.columns)
        self.terms_table = TermsTable()
        self.terms: list[StreamTerms] = self.terms_table.all
        self.extensions: dict[int, Extensions] = {}
        self.retired = RetiredStreamTable()
        self.retired_slots: list[int] = []
        """Slots of retired streams, whose names ``encoded_names`` still has."""
        self._free_slots: list[int] = []
        self._start_count = 0
        self._all_are_plain = (0, True)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def all_are_plain(self) -> bool:
        """True if every stream is a sparse vector over values in queries; cached between openings."""
        if self._all_are_plain[0] != self._start_count:
            self._all_are_plain = self._start_count, bool(self.columns.is_plain[: len(self)].all())
        return self._all_are_plain[1]

    def terms_at(self, slot: int) -> StreamTerms:
        """Return the terms of a slot's stream."""
        return self.terms[int(self.columns.terms_of[slot])]

    def host_streams(self, definitions: Sequence[StreamDefinition]) -> list[int]:
        """Add or update streams and return their slots; a new incarnation starts from zero.

        A stream has the incarnation of its last definition. Among the definitions of this incarnation, the one
        with the most extensions counts, because extensions are never withdrawn.
        """
        slots, unnamed = list[int](), list[int]()
        new, extended, refreshed = (dict[int, StreamDefinition]() for _ in range(3))
        for definition in definitions:
            slot = self.slots.get(definition.stream)
            if slot is None:
                slot = self._new_slot(definition.stream)
                unnamed.append(slot)
            if self.incarnations[slot] != definition.incarnation:
                self.incarnations[slot] = definition.incarnation
                new[slot] = definition
                extended.pop(slot, None)
                refreshed.pop(slot, None)
                self.extensions.pop(slot, None)
            if definition.extensions:
                extended[slot] = max(
                    definition, extended.get(slot, definition), key=lambda one: len(one.extensions)
                )
            if definition.version > FIRST_VERSION:
                refreshed[slot] = max(definition, refreshed.get(slot, definition), key=lambda one: one.version)
            slots.append(slot)
        self._store_names(unnamed)
        if new:
            self._open_streams(new)
        for slot, definition in refreshed.items():
            self._refresh_terms(slot, definition)
        for slot, definition in extended.items():
            self._extend_stream(slot, definition.extensions)
        return slots

    def _extend_stream(self, slot: int, extensions: Extensions) -> None:
        """Raise a stream's cutoff, and open it again if it was exhausted."""
        if len(extensions) <= len(self.extensions.get(slot, ())):
            return
        self.extensions[slot] = extensions
        self.columns.cutoff[slot] = charged_answers(self.terms_at(slot).calibration, extensions)
        self.columns.status_changed[slot] = True
        self.life.reopen_exhausted(np.array([slot], dtype=np.intp))

    def _refresh_terms(self, slot: int, definition: StreamDefinition) -> None:
        """Switch a stream to a later version of its table; it is no longer refused."""
        columns, version = self.columns, self.terms[definition.terms].version
        if version > self.terms_at(slot).version:
            self._start_count += 1
            columns.start_number[slot] = self._start_count
            columns.terms_of[slot] = definition.terms
        if columns.refused[slot] and version == self.terms_at(slot).version:
            columns.refused[slot] = False
            self.life.reasons.pop(slot, None)
        self.noise.set_version(slot, self.terms_at(slot).version)
        columns.status_changed[slot] = True

    def _open_streams(self, new: dict[int, StreamDefinition]) -> None:
        columns, terms_of = self.columns, [definition.terms for definition in new.values()]
        facts: dict[int, tuple[str, int, int]] = {}
        for index in set(terms_of):
            terms = self.terms[index]
            flags = PLAIN_FLAG * terms.is_plain + STANDING_FLAG * (terms.standing is not None)
            facts[index] = terms.family, flags, terms.calibration.cutoff or NO_CUTOFF
        self.noise.add_streams(new, len(self))
        for slot, index in zip(new, terms_of, strict=True):
            self.kinds[slot], self.flags[slot], _ = facts[index]
        self._start_count += 1
        slots = np.fromiter(new, dtype=np.intp, count=len(new))
        columns.start_number[slots] = self._start_count
        columns.terms_of[slots] = terms_of
        columns.threshold[slots] = [definition.threshold for definition in new.values()]
        columns.is_plain[slots] = [facts[index][1] == PLAIN_FLAG for index in terms_of]
        columns.cutoff[slots] = [facts[index][2] for index in terms_of]
        self.life.open_streams(slots)

    def _new_slot(self, name: str) -> int:
        if self._free_slots:
            slot = self._free_slots.pop()
            self.names[slot] = name
        else:
            slot = len(self.names)
            self.names.append(name)
            self.incarnations.append("")
            self.kinds.append("")
            self.flags.append(0)
        self.slots[name] = slot
        self.unreadable_streams.discard(name)
        return slot

    def _store_names(self, slots: Sequence[int]) -> None:
        columns, known = self.columns, len(self.encoded_names.texts)
        columns.grow(len(self))
        for slot in slots:
            if slot < known:
                self.encoded_names.replace(slot, self.names[slot].encode())
        self.encoded_names.texts.extend([name.encode() for name in self.names[known:]])
        names = self.encoded_names.texts.spans
        columns.name_at[slots], columns.name_size[slots] = names.at[slots], names.size[slots]

    def remove_retired(self, slot: int) -> None:
        """Remove a retired stream; ``columns.start_number`` of its slot is then 0."""
        columns, life = self.columns, self.life
        del self.slots[self.names[slot]]
        self.names[slot] = self.incarnations[slot] = self.kinds[slot] = ""
        for entries in (life.reasons, life.last_turns, self.extensions):
            entries.pop(slot, None)
        self.noise.remove_stream(slot)
        columns.clear_slot(slot)
        columns.state[slot], columns.last_offset[slot], columns.is_plain[slot] = CLOSED, -1, True
        self.retired_slots.append(slot)

    def free_retired_slots(self) -> frozenset[int]:
        """Free the slots of retired streams if there are many; return the indices of terms that are then forgotten."""
        if len(self.retired_slots) < max(MIN_RETIRED_SLOTS, len(self.slots) // 4):
            return frozenset()
        for slot in self.retired_slots:
            self.names[slot] = f'"{slot}'  # no query can name it, because names have no quotation marks
        self._free_slots += self.retired_slots
        self.retired_slots = []
        self.encoded_names = SlotNames()
        self.encoded_names.texts.extend([name.encode() for name in self.names])
        names, hosted = self.encoded_names.texts.spans, slice(len(self))
        columns = self.columns
        columns.name_at[hosted], columns.name_size[hosted] = names.at[hosted], names.size[hosted]
        in_use = columns.terms_of[hosted][columns.start_number[hosted] != 0]
        return self.terms_table.forget_others(np.unique(in_use).tolist())

    def hosted_slots(self) -> npt.NDArray[np.intp]:
        """Return the slots that have a stream."""
        return np.flatnonzero(self.columns.start_number[: len(self)])

    def names_of(self, gathered: StreamColumns) -> Spans:
        """Return the names of the streams whose columns were gathered."""
        return Spans(self.encoded_names.texts.spans.data, gathered.name_at, gathered.name_size)

    def barrier_of_round(self, slot: int, tops: int) -> int:
        """Return the barrier of the round that follows ``tops`` charged answers."""
        return int(self.terms_at(slot).barriers([self.noise.subkey(slot, DrawRole.THRESHOLD)], [tops])[0])

    def mark_uncertain_status(self, recent: int) -> None:
        """Mark streams whose latest status record may be missing or wrong after a restart.

        The checkpoint of such a stream is from the last ``recent`` milliseconds or from an unknown time, or the
        stream is open and the previous worker may have refused it because of its table or noise key.
        """
        columns, hosted = self.columns, slice(len(self))
        answered, written_at = columns.last_offset[hosted] >= 0, columns.written_at[hosted]
        newest = written_at.max(initial=0)
        columns.status_changed[hosted] |= answered & ((written_at >= newest - recent) | (written_at < 0))
        over_tables = np.array([isinstance(one.source, TableSource) for one in self.terms], dtype=np.bool_)
        unsure = self.noise.older_key_mask() | over_tables[columns.terms_of[hosted]]
        columns.status_changed[hosted] |= (columns.state[hosted] == OPEN) & unsure

    def reason(self, slot: int) -> str:
        """Return the reason why a stream does not answer."""
        if (reason := self.life.reasons.get(slot)) is not None:
            return reason
        return exhausted_reason(self.terms_at(slot).calibration, int(self.columns.cutoff[slot]))

    def refusals(self) -> Counter[str]:
        """Count the open streams that this worker refuses, by reason."""
        columns, hosted = self.columns, slice(len(self))
        refused = np.flatnonzero(columns.refused[hosted] & (columns.state[hosted] == OPEN)).tolist()
        reasons = Counter(self.reason(slot) for slot in refused)
        del reasons[MODEL_NOT_ASKED_REASON]
        return reasons

    def answers_left(self, slot: int) -> int:
        """Return the number of ordinary charged answers for which the rest of a stream's grant pays."""
        return ordinary_charges_left(*self._charge_totals(slot))

    def parts_left(self, slot: int) -> int:
        """Return the rest of a stream's grant in parts of an ordinary charged answer."""
        cutoff, tops, surplus = self._charge_totals(slot)
        return (cutoff - tops) * PARTS_PER_CHARGE - surplus

    def _charge_totals(self, slot: int) -> tuple[int, int, int]:
        columns = self.columns
        return int(columns.cutoff[slot]), int(columns.tops[slot]), int(columns.surplus[slot])

    def charge(self, slot: int, parts: int) -> None:
        """Count a charged answer that costs ``parts`` of an ordinary one."""
        if parts > self.parts_left(slot):
            raise AssertionError(f"stream '{self.names[slot]}' cannot pay for a charged answer")
        self.columns.tops[slot] += 1
        self.columns.surplus[slot] += parts - PARTS_PER_CHARGE

    def shown_answers_left(self, slot: int) -> int | None:
        """Return ``answers_left`` as it is published: None if the first charge pays for all answers."""
        return None if self.columns.cutoff[slot] == NO_CUTOFF else self.answers_left(slot)

    def spent(self, slot: int) -> Any:
        """Return a stream's realised cost so far, as an ``Amount``."""
        columns = self.columns
        totals = (int(columns.answered[slot]), int(columns.tops[slot]), int(columns.surplus[slot]))
        return self.terms_at(slot).spent(*totals, self.extensions.get(slot, ()))

    def snapshot_streams(self) -> dict[str, StreamSnapshot]:
        """Return a snapshot of each stream, to compare a restored state with a live one."""
        columns = self.columns
        return {
            name: StreamSnapshot(
                STREAM_STATES[columns.state[slot]],
                int(columns.answered[slot]),
                int(columns.tops[slot]),
                int(columns.last_offset[slot]),
                self.barrier_of_round(slot, int(columns.tops[slot]))
                if self.terms_at(slot).calibration.kind in {"sparse_vector", "hypothesis", "estimate"}
                else None,
                self.incarnations[slot],
                int(columns.surplus[slot]),
            )
            for name, slot in self.slots.items()
        }
