"""Watching streams: which of their answers are told, and their ends, once each. Told nothing of Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from schemas import registered_as
from stream.asking.alerts import ABOVE, Notice, matches
from stream.asking.openings import Opening
from stream.asking.questions import as_names
from stream.asking.results import Result
from stream.errors import Unknown
from stream.suggestions import did_you_mean

_HALTED: Final = b'"halted"'


class AnswerRecord(Protocol):
    """What is read of an answer's record."""

    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102


class Watch:
    """The streams of these names, which may hold ``*``, and of this source: their alerts, with ``quiet`` all their answers.

    A stream with periods is followed through all of them, by the name that it was opened under.
    """

    def __init__(
        self,
        patterns: tuple[str, ...],
        source: str | None,
        *,
        quiet: bool,
    ) -> None:
        self._patterns = tuple(as_names("streams", patterns))
        self._source = source
        self._quiet = quiet
        self._ended: set[str] = set()

    def wants(self, source: str, stream: str) -> bool:
        """Whether a stream is watched."""
        return self._source in {None, source, registered_as(source)} and matches(stream, self._patterns)

    def begin(
        self, openings: Iterable[Opening], sources: AbstractSet[str], *, from_beginning: bool
    ) -> list[Notice]:
        """What is told first: which of the streams that are named in full have ended.

        From the beginning on nothing is: their ends come behind their answers.

        Raises:
            Unknown: such a stream, or the source, is not there.
        """
        if self._source is not None and self._source not in sources:
            hint = did_you_mean(self._source, sources) or "; see 'sotto source list'"
            raise Unknown(f"source '{self._source}' is not registered{hint}")
        known = {opening.stream: opening for opening in openings}
        for name in self._patterns:
            if name not in known and not any(sign in name for sign in "*?["):
                raise Unknown(
                    f"stream '{name}' is not known{f' to source {self._source}' if self._source else ''}; see 'sotto "
                    f"source list', or watch '{name}*' for streams that are still to be opened"
                )
        return [] if from_beginning else self.ended(known[name] for name in self._patterns if name in known)

    def ended(self, openings: Iterable[Opening]) -> list[Notice]:
        """What is told of the ends of streams by the ledger, the earliest first."""
        return sorted((one for opening in openings for one in self._changed(opening)), key=lambda one: one.time)

    def _changed(self, opening: Opening) -> list[Notice]:
        """What is told when the ledger has something new of a stream; that a period is over is nothing new."""
        if opening.end is None:
            self._ended.discard(opening.stream)
            return []
        if opening.state == "closed" and registered_as(opening.stream) != opening.stream:
            return []
        return self._end(opening, opening.end, opening.time)

    def may_matter(self, record: AnswerRecord) -> bool:
        """Whether an answer could be told, by its bytes: most are passed over unread."""
        value = record.value or b""
        return (self._quiet or ABOVE in value or _HALTED in value) and matches(
            (record.key or b"").decode(errors="replace"), self._patterns
        )

    def told(self, record: AnswerRecord, opening: Opening, counted: str = "") -> list[Notice]:
        """What is told of an answer of a stream that is watched; ``counted`` is what its source says of one person's rows."""
        answer = Result.read(record.value)
        notice = Notice(record.timestamp / 1000, opening.stream, opening.source, answer, counted=counted)
        if answer.outcome == "halted":
            # The ledger may have told of it before the stream was asked again.
            ends = (
                self._end(opening, f"halted: {answer.reason}", notice.time)
                if opening.end is None
                else self._end(opening, opening.end, min(notice.time, opening.time))
            )
            return ends or ([notice] if self._quiet else [])
        if answer.outcome != "rejected" and opening.end is None:
            self._ended.discard(opening.stream)
        return [notice] if self._quiet or notice.is_alert else []

    def _end(self, opening: Opening, end: str, when: float) -> list[Notice]:
        if opening.stream in self._ended:
            return []
        self._ended.add(opening.stream)
        return [Notice(when, opening.stream, opening.source, ended=end)]
