"""Domains: the values that an attribute may take, declared in public."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, FailFast, Field, StringConstraints, field_validator, model_validator

from schemas.base import ByKind, Event, Number
from schemas.calendars import (
    DATE_PARTS,
    FIRST_YEAR,
    LAST_YEAR,
    Calendar,
    Granularity,
    find_zone,
    format_day,
    parse_day,
)

AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Category = Annotated[str, StringConstraints(max_length=256)]

MAX_DOMAIN_SIZE = 1 << 20


class Categories(Event, wire_omits={"ordered"}):
    """A closed list of category names; if ``ordered``, from the least to the greatest.

    A row with any other value gets the category ``other``; if that is not declared, the row is left out of
    the table. Both rules depend on the row alone, so tables that were neighbors stay neighbors.
    """

    kind: Literal["categories"] = "categories"
    values: Annotated[
        tuple[Category, ...], Field(min_length=1, max_length=MAX_DOMAIN_SIZE, strict=False), FailFast()
    ]
    other: Category | None = None
    ordered: bool = False

    @model_validator(mode="after")
    def _require_distinct(self) -> Categories:
        if len(set(self.values)) != len(self.values):
            raise ValueError("values must be distinct; remove the repeated category")
        if self.other is not None and self.other not in self.values:
            raise ValueError("other must be one of values; add it there")
        return self

    @property
    def size(self) -> int:
        """Number of values in the domain."""
        return len(self.values)


class Integers(Event):
    """Whole numbers from ``minimum`` to ``maximum``, both included.

    A value out of range is clamped to the nearer end, or its row is left out (``reject``).
    """

    kind: Literal["integers"] = "integers"
    minimum: Annotated[int, Field(ge=-(2**53), le=2**53)]
    maximum: Annotated[int, Field(ge=-(2**53), le=2**53)]
    outside: Literal["clamp", "reject"] = "clamp"

    @model_validator(mode="after")
    def _require_order(self) -> Integers:
        if self.maximum < self.minimum:
            raise ValueError("maximum must not be below minimum; swap them")
        if self.size > MAX_DOMAIN_SIZE:
            raise ValueError(f"the range has more than {MAX_DOMAIN_SIZE} values; declare bins instead")
        return self

    @property
    def size(self) -> int:
        """Number of values in the domain."""
        return self.maximum - self.minimum + 1

    @property
    def in_steps(self) -> Integers:
        """The range in whole numbers of ``unit``, which is this range itself."""
        return self

    @property
    def unit(self) -> Fraction:
        """The unit of ``in_steps``: 1."""
        return _ONE


_ONE: Final = Fraction(1)

MAX_STEPS_FROM_ZERO = 1 << 40
"""Maximum number of steps from 0 to either end of a decimal range; doubles then resolve a small part of a step."""


class Decimals(Event):
    """Decimal numbers from ``minimum`` to ``maximum`` in steps of ``step``, as amounts with cents.

    A value between two steps becomes the nearer step; halfway, it becomes the step farther from 0. A value out of
    range is then clamped to the nearer end, or its row is left out (``reject``).
    """

    kind: Literal["decimal"] = "decimal"
    minimum: Number
    maximum: Number
    step: Annotated[float, Field(ge=1e-9, le=1e9)]
    outside: Literal["clamp", "reject"] = "clamp"

    @model_validator(mode="after")
    def _require_whole_steps(self) -> Decimals:
        if self.maximum < self.minimum:
            raise ValueError("maximum must not be below minimum; swap them")
        for name in ("minimum", "maximum"):
            steps = _exact_fraction(getattr(self, name)) / self.unit
            if steps.denominator != 1:
                raise ValueError(
                    f"{name} must be a multiple of step; give one, as {_nearest_multiples(steps, self.unit)}"
                )
            if abs(steps) > MAX_STEPS_FROM_ZERO:
                raise ValueError(f"{name} is more than {MAX_STEPS_FROM_ZERO} steps from 0; declare a larger step")
        if self.size > MAX_DOMAIN_SIZE:
            larger = self.step
            while (self.maximum - self.minimum) / larger >= MAX_DOMAIN_SIZE:
                larger *= 10
            raise ValueError(
                f"the range has {self.size:,} steps, and at most {MAX_DOMAIN_SIZE:,} are possible; "
                f"declare a step of {larger:g}, or bins instead"
            )
        return self

    @property
    def size(self) -> int:
        """Number of values in the domain."""
        return self.in_steps.size

    @property
    def in_steps(self) -> Integers:
        """The range in whole numbers of ``unit``, in which sums are computed."""
        return _in_steps(self.minimum, self.maximum, self.step, self.outside)

    @property
    def unit(self) -> Fraction:
        """The step as an exact number."""
        return _exact_fraction(self.step)

    def format_steps(self, steps: int) -> str:
        """Write a number of steps as a decimal, with as many digits after the point as the step."""
        return f"{decimal_of(steps * self.unit):.{_decimal_places(self.step)}f}"

    def values(self) -> tuple[float, ...]:
        """Return all values in ascending order, each as the nearest double."""
        whole, unit = self.in_steps, self.unit
        return tuple(
            steps * unit.numerator / unit.denominator for steps in range(whole.minimum, whole.maximum + 1)
        )


@lru_cache(maxsize=4096)
def _exact_fraction(value: float) -> Fraction:
    return Fraction(Decimal(repr(float(value))))


@lru_cache(maxsize=1024)
def _in_steps(minimum: float, maximum: float, step: float, outside: Literal["clamp", "reject"]) -> Integers:
    first, last = (int(_exact_fraction(end) / _exact_fraction(step)) for end in (minimum, maximum))
    return Integers.model_construct(kind="integers", minimum=first, maximum=last, outside=outside)


def _decimal_places(step: float) -> int:
    """Return the number of digits after the point of a step."""
    exponent = Decimal(repr(float(step))).normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def decimal_of(value: Fraction) -> Decimal:
    """Convert a fraction to the equal decimal, which must be finite."""
    places, denominator = 0, value.denominator
    while denominator > 1 and 10**places % denominator:
        places += 1
    return Decimal(value.numerator * 10**places // denominator).scaleb(-places)


def _nearest_multiples(steps: Fraction, unit: Fraction) -> str:
    low = steps.__floor__()
    return " or ".join(str(float(one * unit)) for one in (low, low + 1))


Numeric = Integers | Decimals
"""Domains whose values can be added up."""


class Bins(Event):
    """Real numbers, of which only the half-open bin ``[edges[i], edges[i+1])`` is kept.

    The last bin includes its upper edge. Predicates compare with edges only. A value out of range is put into
    the first or the last bin, or its row is left out (``reject``).
    """

    kind: Literal["bins"] = "bins"
    edges: Annotated[tuple[Number, ...], Field(min_length=2, max_length=MAX_DOMAIN_SIZE, strict=False), FailFast()]
    outside: Literal["clamp", "reject"] = "clamp"

    @field_validator("edges")
    @classmethod
    def _require_increasing(cls, edges: tuple[float, ...]) -> tuple[float, ...]:
        if any(low >= high for low, high in pairwise(edges)):
            raise ValueError("edges must increase strictly; sort them and remove repeats")
        return edges

    @property
    def size(self) -> int:
        """Number of bins in the domain."""
        return len(self.edges) - 1


class Dates(Event, wire_omits={"minimum", "maximum", "zone"}):
    """Dates or times, of which only the day, week, month, quarter, year or hour is kept.

    * ``minimum`` and ``maximum`` are the first and the last day, both included. A value out of range is put into
      the first or the last cell, or its row is left out (``reject``).
    * The granularities ``weekday`` (Monday is 1), ``month-of-year`` and ``hour-of-day`` are parts of a date. They
      have no range, and predicates compare them with whole numbers.
    * ``zone`` is the time zone of a ``timestamp``, by its IANA name; UTC if it is left out. Days are local days of
      the zone, and times without an offset are its local times.
    """

    kind: Literal["date", "timestamp"]
    granularity: Granularity = "day"
    minimum: Annotated[str, StringConstraints(max_length=10)] | None = None
    maximum: Annotated[str, StringConstraints(max_length=10)] | None = None
    zone: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = None
    outside: Literal["clamp", "reject"] = "clamp"

    @field_validator("minimum", "maximum")
    @classmethod
    def _normalize_day(cls, day: str | None) -> str | None:
        return None if day is None else format_day(parse_day(day))

    @model_validator(mode="after")
    def _require_zone(self) -> Dates:
        if self.kind == "timestamp":
            find_zone(self.zone or "UTC")
        elif self.zone is not None:
            raise ValueError("zone: a date has none; leave it out, or declare a timestamp")
        elif "hour" in self.granularity:
            raise ValueError("granularity: a date has no hours; declare a timestamp")
        return self

    @model_validator(mode="after")
    def _require_range(self) -> Dates:
        given = [day for day in (self.minimum, self.maximum) if day is not None]
        if self.granularity in DATE_PARTS:
            if given:
                raise ValueError("minimum, maximum: a part of a date repeats; leave them out")
            return self
        if len(given) < 2:
            raise ValueError("minimum, maximum: give the first and the last day, both included")
        if given[0] > given[1]:
            raise ValueError("maximum must not be before minimum; swap them")
        first, last = (FIRST_YEAR, LAST_YEAR) if self.kind == "timestamp" else (1, 9998)
        if not first <= int(given[0][:4]) <= int(given[1][:4]) <= last:
            raise ValueError(
                f"minimum, maximum: {self.kind}s are in the years {first} to {last}; give days in them"
            )
        if (misfit := self.calendar.misfit()) is not None:
            raise ValueError(misfit)
        if self.size > MAX_DOMAIN_SIZE:
            raise ValueError(
                f"the range has more than {MAX_DOMAIN_SIZE:,} {self.granularity}s; declare a coarser granularity"
            )
        return self

    @property
    def size(self) -> int:
        """Number of cells in the domain."""
        return self.calendar.size if self.part is None else self.part.size

    @property
    def timezone(self) -> str | None:
        """The zone of timestamps; None for dates."""
        return None if self.kind == "date" else self.zone or "UTC"

    @property
    def part(self) -> Integers | None:
        """The whole numbers of a repeating part of dates, such as the hour; None for other granularities."""
        return _PARTS.get(self.granularity)

    @property
    def calendar(self) -> Calendar:
        """The calendar cells from minimum to maximum; ValueError for a part of a date."""
        if self.minimum is None or self.maximum is None:
            raise ValueError(f"a {self.granularity} has no range")
        return Calendar(self.granularity, parse_day(self.minimum), parse_day(self.maximum), self.timezone)

    def values(self) -> tuple[str | int, ...]:
        """Return the cells in order, as predicates name them."""
        if self.part is not None:
            return tuple(range(self.part.minimum, self.part.maximum + 1))
        calendar = self.calendar
        return tuple(map(calendar.label, range(calendar.size)))


_PARTS: Final = {
    name: Integers.model_construct(kind="integers", minimum=low, maximum=high, outside="reject")
    for name, (low, high) in DATE_PARTS.items()
}


def _from_shorthand(value: Any) -> Any:
    """Expand ``85`` to the integers from 0 to 84, and ``["F", "M"]`` to categories."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "integers", "minimum": 0, "maximum": value - 1, "outside": "clamp"}
    if isinstance(value, list | tuple):
        return {"kind": "categories", "values": value}
    return value


_DeclaredDomain = Annotated[Categories | Integers | Decimals | Dates | Bins, Field(discriminator="kind"), ByKind()]
_Shorthand = (
    Annotated[int, Field(ge=1, le=MAX_DOMAIN_SIZE)]
    | Annotated[tuple[Category, ...], Field(min_length=1, max_length=MAX_DOMAIN_SIZE)]
)

Domain = Annotated[
    _DeclaredDomain, BeforeValidator(_from_shorthand, json_schema_input_type=_DeclaredDomain | _Shorthand)
]
