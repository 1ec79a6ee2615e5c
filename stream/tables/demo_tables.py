"""The tables of the demonstrations: the Adult census table, and a year of departures from New York.

Each is in a folder with its CITATION.md. Adult has 48,842 rows with discretised values; the departures are 336,776
events.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from schemas import Categories, Domain, EventsSource, Integers, TableSource, moment_ms
from stream.optional_packages import pl

_FOLDER: Final = Path(__file__).parent

ADULT_PATH: Final = _FOLDER / "adult" / "adult.csv.gz"
"""The Adult table as compressed CSV."""

_CODED_ATTRIBUTES: Final = {
    "workclass": 9,
    "fnlwgt": 100,
    "education-num": 16,
    "marital-status": 7,
    "occupation": 15,
    "relationship": 6,
    "race": 5,
    "capital-gain": 100,
    "capital-loss": 100,
    "hours-per-week": 99,
    "native-country": 42,
    "income>50K": 2,
}
"""The number of codes of each attribute whose values are codes."""

FLIGHTS_PATH: Final = _FOLDER / "flights" / "flights.parquet"
"""The departures, one row each."""

FLIGHTS_BEGIN: Final = "2013-01-01T00:00:00Z"
FLIGHTS_END: Final = "2014-01-01T06:00:00Z"
"""A time after the last scheduled departure, which is on New Year's Eve in New York."""

AIRPORTS: Final = ("EWR", "JFK", "LGA")
_MINUTE_MS: Final = 60_000


def adult_source(epsilon: float, delta: float = 0.0, accountant: Literal["pure", "zcdp"] = "pure") -> TableSource:
    """Return the table as source ``adult`` with this budget; neighbors add or remove a person.

    ``age`` is in years from 16 to 100, ``sex`` is 'F' or 'M', ``income>50K`` is 0 or 1; every other attribute is a
    code that counts from 0.
    """
    attributes: dict[str, Domain] = {
        "age": Integers(minimum=16, maximum=100),
        "sex": Categories(values=("F", "M")),
    }
    attributes |= {name: Integers(minimum=0, maximum=size - 1) for name, size in _CODED_ATTRIBUTES.items()}
    return TableSource(
        kind="table",
        source="adult",
        neighbors="add-remove",
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        path=str(ADULT_PATH),
        attributes=attributes,
    )


def flights_source(epsilon: float, topic: str = "departures") -> EventsSource:
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


def read_flights() -> pl.DataFrame:
    """Return all departures in order of schedule: ``scheduled`` (ms since 1970), aircraft, origin, delay.

    An unknown aircraft is null; the delay of a cancelled departure is 1440.
    """
    return pl.read_parquet(FLIGHTS_PATH).select(
        scheduled=moment_ms(FLIGHTS_BEGIN) + pl.col("minute").cast(pl.Int64) * _MINUTE_MS,
        aircraft=pl.col("tailnum").cast(pl.String),
        origin=pl.col("origin").cast(pl.String),
        delay=pl.col("delay").cast(pl.Int64).fill_null(1440),
    )
