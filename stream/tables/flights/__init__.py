"""A year of departures from New York's airports, for demonstrations: 336,776 events. See CITATION.md for its origin."""

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
"""After the last scheduled departure, which was in the night of New Year's Eve over there."""

AIRPORTS: Final = ("EWR", "JFK", "LGA")
_MINUTE_MS: Final = 60_000


def source(epsilon: float, topic: str = "departures") -> EventsSource:
    """The departures as a live topic named ``flights`` with that budget, to be replayed with marks.

    The person is the aircraft: what is protected is all that one ever does. Of each at most one departure counts in a window.
    ``delay`` is in minutes, that of a cancelled departure is the largest there is.
    """
    return EventsSource(
        kind="events",
        source="flights",
        topic=topic,
        neighbors="add-remove",
        epsilon=epsilon,
        person="aircraft",
        time="scheduled",
        attributes={
            "origin": Categories(values=AIRPORTS),
            "delay": Integers(minimum=-60, maximum=1440),
        },
        clock="marks",
        ahead="1d",
    )


def table() -> pl.DataFrame:
    """All departures in the order of their schedule: ``scheduled`` in milliseconds since 1970, ``aircraft``, ``origin``, ``delay``.

    An aircraft that is not known is null, the delay of a cancelled departure is 1440.
    """
    return pl.read_parquet(PATH).select(
        scheduled=moment_ms(BEGINS) + pl.col("minute").cast(pl.Int64) * _MINUTE_MS,
        aircraft=pl.col("tailnum").cast(pl.String),
        origin=pl.col("origin").cast(pl.String),
        delay=pl.col("delay").cast(pl.Int64).fill_null(1440),
    )


def events() -> Iterator[dict[str, str | int | None]]:
    """The departures as events of that topic."""
    yield from table().iter_rows(named=True)
