"""Watching streams on Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from stream.asking.alerts import Notice
from stream.asking.watching import Watch
from stream.client.connection import Connection
from stream.client.openings import Openings
from stream.kafka.unread import readable

LEDGER_SECONDS: Final = 2.0
"""Seconds between two looks at which streams there are and have ended."""


async def notices(connection: Connection, watch: Watch, *, from_beginning: bool) -> AsyncGenerator[Notice, None]:
    """What is told of the streams that are watched, without end; of one stream in the order of its answers.

    From the beginning on the ends that the ledger knows are told behind all answers that there were at first.
    """
    consumer = await connection.answers_reader(from_beginning=from_beginning)
    openings = Openings(connection, watch.wants)
    try:
        behind = await consumer.end_offsets(consumer.assignment()) if from_beginning else {}
        caught_up = not from_beginning
        for notice in watch.begin(await openings.read(), openings.sources.keys(), from_beginning=from_beginning):
            yield notice
        looked = time.monotonic()
        while True:
            fetched = await consumer.getmany(timeout_ms=500, max_records=connection.settings.batch_events)
            for records in fetched.values():
                for record in filter(watch.may_matter, readable(records)):
                    opening = await openings.of(record.key.decode(errors="replace"))
                    for notice in (
                        watch.told(record, opening, openings.sources.get(opening.source, ""))
                        if opening is not None
                        else ()
                    ):
                        yield notice
            behind = {one: end for one, end in behind.items() if await consumer.position(one) < end}
            if behind:
                continue
            if not caught_up or time.monotonic() - looked >= LEDGER_SECONDS:
                news = await openings.read()
                for notice in watch.ended(news if caught_up else openings.known()):
                    yield notice
                caught_up, looked = True, time.monotonic()
    finally:
        await asyncio.gather(consumer.stop(), openings.stop())
