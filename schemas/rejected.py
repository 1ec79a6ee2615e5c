"""Dead letters: the refused event as value, cut if long, and these facts as headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from schemas.base import Digest, Event, Reason

HEADER_PREFIX = "__connect.errors."
"""Kafka Connect's prefix, so that its tools can read our dead letters."""

OPTIONAL_FACTS: Final = ("last_offset", "codec", "length", "digest", "key_length", "header_count")
"""Facts of dead letters that contain only a part of the refused event."""


class RejectedHeaders(Event):
    """Reason and origin of a dead letter; no header contains a private value.

    ``code`` is one of a fixed list of words; ``message`` names the field and the remedy. If the
    value was cut, ``length`` and ``digest`` (BLAKE3) belong to the whole value; ``key_length`` and
    ``header_count`` are set if key or headers were cut. ``last_offset`` and ``codec`` are set if a
    whole batch from ``offset`` on was refused unread.
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
        """Return the facts as Kafka headers in Kafka Connect's naming, without absent facts."""
        facts = ((header, getattr(self, fact)) for header, fact in _FACT_OF.items())
        return [(header, str(fact).encode()) for header, fact in facts if fact is not None]

    @classmethod
    def from_kafka(cls, headers: Sequence[tuple[str, bytes | None]]) -> Self:
        """Read the facts from a dead letter's headers, where they follow the event's headers.

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
    """Return the header name of an optional fact."""
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
