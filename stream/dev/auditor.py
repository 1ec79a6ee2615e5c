"""Runs audit cases and bounds their privacy loss; all cases share one probability of false alarms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
from blake3 import blake3

from schemas import Answer, OpenStream, Source
from stream.client.client_calls import require_accepted
from stream.dev.audit_cases import HALTED, AnswerContent, Case, Transcript
from stream.dev.event_search import (
    Samples,
    TranscriptEvent,
    epsilon_at_least,
    label_event,
    search_event,
    split_samples,
)
from stream.questions.question_forms import as_source, as_spec
from stream.testing import Driver

RUNS_AT_A_TIME = 2500
"""Maximum number of runs per data set in one installation; the limit bounds memory."""

DELIVERIES = 4
"""Number of times that the queries of a redelivered run are processed."""

SOURCE_EPSILON = 1000.0
"""The ε of each source; as many sources are registered as all runs need."""

SOURCE_DELTA = 0.25

_KEY_CONTEXT = "sotto 2026 audit noise key v1"


@dataclass
class _AuditRun:
    """One run on one of the two neighboring data sets (its side).

    It has a source and streams, the answers so far, and whether it has ended.
    """

    side: int
    source: str
    streams: list[str]
    answers: list[AnswerContent] = field(default_factory=list)
    has_ended: bool = False


def sample(case: Case, *, runs: int, seed: int) -> tuple[Samples, str]:
    """Make independent runs on each side; return their transcripts and the calibration's method.

    The same seed gives the same transcripts.
    """
    transcripts: tuple[list[Transcript], list[Transcript]] = ([], [])
    method = ""
    for first in range(0, runs, RUNS_AT_A_TIME):
        name = f"{seed}|{case.kind}|{case.pair}|{first}"
        driver = Driver(blake3(name.encode(), derive_key_context=_KEY_CONTEXT).digest(), partitions=1)
        for run in _Installation(case, driver).make_runs(min(RUNS_AT_A_TIME, runs - first)):
            transcripts[run.side].append(tuple(run.answers))
        control_event = msgspec.json.decode(driver.records(driver.topics.control)[-1].value or b"{}")
        method = str(control_event["calibration"].get("method", ""))
    return transcripts, method


class _Installation:
    """An in-memory installation that makes many runs of a case at once."""

    def __init__(self, case: Case, driver: Driver) -> None:
        self._case = case
        self._driver = driver

    def make_runs(self, runs: int) -> list[_AuditRun]:
        """Open all streams and ask all queries, alternating between the sides."""
        sides = [self._open_runs(side, runs) for side in range(2)]
        opened = [run for pair in zip(*sides, strict=True) for run in pair]
        if self._case.sides[0].sent:
            self._send_events(opened)
            return opened
        indexes = range(len(self._case.sides[0].queries))
        if self._case.interruption == "redelivery":
            self._ask_queries(opened, indexes)
            for _ in range(DELIVERIES - 1):
                self._add_answers(opened, self._driver.redeliver(compare=False))
            return opened
        for index in indexes:
            # A halted stream gives no new information, unless a crash may undo the halt.
            self._ask_queries([run for run in opened if not run.has_ended], range(index, index + 1))
            if self._case.interruption == "crash":
                self._driver.crash()
        return opened

    def _open_runs(self, side: int, runs: int) -> list[_AuditRun]:
        case = self._case
        capacity = SOURCE_EPSILON / case.epsilon
        if case.delta:
            capacity = min(capacity, SOURCE_DELTA / case.delta)
        budget: dict[str, Any] = {"epsilon": SOURCE_EPSILON, **({"delta": SOURCE_DELTA} if case.delta else {})}
        table = case.sides[side].table
        per_source = 1 if case.streams > 1 else math.floor(capacity)
        opened: list[_AuditRun] = []
        sources: list[Source] = []
        for first in range(0, runs, per_source):
            source = f"source-{side}-{first // per_source}"
            topic = {"topic": source} if case.source["kind"] == "events" else {}
            sources.append(as_source({**case.source, **topic, **budget, "source": source}))
            opened += [
                _AuditRun(side, source, [f"stream-{side}-{number}-{index}" for index in range(case.streams)])
                for number in range(first, min(first + per_source, runs))
            ]
        self._driver.register_all(sources, table)
        self._open_streams(opened)
        return opened

    def _open_streams(self, runs: Sequence[_AuditRun]) -> None:
        fields = {"epsilon": 1.0, **self._case.stream, "mechanism": dict(self._case.mechanism)}
        spec = as_spec({**fields, "stream": runs[0].streams[0], "source": runs[0].source})
        requests = [
            OpenStream(request=name, stream=spec.model_copy(update={"stream": name, "source": run.source}))
            for run in runs
            for name in run.streams
        ]
        for receipt in self._driver.requests(requests):
            require_accepted(receipt)

    def _send_events(self, runs: list[_AuditRun]) -> None:
        """Send each side's events to its sources; all streams of a source count the same events."""
        run_of = {run.streams[0]: run for run in runs}
        for side, source in dict.fromkeys((run.side, run.source) for run in runs):
            for sent in self._case.sides[side].sent:
                for answers in (
                    self._driver.publish(source, sent.events),
                    self._driver.advance(source, sent.until),
                ):
                    for answer in answers:
                        # A stream NAME@PERIOD belongs to the run that opened NAME.
                        run_of[answer.stream.partition("@")[0]].answers.append(self._case.content_of(answer))

    def _ask_queries(self, runs: list[_AuditRun], indexes: range) -> None:
        queries = (
            msgspec.json.encode(
                {
                    **self._case.sides[run.side].queries[index],
                    "id": f"{run.streams[0]}-{index}",
                    "stream": run.streams[index % self._case.streams],
                }
            )
            for run in runs
            for index in indexes
        )
        self._add_answers(runs, self._driver.ask_many(queries))

    def _add_answers(self, runs: list[_AuditRun], answers: Sequence[Answer]) -> None:
        per_run = len(answers) // max(len(runs), 1)
        may_resume = self._case.interruption == "crash" or self._case.streams > 1
        for number, run in enumerate(runs):
            run.answers += [
                self._case.content_of(answer) for answer in answers[number * per_run : (number + 1) * per_run]
            ]
            run.has_ended = not may_resume and run.answers[-1] == HALTED


