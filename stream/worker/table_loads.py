"""Loads the tables of a partition's streams beside its loop.

A load begins with the control event of the table's first stream. A step waits for a table only if it has a
question to one of the table's open streams. Until a refreshed table is loaded, its streams answer from the
version before. The work of a question may depend on a public number of rows, so it waits for the table even
if the stream has ended: a replay must compute the same work.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from schemas import TableSource
from stream.processing.protocol import RecordLike
from stream.tables.counted_table import CountedTable
from stream.tables.engine_limits import CancelledStepError, current_cancellation, is_step_cancelled
from stream.tables.store import TableStore
from stream.worker.hosted_streams import HostedStreams, answering_mask
from stream.worker.stream_records import StreamDefinition
from stream.worker.stream_terms import StreamTerms

_POLL_SECONDS: Final = 0.05
_TableKey = tuple[str, str | None]
"""A source's name and the fingerprint of its data."""


def _table_key(terms: StreamTerms) -> _TableKey:
    return terms.source.source, terms.fingerprint


class _SharedCancellation(Event):
    """An event that is set if all sessions that wait for a table have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Event] = []

    def is_set(self) -> bool:
        return all(one.is_set() for one in self.sessions)


@dataclass(eq=False)
class _Load:
    future: Future[CountedTable] = field(default_factory=Future)
    cancellation: _SharedCancellation = field(default_factory=_SharedCancellation)


class TableLoads:
    """Loads tables, each once for all partitions of a process: in ``threads``, or at once if it is None.

    A load is cancelled if no partition waits for it any more.
    """

    def __init__(self, tables: TableStore, threads: Executor | None = None) -> None:
        self.tables = tables
        self._threads = threads
        self._lock = Lock()
        self._loads: WeakValueDictionary[_TableKey, _Load] = WeakValueDictionary()

    def begin_load(self, source: TableSource, terms: StreamTerms, session: Event) -> _Load:
        """Begin to load the table of some terms; the event ``session`` is set when the session ends."""
        key = _table_key(terms)

        def load() -> CountedTable:
            current_cancellation.set(found.cancellation)
            if is_step_cancelled():
                raise CancelledStepError
            return self.tables.get(source, terms.fingerprint, terms.version)

        with self._lock:
            known = self._loads.get(key)
            if known is not None and not known.future.done():
                known.cancellation.sessions.append(session)
                return known
            found = self._loads[key] = _Load()
            found.cancellation.sessions.append(session)
            if self._threads is not None:
                found.future = self._threads.submit(copy_context().run, load)
                return found
        try:
            found.future.set_result(self.tables.get(source, terms.fingerprint, terms.version))
        except ValueError as error:
            found.future.set_exception(error)
        return found


@dataclass
class _AwaitedLoad:
    """A load, and the terms that wait for it, by index."""

    load: _Load
    source: TableSource
    terms: StreamTerms
    indices: set[int] = field(default_factory=set)


class PartitionTables:
    """The tables of a partition's streams: those from which streams answer, and those being loaded."""

    def __init__(self, streams: HostedStreams, loads: TableLoads) -> None:
        self._streams = streams
        self._loads = loads
        self._session = Event()
        self._in_use: dict[int, CountedTable] = {}
        self._loading: dict[_TableKey, _AwaitedLoad] = {}
        self._held: dict[str, tuple[_TableKey, list[RecordLike]]] = {}
        """Control events of refreshed streams, by name, until the new version's table is loaded."""
        self._new_tables: list[CountedTable] = []
        """Tables that were loaded for held events, until these are applied."""

    @property
    def has_finished(self) -> bool:
        """True if ``take_ended_loads`` has a load to take in, or control events that need not be held any more."""
        ended = any(awaited.load.future.done() for awaited in self._loading.values())
        return ended or any(key not in self._loading for key, _ in self._held.values())

    def cancel(self) -> None:
        """Cancel the loads; the session ends."""
        self._session.set()

    def use_terms(self, index: int) -> None:
        """Use the table of the terms of this index, and load it if it is not in memory."""
        terms = self._streams.terms[index]
        if not isinstance(source := terms.source, TableSource):
            return
        if (table := self._loads.tables.table_in_memory(source, terms.fingerprint)) is not None:
            self._in_use[index] = table
            return
        key = self._begin_load(source, terms)
        self._loading[key].indices.add(index)
        if self._loading[key].load.future.done():
            self._finish_load(key)

    def await_slots(self, slots: Iterable[int]) -> None:
        """Wait for the tables of the streams in these slots.

        Raises:
            CancelledStepError: the partition is given up.
        """
        if not self._loading:
            return
        terms_of = self._streams.columns.terms_of
        wanted = {int(terms_of[slot]) for slot in slots}
        for key in [key for key, one in self._loading.items() if not wanted.isdisjoint(one.indices)]:
            while key in self._loading:
                if is_step_cancelled():
                    raise CancelledStepError
                try:
                    self._loading[key].load.future.exception(_POLL_SECONDS)
                except TimeoutError:
                    continue
                self._finish_load(key)

    def hold_event(self, record: RecordLike, definition: StreamDefinition) -> bool:
        """Hold a control event that refreshes an open stream until its table is loaded; return whether it is held.

        Later events of the stream are held behind it. An event that ends the stream, or opens another stream
        of its name, is not held, and drops the events that are held.
        """
        streams, name = self._streams, definition.stream
        slot = streams.slots.get(name)
        if slot is None or definition.kind != "opened" or definition.incarnation != streams.incarnations[slot]:
            self._held.pop(name, None)
            return False
        terms = streams.terms[definition.terms]
        source, held = terms.source, self._held.get(name)
        is_refresh = terms.version > streams.terms_at(slot).version and streams.life.can_answer(slot)
        if not isinstance(source, TableSource) or not (held or is_refresh):
            return False
        key = _table_key(terms)
        if self._loads.tables.table_in_memory(source, terms.fingerprint) is None:
            self._begin_load(source, terms)
            if self._loading[key].load.future.done():
                self._finish_load(key)
        if not held and key not in self._loading:
            return False
        self._held[name] = key, [*(held[1] if held else ()), record]
        return True

    def take_ended_loads(self) -> list[RecordLike]:
        """Take in the loads that have ended, and return the control events that were held for them."""
        self._new_tables.clear()
        for key in [key for key, one in self._loading.items() if one.load.future.done()]:
            self._finish_load(key)
        ready = [name for name, (key, _) in self._held.items() if key not in self._loading]
        return [record for name in ready for record in self._held.pop(name)[1]]

    def free_unused(self) -> None:
        """Free the tables from which no stream answers."""
        if self._in_use:
            columns = self._streams.columns
            hosted = slice(len(self._streams))
            terms_of = columns.terms_of[hosted][answering_mask(columns)[hosted]]
            needed = np.bincount(terms_of, minlength=len(self._streams.terms))
            self._in_use = {index: table for index, table in self._in_use.items() if needed[index]}

    def _begin_load(self, source: TableSource, terms: StreamTerms) -> _TableKey:
        key = _table_key(terms)
        if key not in self._loading:
            self._loading[key] = _AwaitedLoad(self._loads.begin_load(source, terms, self._session), source, terms)
        return key

    def _finish_load(self, key: _TableKey) -> None:
        """Use a table that was loaded, or refuse its streams."""
        awaited = self._loading.pop(key)
        # If no stream has these terms any more, their index may now have other terms.
        indices = [index for index in awaited.indices if _table_key(self._streams.terms[index]) == key]
        match awaited.load.future.exception():
            case None:
                self._new_tables.append(awaited.load.future.result())
                self._in_use |= dict.fromkeys(indices, self._new_tables[-1])
            case CancelledStepError():  # the other sessions that waited for the load have ended
                self._begin_load(awaited.source, awaited.terms)
                self._loading[key].indices |= awaited.indices
            case ValueError() as error:
                columns = self._streams.columns
                hosted = slice(len(self._streams))
                refused = np.isin(columns.terms_of[hosted], indices) & answering_mask(columns)[hosted]
                for slot in np.flatnonzero(refused).tolist():
                    self._streams.life.refuse_stream(slot, f"table: {error}")
            case error:
                raise error
