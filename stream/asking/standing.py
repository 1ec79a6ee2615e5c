"""Live topics in words: what a source declares, and what a standing stream asks."""

from __future__ import annotations

from schemas import EventsSource, Source, StandingQuery
from stream.accounting.counted import counted_words


def declared_topic(source: EventsSource) -> str:
    """What a live topic is, whose events it has, and how many of them count."""
    of_period = "" if source.period is None else " in one period"
    total = "" if source.total is None else f", and {source.total:,} in all windows of a running count{of_period}"
    period = ""
    if source.period is not None:
        period = f"; what a person does in one period of {source.period} is protected"
    clock = "marks in the topic"
    if source.clock == "broker":
        clock = f"the broker's stamps, those of a silent partition {source.idle} behind"
    return (
        f"topic {source.topic}: {counted_words(source)} of a stream{total}; windows close by {clock}; "
        f"events more than {source.ahead} ahead are refused{period}"
    )


def standing_words(standing: StandingQuery) -> str:
    """What is asked of each window, of which windows, and when."""
    counted = (
        f"how many {standing.count}" if isinstance(standing.count, str) else f"the sum of '{standing.count.sum}'"
    )
    where = f" with {standing.where}" if standing.where is not None else ""
    by = f" for each {' and '.join(standing.by)}" if standing.by else ""
    window = standing.window
    every = f", one every {window.every}" if window.every is not None and window.overlap > 1 else ""
    begins = f", from {standing.begins} on" if standing.begins is not None else ""
    after = "at its end" if standing.lateness == "0s" else f"{standing.lateness} after its end"
    return f"asks {counted}{where}{by} in windows of {window.size}{every}{begins}; each is asked {after}"


def windows_words(windows: int, period: str | None) -> str:
    """Over how many windows a promise holds, of a source with such periods or none."""
    anew = "" if period is None else f", in each period of {period} anew"
    return f"this promise lasts for {windows:,} window{'s' * (windows != 1)}, all groups of each{anew}"


def period_of(source: Source) -> str | None:
    """The length of a source's periods, if it has some."""
    return source.period if isinstance(source, EventsSource) else None