FALSE_ALARM = 1e-6
"""Default bound on the probability that any correct mechanism is flagged."""

LEAST_RUNS = 8
"""Fewest runs per data set; fewer give no information."""


@dataclass(frozen=True)
class Finding:
    """The result of one case.

    The true loss is below ``epsilon_at_least`` with at most the case's share of the probability ``false_alarm``.
    Of ``tested`` runs on each side, ``likely`` have the event on the side where it is more likely, and
    ``unlikely`` on the other side.
    """

    mechanism: str
    method: str
    epsilon: float
    delta: float
    pair: str
    event: str
    likely: int
    unlikely: int
    tested: int
    epsilon_at_least: float

    @property
    def flagged(self) -> bool:
        """True if the lower bound exceeds the claim."""
        return self.epsilon_at_least > self.epsilon

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON fields."""
        return {**asdict(self), "verdict": "flagged" if self.flagged else "not flagged"}


def audit_all(
    cases: Sequence[Case], *, runs: int, seed: int = 0, false_alarm: float = FALSE_ALARM
) -> Iterator[Finding]:
    """Audit each case with ``runs`` runs on each data set, and yield a finding for each.

    The probability, over the noise key, that any correct mechanism is flagged is at most
    ``false_alarm``; every case has an equal share of it. The findings are a function of ``seed``.

    Raises:
        ValueError: there are no cases, or too few runs.
        AuditError: the installation rejects a case's queries.
        Refused: the budget service refuses a case's stream.
    """
    if not cases:
        raise ValueError("cases: name at least one")
    if runs < LEAST_RUNS:
        raise ValueError(f"runs: {runs} are too few; make at least {LEAST_RUNS}")
    return (_audit_case(case, runs, seed, false_alarm / len(cases)) for case in cases)


def _audit_case(case: Case, runs: int, seed: int, error_probability: float) -> Finding:
    transcripts, method = sample(case, runs=runs, seed=seed)
    event, likely, unlikely, tested, bound = judge(case, transcripts, error_probability)
    return Finding(
        mechanism=case.kind,
        method=method,
        epsilon=case.epsilon,
        delta=case.delta,
        pair=case.pair,
        event=event.label,
        likely=likely,
        unlikely=unlikely,
        tested=tested,
        epsilon_at_least=bound,
    )


def judge(case: Case, samples: Samples, error_probability: float) -> tuple[TranscriptEvent, int, int, int, float]:
    """Return an event, its counts on both sides, the number of tested runs, and the bound on ε.

    A known event is tested in both directions on all runs, each direction at half of ``error_probability``. If no
    event is known, half of the runs select an event and its direction, and the other half test them.
    """
    if case.event is not None:
        tested, each = samples, error_probability / 2
        events = [label_event(case.event, side, samples) for side in (0, 1)]
    else:
        selecting, tested = split_samples(samples)
        each = error_probability
        events = [search_event(selecting, delta=case.delta, error_probability=each, trials=len(tested[0]))]
    trials = len(tested[0])
    judged = []
    for event in events:
        likely, unlikely = event.hits(tested)
        bound = float(epsilon_at_least(likely, unlikely, trials, delta=case.delta, error_probability=each))
        judged.append((event, likely, unlikely, trials, bound))
    return max(judged, key=lambda one: one[-1])
