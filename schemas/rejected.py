"""Rejected events: dead letters hold the original bytes as their value and these facts as headers."""

from __future__ import annotations

from schemas.base import Event, Reason

HEADER_PREFIX = "__connect.errors."
"""Kafka Connect's prefix, so that its tools can read our dead letters."""


class RejectedHeaders(Event):
    """Why and where from; no header ever holds a private value.

    ``code`` is one of a fixed list of words; ``message`` names the field and the remedy.
    """

    topic: str
    partition: int
    offset: int
    code: str
    message: Reason

    def to_kafka(self) -> list[tuple[str, bytes]]:
        """Lay the facts out as Kafka headers in Kafka Connect's naming."""
        return [
            (f"{HEADER_PREFIX}topic", self.topic.encode()),
            (f"{HEADER_PREFIX}partition", str(self.partition).encode()),
            (f"{HEADER_PREFIX}offset", str(self.offset).encode()),
            (f"{HEADER_PREFIX}exception.class.name", self.code.encode()),
            (f"{HEADER_PREFIX}exception.message", self.message.encode()),
        ]
