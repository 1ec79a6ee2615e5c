"""Runs streams over public data with the services' processors, and measures errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import polars as pl
from blake3 import blake3

from schemas import (
    AboveThreshold,
    Answer,
    Calibration,
    EventsSource,
    GrantRecord,
    NumericSparse,
    OpeningSpec,
    Query,
    Source,
    StreamSpec,
    TableSource,
    form_of,
)
from schemas.queries import STATISTICS
from stream.dev.simulation_inputs import SimulationError
from stream.dev.true_answers import TableTruths, Truths, truths_of
from stream.formatting import describe_table_bound
from stream.privacy.composition.costs import ordinary_charges_left
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.planning.promises import promises
from stream.tables.columns_table import PrivateTable
from stream.tables.rows import Rows
from stream.tables.store import table_key
from stream.testing import Driver

_LABELS = {
    "value": "values",
    "values": "values",
    "count": "counts",
    "people": "people",
    "fraction": "shares",
    "groups": "groups",
    "terms": "weighted sums",
    "cells": "cells",
    "rate": "rates",
    "people_groups": "people in groups",
    "person_sum": "sums of people",
    "quantile": "ranks of quantiles",
    "iqr": "interquartile ranges",
    "variance": "variances",
    "stddev": "deviations",
}


@dataclass(frozen=True, slots=True)
class ErrorMeasurement:
    """The errors of one answer of the kind ``what``, and its promised ``alpha``, if any.

    The error of ``above`` or ``below`` is the distance of the true number from the threshold if it is on the
    wrong side. The error of a choice is the difference between its score and the best score.
    """

    line: int
    what: str
    errors: tuple[float, ...]
    alpha: float | None
    broken: bool

    @property
    def largest(self) -> float:
        """The largest error of the answer's numbers."""
        return max(self.errors)


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """A summary of the errors of one kind of answers; ``alpha`` is the range of promised bounds."""

    what: str
    answers: int
    numbers: int
    largest: float
    mean: float
    alpha: tuple[float, float] | None
    unpromised: int
    broken: int


def measure(
    line: int, query: Query, answer: Answer, spec: StreamSpec, calibration: Calibration, truths: Truths
) -> list[ErrorMeasurement]:
    """Measure the errors of one answer; return none if it is rejected or halted, or has no defined true number."""
    if answer.outcome in {"rejected", "halted"}:
        return []
    if query.candidates is not None:
        scores = truths.scores(query)
        regret = max(scores.values()) - scores[answer.choice or ""]
        return [_make_measurement(line, "choices", [(regret, Fraction())], answer.alpha)]
    if (statistic := _measure_statistic(truths, query, answer, line)) is not None:
        return [statistic]
    if isinstance(truths, TableTruths) and query.group_by is not None:
        texts = _measure_texts(truths, query, answer, calibration, line)
        if texts is not None:
            return texts
    exact = truths.numbers(query)
    found = []
    mechanism = spec.mechanism
    if isinstance(mechanism, AboveThreshold | NumericSparse) and exact:
        threshold = Fraction(repr(mechanism.threshold if query.threshold is None else query.threshold))
        over = exact[0] - threshold
        wrong = max(Fraction(), -over if answer.outcome == "above" else over)
        found.append(_make_measurement(line, "above and below", [(wrong, Fraction())], calibration.alpha))
    published = answer.estimates if answer.estimate is None else (answer.estimate,)
    if published and exact:
        pairs = [(Fraction(number), truth) for number, truth in zip(published, exact, strict=True)]
        found.append(_make_measurement(line, _label_of(query), pairs, answer.alpha))
    return found


def _measure_statistic(truths: Truths, query: Query, answer: Answer, line: int) -> ErrorMeasurement | None:
    """Measure a quantile's error in ranks or a spread's error in values; None for other forms of questions."""
    form = next((name for name in STATISTICS if getattr(query, name) is not None), None)
    if form is None or not isinstance(truths, TableTruths):
        return None
    published = (answer.estimate,) if answer.estimate is not None else answer.estimates or ()
    true = truths.statistics(query)
    if texts := (answer.choice,) if answer.choice is not None else answer.choices:
        published = tuple(map(true.code_of, texts))
    what = f"{_LABELS[form]} of {getattr(query, form)}"
    if form == "quantile":
        pairs = [(error, Fraction()) for error in true.rank_errors(published)]
    else:
        pairs = [(Fraction(one), truth) for one, truth in zip(published, true.numbers(), strict=False)]
    # The α of an interquartile range bounds ranks, so it cannot be compared with an error in value.
    return _make_measurement(line, what, pairs, None if form == "iqr" else answer.alpha) if pairs else None


