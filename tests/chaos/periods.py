"""Checks a source with periods from its topics: which periods begin, their questions, and their end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator

from schemas import (
    Answer,
    EventsSource,
    GrantRecord,
    SourceRecord,
    StandingQuery,
    StreamSpec,
    TrailRequest,
    format_moment,
    moment_ms,
    period_name,
    span_ms,
)
from stream.budget.trail_verification import TrailCheck
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import Topics
from tests.chaos.replay import Logs, answers_codec, read_ledger
from tests.chaos.windows import asked_between, events_of, violations_of_windows

ROUNDING = 1e-9
TO_COME = ("not asked", "not begun", "not answered", "not closed")
"""Parts of the findings that a correct run may have before it is over."""


class Periods:
    """The periods of one source; ``ended`` has the models that are closed, whose last questions depend on the time of the closing."""

    def __init__(self, logs: Logs, topics: Topics, source: EventsSource, ended: Collection[str] = ()) -> None:
        self._logs = logs
        self._topics = topics
        self._source = source
        self._ended = ended
        self.accounts: dict[int, SourceRecord] = {}
        """The account of each period, by the moment at which the period begins."""
        self.grants: dict[str, GrantRecord] = {}
        latest = {one.key: read_ledger(one.value) for one in self._all(topics.ledger) if one.value is not None}
        for record in latest.values():
            if isinstance(record, GrantRecord):
                self.grants[record.spec.stream] = record
            elif isinstance(record, SourceRecord) and getattr(record.source, "period_of", None) == source.source:
                self.accounts[moment_ms(getattr(record.source, "starts", ""))] = record
        self._models = [one.spec for one in self.grants.values() if one.spec.source == source.source]

    def violations(self, partitions: int, until: int) -> list[str]:
        """Return the violations that exist once the clock of all partitions of the topic is at ``until``."""
        return [
            *self._beginnings(until),
            *self._windows(partitions, until),
            *self._answers(),
            *self._endings(until),
        ]

    def refunds(self) -> list[str]:
        """Check that each period got back the unspent budget of its closed streams; all charges must have reached the ledger."""
        found = []
        for start, account in self.accounts.items():
            mine = [one for one in self._of(start) if one.state == "closed"]
            unspent = sum(one.cost.epsilon - one.spent.epsilon for one in mine)
            if abs(account.refunded.epsilon - unspent) > ROUNDING:
                found.append(
                    f"{account.source.source}: was refunded {account.refunded.epsilon}, and {unspent} was not spent"
                )
        return found

    def _beginnings(self, until: int) -> list[str]:
        """Check that a period begins once, with all open models, and not before one of its windows is to be asked."""
        name, accounts = self._source.source, self.accounts
        needed = {start for spec in self._lasting() for start in self._due(spec, until)}
        may = {start for spec in self._models for start in self._due(spec, until)}
        found = [f"{period_name(name, start)}: is not begun" for start in sorted(needed - accounts.keys())]
        found += [f"{period_name(name, start)}: has begun early" for start in sorted(accounts.keys() - may)]
        begun = self._begun()
        for start in accounts:
            wanted = {spec.stream: self._in_period(spec, start) for spec in self._models}
            opened = {one.spec.stream: one.spec for one in self._of(start)}
            for model, spec in wanted.items():
                stream = period_name(model, start)
                if spec is None or (model in self._ended and stream not in opened):
                    continue
                if opened.pop(stream, None) != spec:
                    found.append(f"{stream}: is not opened as its model is")
                if begun[stream] != 1:
                    found.append(f"{stream}: was opened {begun[stream]} times")
            found += [f"{stream}: was opened, and is of no model that asks of its period" for stream in opened]
            if begun[period_name(name, start)] != 1:
                found.append(f"{period_name(name, start)}: was begun {begun[period_name(name, start)]} times")
        return found

    def _begun(self) -> Counter[str]:
        """Return how often each account was registered and each stream was opened according to the trail, by name."""
        check = TrailCheck()
        entries = [check.add_entry(one.value) for one in self._all(self._topics.trail)]
        return Counter(
            one.stream or one.source or ""
            for one in entries
            if isinstance(one, TrailRequest) and one.outcome in {"registered", "opened"}
        )

    def _windows(self, partitions: int, until: int) -> list[str]:
        """Check that each period's windows ask only the period's streams, each window once, with the numbers of a plain count."""
        found, events = [], events_of(self._logs, self._source, partitions)
        for start, account in self.accounts.items():
            there = [one.spec for one in self._of(start) if not self._is_ended(one.spec.stream)]
            if isinstance(account.source, EventsSource):
                place = (self._logs, self._topics, account.source)
                # A period's streams are closed after all of its windows are asked, so the closing ends no window early.
                found += violations_of_windows(*place, there, partitions, until, events, gaps={})
        return found

    def _answers(self) -> list[str]:
        """Check that no model is asked, and that a period's stream gets and answers each question once, before it is closed."""
        asked = Counter(
            ((one.key or b"").decode(), json.loads(one.value or b"")["id"])
            for one in self._mine(self._topics.queries)
        )
        answers = [answers_codec.decode(one.value) for one in self._mine(self._topics.answers)]
        answered = Counter((one.stream, one.id) for one in answers)
        models = {spec.stream for spec in self._models}
        found = [f"{stream}: a model was asked {one}" for stream, one in asked if stream in models]
        found += [f"{stream}: asked {one} {times} times" for (stream, one), times in asked.items() if times > 1]
        found += [f"{stream}: {one} is not answered" for stream, one in asked.keys() - answered.keys()]
        found += [
            f"{one.stream}: {one.id} was {one.outcome}: {one.reason}"
            for one in answers
            if self._is_turned_away(one)
        ]
        return found

    def _is_turned_away(self, answer: Answer) -> bool:
        return answer.outcome in {"rejected", "halted"} and not self._is_ended(answer.stream)

    def _endings(self, until: int) -> list[str]:
        """Check that a period's stream is closed when all windows of the next period are asked, and not before, unless it is exhausted."""
        found = []
        for start in self.accounts:
            for grant in self._of(start):
                stream, spec = grant.spec.stream, grant.spec
                if self._is_ended(stream):
                    continue
                standing = _standing(spec)
                behind = start + 2 * self._source.period_ms + span_ms(standing.lateness)
                if behind <= until and grant.state not in {"closed", "exhausted"}:
                    found.append(
                        f"{stream}: is not closed, and all windows up to {format_moment(behind)} are asked"
                    )
                elif behind > until and grant.ending is not None:
                    found.append(f"{stream}: is {grant.ending} early")
        return found

    def _due(self, spec: StreamSpec, until: int) -> Iterator[int]:
        """Yield the periods in which a model has a window that must be asked by ``until``."""
        standing, length = _standing(spec), self._source.period_ms
        begins = moment_ms(standing.begins or "")
        for start in range(begins - begins % length, until, length):
            of_period = self._in_period(spec, start)
            if of_period is None:
                continue
            first, end = asked_between(self._source.account_of_period(start), of_period)
            if first < end and first + standing.window.size_ms + span_ms(standing.lateness) <= until:
                yield start

    def _in_period(self, spec: StreamSpec, start: int) -> StreamSpec | None:
        """Return the specification with which a model's stream of a period is opened; None if the model begins later."""
        standing = _standing(spec)
        begins = moment_ms(standing.begins or "")
        if begins >= start + self._source.period_ms:
            return None
        own = standing.model_copy(update={"begins": format_moment(max(start, begins))})
        names = {"stream": period_name(spec.stream, start), "source": period_name(self._source.source, start)}
        return spec.model_copy(update={**names, "standing": own})

    def _lasting(self) -> list[StreamSpec]:
        return [spec for spec in self._models if spec.stream not in self._ended]

    def _is_ended(self, stream: str) -> bool:
        return stream.partition("@")[0] in self._ended

    def _of(self, start: int) -> list[GrantRecord]:
        """Return the grants of a period's streams."""
        name = period_name(self._source.source, start)
        return [one for one in self.grants.values() if one.spec.source == name]

    def _mine(self, topic: str) -> list[RecordLike]:
        """Return the records of the source's streams in a topic."""
        mine = {spec.stream.encode() for spec in self._models}
        return [one for one in self._all(topic) if (one.key or b"").partition(b"@")[0] in mine]

    def _all(self, topic: str) -> list[RecordLike]:
        return [one for (name, _), log in self._logs.items() if name == topic for one in log]


def _standing(spec: StreamSpec) -> StandingQuery:
    if spec.standing is None:
        raise TypeError("a stream on a live topic is a standing one")
    return spec.standing
