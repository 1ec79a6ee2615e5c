"""Topics in memory or in a file, with the records that brokers keep."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, Protocol, overload

from stream.processing.protocol import Record
from stream.settings import MS_PER_DAY

CHARGES_KEPT_MS: Final = 28 * MS_PER_DAY
"""The retention of the topic ``charges``."""


RECORDS_PER_PLACE: Final = 1_000
"""Records of a file after which its place is noted."""


class Topic(Protocol):
    """The records of a partition that a broker keeps."""

    def add(self, record: Record) -> None:
        """Add the next record."""

    def __iter__(self) -> Iterator[Record]:
        """Yield the kept records in order."""

    @property
    def size(self) -> int:
        """The bytes of all kept keys and values."""


class CompactedTopic:
    """The latest record of each key, without deleted keys."""

    def __init__(self) -> None:
        self._latest: dict[bytes | None, Record] = {}

    def add(self, record: Record) -> None:
        """Add the next record."""
        self._latest.pop(record.key, None)
        if record.value is not None:
            self._latest[record.key] = record

    def __iter__(self) -> Iterator[Record]:
        return iter(self._latest.values())

    @property
    def size(self) -> int:
        """The bytes of all kept keys and values."""
        return _size_of(self)


class RecentTopic:
    """The records of the latest ``CHARGES_KEPT_MS``."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()

    def add(self, record: Record) -> None:
        """Add the next record."""
        self._records.append(record)
        while self._records[0].timestamp < record.timestamp - CHARGES_KEPT_MS:
            self._records.popleft()

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @property
    def size(self) -> int:
        """The bytes of all kept keys and values."""
        return _size_of(self)


class TopicFile:
    """All values of a topic, in a temporary file with a line for each."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._file = NamedTemporaryFile()  # noqa: SIM115  (``close`` closes it)
        self._times, self._places = array("q"), array("q")
        self.size = 0
        self.records = 0

    def add(self, record: Record) -> None:
        """Add the next record, whose value has no line break."""
        if self.records % RECORDS_PER_PLACE == 0:
            self._times.append(record.timestamp)
            self._places.append(self.size)
        self.records += 1
        self.size += self._file.write((record.value or b"") + b"\n")

    def offset_at(self, time: int) -> int:
        """Return an offset whose record, and no record before it, may be as late as ``time``."""
        return RECORDS_PER_PLACE * max(bisect_left(self._times, time) - 1, 0)

    def read(self, start: int, end: int) -> Iterator[Record]:
        """Yield the records from ``start``, or shortly before it, up to ``end``."""
        place = start // RECORDS_PER_PLACE
        first = RECORDS_PER_PLACE * place
        self._file.flush()
        with Path(self._file.name).open("rb") as file:
            file.seek(self._places[place])
            for offset, line in enumerate(islice(file, end - first), first):
                yield Record(self._topic, 0, offset, 0, None, line[:-1], ())

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    def __iter__(self) -> Iterator[Record]:
        return self.read(0, self.records)


def _size_of(records: Iterable[Record]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") for record in records)


class RecentLog:
    """A partition in memory: the records since the last ``trim``; ``topic`` gets all earlier ones.

    Offsets count from the first record that ever was.
    """

    def __init__(self, topic: Topic | None) -> None:
        self._topic = topic
        self._dropped = 0
        self._records: list[Record] = []

    def __len__(self) -> int:
        return self._dropped + len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...
    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        """Return records by offset; those before the last ``trim`` are gone."""
        if isinstance(at, int):
            return self._records[at - self._dropped]
        stop = None if at.stop is None else at.stop - self._dropped
        return self._records[max((at.start or 0) - self._dropped, 0) : stop]

    def append(self, record: Record) -> None:
        """Add a record."""
        self._records.append(record)

    def extend(self, records: Iterable[Record]) -> None:
        """Add records."""
        self._records.extend(records)

    def trim(self) -> None:
        """Drop all records; all tasks have read them."""
        for record in self._records if self._topic is not None else ():
            self._topic.add(record)  # type: ignore[union-attr]
        self._dropped += len(self._records)
        self._records = []


class Logs(dict[tuple[str, int], RecentLog]):
    """The partitions of an installation, with the topics in ``kept``."""

    def __init__(self, kept: dict[str, Topic]) -> None:
        super().__init__()
        self._kept = kept

    def setdefault(self, place: tuple[str, int], default: Any = None) -> RecentLog:
        """Return a partition's log, perhaps a new one."""
        del default
        if place not in self:
            self[place] = RecentLog(self._kept.get(place[0]))
        return self[place]