def _measure_texts(
    truths: TableTruths, query: Query, answer: Answer, calibration: Calibration, line: int
) -> list[ErrorMeasurement] | None:
    """Measure the counts of released groups of a text; None for groups of declared values.

    If the stream publishes no counts, measure the size of the largest group that was not released; it
    should be less than α.
    """
    exact = truths.text_groups(query, people=query.people or answer.estimates is None)
    if exact is None:
        return None
    released: list[tuple[str | int | float, ...]] = [(key,) for key in answer.keys or ()]
    if answer.top_groups is not None:
        released = [tuple(group.values()) for group in answer.top_groups]
    if answer.estimates is None:
        left_out = max((exact[group] for group in exact.keys() - set(released)), default=0)
        return [
            _make_measurement(
                line, "people of groups left out", [(Fraction(left_out), Fraction())], calibration.alpha
            )
        ]
    pairs = [
        (Fraction(number), Fraction(exact[group]))
        for number, group in zip(answer.estimates, released, strict=True)
    ]
    return [_make_measurement(line, "released groups", pairs, answer.alpha)] if pairs else []


def summarize_errors(measurements: Iterable[ErrorMeasurement]) -> tuple[ErrorSummary, ...]:
    """Summarize measurements by kind of answer, in order of first occurrence."""
    kinds: dict[str, list[ErrorMeasurement]] = {}
    for one in measurements:
        kinds.setdefault(one.what, []).append(one)
    return tuple(_summarize(what, measured) for what, measured in kinds.items())


def _summarize(what: str, measured: list[ErrorMeasurement]) -> ErrorSummary:
    errors = [error for one in measured for error in one.errors]
    promised = [one.alpha for one in measured if one.alpha is not None]
    return ErrorSummary(
        what=what,
        answers=len(measured),
        numbers=len(errors),
        largest=max(errors),
        mean=math.fsum(errors) / len(errors),
        alpha=(min(promised), max(promised)) if promised else None,
        unpromised=len(measured) - len(promised),
        broken=sum(one.broken for one in measured),
    )


def _make_measurement(
    line: int, what: str, pairs: list[tuple[Fraction, Fraction]], alpha: float | None
) -> ErrorMeasurement:
    errors = tuple(float(abs(number - truth)) for number, truth in pairs)
    # A published double has a rounding error in addition to α.
    broken = alpha is not None and any(
        error > alpha + 4 * math.ulp(max(abs(float(number)), alpha))
        for error, (number, _) in zip(errors, pairs, strict=True)
    )
    return ErrorMeasurement(line, what, errors, alpha, broken)


