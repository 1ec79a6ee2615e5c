"""Answers, status records, and dead letters.

The value of a dead letter is the refused event, which is cut if it is long; its headers are `RejectedHeaders`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

from schemas.base import (
    MAX_ANSWER_BYTES,
    MAX_RECORD_BYTES,
    Amount,
    Count,
    Digest,
    Event,
    Identifier,
    Incarnation,
    Position,
    Reason,
    Surplus,
    Version,
)
from schemas.changelogs import StreamState
from schemas.queries import Group
from schemas.windows import Window
from schemas.wire import Codec

Interval = tuple[float, float]
"""The lower and the upper end of a confidence interval, in the unit of the number."""

TextInterval = tuple[str, str]
"""The first and the last value of the confidence interval of a date or an ordered category."""

Outcome = Literal["above", "below", "answer", "halted", "rejected"]

INDEPENDENCE: Final = "independence"
"""The basis of an estimate if two of its attributes were never measured together, or if one was never measured."""

TOO_MANY_TEXTS: Final = "too-many-texts"
"""The basis of an answer about a window that has, by a noisy test, more different texts than the limit."""


class Answer(Event, wire_omits_defaults=True):
    """The one answer to one query. Fields that are null are left out of the JSON.

    * ``index`` numbers the stream's answered queries from 0; it is null for ``halted`` and ``rejected``.
    * ``estimate`` is the requested number. ``estimates`` are several numbers in the requested order, for cells in
      row-major order. ``choice`` is a category or a candidate's name.
    * ``keys`` are the texts that an ``unknown_groups`` stream releases, one for each of the ``estimates``, the largest
      estimate first. If the stream releases no counts, ``estimates`` is null and the texts are sorted. ``keys`` is
      empty with the ``basis`` ``too-many-texts``: the window has too many different texts.
    * ``choices`` are the values of several quantiles of dates or ordered categories, in the requested
      order; a single value is the ``choice``. ``choice_intervals`` are their 95 % confidence intervals.
    * ``alpha`` bounds the errors of all numbers of the stream together, with probability 1 − β.
    * ``basis`` says from what the answer was computed. ``independence`` says that two attributes of an
      estimate were never measured together, or that one was never measured.
    * ``typical_error`` is the mean error, in the unit of the numbers, of similar estimates: over the same number of
      attributes, of about the same size. It is a noisy mean over the expected questions, and no bound for this
      number. Of several ``estimates`` it is the mean over those of at least half a row. Measured numbers have an
      interval, and their ``typical_error`` is null.
    * ``interval`` is the 95 % confidence interval ``[low, high]`` of ``estimate``; ``intervals`` has an
      interval for each of the ``estimates``. Each interval is about one number alone. They are null if the
      law of the number's noise is unknown, and for a question with ``top``, because it selects numbers.
      ``unknown_groups`` publishes them with ``top`` too: they do not hold then.
    * ``top_groups`` has the group of each of the ``estimates`` of a question with ``top``. A stream of
      ``unknown_groups`` that groups by a text and declared attributes has ``top_groups`` in place of ``keys``.
    * ``spent`` is the privacy loss of the stream up to this answer. ``tops_left`` is the number of charged
      answers (⊤s, updates, noisy answers) for which the rest of the grant pays; it is null if one charge pays
      for all answers. Both are null for ``rejected``, because the query never reaches its stream.
    * ``price`` is the ε charged for a question with an ``alpha``, and 0 if the answer was already known.
      For a question ``rejected`` for its price, it is the ε that the answer would have cost. It is null for
      Gaussian noise, which has no ε per answer.
    * ``version`` is the version of the data; it is null for the first version. ``window`` and ``group`` belong
      to answers of a standing stream.

    Examples:
        >>> answer = client.ask("counts", where="age >= 65")
        >>> answer.outcome, answer.index
        ('answer', 0)
    """

    id: str
    stream: str
    outcome: Outcome
    index: Count | None = None
    estimate: float | None = None
    basis: str | None = None
    reason: Reason | None = None
    spent: Amount | None = None
    tops_left: Count | None = None
    estimates: tuple[float, ...] | None = None
    choice: str | None = None
    alpha: float | None = None
    price: float | None = None
    version: Version | None = None
    interval: Interval | None = None
    intervals: tuple[Interval, ...] | None = None
    window: Window | None = None
    group: Group | None = None
    top_groups: tuple[Group, ...] | None = None
    keys: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    choice_intervals: tuple[TextInterval, ...] | None = None
    typical_error: float | None = None


class StreamStatus(Event, wire_omits={"surplus"}):
    """A stream's totals after its last answered query, which is at ``position``; the latest record is valid.

    ``refused`` says why the worker cannot answer although the stream has not ended: its table differs
    from the registered data, or its noise key is missing.
    """

    stream: Identifier
    source: Identifier
    incarnation: Incarnation
    state: StreamState
    answered: Count
    tops: Count
    tops_left: Count | None
    spent: Amount
    alpha: float
    position: Position
    refused: Reason | None = None
    surplus: Surplus = 0


class PartitionStatus(Event):
    """The progress of a service's restore of one input partition; the latest record is valid.

    It is written during a restore, and when the partition is ready, under the key ``@role|partition``,
    which no stream's name can equal. The restore has taken ``seconds`` so far and read ``records`` records. It
    must read ``total`` offsets, some of which may have no record.
    """

    role: Literal["worker", "budget", "feed"]
    partition: Count
    member: str
    phase: Literal["restoring", "ready"]
    records: Count
    total: Count
    seconds: float


class MemberStatus(Event, wire_omits={"not_ready"}):
    """The heartbeat of a running service process; the latest record is valid.

    It is written every ten seconds under the key ``@member|NAME``, which no stream's name can equal, and
    deleted when the process leaves; the record of a killed process stays. ``started`` is in seconds since
    1970, and ``memory`` in bytes. ``not_ready`` is the reason why ``/readyz`` of the process is 503.
    """

    role: Literal["worker", "budget", "feed"]
    member: str
    version: str
    started: float
    memory: Count
    not_ready: Reason | None = None


HEADER_PREFIX = "__connect.errors."
"""The prefix of Kafka Connect's headers, so that its tools can read Sotto's dead letters."""

OPTIONAL_FACTS: Final = ("last_offset", "codec", "length", "digest", "key_length", "header_count")
"""Facts that most dead letters lack; they are set if the event was cut, or if a whole batch was refused."""


class RejectedHeaders(Event):
    """The reason and the origin of a dead letter; no header contains a private value.

    ``code`` is a word of a fixed list; ``message`` names the field and the remedy. If the value was cut,
    ``length`` and ``digest`` (BLAKE3) describe the whole value. ``key_length`` and ``header_count`` are
    set if the key or the headers were cut. ``last_offset`` and ``codec`` are set if a whole batch, which
    begins at ``offset``, was refused without being read.
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
        """Return a Kafka header, with Kafka Connect's name, for each fact that is set."""
        facts = ((header, getattr(self, fact)) for header, fact in _FACT_BY_HEADER.items())
        return [(header, str(fact).encode()) for header, fact in facts if fact is not None]

    @classmethod
    def from_kafka(cls, headers: Sequence[tuple[str, bytes | None]]) -> Self:
        """Read the facts, which follow the event's own headers; ValueError if one is missing or wrong."""
        first = max(
            (index for index, (name, _) in enumerate(headers) if name == _FIRST_HEADER), default=len(headers)
        )
        added = {name: (value or b"").decode(errors="replace") for name, value in headers[first:]}
        texts = {name: text for name, text in added.items() if name in _FACT_BY_HEADER}
        return cls.model_validate_strings({_FACT_BY_HEADER[name]: text for name, text in texts.items()})


