"""Finds readers of the monitor that get no more records, which aiokafka does not report to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from stream.diagnostics import get_logger
from stream.engine.restore import create_reader
from stream.settings import Settings

CHECK_SECONDS: Final = 5.0
"""Seconds between two checks of the readers."""

SET_BACK_SECONDS: Final = 20.0
"""Seconds for which a partition must end before a reader's position until it counts as set back."""

SILENT: Final = "Kafka does not answer"
REFUSED: Final = "Kafka refuses to let the monitor read a topic; see its log and 'sotto topics acl --role monitor'"

log = get_logger("monitor")


class TopicPositions(Protocol):
    """A reader with a position in each of its partitions."""

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the offsets that are read next; none for partitions in which reading has not begun."""
        ...


class ReaderWatch:
    """Compares the readers' positions periodically with the ends that another client sees.

    After a change of certificates or passwords only new clients can connect. The readers' clients retry forever,
    and their empty results look like those of idle topics.
    """

    def __init__(self, settings: Settings, readers: Sequence[TopicPositions]) -> None:
        self._settings = settings
        self._readers = readers
        self._waits: dict[tuple[TopicPartition, int], float] = {}
        """The time since which records follow a reader's position, by partition and position."""
        self._reached: dict[TopicPartition, int] = {}
        self._losses: dict[TopicPartition, float] = {}
        """The time since which a partition ends before an offset that a reader has reached."""
        self.longest_wait = 0.0
        """Seconds, up to the last comparison, for which a position has not moved although records follow."""
        self.set_back: TopicPartition | None = None
        """A partition that has lost records that a reader has read; the readers' figures do not recover from this."""
        self.answered_at: float | None = None
        """Time of the last comparison, on the monotonic clock."""
        self.fault = SILENT
        """The reason for which the last comparison is old, if it is."""

    async def run(self) -> None:
        """Compare until cancelled; after an error use a new client."""
        while True:
            try:
                # The ends must be those of committed records, because open transactions stop the readers too.
                async with create_reader(self._settings) as end_reader:
                    while True:
                        positions: dict[TopicPartition, int] = {}
                        for reader in self._readers:
                            positions |= await reader.positions()
                        self.add_ends(positions, await end_reader.end_offsets(list(positions)), time.monotonic())
                        self.fault = SILENT
                        await asyncio.sleep(CHECK_SECONDS)
            except (KafkaError, OSError, TimeoutError) as error:
                self.fault = REFUSED if isinstance(error, TopicAuthorizationFailedError) else SILENT
                log.warning("cannot compare the readers' positions", error=type(error).__name__)
            await asyncio.sleep(CHECK_SECONDS)

    def add_ends(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], now: float
    ) -> None:
        """Compare the readers' positions with the partitions' ends."""
        self._waits = {
            place: self._waits.get(place, now) for place in positions.items() if place[1] < ends[place[0]]
        }
        self.longest_wait = now - min(self._waits.values(), default=now)
        for place, position in positions.items():
            self._reached[place] = max(position, self._reached.get(place, 0))
        self._losses = {
            place: self._losses.get(place, now)
            for place, reached in self._reached.items()
            if ends.get(place, reached) < reached
        }
        # After a change of a partition's leader, its end is behind for moments.
        lost = (place for place, since in self._losses.items() if now - since > SET_BACK_SECONDS)
        self.set_back = self.set_back or next(lost, None)
        self.answered_at = now
