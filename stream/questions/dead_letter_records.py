"""Dead letters: refused events with their reasons, as private as the events."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import RejectedHeaders
from stream.errors import SottoError
from stream.processing.protocol import Headers, RecordLike


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused event with the ``code`` and ``message`` of its refusal.

    ``topic``, ``partition`` and ``offset`` locate the event; ``key``, ``value`` and ``headers`` are its
    bytes. ``time`` is the refusal in Unix seconds. ``length`` is the length of the whole value in
    bytes if ``value`` is truncated.

    Examples:
        >>> rejected = client.ask("counts", where="height > 2", outcomes=True)
        >>> [letter.reason == rejected.reason for letter in client.dead_letters()]
        [True]
    """

    topic: str
    partition: int
    offset: int
    code: str
    message: str
    time: float
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    length: int | None = None

    @property
    def reason(self) -> str:
        """``code: message``."""
        return f"{self.code}: {self.message}"


def read_dead_letter(record: RecordLike) -> DeadLetter:
    """Parse a record of the topic ``rejected``.

    Raises:
        SottoError: the record has no dead-letter headers.
    """
    try:
        facts = RejectedHeaders.from_kafka(record.headers)
    except ValueError:
        place = f"{record.topic}, partition {record.partition}, offset {record.offset}"
        raise SottoError(
            f"{place}: not a dead letter of Sotto; find out which other program writes to this topic"
        ) from None
    return DeadLetter(
        topic=facts.topic,
        partition=facts.partition,
        offset=facts.offset,
        code=facts.code,
        message=facts.message,
        time=record.timestamp / 1000,
        key=record.key,
        value=None if record.value is None else bytes(record.value),
        headers=tuple(record.headers[: len(record.headers) - len(facts.to_kafka())]),
        length=facts.length,
    )
