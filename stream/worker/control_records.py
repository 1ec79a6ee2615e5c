"""What control says of a partition's streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from schemas import FIRST_VERSION, EventsSource, TableSource
from stream.processing.control_order import IN_PERIODS, OVER, questions_in_period
from stream.processing.protocol import RecordLike, TableMissedError
from stream.tables import PrivateTable, TableStore
from stream.worker.hosted_streams import CLOSED, CONTROL_UNREAD, HALTED, OPEN, PLAIN, HostedStreams, answering
from stream.worker.stream_definitions import Definition, DefinitionReader


class Control:
    """Hosts the streams that control events define, and ends those that they end.

    ``heavy`` says whether any stream is not plain: rows are counted, hypotheses learned, hundreds of values noised, at
    worst for a second a question. It holds the tables that streams answer from, for the store does not.
    """

    def __init__(self, streams: HostedStreams, tables: TableStore, changelog: str) -> None:
        self.heavy = False
        self._streams = streams
        self._tables = tables
        self._changelog = changelog
        self._reader = DefinitionReader(streams.terms_table)
        self._pending: dict[int, Definition] = {}
        self._held: dict[int, PrivateTable] = {}
        self._unclaimed: Mapping[str, str] = {}

    def expect_none_of(self, unclaimed: Mapping[str, str]) -> None:
        """Take the streams, each with its incarnation, whose figures a restore found without any definition."""
        self._unclaimed = unclaimed

    def define(self, records: Sequence[RecordLike]) -> list[int]:
        """Take in control events, in order, and give the slots of the streams that they define."""
        slots: list[int] = []
        readable: list[Definition] = []
        named = [record for record in records if record.value is not None]
        definitions = self._reader.read([record.value or b"" for record in named])
        for record, definition in zip(named, definitions, strict=True):
            if definition is not None:
                readable.append(definition)
                continue
            slots += self._host(readable)
            readable = []
            # Written by a later version, perhaps to halt the stream: whatever it says, do not answer against it.
            name = (record.key or b"").decode(errors="replace")
            if (known := self._streams.slots.get(name)) is not None:
                self._streams.life.refuse(known, CONTROL_UNREAD)
            else:
                self._streams.unread.add(name)
        return slots + self._host(readable)

    def _host(self, definitions: Sequence[Definition]) -> list[int]:
        """Host streams, unless one has answered before and was restored without its figures.

        A restore finds no definition of such a stream if a later one, behind the end up to which it reads, let
        compaction remove what stood before. Begun afresh the stream would answer beyond its cutoff.
        """
        if self._unclaimed and (missed := [one for one in definitions if self._is_unclaimed(one)]):
            raise TableMissedError(
                f"{missed[0].stream} has figures in {self._changelog} that this restore left out"
            )
        slots = self._streams.host(definitions)
        self.heavy = self.heavy or not all(self._streams.sorts[slot] & PLAIN for slot in slots)
        for slot, definition in zip(slots, definitions, strict=True):
            if definition.kind == "opened":
                if slot in self._pending and not self._is_current(slot, self._pending[slot]):
                    del self._pending[slot]
            elif self._is_current(slot, definition):
                self._pending[slot] = definition
        return slots

    def _is_current(self, slot: int, definition: Definition) -> bool:
        """Whether this was told of the stream as it is: nothing that was said before it was extended or renewed counts any more."""
        streams = self._streams
        known = len(streams.extensions.get(slot, ())) + streams.terms_at(slot).version
        return definition.incarnation == streams.incarnations[slot] and definition.rank >= known

    @property
    def repeatable(self) -> bool:
        """Whether all streams that answer would give the same answers once more, from nothing but control and queries.

        When a stream was extended its log does not say: what it answered ``halted`` before that it would answer now. Nor does
        it say when its data were renewed.
        """
        streams, state = self._streams, self._streams.columns.state
        changed = streams.extensions.keys() | streams.noise.renewed
        return not any(state[slot] == OPEN for slot in changed - self._pending.keys())

    def _is_unclaimed(self, definition: Definition) -> bool:
        return self._unclaimed.get(definition.stream) == definition.incarnation

    def refuse_unfit(self, slots: npt.NDArray[np.intp]) -> None:
        """Refuse those streams whose noise key or table is not here, and those that are asked in their periods alone."""
        streams = self._streams
        keyless = streams.noise.keyless
        for slot in keyless.keys() & set(slots.tolist() if keyless else ()):
            streams.life.refuse(slot, f"this worker lacks noise key {keyless[slot]}; give it that key")
        terms_of = streams.columns.terms_of[slots]
        indices = np.unique(terms_of).tolist()
        for index in indices:
            terms = streams.terms[index]
            source = terms.source
            if isinstance(source, EventsSource) and source.has_periods:
                for slot in slots[terms_of == index].tolist():
                    streams.life.refuse(slot, IN_PERIODS)
            if not isinstance(source, TableSource):
                continue
            try:
                self._held[index] = self._tables.get(source, terms.fingerprint, terms.version)
            except ValueError as error:
                for slot in slots[terms_of == index].tolist():
                    if slot not in keyless:
                        streams.life.refuse(slot, f"table: {error}")
        # Only what was renewed or has ended answers no more from a table that is held.
        renewed = any(streams.terms[index].version > FIRST_VERSION for index in indices)
        if renewed or not answering(streams.columns.picked(slots)).all():
            self._let_go()

    def _let_go(self) -> None:
        """Let go of the tables that no stream answers from any more."""
        if not self._held:
            return
        columns = self._streams.columns
        hosted = slice(len(self._streams))
        terms_of = columns.terms_of[hosted][answering(columns)[hosted]]
        needed = np.bincount(terms_of, minlength=len(self._streams.terms))
        self._held = {index: table for index, table in self._held.items() if needed[index]}

    def settle(self) -> npt.NDArray[np.intp]:
        """End what control has ended, and give the slots of the streams of which that is news.

        What is closed because its period is over answers first what it was asked, however far behind its worker is.
        """
        ended = []
        waiting = {slot: one for slot, one in self._pending.items() if self._is_still_asked(slot, one)}
        for slot, definition in self._pending.items():
            if slot in waiting:
                continue
            state = CLOSED if definition.kind == "closed" else HALTED
            known = self._streams.columns.state[slot]
            if known == CLOSED or (known != OPEN and state == HALTED):
                continue
            self._streams.life.end(slot, state, definition.reason or "")
            ended.append(slot)
        self._pending = waiting
        if ended:
            self._let_go()
        return np.array(ended, dtype=np.intp)

    def _is_still_asked(self, slot: int, definition: Definition) -> bool:
        columns, terms = self._streams.columns, self._streams.terms_at(slot)
        if definition.reason != OVER or columns.state[slot] != OPEN or columns.refused[slot]:
            return False
        asked = questions_in_period(terms.source, terms.mechanism, terms.standing)
        return bool(columns.answered[slot] < asked)
