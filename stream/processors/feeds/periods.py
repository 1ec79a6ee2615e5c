"""Sources with periods, as merging knows them: which windows lie in one period, and which stream each of them asks there.

A period begins when its first window is to be asked: its account is asked for, and the window waits until control tells of it. It ends
when all of the one behind it has been asked; whoever answers it does so first, however far behind.
"""

from __future__ import annotations

from schemas import MAX_DEFINITION_BYTES, BeginPeriod, CloseStream, Request, moment_ms, named_at, written_moment
from schemas.wire import Codec
from stream.processors.base import Outputs
from stream.processors.feeds.definitions import Definitions
from stream.processors.feeds.told import Told
from stream.processors.periods import OVER, asked_span
from stream.processors.topics import LEDGER_PARTITIONS, Topics, partition_of

_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)


class Periods:
    """What merging asks of the ledger, each under an id of its own: asked twice, it is done once."""

    def __init__(self, topics: Topics, definitions: Definitions) -> None:
        self._topics = topics
        self._definitions = definitions
        self._asking: dict[str, str] = {}
        """The periods that are asked for, and the stream that asks."""
        self._ending: dict[str, set[str]] = {}
        """What of each stream is asked to be closed."""
        self._seen = -1

    def is_ready(self, outputs: Outputs, told: Told, start: int) -> bool:
        """Whether it is known what a window asks; if not, its period is asked for."""
        if not told.source.has_periods or not is_asked(told, start):
            return True
        source, stream = _names(told, start)
        if self._definitions.knows(source, stream):
            self._asking.pop(source, None)
            return True
        asking = self._definitions.find(told.source.source, self._asking.get(source, ""))
        if asking is None or not asking.asks:
            # Of a stream that has ended nobody knows whether it was in time: so each asks for itself.
            self._asking[source] = told.spec.stream
            begins = written_moment(period_of(told, start))
            request = f"begin/{told.incarnation}@{begins}"
            self._write(outputs, BeginPeriod(request=request, source=told.source.source, start=begins))
        return False

    def asked_by(self, told: Told, start: int) -> Told | None:
        """The stream that a window asks; None where it asks none: it reaches into two periods or lies behind a
        horizon, or the stream has ended there.
        """
        if not told.source.has_periods:
            return told
        found = self._definitions.find(*_names(told, start)) if is_asked(told, start) else None
        return found if found is not None and found.asks else None

    def take_news(self) -> bool:
        """Whether control has told of anything since the last call."""
        before, self._seen = self._seen, self._definitions.version
        return before != self._seen

    def passed(self, outputs: Outputs, told: Told, before: int, reached: int) -> None:
        """Close a stream's periods that are over if its windows have been asked over an edge."""
        if told.source.has_periods and _asked_to(told, before) != _asked_to(told, reached):
            self.close(outputs, told, reached)

    def close(self, outputs: Outputs, told: Told, reached: int) -> None:
        """Close a stream's periods that lie a whole one behind, now that all windows of one more have been asked.

        Control may tell of one of them later than of the next, so this is to be looked at with all that it tells.
        """
        if not told.source.has_periods:
            return
        model, behind = told.spec.stream, _asked_to(told, reached) - 2 * told.source.period_ms
        asking = self._definitions.asking_in_periods(told.source.source, model)
        over = {one.spec.stream: one for one in asking if moment_ms(one.source.starts or "") <= behind}
        for name in sorted(over.keys() - self._ending.get(model, set())):
            source = over[name].source.source
            self._write(outputs, CloseStream(request=f"end/{name}", source=source, stream=name, reason=OVER))
        self._ending[model] = set(over)

    def _write(self, outputs: Outputs, request: BeginPeriod | CloseStream) -> None:
        key = request.source.encode()
        message = (key, _requests.encode(request), ())
        outputs.add(self._topics.requests, partition_of(key, LEDGER_PARTITIONS), message)


def is_asked(told: Told, start: int) -> bool:
    """Whether a window is asked of its period: it lies in it, and within the horizon that a running count has in each."""
    reach = asked_span(told.source, told.spec.mechanism, told.standing.window)
    return lies_in_one(told, start) and start - period_of(told, start) < reach


def lies_in_one(told: Told, start: int) -> bool:
    """Whether a window lies in one period: one that reaches over an edge would have what a person did in two."""
    return start + told.standing.window.size_ms <= period_of(told, start) + told.source.period_ms


def period_of(told: Told, start: int) -> int:
    """The beginning of the period that a moment lies in."""
    return start - start % told.source.period_ms


def _asked_to(told: Told, reached: int) -> int:
    """Up to where all windows of periods have been asked: the edge behind or at the end of the one that was reached."""
    length = told.source.period_ms
    return (reached + told.standing.window.size_ms) // length * length


def _names(told: Told, start: int) -> tuple[str, str]:
    """What the account and the stream of a window's period are called."""
    period = period_of(told, start)
    return named_at(told.source.source, period), named_at(told.spec.stream, period)