def header_name(fact: str) -> str:
    """Return the header name of an optional fact."""
    return HEADER_PREFIX + fact.replace("_", ".")


_FIRST_HEADER: Final = f"{HEADER_PREFIX}topic"
_FACT_BY_HEADER: Final = {
    _FIRST_HEADER: "topic",
    f"{HEADER_PREFIX}partition": "partition",
    f"{HEADER_PREFIX}offset": "offset",
    f"{HEADER_PREFIX}exception.class.name": "code",
    f"{HEADER_PREFIX}exception.message": "message",
    **{header_name(fact): fact for fact in OPTIONAL_FACTS},
}

answer_codec: Codec[Answer] = Codec(Answer, limit=MAX_ANSWER_BYTES)

status_codec: Codec[StreamStatus] = Codec(StreamStatus, limit=MAX_RECORD_BYTES)


CLOUD_EVENTS_VERSION: Final = b"1.0"
CONTENT_TYPE: Final = b"application/json"
ANSWER_TYPE: Final = b"io.sotto.answer.v1"
"""CloudEvents type of answers; its version rises with each incompatible change of the format."""

MAX_TRACEPARENT = 128
"""Longest ``traceparent`` that is copied, in bytes; one of version 00 has 55 bytes."""

MAX_TRACESTATE = 512
"""Longest ``tracestate`` that is copied, in bytes; the recommendation requires at least 512."""

MAX_TRACESTATE_MEMBERS = 32

_PARENT = r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
TRACEPARENT: Final = rf"^(?:00-{_PARENT}|(?!00|ff)[0-9a-f]{{2}}-{_PARENT}(?:-[\x21-\x7e]*)?)$"
"""A ``traceparent`` of version 00, or of a later version that begins with the same fields."""
