"""Bounds on the loss of many cases, with one rate of false alarms for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stream.audit.bounds import epsilon_at_least
from stream.audit.cases import Case
from stream.audit.events import Event, Samples, named, search
from stream.audit.runs import sample

FALSE_ALARM = 1e-6
"""The default probability, at most, that any correct mechanism is flagged."""

LEAST_RUNS = 8
"""Fewest runs per data set: below that there is nothing to learn from."""


@dataclass(frozen=True)
class Finding:
    """What the runs of one case show.

    ``epsilon_at_least`` is above the true loss with probability at most the case's share of the rate of false alarms;
    ``likely`` and ``unlikely`` count the runs with the event among ``tested`` runs on either side.
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
        """Whether the loss is shown to exceed the claim."""
        return self.epsilon_at_least > self.epsilon

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "verdict": "flagged" if self.flagged else "not flagged"}


def audit_all(
    cases: Sequence[Case],
    *,
    runs: int,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
) -> Iterator[Finding]:
    """Audit each case with so many runs on either data set, one finding after the other.

    The probability that any case is flagged whose mechanism keeps its claim is at most ``false_alarm``, over the noise
    key; every case has an equal share of it. Everything is a function of ``seed``.

    Raises:
        ValueError: there are no cases, or too few runs.
        AuditError: the installation rejects a case's queries.
        Refused: it refuses a case's stream.
    """
    if not cases:
        raise ValueError("cases: name at least one")
    if runs < LEAST_RUNS:
        raise ValueError(f"runs: {runs} are too few to tell anything; make at least {LEAST_RUNS}")
    return (_audited(case, runs, seed, false_alarm / len(cases)) for case in cases)


def _audited(case: Case, runs: int, seed: int, alpha: float) -> Finding:
    made = sample(case, runs=runs, seed=seed)
    event, likely, unlikely, tested, bound = judge(case, made.transcripts, alpha)
    return Finding(
        mechanism=case.kind,
        method=made.method,
        epsilon=case.epsilon,
        delta=case.delta,
        pair=case.pair,
        event=event.label,
        likely=likely,
        unlikely=unlikely,
        tested=tested,
        epsilon_at_least=bound,
    )


def judge(case: Case, samples: Samples, alpha: float) -> tuple[Event, int, int, int, float]:
    """An event, the runs with it on either side, the runs it was tested on, and the bound on ε that they show.

    A known event is tested in both directions on all runs, each at half of ``alpha``; otherwise half of the runs choose
    event and direction and the other half test them.
    """
    if case.event is not None:
        events, tested, each = [named(case.event, side, samples) for side in (0, 1)], samples, alpha / 2
    else:
        middle = len(samples[0]) // 2
        tested = (samples[0][middle:], samples[1][middle:])
        events = [
            search(
                (samples[0][:middle], samples[1][:middle]),
                delta=case.delta,
                alpha=alpha,
                trials=len(tested[0]),
            ),
        ]
        each = alpha
    trials = len(tested[0])
    judged = []
    for event in events:
        likely, unlikely = event.hits(tested)
        bound = float(epsilon_at_least(likely, unlikely, trials, delta=case.delta, alpha=each))
        judged.append((event, likely, unlikely, trials, bound))
    return max(judged, key=lambda one: one[-1])
