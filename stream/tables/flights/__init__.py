"""A year of departures from New York for demonstrations: 336,776 events; see CITATION.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from schemas import Categories, EventsSource, Integers, moment_ms

PATH: Final = Path(__file__).with_name("flights.parquet")
"""The departures, one row each."""

BEGINS: Final = "2013-01-01T00:00:00Z"
ENDS: Final = "2014-01-01T06:00:00Z"
"""A time after the last scheduled departure, which is on New Year's Eve in New York."""

AIRPORTS: Final = ("EWR", "JFK", "LGA")
_MINUTE_MS: Final = 60_000


def source(epsilon: float, topic: str = "departures") -> EventsSource:
    """Return the source ``flights``: departures as a live topic, with this budget and watermarks.

    The person is the aircraft, with at most one counted departure per window. ``delay`` is in minutes;
    a cancelled departure has the maximum.
    """
    return EventsSource(
        kind="events",
        source="flights",
        topic=topic,
        neighbors="add-remove",
        epsilon=epsilon,
        person="aircraft",
        time="scheduled",
        attributes={"origin": Categories(values=AIRPORTS), "delay": Integers(minimum=-60, maximum=1440)},
        clock="marks",
        ahead="1d",
    )


def table() -> pl.DataFrame:
    """Return all departures in order of schedule: ``scheduled`` (ms since 1970), aircraft, origin, delay.

    An unknown aircraft is null; the delay of a cancelled departure is 1440.
    """
    return pl.read_parquet(PATH).select(
        scheduled=moment_ms(BEGINS) + pl.col("minute").cast(pl.Int64) * _MINUTE_MS,
        aircraft=pl.col("tailnum").cast(pl.String),
        origin=pl.col("origin").cast(pl.String),
        delay=pl.col("delay").cast(pl.Int64).fill_null(1440),
    )


def events() -> Iterator[dict[str, str | int | None]]:
    """Yield the departures as events."""
    yield from table().iter_rows(named=True)