def _label_of(query: Query) -> str:
    if query.sum is not None:
        return f"sums of {query.sum}"
    return f"means of {query.mean}" if query.mean is not None else _LABELS[form_of(query)]


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The line of the first question that was answered ``halted``, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of all questions with a separate noise key; ``rejections`` are reasons by line."""

    number: int
    grant: GrantRecord
    answered: int
    halted: int
    rejections: dict[int, str]
    ended: RunEnding | None
    measurements: tuple[ErrorMeasurement, ...]

    @property
    def charged(self) -> int | None:
        """Number of charged answers out of ``cutoff``; None without a cutoff."""
        grant, cutoff = self.grant, self.grant.calibration.cutoff
        return cutoff - ordinary_charges_left(cutoff, grant.tops, grant.surplus) if cutoff else None

    @property
    def broken(self) -> int:
        """Number of answers with an error above α."""
        return len({one.line for one in self.measurements if one.broken})

    @property
    def error_summaries(self) -> tuple[ErrorSummary, ...]:
        """Errors of this run's answers by kind."""
        return summarize_errors(self.measurements)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """All runs of a stream on a source; ``seed`` reproduces them.

    ``rows`` and ``counted`` are the numbers of all rows and of counted rows; None without a table.
    """

    source: Source
    questions: int
    rows: int | None
    counted: int | None
    seed: int
    runs: tuple[Run, ...]

    @property
    def grant(self) -> GrantRecord:
        """The stream's grant; spec, calibration and cost are equal in all runs."""
        return self.runs[0].grant

    @property
    def promises(self) -> tuple[str, ...]:
        """The stream's error bounds as sentences."""
        return tuple(
            map(str, promises(self.grant.spec, self.grant.calibration, counted=describe_table_bound(self.source)))
        )

    @property
    def error_summaries(self) -> tuple[ErrorSummary, ...]:
        """Errors of all runs' answers by kind."""
        return summarize_errors(one for run in self.runs for one in run.measurements)

    @property
    def broken_runs(self) -> int:
        """Number of runs with an error above α; β bounds the probability of such a run."""
        return sum(run.broken > 0 for run in self.runs)


def simulate(
    spec: OpeningSpec,
    source: Source,
    questions: Mapping[int, Query],
    table: pl.DataFrame | None = None,
    *,
    runs: int = 5,
    seed: int = 0,
) -> SimulationReport:
    """In each run, open the stream on an in-memory installation and ask all questions.

    ``table`` replaces the source's table and must be public. Each run derives its noise key from the
    seed, so its noise protects nothing. Each run has the source's whole budget.

    Raises:
        SimulationError: the arguments do not fit together.
        Refused: the budget does not suffice, or there is no plan.
    """
    if spec.source != source.source:
        raise SimulationError(
            f"SPEC source: is '{spec.source}', but the given source is '{source.source}'; give a source and a stream on it"
        )
    if spec.standing is not None or isinstance(source, EventsSource):
        raise SimulationError(
            f"source '{source.source}': standing streams have no file of questions; use 'sotto plan' for their "
            "error bounds, or an in-memory Driver for events"
        )
    if isinstance(source, TableSource) and table is None:
        raise SimulationError(f"source '{source.source}': it has a table; give a public one")
    rows = Rows.load(source, table) if isinstance(source, TableSource) else None
    public: PrivateTable | None = None
    finished_runs: list[Run] = []
    for number in range(1, runs + 1):
        key = NoiseKey(blake3(f"sotto simulation v1 {seed} {number}".encode()).digest())
        if not finished_runs or (
            rows is not None and rows.people is not None
        ):  # the key selects each person's counted rows
            if rows is not None and isinstance(source, TableSource):
                public = PrivateTable.from_rows(rows, source, table_key(key))
            truths = truths_of(source, public)
        finished_runs.append(_run(number, key, spec, source, questions, table, truths))
    return SimulationReport(
        source,
        len(questions),
        None if rows is None else rows.file_row_count,
        None if public is None else public.private_row_count,
        seed,
        tuple(finished_runs),
    )


def _run(
    number: int,
    key: NoiseKey,
    spec: OpeningSpec,
    source: Source,
    questions: Mapping[int, Query],
    table: pl.DataFrame | None,
    truths: Truths,
) -> Run:
    driver = Driver(key, partitions=1)
    driver.register(source, table)
    driver.open(spec, acknowledge=True)
    answers = dict(zip(questions, driver.ask_many(questions.values()), strict=True))
    grant = driver.grant(spec.source, spec.stream)
    stopped = [(line, answer) for line, answer in answers.items() if answer.outcome == "halted"]
    rejections = {line: one.reason or "" for line, one in answers.items() if one.outcome == "rejected"}
    return Run(
        number=number,
        grant=grant,
        answered=len(answers) - len(stopped) - len(rejections),
        halted=len(stopped),
        rejections=rejections,
        ended=RunEnding(stopped[0][0], stopped[0][1].reason or "") if stopped else None,
        measurements=tuple(
            measured
            for line, answer in answers.items()
            for measured in measure(line, questions[line], answer, grant.spec, grant.calibration, truths)
        ),
    )
