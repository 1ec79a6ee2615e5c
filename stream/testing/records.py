"""What stands in the topics of an installation in memory, as a client reads it."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from schemas import MAX_RECORD_BYTES, GrantRecord, LedgerRecord, SourceRecord, StreamStatus, TrailRecord
from schemas.wire import Codec
from stream.accounting.costs import shown_grant
from stream.asking.dead_letters import DeadLetter, read_dead_letter
from stream.asking.live import live_source
from stream.asking.questions import as_names
from stream.errors import Unknown
from stream.processors.trails import trail_codec
from stream.suggestions import did_you_mean
from stream.testing.installation import Installation

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
_statuses: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)


class Recorded(Installation):
    """The calls of a client that read."""

    def list_sources(self) -> list[SourceRecord]:
        """All sources that are registered, with their budgets."""
        return [one for one in self._entries("source|") if isinstance(one, SourceRecord)]

    def list_streams(self, source: str | None = None) -> list[GrantRecord]:
        """The grants of all streams ever opened, or of a source's; Unknown if there is no such source."""
        if source is not None:
            self.budget(source)
        beginning = "grant|" if source is None else f"grant|{source}|"
        return [shown_grant(one) for one in self._entries(beginning) if isinstance(one, GrantRecord)]

    def budget(self, source: str) -> SourceRecord:
        """A source's budget as the ledger topic shows it; Unknown if it is not registered."""
        record = self._entry(f"source|{source}")
        if not isinstance(record, SourceRecord):
            names = [one.source.source for one in self.list_sources()]
            raise Unknown(f"source '{source}' is not registered{did_you_mean(source, names)}")
        return record

    def grant(self, source: str, stream: str) -> GrantRecord:
        """A stream's grant as the ledger topic shows it: its plan, its cost, and what is spent of it."""
        record = self._entry(f"grant|{source}|{stream}")
        if not isinstance(record, GrantRecord):
            names = [one.spec.stream for one in self.list_streams(source)]
            raise Unknown(f"stream '{stream}' of source '{source}' was never opened{did_you_mean(stream, names)}")
        return shown_grant(record)

    def digests(self, streams: Iterable[str]) -> dict[str, tuple[StreamStatus, float]]:
        """What workers last showed of these streams, with the driver's time; not all have a digest."""
        wanted = {stream.encode(): stream for stream in as_names("streams", streams)}
        return {
            stream: (_statuses.decode(record.value), record.timestamp / 1000)
            for record in self.records(self.topics.status)
            if record.value is not None and (stream := wanted.get(record.key or b"")) is not None
        }

    def trail(self) -> Generator[TrailRecord, None, None]:
        """The audit trail, oldest first: requests, decisions, what followed, and what was spent meanwhile."""
        for record in self.records(self.topics.trail):
            yield trail_codec.decode(record.value)

    def dead_letters(self, source: str | None = None) -> Generator[DeadLetter, None, None]:
        """Refused events as they came, each with the reason; of all topics, or of the topic of a live source."""
        topic = None if source is None else live_source(self.budget(source).source).topic
        for letter in map(read_dead_letter, self.records(self.topics.rejected)):
            if topic in {None, letter.topic}:
                yield letter

    def _entry(self, key: str) -> LedgerRecord | None:
        """What the ledger holds under a key."""
        written = reversed(self._logs.get((self.topics.ledger, 0), []))
        latest = next((record for record in written if record.key == key.encode()), None)
        return None if latest is None or latest.value is None else _ledger.decode(latest.value)

    def _entries(self, beginning: str) -> Iterator[LedgerRecord]:
        """What the ledger holds under all keys that begin so."""
        for record in self.compacted((self.topics.ledger, 0)):
            if (record.key or b"").startswith(beginning.encode()) and record.value is not None:
                yield _ledger.decode(record.value)
