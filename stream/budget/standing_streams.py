"""Standing streams: checks and defaults of their specifications, and facts for plans."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from schemas import (
    MAX_EVENT_BYTES,
    MAX_GROUPS,
    AboveThreshold,
    EventsSource,
    Histogram,
    Laplace,
    Mechanism,
    NumericSparse,
    RunningCount,
    Source,
    StandingQuery,
    StreamSpec,
    SumOf,
    moment_ms,
    span_ms,
    written_moment,
)
from schemas.queries import MAX_CANDIDATES
from schemas.sources import MAX_PARENT_NAME, named_from
from stream.formatting import values_of
from stream.privacy.accuracy.source_facts import (
    LARGEST_NUMBER,
    Movement,
    SourceFacts,
    ends_of,
    horizon,
    movement,
    numeric_of,
)
from stream.privacy.composition.refusals import RefusedError, require_monotone_counts, require_total
from stream.tables import PredicateError, PredicateParser

_DAY_MS: Final = 86_400_000
_LONGEST_LATENESS_DAYS: Final = 31
_LONGEST_WINDOW_DAYS: Final = 366

PAST_BY_BROKER_MS: Final = _DAY_MS
"""Longest time by which a stream with clock ``broker`` may start before its opening.

A window with its lateness is always allowed, even if it is longer. A day is longer than short
windows need, so that several streams with one start can be opened one after the other.
"""
PAST_QUESTIONS: Final = 100_000_000
"""Most questions about past windows of a new stream: windows times groups.

This is three years of windows of a second: with marks, a replay may start long ago.
"""
PAST_PERIODS: Final = 100_000
"""Most past periods of a new stream; each of them begins an account."""
_QUESTION_BYTES: Final = 512
"""Bound on the bytes of a window's question besides numbers and group."""
_NUMBER_BYTES: Final = 40
"""Bound on the digits of a count or sum: the largest is of 2⁶³ events with 10¹⁵ each."""


def require_declared(source: Source) -> None:
    """Refuse a source with a period's name or fields, or with periods that it cannot have."""
    if named_from(source.source) is not None:
        raise RefusedError(
            "source: ends as the name of a period does, and those begin by themselves; choose another name"
        )
    if not isinstance(source, EventsSource) or source.period is None:
        return
    if source.period_of is not None:
        raise RefusedError("period_of, starts: periods begin by themselves; leave them out")
    _require_short(source.source, "source")
    if source.population is not None:
        raise RefusedError(
            "population: its budget is for whole lives, and this one for single periods; leave it out, or leave unit out"
        )


def _require_short(name: str, what: str) -> None:
    if len(name) > MAX_PARENT_NAME:
        raise RefusedError(
            f"{what}: must not be longer than {MAX_PARENT_NAME} characters, for in each period its moment stands behind it; choose a shorter name"
        )


def _require_periods(spec: StreamSpec, source: EventsSource, standing: StandingQuery) -> None:
    """Refuse a stream whose windows or horizon do not fit in a period."""
    _require_short(spec.stream, "stream")
    if standing.window.size_ms > source.period_ms or source.period_ms % standing.window.every_ms:
        raise RefusedError(
            f"standing.window: windows must lie in one period of {source.period}, each period having the same; give a size that is no "
            "longer, and an every that divides it"
        )
    most = source.period_ms // standing.window.every_ms
    if isinstance(spec.mechanism, RunningCount) and spec.mechanism.steps > most:
        raise RefusedError(
            f"mechanism.steps: {spec.mechanism.steps:,} windows do not fit in one period of {source.period}, which has {most:,}; it counts "
            "anew in each, so give at most as many"
        )


def complete_spec(spec: StreamSpec, source: Source, *, clock: int) -> StreamSpec:
    """Fill in a standing stream's defaults: the start of its windows, a histogram's groups.

    ``clock`` is the ledger's, in milliseconds since 1970. RefusedError if ``standing`` is missing
    for a live topic, or given for another source.
    """
    if isinstance(source, EventsSource) is not (spec.standing is not None):
        raise RefusedError(
            f"standing: goes with a source of kind 'events', and '{source.source}' is of kind '{source.kind}'; remove it"
            if spec.standing is not None
            else f"standing: source '{source.source}' is a live topic, and its windows ask its streams; say what, and in which windows"
        )
    if spec.standing is None:
        return spec
    filled: dict[str, object] = {}
    if spec.standing.begins is None:
        filled["begins"] = written_moment(clock)
    if isinstance(spec.mechanism, Histogram) and not spec.standing.by:
        filled["by"] = spec.mechanism.attributes
    return spec.model_copy(update={"standing": spec.standing.model_copy(update=filled)}) if filled else spec


