"""Telling the log for which streams a partition's new owner does not answer, and what it lacks."""

from __future__ import annotations

from stream.log import get_logger
from stream.processors.base import Processor, Refusing

log = get_logger("engine")


class Refusals:
    """What one life of a partition has told of: each lack is one line, however many streams it stops."""

    def __init__(self, role: str, partition: int) -> None:
        self._log = log.bind(role=role, partition=partition)
        self._told: set[str] = set()

    def tell(self, processor: Processor) -> None:
        """Warn of what is lacking and has not been told yet, with the number of streams that are not answered for it."""
        if not isinstance(processor, Refusing):
            return
        for reason, streams in processor.refusals().items():
            if reason not in self._told:
                self._told.add(reason)
                self._log.warning("streams not answered", reason=reason, streams=streams)
