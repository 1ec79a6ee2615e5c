"""Rejected events: dead letters hold the original bytes as their value, or the first of them, and these facts as headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from schemas.base import Digest, Event, Reason

HEADER_PREFIX = "__connect.errors."
"""Kafka Connect's prefix, so that its tools can read our dead letters."""

OPTIONAL_FACTS: Final = ("last_offset", "codec", "length", "digest", "key_length", "header_count")
"""Facts of dead letters that do not hold the whole of what was refused."""


class RejectedHeaders(Event):
    """Why and where from; no header ever holds a private value.

    ``code`` is one of a fixed list of words; ``message`` names the field and the remedy. Where the value is only the beginning
    of what was refused, ``length`` and ``digest`` (BLAKE3) are those of the whole; ``key_length`` and ``header_count`` say what
    else was cut. ``last_offset`` and ``codec`` stand where a whole batch was refused unread, whose first offset is ``offset``.
    """

    topic: str
    partition: int
    offset: int
    code: str
    message: Reason
    last_offset: int | None = None
    codec: str | None = None
    length: int | None = None
    digest: Digest | None = None
    key_length: int | None = None
    header_count: int | None = None

    def to_kafka(self) -> list[tuple[str, bytes]]:
        """Lay the facts out as Kafka headers in Kafka Connect's naming; those that do not apply are left out."""
        facts = [
            (f"{HEADER_PREFIX}topic", self.topic.encode()),
            (f"{HEADER_PREFIX}partition", str(self.partition).encode()),
            (f"{HEADER_PREFIX}offset", str(self.offset).encode()),
            (f"{HEADER_PREFIX}exception.class.name", self.code.encode()),
            (f"{HEADER_PREFIX}exception.message", self.message.encode()),
        ]
        further = ((name, getattr(self, name)) for name in OPTIONAL_FACTS)
        return [*facts, *((header_name(name), str(fact).encode()) for name, fact in further if fact is not None)]

    @classmethod
    def from_kafka(cls, headers: Sequence[tuple[str, bytes | None]]) -> Self:
        """Read the facts from a dead letter's headers; they stand last, after those of the event.

        Raises:
            ValueError: a fact is missing or wrong.
        """
        begins = max(
            (place for place, (name, _) in enumerate(headers) if name == _FIRST_HEADER), default=len(headers)
        )
        own = {name: (value or b"").decode(errors="replace") for name, value in headers[begins:]}
        texts = {name: text for name, text in own.items() if name in _FACT_OF}
        return cls.model_validate_strings({_FACT_OF[name]: text for name, text in texts.items()})


def header_name(fact: str) -> str:
    """The header of a fact that not every dead letter has."""
    return HEADER_PREFIX + fact.replace("_", ".")


_FIRST_HEADER: Final = f"{HEADER_PREFIX}topic"
_FACT_OF: Final = {
    _FIRST_HEADER: "topic",
    f"{HEADER_PREFIX}partition": "partition",
    f"{HEADER_PREFIX}offset": "offset",
    f"{HEADER_PREFIX}exception.class.name": "code",
    f"{HEADER_PREFIX}exception.message": "message",
    **{header_name(fact): fact for fact in OPTIONAL_FACTS},
}
