"""The standing streams of all live topics, as control tells of them; one copy for all tasks of a process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schemas import EventsSource
from stream.processors.base import RecordLike
from stream.processors.feeds.told import Told, told_of


class Definitions:
    """What control tells of each standing stream, by source; read from any thread while one takes in more.

    ``version`` changes with whatever is told.
    """

    def __init__(self) -> None:
        self.version = 0
        self._told: Mapping[str, Mapping[str, Told]] = {}
        self._latest: dict[str, Told] = {}

    def take(self, records: Iterable[RecordLike]) -> None:
        """Take in control's records in the order of their partition, from the beginning."""
        changed: dict[str, dict[str, Told]] = {}
        for record in records:
            name = (record.key or b"").decode(errors="replace")
            known = self._latest.get(name)
            told = told_of(record, known)
            if told is None or told is known or told.spec.stream != name:
                continue
            self._latest[name] = told
            source = told.source.source
            changed.setdefault(source, dict(self._told.get(source, {})))[name] = told
        if changed:
            self._told = {**self._told, **changed}
            self.version += 1

    def of(self, source: str) -> tuple[Told, ...]:
        """All standing streams of a source that control knows, those that have ended among them, by name."""
        return tuple(told for _, told in sorted(self._told.get(source, {}).items()))

    def find(self, source: str, stream: str) -> Told | None:
        """One stream of a source, if control has told of it."""
        return self._told.get(source, {}).get(stream)

    def asking_in_periods(self, source: str, stream: str) -> list[Told]:
        """What asks for a stream in the periods of its source, in their order."""
        begin_source, begin = f"{source}@", f"{stream}@"
        return [
            told
            for name, streams in sorted(self._told.items())
            if name.startswith(begin_source)
            for told in streams.values()
            if told.asks
            and told.source.period_of == source
            and told.spec.stream == begin + (told.source.starts or "")
        ]

    def sources(self) -> dict[str, EventsSource]:
        """The sources that have a standing stream which asks, by name; those of whose periods one does are counted as a whole."""
        found: dict[str, EventsSource] = {}
        for source, streams in self._told.items():
            asking = [told for told in streams.values() if told.asks]
            if asking and asking[0].source.period_of is None:
                found[source] = asking[0].source
        return found
