"""Checks and completes specifications of standing streams, and collects facts for their plans."""

from __future__ import annotations

import math
from typing import Final

from schemas import (
    MAX_GROUPS,
    AboveThreshold,
    EventsSource,
    Histogram,
    Mechanism,
    NumericSparse,
    RunningCount,
    Source,
    StandingQuery,
    StreamSpec,
    SumOf,
    UnknownGroups,
    format_moment,
    moment_ms,
    span_ms,
)
from schemas.queries import MAX_CANDIDATES
from schemas.windows import MAX_PARENT_NAME, split_period_name
from stream.budget.plan_facts import (
    declared_sizes,
    quantile_stream_facts,
    require_no_repeated_fields,
    require_one_window,
    require_small_questions,
    require_texts,
)
from stream.formatting import MAX_NAMES_LENGTH, longest_name
from stream.privacy.accuracy.source_facts import (
    LARGEST_NUMBER,
    GroupSensitivity,
    SourceFacts,
    groups_by_text,
    horizon_sensitivity,
    require_monotone_counts,
    require_total,
    summed_domain,
    summed_range,
    window_sensitivity,
)
from stream.privacy.composition.costs import RefusedError
from stream.processing.topic_names import Topics
from stream.tables.predicates import PredicateParser
from stream.tables.table_errors import PredicateError, quote_names

_DAY_MS: Final = 86_400_000
_LONGEST_LATENESS_DAYS: Final = 31
_LONGEST_WINDOW_DAYS: Final = 366

MAX_PAST_WITH_BROKER_CLOCK_MS: Final = _DAY_MS
"""Longest time by which a stream with clock ``broker`` may begin before its opening.

If a window with its lateness is longer, its length is the limit. A day leaves time to open, one after the other,
several streams that begin at the same time.
"""
MAX_PAST_NUMBERS: Final = 100_000_000
"""Limit of the numbers in the questions about a new stream's past windows: three years with a count per second."""
MAX_PAST_PERIODS: Final = 100_000
"""Maximum number of past periods of a new stream; each period gets an account."""


def require_valid_periods(source: Source) -> None:
    """Refuse a source with the name or fields of one period, or with periods it cannot have."""
    if split_period_name(source.source) is not None:
        raise RefusedError("source: the name ends like that of a period, with @ and a moment; choose another name")
    if not isinstance(source, EventsSource) or source.period is None:
        return
    if source.period_of is not None:
        raise RefusedError("period_of, starts: Sotto sets these fields when a period begins; leave them out")
    _require_short_name(source.source, "source")
    if source.population is not None:
        raise RefusedError(
            "population: a population's budget is for all time, and this source's is for single periods; remove population or unit"
        )


def require_foreign_topic(source: Source, topics: Topics) -> None:
    """Refuse a live source on a topic of the installation itself."""
    if isinstance(source, EventsSource) and topics.is_own(source.topic):
        raise RefusedError(
            f"topic: '{source.topic}' belongs to Sotto itself, and its records are no people's events; give the topic of the events"
        )


def _require_short_name(name: str, field: str) -> None:
    if len(name) > MAX_PARENT_NAME:
        raise RefusedError(
            f"{field}: must have at most {MAX_PARENT_NAME} characters, because each period's name appends a moment to it; choose a shorter name"
        )


def _require_windows_in_periods(spec: StreamSpec, source: EventsSource, standing: StandingQuery) -> None:
    """Refuse a stream whose windows, or whose running count's steps, do not fit in a period."""
    _require_short_name(spec.stream, "stream")
    if standing.window.size_ms > source.period_ms or source.period_ms % standing.window.every_ms:
        raise RefusedError(
            f"standing.window: each period of {source.period} must have the same whole windows; give a size that is no longer than "
            "the period, and an every that divides it"
        )
    limit = source.period_ms // standing.window.every_ms
    if isinstance(spec.mechanism, RunningCount) and spec.mechanism.steps > limit:
        raise RefusedError(
            f"mechanism.steps: {spec.mechanism.steps:,} windows do not fit in one period of {source.period}, which has {limit:,}; the "
            f"count starts again in each period, so give at most {limit:,}"
        )


