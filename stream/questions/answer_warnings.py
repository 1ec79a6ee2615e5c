"""Warns about answers that are known in advance, and marks numbers that are not informative.

A warning says for example that ``age >= 0`` holds for every row of the declared domain. Warnings use only public data:
the question, the source's definition and published numbers. The questions are answered and charged as usual.

A number is not informative if

- its error may exceed the number itself, or a third of the range that the declaration and the condition allow;
- the declaration and the condition allow one value only; or
- it is an estimate with neither an error bound nor a typical error.

A decision is not informative if its error may exceed the question's threshold. The error is the distance to the farther
end of the 95 % confidence interval; without an interval, ``alpha``; without ``alpha``, the typical error. The reasons use
only published and public figures, so they cost nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from itertools import repeat
from typing import Final

from schemas import (
    INDEPENDENCE,
    Answer,
    AnswersCalibration,
    Bins,
    Calibration,
    Categories,
    Dates,
    Decimals,
    Domain,
    EventsSource,
    Integers,
    Interval,
    Query,
    Source,
    StandingQuery,
    StreamSpec,
    TableSource,
    ValuesSource,
)
from stream.formatting import CHARGED_AS_USUAL_TEXT, LARGEST_SHARE, NOT_INFORMATIVE, ROWS_LEFT_OUT, format_count
from stream.privacy.composition.costs import last_promised_answer
from stream.questions.clamped_values import parse_condition
from stream.tables.sensitivity import codes_within, rows_are_public


def predicates_of(query: Query) -> tuple[str, ...]:
    """Return all predicates of a question."""
    terms, candidates = query.terms or (), query.candidates or ()
    wheres = [*(term.where for term in terms), *(candidate.where for candidate in candidates)]
    texts = query.where, query.rate, *wheres
    return tuple(text for text in texts if text is not None)


def is_about_table(query: Query) -> bool:
    """Return whether a question is about a table, and not about values that the query carries."""
    return query.value is None and query.values is None and query.category is None


def warn_about_domains(source: Source, query: Query) -> tuple[str, ...]:
    """Return a warning for each comparison or predicate that holds for every row or for no row.

    A choice with only one candidate gets a warning too. Unknown categories and invalid predicates get no warning, because
    workers refuse them.
    """
    lines = [_ONE_CANDIDATE_WARNING] if query.candidates is not None and len(query.candidates) == 1 else []
    texts = [text for text in predicates_of(query) if _may_be_constant_pattern.search(text)]
    if texts and isinstance(source, TableSource):
        from stream.questions.predicate_limits import warn_about_predicate  # noqa: PLC0415  (the SQL parser is slow to import)

        lines += [line for text in texts for line in warn_about_predicate(text, source.attributes)]
    return tuple(dict.fromkeys(lines))


_ONE_CANDIDATE_WARNING: Final = (
    f"candidates: with one candidate the choice is known in advance; {CHARGED_AS_USUAL_TEXT}"
)

_may_be_constant_pattern = re.compile(r"\d|\b(?:and|or|in|false)\b", re.IGNORECASE)


def warn_about_rows(source: Source, query: Query) -> tuple[str, ...]:
    """Return a warning that a question about a table leaves incomplete rows out."""
    if not isinstance(source, TableSource) or not is_about_table(query):
        return ()
    texts = [name for name in query.group_by or () if name in source.texts]
    if texts:
        hidden = "rows without a text, and texts below the stream's threshold, are not shown"
        return f"'{texts[0]}': {hidden}", ROWS_LEFT_OUT
    if not (query.fraction and rows_are_public(source)):
        return (ROWS_LEFT_OUT,)
    counted = "rows" if source.person is None else "people and all rows without a person"
    return (f"{ROWS_LEFT_OUT}, but a share is of all {counted}",)


def warn_about_people(source: Source, query: Query) -> tuple[str, ...]:
    """Return a warning if a question counts people of a table that declares no person column."""
    counts = query.people or query.person_sum is not None or any(one.people for one in query.candidates or ())
    if not counts or not isinstance(source, TableSource) or source.person is not None:
        return ()
    return ("people: counts rows, because the source declares no 'person'",)


def warn_about_promise(answered: int, calibration: Calibration | None, used: int = 0) -> tuple[str, ...]:
    """Return a warning if a stream has given more answers than its α is promised for.

    Answers with a requested error count by their prices, as ``used`` ordinary answers (docs/proofs/laplace.md).
    """
    promised = None if calibration is None else last_promised_answer(calibration)
    used = used if isinstance(calibration, AnswersCalibration) else 0
    if promised is None or max(answered, used) <= promised:
        return ()
    priced = f"by their prices the answers count as {used:,}, " if used > answered else ""
    covered = f"{priced}more than the {format_count(promised, 'answer')} for which α is promised"
    return (f"{covered}: each further answer makes a larger error more probable",)


def warn_about_top(answer: Answer, query: Query | None, spec: StreamSpec | None = None) -> tuple[str, ...]:
    """Return a warning that the largest groups, of a question or of windows, have no confidence interval."""
    asked = query if query is not None or spec is None else spec.standing
    if asked is None or asked.top is None or not answer.estimates:
        return ()
    all_at_once = "; their ± holds for all of them at once" if answer.alpha is not None else ""
    return (f"{_TOP_WITHOUT_INTERVALS}{all_at_once}",)


_TOP_WITHOUT_INTERVALS: Final = "top: groups that are chosen by their noisy numbers have no 95 % interval, because it holds for a group named in advance"

EXCEEDS_NUMBER: Final = "the error may exceed the number itself"
EXCEEDS_RANGE: Final = "the error may exceed a third of the range"
DECIDED: Final = "the condition allows one value only"
EXCEEDS_THRESHOLD: Final = "the error may exceed the threshold"
_ESTIMATED: Final = ("hypothesis", INDEPENDENCE)
NO_BOUND: Final = "no error bound is left after the stream's last measurement"


def reasons_of(
    answer: Answer,
    query: Query | None,
    source: Source | None,
    decision_alpha: float | None = None,
    spec: StreamSpec | None = None,
) -> tuple[str | None, ...]:
    """Return, for each number or decision, the reason why it is not informative; None if it is or may be informative.

    The question is unknown if another client asked it. Then a number gets a reason only if it would have one for
    every possible question. For answers of windows, ``spec`` has the question. Answers do not carry ``decision_alpha``, the stream's
    error bound of decisions.
    """
    if query is None and source is None and answer.window is None:
        return ()
    standing = None if spec is None else spec.standing
    asked = standing if query is None else query
    if answer.outcome in {"above", "below"} and answer.estimate is None:
        threshold: float | None = None if query is None else query.threshold
        if standing is not None and spec is not None:
            threshold = getattr(spec.mechanism, "threshold", None)
        alpha = answer.alpha if decision_alpha is None else decision_alpha
        return (EXCEEDS_THRESHOLD if alpha and threshold and alpha > abs(threshold) else None,)
    if answer.estimates is not None:
        numbers: tuple[float, ...] = answer.estimates
        intervals: Iterable[Interval | None] = answer.intervals or repeat(None)
    elif answer.estimate is not None:
        numbers, intervals = (answer.estimate,), (answer.interval,)
    else:
        return () if asked is None else _reasons_of_texts(answer, asked, source)
    # The alpha of a quantile is in rows, so only the interval bounds the error of the value. Each quantile of a window
    # has an interval.
    is_rank = asked is not None and (asked.quantile is not None or getattr(asked, "iqr", None) is not None)
    may_be_rank = is_rank or (asked is None and answer.window is None)
    alpha = None if may_be_rank else answer.alpha
    bounds = (answer.alpha, answer.interval, answer.intervals, answer.typical_error)
    if answer.basis in _ESTIMATED and all(one is None for one in bounds):
        return (NO_BOUND,) * len(numbers)
    limits = _window_range(spec, source) if query is None else _public_range(query, source)
    is_share = query is not None and (query.fraction or query.rate is not None)
    error = answer.typical_error if alpha is None else alpha
    errors = [largest_error(number, interval, error) for number, interval in zip(numbers, intervals, strict=False)]
    min_error = 0.0 if query is not None or answer.window is not None else LARGEST_SHARE * _widest_range(source)
    return tuple(
        _reason_of(number, error if error is None or error > min_error else None, limits, is_share=is_share)
        for number, error in zip(numbers, errors, strict=False)
    )


def _reasons_of_texts(
    answer: Answer, asked: Query | StandingQuery, source: Source | None
) -> tuple[str | None, ...]:
    """Return ``EXCEEDS_RANGE`` for each quantile of dates or categories whose interval has over two thirds of the values."""
    name = asked.quantile or ""
    if not isinstance(source, TableSource | EventsSource) or not isinstance(
        domain := source.attributes.get(name), Categories | Dates
    ):
        return ()
    first, end = _allowed_codes(asked.where, source, name)
    most = 2 * LARGEST_SHARE * (end - first)
    codes = ((_code_of(domain, low), _code_of(domain, high)) for low, high in answer.choice_intervals or ())
    return tuple(EXCEEDS_RANGE if high - low + 1 > most else None for low, high in codes)


def _code_of(domain: Categories | Dates, text: str) -> int:
    if isinstance(domain, Categories):
        return domain.values.index(text)
    return bisect_left(range(domain.size), text, key=domain.calendar.label)


def describe_reasons(reasons: tuple[str | None, ...]) -> str | None:
    """Return one warning about all numbers that are not informative; None if there are none."""
    marked = [one for one in reasons if one is not None]
    if not marked:
        return None
    why = " or ".join(dict.fromkeys(marked))
    if len(reasons) == 1:
        return f"{NOT_INFORMATIVE}: {why}"
    return f"{NOT_INFORMATIVE}: {len(marked):,} of {len(reasons):,} numbers; {why}"


def largest_error(number: float, interval: Interval | None, alpha: float | None) -> float | None:
    """Return the most by which a number may be wrong.

    The farther end of the interval counts, because a limit of the range may cut off the nearer end.
    """
    if interval is None:
        return alpha
    low, high = interval
    return max(number - low, high - number)


def _reason_of(
    number: float, error: float | None, limits: tuple[float, float] | None, *, is_share: bool
) -> str | None:
    if limits is not None and limits[0] == limits[1]:
        return DECIDED
    if error is None:
        return None
    if limits is not None and error > LARGEST_SHARE * (limits[1] - limits[0]):
        return EXCEEDS_RANGE
    # A number with a public range (such as a mean) is as informative near 0 as elsewhere. So only shares, and numbers
    # without a range, are compared with their error. If 0 cuts an interval off, its error is at least the number.
    is_compared = limits is None or is_share
    return EXCEEDS_NUMBER if is_compared and error and error >= abs(number) else None


def _public_range(query: Query, source: Source | None) -> tuple[float, float] | None:
    """Return the public range of a share, a mean, a quantile or a value; None for other numbers.

    A spread (variance, deviation or distance of quartiles) has a range if only one value is allowed: it is 0.
    """
    if query.fraction or query.rate is not None:
        return 0.0, 1.0
    if isinstance(source, ValuesSource):
        low, high = source.minimum, source.maximum
        return None if low is None or high is None else (low, high)
    spread = query.variance or query.stddev or query.iqr
    name = spread or query.mean or query.quantile
    if name is None or not isinstance(source, TableSource):
        return None
    first, end = _allowed_codes(query.where, source, name)
    if spread:
        return (0.0, 0.0) if end - first == 1 else None
    return _range_of(source.attributes.get(name), first, end)


def _window_range(spec: StreamSpec | None, source: Source | None) -> tuple[float, float] | None:
    """Return the public range of a quantile of windows; None for other numbers."""
    standing = None if spec is None else spec.standing
    if standing is None or standing.quantile is None or not isinstance(source, EventsSource):
        return None
    codes = _allowed_codes(standing.where, source, standing.quantile)
    return _range_of(source.attributes.get(standing.quantile), *codes)


def _allowed_codes(where: str | None, source: TableSource | EventsSource, name: str) -> tuple[int, int]:
    """Return the half-open range of an attribute's codes that a question's condition allows."""
    domain = source.attributes.get(name)
    size = 0 if domain is None else domain.size
    if where is None or not size:
        return 0, size
    return codes_within(size, name, parse_condition(where, source.attributes))


def _widest_range(source: Source | None) -> float:
    """Return the width of the widest range of a source's values, or of its attributes; 0 without ranges."""
    match source:
        case ValuesSource(minimum=float(low), maximum=float(high)):
            return high - low
        case TableSource():
            ranges = (_range_of(domain, 0, domain.size) for domain in source.attributes.values())
            return max((high - low for low, high in filter(None, ranges)), default=0.0)
        case _:
            return 0.0


def _range_of(domain: Domain | None, first: int, end: int) -> tuple[float, float] | None:
    """Return the least and the largest number of a half-open range of a domain's codes."""
    match domain:
        case Bins(edges=edges):
            return edges[first], edges[end]
        case Dates(part=Integers(minimum=low)):
            return float(low + first), float(low + end - 1)
        case Integers() | Decimals():
            low, unit = domain.in_steps.minimum, domain.unit
            return float((low + first) * unit), float((low + end - 1) * unit)
        case _:
            return None
