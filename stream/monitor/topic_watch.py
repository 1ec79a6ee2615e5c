"""Whether the installation's topics are as they should be, looked at again and again: what a service finds at its start may change while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from aiokafka.errors import KafkaError

from stream.kafka.differences import PARTITIONS, Difference, TopicsError
from stream.kafka.topics import Inspection, inspect_topics
from stream.log import get_logger
from stream.settings import Settings

INTERVAL: Final = 60.0
"""Seconds between two looks."""

log = get_logger("monitor")


class TopicWatch:
    """Compares all topics with what they should be, and hands each picture to ``show``."""

    def __init__(self, settings: Settings, show: Callable[[Inspection], None]) -> None:
        self._settings = settings
        self._show = show
        self._told: set[Difference] = set()

    async def run(self) -> NoReturn:
        """Look until cancelled; whatever Kafka's state, try again."""
        while True:
            try:
                self.take(await inspect_topics(self._settings))
            except (KafkaError, TopicsError, OSError, TimeoutError) as error:
                reason = str(error) if isinstance(error, TopicsError) else type(error).__name__
                log.warning("cannot look at the topics", reason=reason)
            await asyncio.sleep(INTERVAL)

    def take(self, found: Inspection) -> None:
        """Show another picture; what differs anew is logged."""
        for one in found.differences:
            if one not in self._told:
                log.warning(
                    "topic differs", topic=one.topic, setting=one.setting, actual=one.actual, wanted=one.wanted
                )
        self._told = set(found.differences)
        self._show(found)


def by_kind(found: Inspection) -> dict[str, int]:
    """How many topics lose what must be kept, have other partitions, or are otherwise set than they should be; each counts once."""
    losing = {one.topic for one in found.losses}
    partitions = {one.topic for one in found.differences if one.setting == PARTITIONS} - losing
    others = {one.topic for one in found.differences} - losing - partitions
    return {"losing": len(losing), "partitions": len(partitions), "settings": len(others)}
