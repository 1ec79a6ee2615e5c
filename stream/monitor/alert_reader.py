"""Reading answers for the monitor's alerts: from some days ago on, outside any group, committed records only."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NoReturn

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from stream.kafka.restore import reader, require_visible
from stream.kafka.unread import readable
from stream.log import get_logger
from stream.monitor.alerts import Alerts
from stream.processors.topics import Topics
from stream.settings import Settings

LOOK_BACK_SECONDS: Final = 7 * 86_400
"""How far back alerts are looked for at the start."""
LOOK_BACK_RECORDS: Final = 500_000
"""Most answers of a partition that are looked through at the start."""
_PAUSE: Final = 5.0

log = get_logger("monitor")


class AlertReader:
    """Feeds alerts; what a broker's absence breaks goes on where it was."""

    def __init__(self, settings: Settings, topics: Topics, alerts: Alerts) -> None:
        self._settings = settings
        self._partitions = [TopicPartition(topics.answers, number) for number in range(topics.partitions)]
        self._alerts = alerts
        self._positions: dict[TopicPartition, int] = {}

    async def run(self) -> NoReturn:
        """Read until cancelled."""
        while True:
            try:
                await self._read()
            except TopicAuthorizationFailedError:
                log.error("may not read answers, so no alerts are shown; see 'sotto topics acl --role monitor'")  # noqa: TRY400
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("reading answers begins anew", error=type(error).__name__)
            await asyncio.sleep(_PAUSE)

    async def _read(self) -> None:
        consumer = reader(self._settings, fetch_max_wait_ms=100)
        try:
            await consumer.start()
            await require_visible(consumer, self._partitions[0].topic)
            consumer.assign(self._partitions)
            ends = await self._begin(consumer)
            while True:
                fetched = await consumer.getmany(timeout_ms=500, max_records=self._settings.batch_events)
                for partition, records in fetched.items():
                    for record in readable(records):
                        self._alerts.take(record)
                    self._positions[partition] = records[-1].offset + 1
                    await asyncio.sleep(0)
                if not self._alerts.complete:
                    read = [await consumer.position(one) >= end for one, end in ends.items()]
                    self._alerts.complete = all(read)
                    if self._alerts.complete:
                        self._alerts.changed()
        finally:
            await consumer.stop()

    async def _begin(self, consumer: Any) -> dict[TopicPartition, int]:
        """Seek to what was not read yet; gives the ends as of now."""
        ends: dict[TopicPartition, int] = await consumer.end_offsets(self._partitions)
        since = round((time.time() - LOOK_BACK_SECONDS) * 1000)
        found = await consumer.offsets_for_times(dict.fromkeys(self._partitions, since))
        for partition, end in ends.items():
            back = end if found[partition] is None else found[partition].offset
            at = self._positions.get(partition, max(back, end - LOOK_BACK_RECORDS, 0))
            consumer.seek(partition, min(at, end))
        return ends