def complete_spec(spec: StreamSpec, source: Source, *, clock: int) -> StreamSpec:
    """Fill in a standing stream's defaults: the start of its windows, a histogram's groups.

    ``clock`` is the earliest start of windows, in milliseconds since 1970. RefusedError if ``standing`` is
    missing for a live topic, or given for another source.
    """
    if isinstance(source, EventsSource) is not (spec.standing is not None):
        raise RefusedError(
            f"standing: only a source of kind 'events' has standing streams, and '{source.source}' is of kind '{source.kind}'; remove it"
            if spec.standing is not None
            else f"standing: source '{source.source}' is a live topic, whose streams ask about its windows; give standing with what to count, and in which windows"
        )
    if spec.standing is None:
        return spec
    filled: dict[str, object] = {}
    if spec.standing.begins is None:
        filled["begins"] = format_moment(clock)
    if isinstance(spec.mechanism, Histogram) and not spec.standing.by:
        filled["by"] = spec.mechanism.attributes
    return spec.model_copy(update={"standing": spec.standing.model_copy(update=filled)}) if filled else spec


def require_bounded_past(spec: StreamSpec, source: Source, *, clock: int) -> None:
    """Refuse a completed stream with so many past windows that the feeds would be busy for long.

    With clock ``broker``, most past windows are closed, so they would count few events.
    """
    standing = spec.standing
    if standing is None or standing.begins is None or not isinstance(source, EventsSource):
        return
    begins, window = moment_ms(standing.begins), standing.window
    behind = max(MAX_PAST_WITH_BROKER_CLOCK_MS, standing.open_ms)
    if source.clock == "broker" and begins < clock - behind:
        raise RefusedError(
            f"standing.begins: {standing.begins} is too long before the ledger's clock, {format_moment(clock)}: with clock 'broker' the limit is a "
            f"day, or a window with its lateness if that is longer; give {format_moment(clock - behind)} or later, leave it out to begin "
            "now, or replay the past to a source with clock 'marks'"
        )
    limit = MAX_PAST_NUMBERS // _count_numbers(spec, standing, source)
    if (windows := (clock - begins) // window.every_ms) > limit:
        raise RefusedError(
            f"standing.begins: {standing.begins} lies {windows:,} windows before the ledger's clock, {format_moment(clock)}; with so many groups "
            f"at most {limit:,} are allowed; begin later, or use longer windows or fewer groups"
        )
    if source.has_periods and (periods := (clock - begins) // source.period_ms) > MAX_PAST_PERIODS:
        raise RefusedError(
            f"standing.begins: {standing.begins} lies {periods:,} periods before the ledger's clock, {format_moment(clock)}; at most "
            f"{MAX_PAST_PERIODS:,} are allowed; begin later, or register the topic with longer periods"
        )


def groups_per_window(spec: StreamSpec, source: Source) -> int | None:
    """Return the number of groups per window of a standing stream; None for other streams.

    The number is 1 if the groups are private texts, because one question asks about all texts.
    """
    if spec.standing is None or not isinstance(source, EventsSource):
        return None
    by_text = isinstance(spec.mechanism, UnknownGroups) or _counts_texts(spec.mechanism, spec.standing, source)
    return 1 if by_text else _count_groups(spec.standing, source)


def _counts_texts(mechanism: Mechanism, standing: StandingQuery, source: EventsSource) -> bool:
    return isinstance(mechanism, RunningCount) and groups_by_text(source, standing)


def promised_windows(spec: StreamSpec, source: Source) -> int | None:
    """Return the number of windows for which a standing stream's error bound α is promised; None for others.

    If the grant is used up, the promise ends earlier. For a source with periods, at most the number of windows
    in a period is returned.
    """
    groups = groups_per_window(spec, source)
    if groups is None:
        return None
    if isinstance(spec.mechanism, RunningCount):
        return spec.mechanism.steps
    promised = min(spec.expected_queries, getattr(spec.mechanism, "answers", spec.expected_queries))
    windows = promised if isinstance(spec.mechanism, Histogram) else promised // groups
    if spec.standing is not None and isinstance(source, EventsSource) and source.period is not None:
        window = spec.standing.window
        windows = min(windows, (source.period_ms - window.size_ms) // window.every_ms + 1)
    return windows


def live_topic_facts(spec: StreamSpec, source: EventsSource) -> SourceFacts:
    """Return the public facts for a standing stream's plan.

    RefusedError if its mechanism, standing query and source do not fit each other.
    """
    mechanism, standing = spec.mechanism, spec.standing
    if standing is None:
        raise TypeError("the specification is not completed")
    _require_short_windows(standing)
    if source.has_periods:
        _require_windows_in_periods(spec, source, standing)
    _require_valid_predicate(standing, source)
    if isinstance(mechanism, UnknownGroups):
        return _unknown_groups_facts(spec, standing, source)
    if _counts_texts(mechanism, standing, source):
        return _running_texts_facts(standing, source)
    groups = _count_groups(standing, source)
    _require_valid_top(mechanism, standing, source, groups)
    if standing.quantile is not None:
        return quantile_stream_facts(spec, standing, source, groups)
    if isinstance(standing.count, SumOf):
        require_total(summed_domain(source, standing.count), standing.count.sum, "standing.count.sum")
    if isinstance(mechanism, RunningCount):
        require_small_questions(standing, source, numbers=MAX_CANDIDATES)
        _require_no_overlap(standing)
        change = horizon_sensitivity(source, standing)
        return SourceFacts(
            sensitivity_steps=change.together,
            grid=_number_step(source, standing),
            neighbors=source.neighbors,
            universe=groups,
            horizon=change,
        )
    change = window_sensitivity(source, standing, groups)
    require_no_repeated_fields(mechanism, standing)
    _require_monotone(mechanism, standing, source)
    _require_reachable_threshold(mechanism, standing, source)
    if isinstance(mechanism, Histogram):
        if groups > MAX_CANDIDATES:
            raise RefusedError(
                f"standing.by: its {groups:,} groups exceed the limit of a histogram, {MAX_CANDIDATES}; group by fewer or smaller "
                "attributes, or use laplace"
            )
    else:
        require_small_questions(standing, source, numbers=1)
        require_one_window(spec, groups)
        change = GroupSensitivity(change.each, change.each, 1, 1)
    return SourceFacts(
        sensitivity_steps=change.together,
        grid=_number_step(source, standing),
        neighbors=source.neighbors,
        universe=groups if isinstance(mechanism, Histogram) else None,
        window=change,
    )


def _unknown_groups_facts(spec: StreamSpec, standing: StandingQuery, source: EventsSource) -> SourceFacts:
    """Return the facts of windows that are grouped by private texts.

    One person has at most ``contribution`` counted events in a window, or one if people are counted.
    """
    _require_text_question("unknown_groups", standing, source)
    if not getattr(spec.mechanism, "counts", True):
        raise RefusedError(
            "mechanism.counts: the texts of a window are released with their counts; leave counts out"
        )
    require_one_window(spec, 1)
    rows = 1 if standing.count == "people" else source.contribution
    change = GroupSensitivity(rows, rows, 1, rows)
    return SourceFacts(
        sensitivity_steps=rows,
        neighbors=source.neighbors,
        disjoint=True,
        contribution=rows,
        window=change,
        text_bytes=source.texts[standing.by[0]].max_length,
    )


def _running_texts_facts(standing: StandingQuery, source: EventsSource) -> SourceFacts:
    """Return the facts of a running count of private texts.

    One person has at most ``total`` counted events in all windows and texts.
    """
    _require_text_question("running_count", standing, source)
    _require_no_overlap(standing)
    change = horizon_sensitivity(source, standing)
    return SourceFacts(
        sensitivity_steps=change.together,
        neighbors=source.neighbors,
        contribution=source.total or 1,
        horizon=change,
        text_bytes=source.texts[standing.by[0]].max_length,
    )


def _require_text_question(kind: str, standing: StandingQuery, source: EventsSource) -> None:
    """Refuse a standing query that does not count the texts of one attribute."""
    require_texts(source, kind)
    if len(standing.by) != 1 or standing.by[0] not in source.texts:
        raise RefusedError(
            f"standing.by: {kind} groups by one text attribute; give one of {quote_names(source.texts)}, and conditions "
            "on other attributes in standing.where"
        )
    if standing.quantile is not None or standing.top is not None:
        field = "top" if standing.quantile is None else "quantile"
        raise RefusedError(
            f"standing.{field}: {kind} answers with the counts of texts, the largest first; leave {field} out"
        )
    if isinstance(standing.count, SumOf):
        raise RefusedError(f"standing.count: {kind} counts events or people of texts; give one of them")


def _require_no_overlap(standing: StandingQuery) -> None:
    if standing.window.overlap > 1:
        raise RefusedError(
            "standing.window.every: a running count must not have overlapping windows, because they count an event several times; leave it out"
        )


def _number_step(source: EventsSource, standing: StandingQuery) -> float:
    """Return the step of a window's numbers: the step of the summed attribute, or 1 for counts."""
    return float(summed_domain(source, standing.count).unit) if isinstance(standing.count, SumOf) else 1.0


def _require_short_windows(standing: StandingQuery) -> None:
    if standing.window.size_ms > _LONGEST_WINDOW_DAYS * _DAY_MS:
        raise RefusedError(
            f"standing.window.size: must not be longer than {_LONGEST_WINDOW_DAYS} days; give a shorter size"
        )
    if span_ms(standing.lateness) > _LONGEST_LATENESS_DAYS * _DAY_MS:
        raise RefusedError(
            f"standing.lateness: must not be longer than {_LONGEST_LATENESS_DAYS} days; give a shorter lateness"
        )


def _require_valid_predicate(standing: StandingQuery, source: EventsSource) -> None:
    if standing.where is None:
        return
    try:
        PredicateParser(source.attributes, source.texts).parse(standing.where)
    except PredicateError as error:
        raise RefusedError(f"standing.where: {error}") from None


def _count_groups(standing: StandingQuery, source: EventsSource) -> int:
    """Return the number of groups of a window: all cells of the attributes."""
    groups = math.prod(declared_sizes(source, standing.by, "standing.by"))
    if groups > MAX_GROUPS:
        raise RefusedError(
            f"standing.by: its {groups:,} groups exceed {MAX_GROUPS:,}; group by fewer or smaller attributes"
        )
    return groups


def _count_numbers(spec: StreamSpec, standing: StandingQuery, source: EventsSource) -> int:
    """Count the numbers in the questions about a window; 1 for unknown groups."""
    groups = groups_per_window(spec, source) or 1
    domain = None if standing.quantile is None else source.attributes.get(standing.quantile)
    return groups if domain is None else groups * domain.size


def _require_monotone(mechanism: Mechanism, standing: StandingQuery, source: EventsSource) -> None:
    if not getattr(mechanism, "monotone", False):
        return
    require_monotone_counts(True, source.neighbors, "person")
    if not isinstance(standing.count, str) and summed_range(source, standing.count)[0] < 0:
        raise RefusedError(
            f"mechanism.monotone: sums of '{standing.count.sum}' can fall when a person is added; leave it false, or declare the "
            "attribute with a minimum of at least 0"
        )


def _require_valid_top(mechanism: Mechanism, standing: StandingQuery, source: EventsSource, groups: int) -> None:
    if standing.top is None:
        return
    if not isinstance(mechanism, Histogram):
        raise RefusedError(
            f"standing.top: a question to {mechanism.kind} is about one group; use histogram, whose answers have all groups of a window"
        )
    named, longest = min(standing.top, groups), longest_name(source.attributes, standing.by)
    if named * longest > MAX_NAMES_LENGTH:
        raise RefusedError(
            f"standing.top: the names of {named} groups have up to {named * longest:,} characters; "
            f"ask for at most {MAX_NAMES_LENGTH // longest}"
        )


def _require_reachable_threshold(mechanism: Mechanism, standing: StandingQuery, source: EventsSource) -> None:
    if not isinstance(mechanism, AboveThreshold | NumericSparse):
        return
    least, most = (0, 1) if isinstance(standing.count, str) else summed_range(source, standing.count)
    low = -LARGEST_NUMBER if least < 0 else 0
    high = LARGEST_NUMBER if most > 0 else 0
    if not low <= mechanism.threshold <= high:
        raise RefusedError(
            f"mechanism.threshold: {mechanism.threshold:g} lies outside the range of a window's number, {float(low):g} to "
            f"{float(high):g}; choose one inside"
        )