def require_bounded_past(spec: StreamSpec, source: Source, *, clock: int) -> None:
    """Refuse a completed stream that would occupy the feeds with too many past windows.

    With a broker's clock, past windows are mostly closed and would count few events.
    """
    standing = spec.standing
    if standing is None or standing.begins is None or not isinstance(source, EventsSource):
        return
    begins, window = moment_ms(standing.begins), standing.window
    behind = max(PAST_BY_BROKER_MS, standing.open_ms)
    if source.clock == "broker" and begins < clock - behind:
        raise RefusedError(
            f"standing.begins: {standing.begins} is too long before the ledger's clock, {written_moment(clock)}: with clock 'broker' a day, or "
            f"a window and its lateness; give {written_moment(clock - behind)} or later, leave it out to begin now, or replay the past "
            "to a source with clock 'marks'"
        )
    most = PAST_QUESTIONS // _groups(standing, source)
    if (windows := (clock - begins) // window.every_ms) > most:
        raise RefusedError(
            f"standing.begins: {standing.begins} lies {windows:,} windows behind the ledger's clock, {written_moment(clock)}, of the {most:,} "
            "that a stream with so many groups may begin with; begin later, or ask in longer windows or fewer groups"
        )
    if source.has_periods and (periods := (clock - begins) // source.period_ms) > PAST_PERIODS:
        raise RefusedError(
            f"standing.begins: {standing.begins} lies {periods:,} periods behind the ledger's clock, {written_moment(clock)}, of the "
            f"{PAST_PERIODS:,} that a stream may begin with; begin later, or register the topic with longer periods"
        )


def groups_of(spec: StreamSpec, source: Source) -> int | None:
    """Return the number of groups per window of a standing stream, else None."""
    if spec.standing is None or not isinstance(source, EventsSource):
        return None
    return _groups(spec.standing, source)


def promised_windows(spec: StreamSpec, source: Source) -> int | None:
    """Return the number of windows for which a standing stream's α holds, else None.

    α holds as long as the grant lasts. For a source with periods, it holds for this number of
    windows in each period.
    """
    groups = groups_of(spec, source)
    if groups is None:
        return None
    if isinstance(spec.mechanism, RunningCount):
        return spec.mechanism.steps
    promised = min(spec.expected_queries, getattr(spec.mechanism, "answers", spec.expected_queries))
    windows = promised if isinstance(spec.mechanism, Histogram) else promised // groups
    return min(windows, _windows_in_period(spec, source) or windows)


def _windows_in_period(spec: StreamSpec, source: Source) -> int:
    """Return the number of windows in one period of a source; 0 without periods."""
    if spec.standing is None or not isinstance(source, EventsSource) or source.period is None:
        return 0
    window = spec.standing.window
    return (source.period_ms - window.size_ms) // window.every_ms + 1


def setting_of_events(spec: StreamSpec, source: EventsSource) -> SourceFacts:
    """Return the facts for a standing stream's plan; RefusedError if its parts do not fit."""
    mechanism, standing = spec.mechanism, spec.standing
    if standing is None:
        raise TypeError("the specification is not completed")
    _require_windows(standing)
    if source.has_periods:
        _require_periods(spec, source, standing)
    _require_predicate(standing, source)
    groups = _groups(standing, source)
    if isinstance(standing.count, SumOf):
        require_total(numeric_of(source, standing.count), standing.count.sum, "standing.count.sum")
    if isinstance(mechanism, RunningCount):
        _require_askable(standing, source, numbers=MAX_CANDIDATES)
        return _setting_of_horizon(source, standing, groups)
    moved = movement(source, standing, groups)
    _require_fitting(mechanism, standing)
    _require_monotone(mechanism, standing, source)
    _require_threshold(mechanism, standing, source)
    if isinstance(mechanism, Histogram):
        if groups > MAX_CANDIDATES:
            raise RefusedError(
                f"standing.by: its {groups:,} groups exceed the {MAX_CANDIDATES} of a histogram's answer; group by fewer or smaller "
                "attributes, or use laplace"
            )
    else:
        _require_askable(standing, source, numbers=1)
        _require_one_window(spec, groups)
        moved = Movement(moved.each, moved.each, 1, 1)
    return SourceFacts(
        sensitivity_steps=moved.together,
        grid=_grid(source, standing),
        neighbors=source.neighbors,
        universe=groups if isinstance(mechanism, Histogram) else None,
        movement=moved,
    )


def _setting_of_horizon(source: EventsSource, standing: StandingQuery, groups: int) -> SourceFacts:
    if standing.window.overlap > 1:
        raise RefusedError(
            "standing.window.every: windows that overlap would count an event several times; leave it out for a running count"
        )
    moved = horizon(source, standing)
    return SourceFacts(
        sensitivity_steps=moved.together,
        grid=_grid(source, standing),
        neighbors=source.neighbors,
        universe=groups,
        horizon=moved,
    )


def _grid(source: EventsSource, standing: StandingQuery) -> float:
    """Return the step of a window's numbers: that of the summed attribute, or 1."""
    return float(numeric_of(source, standing.count).unit) if isinstance(standing.count, SumOf) else 1.0


def _require_windows(standing: StandingQuery) -> None:
    if standing.window.size_ms > _LONGEST_WINDOW_DAYS * _DAY_MS:
        raise RefusedError(
            f"standing.window.size: must not be longer than {_LONGEST_WINDOW_DAYS} days; give a shorter one"
        )
    if span_ms(standing.lateness) > _LONGEST_LATENESS_DAYS * _DAY_MS:
        raise RefusedError(
            f"standing.lateness: must not be longer than {_LONGEST_LATENESS_DAYS} days; give a shorter one"
        )


def _require_predicate(standing: StandingQuery, source: EventsSource) -> None:
    if standing.where is None:
        return
    try:
        PredicateParser(source.attributes).parse(standing.where)
    except PredicateError as error:
        raise RefusedError(f"standing.where: {error}") from None


def _groups(standing: StandingQuery, source: EventsSource) -> int:
    """Return the number of groups of a window: all cells of the attributes."""
    for place, name in enumerate(standing.by):
        if name not in source.attributes:
            raise RefusedError(
                f"standing.by.{place}: the source has no attribute of this name; name one of its own"
            )
    if len(set(standing.by)) < len(standing.by):
        raise RefusedError("standing.by: an attribute stands there twice; remove the repeat")
    groups = math.prod(source.attributes[name].size for name in standing.by)
    if groups > MAX_GROUPS:
        raise RefusedError(
            f"standing.by: its {groups:,} groups exceed {MAX_GROUPS:,}; group by fewer or smaller attributes"
        )
    return groups


def _require_askable(standing: StandingQuery, source: EventsSource, *, numbers: int) -> None:
    """Refuse questions that may exceed an event's size: the private count must not decide that."""
    group = sum(
        max(len(msgspec.json.encode({name: value})) for value in values_of(source.attributes[name]))
        for name in standing.by
    )
    if (most := _QUESTION_BYTES + _NUMBER_BYTES * numbers + group) > MAX_EVENT_BYTES:
        raise RefusedError(
            f"standing.by: a question with the longest names and values of a group may have {most:,} bytes, and an event has at most "
            f"{MAX_EVENT_BYTES:,}; group by fewer attributes, or declare them with shorter names and values"
        )


def _require_fitting(mechanism: Mechanism, standing: StandingQuery) -> None:
    """Refuse fields of the mechanism that the standing query already determines."""
    for name in ("sums", "people"):
        if getattr(mechanism, name, None):
            raise RefusedError(
                f"mechanism.{name}: what a standing stream counts is said in standing.count; remove it"
            )
    if isinstance(mechanism, Laplace) and mechanism.dimensions > 1:
        raise RefusedError(
            "mechanism.dimensions: a standing stream's answer is one number; remove it, or use histogram for all groups in one"
        )
    if isinstance(mechanism, Histogram) and mechanism.attributes != standing.by:
        raise RefusedError(
            "mechanism.attributes: must be those of standing.by, in the same order; leave standing.by out"
        )


def _require_monotone(mechanism: Mechanism, standing: StandingQuery, source: EventsSource) -> None:
    if not getattr(mechanism, "monotone", False):
        return
    require_monotone_counts(True, source.neighbors, "person")
    if not isinstance(standing.count, str) and ends_of(source, standing.count)[0] < 0:
        raise RefusedError(
            f"mechanism.monotone: sums of '{standing.count.sum}' can fall when a person is added; leave it false, or declare the "
            "attribute with a minimum of at least 0"
        )


def _require_threshold(mechanism: Mechanism, standing: StandingQuery, source: EventsSource) -> None:
    if not isinstance(mechanism, AboveThreshold | NumericSparse):
        return
    least, most = (0, 1) if isinstance(standing.count, str) else ends_of(source, standing.count)
    low = -LARGEST_NUMBER if least < 0 else 0
    high = LARGEST_NUMBER if most > 0 else 0
    if not low <= mechanism.threshold <= high:
        raise RefusedError(
            f"mechanism.threshold: {mechanism.threshold:g} lies outside what a window's number can be, {float(low):g} to "
            f"{float(high):g}; choose one inside"
        )


def _require_one_window(spec: StreamSpec, groups: int) -> None:
    """Refuse a stream whose error bound or grant does not last for one window."""
    if spec.expected_queries < groups:
        raise RefusedError(
            f"expected_queries: each window asks {groups:,} times, once for each group, and alpha would not hold for one; give the "
            "number of windows times that of groups"
        )
    answers = getattr(spec.mechanism, "answers", groups)
    if answers < groups:
        raise RefusedError(
            f"mechanism.answers: {answers:,} would not last for one window, which asks {groups:,} times, once for each group; give the "
            "number of windows times that of groups, or use histogram"
        )
