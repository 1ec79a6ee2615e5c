"""Describes the first windows of standing streams: when they are answered, and which events they lack."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from schemas import Answer, EventsSource, OpeningSpec, Source, SourceRecord, StandingQuery, StreamSpec
from schemas.windows import YEAR_10000_MS, format_moment, moment_ms, span_ms
from stream.settings import MS_PER_DAY


def describe_first_answer(standing: StandingQuery, source: EventsSource, now: float) -> str:
    """Describe when the first answer is expected, and why then; ``now`` is Unix time."""
    start, end = _first_window(standing, source)
    due = end + span_ms(standing.lateness)
    lateness = "" if standing.lateness == "0s" else f" plus the lateness {standing.lateness}"
    why = f"the first window, from {format_moment(start)}, ends {format_moment(end)}{lateness}"
    if source.clock == "marks":
        return f"first answer: once each partition has a mark of {format_moment(due)} or later; {why}"
    if due <= now * 1000:
        return f"first answer: as soon as the feeds have read the topic; {why}"
    return (
        f"first answer: {format_moment(due)} by the broker's timestamps, at most {source.idle} later if a partition is "
        f"silent; {why}"
    )


def describe_next_answer(standing: StandingQuery, source: EventsSource, now: float) -> str:
    """Describe when a stream that was exhausted and is extended at ``now``, in Unix time, answers again."""
    if source.clock == "marks":
        return f"next answer: of the first window that begins more than {source.ahead} after the marks written until {source.idle} after the extension"
    earliest = standing.model_copy(update={"begins": format_moment(int(now * 1000) + span_ms(source.idle))})
    return describe_first_answer(earliest, source, now).replace("first", "next")


class MissedEvents(NamedTuple):
    """A description of the events that a later stream of a source lacks."""

    text: str
    unless: str
    """The exceptions to the text, for a stream whose order and time of opening are not known exactly."""
    remedy: str
    until: int
    """Only windows that begin before this time, in ms, may lack events."""


def find_missed_events(spec: OpeningSpec, source: Source, opened: float) -> MissedEvents | None:
    """Describe which events a later stream of a source lacks if it opens at ``opened``, in Unix time; None if none.

    With marks the result is conditional, because no record that clients read has the time of the first counted mark.
    """
    standing = spec.standing
    if standing is None or not isinstance(source, EventsSource) or source.period_of is not None:
        return None
    is_running = spec.mechanism.kind == "running_count" and not source.has_periods
    missed = f"the events that feeds have already read for earlier streams of '{source.source}'"
    unless = "unless this stream was opened before they began"
    if source.clock == "marks":
        when = f"at most {source.ahead} after a partition's first mark that is written {source.idle} or more after the opening"
        numbers = (
            f"all totals of this running count, if it begins {when},"
            if is_running
            else f"windows that begin {when}"
        )
        remedy = "open streams before the first mark, or let them begin later"
        return MissedEvents(
            f"{numbers} may lack {missed}", f"{unless} or before the first mark", remedy, YEAR_10000_MS
        )
    first, until = _first_window(standing, source)[0], int(opened * 1000) + span_ms(source.idle)
    if standing.begins is None or first >= until:
        return None
    numbers, when = "windows that begin", f"before {format_moment(until)}"
    if is_running:
        numbers, until = "all totals of this running count, which begins", YEAR_10000_MS
        when, unless = f"{when},", f"{unless} or by {format_moment(first - span_ms(source.idle))}"
    return MissedEvents(
        f"{numbers} {when} lack {missed}", unless, "unless this is its first stream, leave begins out", until
    )


def describe_missed_events(spec: StreamSpec, owner: SourceRecord, opened: float | None) -> MissedEvents | None:
    """Describe which events an open stream may lack; None if it is its source's only stream so far or lacks none.

    ``opened`` is the Unix time of the opening, or a later time; None if it is unknown. A stream is opened at most a day,
    or a window with its lateness, after ``begins``.
    """
    if (standing := spec.standing) is None or standing.begins is None or owner.streams < 2:
        return None
    latest = (moment_ms(standing.begins) + max(MS_PER_DAY, standing.open_ms)) / 1000
    opened = latest if opened is None else min(opened, latest)
    if (missed := find_missed_events(spec, owner.source, opened)) is None:
        return None
    return missed._replace(text=f"{missed.text}, {missed.unless}")


def missed_in_window(answer: Answer, missed: MissedEvents | None) -> str | None:
    """Return the description of missed events if the window of an answer may lack them."""
    if missed is None or answer.window is None:
        return None
    with suppress(ValueError):  # a window of a later version
        return missed.text if moment_ms(answer.window.start) < missed.until else None
    return None


def warn_about_past_windows(spec: OpeningSpec, source: Source, now: float) -> str | None:
    """Warn if a later stream that opens at ``now``, in Unix time, asks about windows whose events were read before."""
    if (missed := find_missed_events(spec, source, now)) is None:
        return None
    return f"standing.begins: {missed.text}, and their answers are charged; {missed.remedy}"


def warn_about_opening(
    opening: OpeningSpec, source: EventsSource, begins: str | None, now: float, seconds: float
) -> str | None:
    """Warn if a later stream that has opened asks about windows that may lack events.

    ``opening`` is as requested, and ``begins`` is the receipt's. The receipt came at ``now``, in Unix time,
    ``seconds`` after the request was sent.
    """
    standing = opening.standing
    if standing is None or standing.begins is not None or begins is None:
        return warn_about_past_windows(opening, source, now)
    opened = (moment_ms(begins) - source.opening_lead_ms) / 1000 + seconds
    completed = opening.model_copy(update={"standing": standing.model_copy(update={"begins": begins})})
    if (missed := find_missed_events(completed, source, opened)) is None:
        return None
    return (
        f"standing: {missed.text}, because the opening took {seconds:.0f} s and idle is {source.idle}; for complete windows open another "
        "stream, or register the topic with a longer idle"
    )


def needed_retention_ms(standing: StandingQuery, source: EventsSource, now: float) -> int:
    """Return how long, in ms at ``now``, a topic must have kept the events of a stream; 0 with marks."""
    return 0 if source.clock == "marks" else max(0, int(now * 1000) - _first_window(standing, source)[0])


def _first_window(standing: StandingQuery, source: EventsSource) -> tuple[int, int]:
    """Return start and end, in ms since 1970, of the first window that is asked."""
    window = standing.window
    start = window.first_start_from(0 if standing.begins is None else moment_ms(standing.begins))
    if source.has_periods:
        period_end = start - start % source.period_ms + source.period_ms
        if start + window.size_ms > period_end:  # windows that span two periods are not asked
            start = window.first_start_from(period_end)
    return start, start + window.size_ms
