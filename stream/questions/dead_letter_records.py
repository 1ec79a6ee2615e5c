"""Dead letters: refused events as they came, with the reason; as private as these events are."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import RejectedHeaders
from stream.errors import SottoError
from stream.processing.protocol import Headers, RecordLike


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused event, and why it was refused.

    ``topic``, ``partition`` and ``offset`` say where the event stands, ``key``, ``value`` and ``headers`` are the event's own, and ``time`` is when
    it was refused, in seconds since 1970. ``length`` is that of the whole value if ``value`` is only its beginning.
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
        """Code and message in one line."""
        return f"{self.code}: {self.message}"


def read_dead_letter(record: RecordLike) -> DeadLetter:
    """Read a record of the topic of rejected events.

    Raises:
        SottoError: it does not have the headers of a dead letter.
    """
    try:
        facts = RejectedHeaders.from_kafka(record.headers)
    except ValueError:
        place = f"{record.topic}, partition {record.partition}, offset {record.offset}"
        raise SottoError(f"{place}: is no dead letter of Sotto's; see who else writes the topic") from None
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
