"""The standing streams of all live topics, as control tells of them; one copy for all tasks of a process.

What is done with each thing that is told, and asked of it, does not grow with the periods that are over: of these it is kept that
they were, and nothing is searched that has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from schemas import EventsSource
from stream.processors.base import RecordLike
from stream.processors.endings import essence, undoes
from stream.processors.feeds.told import Told, told_of

TAKEN_AT_ONCE: Final = 100
"""So many definitions are held before those of periods that are over are put away."""


class Definitions:
    """What control tells of each standing stream, by source; read from any thread while one takes in more.

    ``version`` changes with whatever is told.
    """

    def __init__(self) -> None:
        self.version = 0
        # Keys are added while others read; nobody goes through all of them.
        self._told: dict[str, Mapping[str, Told]] = {}
        self._latest: dict[str, Told] = {}
        self._over: dict[str, bytes] = {}
        """Of streams of periods that are closed no more than this."""
        # What others go through is replaced, never changed.
        self._counted: Mapping[str, EventsSource] = {}
        self._in_periods: Mapping[tuple[str, str], Mapping[str, Told]] = {}

    def take(self, records: Iterable[RecordLike]) -> None:
        """Take in control's records in the order of their partition, from the beginning."""
        left = iter(records)
        while some := list(islice(left, TAKEN_AT_ONCE)):
            self._take(some)

    def _take(self, records: Sequence[RecordLike]) -> None:
        changed: dict[str, dict[str, Told]] = {}
        for record in records:
            name = (record.key or b"").decode(errors="replace")
            if (over := self._over.get(name)) is not None and undoes(over, record.value):
                continue
            known = self._latest.get(name)
            told = told_of(record, known)
            if told is None or told is known or told.spec.stream != name:
                continue
            self._latest[name] = told
            source = told.source.source
            changed.setdefault(source, dict(self._told.get(source, {})))[name] = told
        if changed:
            self._told.update(changed)
            self._index(changed)
            self._put_away(changed)
            self.version += 1

    def of(self, source: str) -> tuple[Told, ...]:
        """All standing streams of a source that control knows, those that have ended among them, by name."""
        return tuple(told for _, told in sorted(self._told.get(source, {}).items()))

    def find(self, source: str, stream: str) -> Told | None:
        """One stream of a source, if control has told of it; nothing is kept of one of a period that is closed."""
        return self._told.get(source, {}).get(stream)

    def knows(self, source: str, stream: str) -> bool:
        """Whether control has told of a stream of a source, were it that it is closed."""
        return self.find(source, stream) is not None or stream in self._over

    def asking_in_periods(self, source: str, stream: str) -> list[Told]:
        """What asks for a stream in the periods of its source, in their order."""
        return [told for _, told in sorted(self._in_periods.get((source, stream), {}).items())]

    def sources(self) -> dict[str, EventsSource]:
        """The sources that have a standing stream which asks, by name; those of whose periods one does are counted as a whole."""
        return dict(self._counted)

    def _index(self, changed: Mapping[str, Mapping[str, Told]]) -> None:
        counted, in_periods = dict(self._counted), dict(self._in_periods)
        for source, streams in changed.items():
            for name, told in streams.items():
                if told.source.period_of is not None:
                    place = (told.source.period_of, _model_of(told))
                    asking = {**in_periods.get(place, {}), name: told}
                    in_periods[place] = {one: found for one, found in asking.items() if found.asks}
            asking_now = [told for told in streams.values() if told.asks and told.source.period_of is None]
            if asking_now:
                counted[source] = asking_now[0].source
            else:
                counted.pop(source, None)
        self._counted, self._in_periods = counted, in_periods

    def _put_away(self, changed: Mapping[str, Mapping[str, Told]]) -> None:
        """Keep of streams of periods that are closed that they were: they are never asked again."""
        for source, streams in changed.items():
            left = {
                name: told
                for name, told in streams.items()
                if told.kind != "closed" or told.source.period_of is None
            }
            if len(left) == len(streams):
                continue
            # Another thread finds it in one of the two.
            self._over.update((name, essence(told.value)) for name, told in streams.items() if name not in left)
            for name in streams.keys() - left.keys():
                del self._latest[name]
            self._told[source] = left
            if not left:
                del self._told[source]


def _model_of(told: Told) -> str:
    """What a stream was opened as: without the moment behind its name, of one that stands for a period."""
    return (
        told.spec.stream if told.source.starts is None else told.spec.stream.removesuffix(f"@{told.source.starts}")
    )
