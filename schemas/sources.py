"""Sources: what has a privacy budget."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    BeforeValidator,
    FailFast,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from schemas.base import ByKind, Delta, Epsilon, Event, Identifier, Number, Renewal, SparingEvent, matching
from schemas.table_places import Address
from schemas.windows import Moment, Span, moment_ms, span_ms, written_moment

AttributeName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Category = Annotated[str, StringConstraints(max_length=256)]

MAX_DOMAIN_SIZE = 1 << 20
"""Most values that one attribute's domain may have."""

MAX_ROWS = 1 << 30
"""Most rows that a table may have."""

MAX_CONTRIBUTION = 1_000_000
"""Most rows, or events, of one person that may count."""


class Categories(Event):
    """A closed list of category names.

    A row holding any other value takes the category ``other``, or is left out of the table where ``other`` is
    not given. Both rules look at one row at a time, so that they keep the neighbouring relation.
    """

    kind: Literal["categories"] = "categories"
    values: Annotated[
        tuple[Category, ...], Field(min_length=1, max_length=MAX_DOMAIN_SIZE, strict=False), FailFast()
    ]
    other: Category | None = None

    @model_validator(mode="after")
    def _distinct(self) -> Categories:
        if len(set(self.values)) != len(self.values):
            raise ValueError("values must be distinct; remove the repeated category")
        if self.other is not None and self.other not in self.values:
            raise ValueError("other must be one of values; add it there")
        return self

    @property
    def size(self) -> int:
        """How many values the domain has."""
        return len(self.values)


class Integers(Event):
    """Whole numbers from ``minimum`` to ``maximum``, both included.

    A value outside is clamped to the nearer end, or its row is left out (``reject``).
    """

    kind: Literal["integers"] = "integers"
    minimum: Annotated[int, Field(ge=-(2**53), le=2**53)]
    maximum: Annotated[int, Field(ge=-(2**53), le=2**53)]
    outside: Literal["clamp", "reject"] = "clamp"

    @model_validator(mode="after")
    def _ordered(self) -> Integers:
        if self.maximum < self.minimum:
            raise ValueError("maximum must not be below minimum; swap them")
        if self.size > MAX_DOMAIN_SIZE:
            raise ValueError(f"the range has more than {MAX_DOMAIN_SIZE} values; declare bins instead")
        return self

    @property
    def size(self) -> int:
        """How many values the domain has."""
        return self.maximum - self.minimum + 1


class Bins(Event):
    """Real numbers, known only by the half-open bin ``[edges[i], edges[i+1])`` that holds them.

    The last bin includes its upper edge. Predicates compare with edges only. A value outside is put into the
    nearer end bin, or its row is left out (``reject``).
    """

    kind: Literal["bins"] = "bins"
    edges: Annotated[tuple[Number, ...], Field(min_length=2, max_length=MAX_DOMAIN_SIZE, strict=False), FailFast()]
    outside: Literal["clamp", "reject"] = "clamp"

    @field_validator("edges")
    @classmethod
    def _increasing(cls, edges: tuple[float, ...]) -> tuple[float, ...]:
        if any(low >= high for low, high in pairwise(edges)):
            raise ValueError("edges must increase strictly; sort them and remove repeats")
        return edges

    @property
    def size(self) -> int:
        """How many bins the domain has."""
        return len(self.edges) - 1


def _from_shorthand(value: Any) -> Any:
    """Read ``85`` as the integers 0..84 and ``["F", "M"]`` as categories, as domain files commonly put it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "integers", "minimum": 0, "maximum": value - 1, "outside": "clamp"}
    if isinstance(value, list | tuple):
        return {"kind": "categories", "values": value}
    return value


_DeclaredDomain = Annotated[Categories | Integers | Bins, Field(discriminator="kind"), ByKind()]
_Shorthand = (
    Annotated[int, Field(ge=1, le=MAX_DOMAIN_SIZE)]
    | Annotated[tuple[Category, ...], Field(min_length=1, max_length=MAX_DOMAIN_SIZE)]
)

Domain = Annotated[
    _DeclaredDomain,
    BeforeValidator(_from_shorthand, json_schema_input_type=_DeclaredDomain | _Shorthand),
]
"""The declared values of one attribute."""


class _Source(SparingEvent):
    """``population`` names the people whom it is about; ``renews`` says how long a period of its budget is."""

    wire_omits: ClassVar[frozenset[str]] = frozenset({"population", "renews"})

    source: Identifier
    neighbors: Literal["add-remove", "replace"]
    epsilon: Epsilon
    delta: Delta = 0.0
    accountant: Literal["pure", "zcdp"] = "pure"
    population: Identifier | None = None
    renews: Renewal | None = None

    @model_validator(mode="after")
    def _accountant_has_delta(self) -> _Source:
        if self.accountant == "zcdp" and self.delta <= 0.0:
            raise ValueError("delta must be above 0 with accountant 'zcdp'; give one, or use accountant 'pure'")
        return self


class ValuesSource(_Source):
    """A trusted feed: each query event carries its own private value.

    ``sensitivity`` bounds how far one person moves any value; values are rounded to multiples of ``grid`` before
    they meet noise. Values are clamped to ``minimum`` … ``maximum``; where one is not given, it is ∓10¹⁵, or as far as
    2⁵⁰ steps of the grid reach. A range beyond those steps is refused, and a grid that reaches less than 10⁹ without one.
    """

    wire_omits: ClassVar[frozenset[str]] = _Source.wire_omits | {"minimum", "maximum"}

    kind: Literal["values"]
    sensitivity: Annotated[float, Field(ge=1e-12, le=1e12)]
    grid: Annotated[float, Field(ge=1e-12, le=1e12)] = 1.0
    minimum: Number | None = None
    maximum: Number | None = None

    @model_validator(mode="after")
    def _ordered(self) -> ValuesSource:
        if self.minimum is not None and self.maximum is not None and self.minimum >= self.maximum:
            raise ValueError("maximum must be above minimum; swap them, or leave both out")
        return self


class RecordsSource(_Source):
    """A feed of people's own records: each query event carries one person's category.

    One person sends at most ``contributions`` events to any one stream. Under local privacy there is no table that
    neighbours could differ in but by replacing what a person sends.
    """

    kind: Literal["records"]
    neighbors: Literal["replace"] = "replace"
    contributions: Annotated[int, Field(ge=1, le=MAX_CONTRIBUTION)] = 1


class TableSource(_Source):
    """A table with declared attribute domains; queries are predicates that count rows, or people.

    One row is one person, unless ``person`` names the column that says whose row it is. Of each person at most
    ``contribution`` rows count then, chosen by a keyed hash of the person's own rows; rows that name nobody are left out. What is
    protected is a person with all rows, and neighbours differ in one person.

    ``path`` is a file's, a folder's with ``/`` at its end, one with wildcards, or an address (s3:// or postgresql://).
    """

    wire_omits: ClassVar[frozenset[str]] = _Source.wire_omits | {"person", "contribution"}

    kind: Literal["table"]
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    attributes: Annotated[dict[AttributeName, Domain], Field(min_length=1, max_length=1024)]
    person: AttributeName | None = None
    contribution: Annotated[int, Field(ge=1, le=MAX_CONTRIBUTION)] = 1

    @field_validator("path")
    @classmethod
    def _public(cls, path: str) -> str:
        Address.of_table(path)
        return path

    @model_validator(mode="after")
    def _whose_rows(self) -> TableSource:
        if self.person is None and self.contribution != 1:
            raise ValueError(
                "contribution: needs the column that says whose row it is; name it in person, or leave it out"
            )
        return self


TopicName = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9._\-]+$",
        "a topic's name has letters from A to Z and a to z, digits and . _ - alone; give one, as ops.departures",
        min_length=1,
        max_length=249,
    ),
]
FieldPath = Annotated[
    str,
    matching(
        r"^[^.\x00-\x1f]+(\.[^.\x00-\x1f]+){0,7}$",
        "give the field's name or, for a nested one, up to 8 names with dots between them, as user.id",
        min_length=1,
        max_length=256,
    ),
]
"""Where a field stands in a JSON event: its name or, for a nested one, the names on the way to it, as in ``user.id``."""


class EventsSource(_Source):
    """A Kafka topic of people's events, as JSON; standing streams count what is in its windows.

    ``person`` says where the event names whose it is, ``time`` where it says when it was: in ISO 8601 with a zone, or in
    milliseconds since 1970. The topic is keyed by the person. ``attributes`` are those that predicates, groups and sums may name;
    each stands in the event under its own name, or where ``fields`` says. Of each person at most ``contribution`` events count in
    one window of one stream, those that came first; ``total`` bounds what counts of a person in all windows of a stream of
    ``running_count``, or in those of one period.

    What is protected is all that a person ever does (``unit``: ``person``) or what a person does in one ``period``; each period has a
    budget then, as an account of its own: a source which names the source that it is a period of (``period_of``) and when it ``starts``.
    Those begin by themselves. Windows close by the ``clock``: that of the broker, which stamps each event, or the time that marks in the
    topic tell, as for events that are replayed. No event's own time moves it. An event that is more than ``ahead`` of the clock is
    refused. A partition that is silent follows the clock of the feed, behind by ``idle``.
    """

    wire_omits: ClassVar[frozenset[str]] = _Source.wire_omits | {
        "fields",
        "total",
        "unit",
        "period",
        "period_of",
        "starts",
        "clock",
        "ahead",
        "idle",
    }

    kind: Literal["events"]
    topic: TopicName
    person: FieldPath
    time: FieldPath
    attributes: Annotated[dict[AttributeName, Domain], Field(max_length=64)] = Field(default_factory=dict)
    fields: Annotated[dict[AttributeName, FieldPath], Field(max_length=64)] = Field(default_factory=dict)
    contribution: Annotated[int, Field(ge=1, le=MAX_CONTRIBUTION)] = 1
    total: Annotated[int, Field(ge=1, le=MAX_CONTRIBUTION)] | None = None
    unit: Literal["person", "person-period"] = "person"
    period: Span | None = None
    period_of: Identifier | None = None
    starts: Moment | None = None
    clock: Literal["broker", "marks"] = "broker"
    ahead: Span = "5m"
    idle: Span = "5s"

    @model_validator(mode="after")
    def _consistent(self) -> EventsSource:
        if (self.unit == "person-period") is not (self.period is not None):
            raise ValueError("unit, period: a period goes with unit 'person-period' alone; give both, or neither")
        if self.period is not None and not HOUR_MS <= span_ms(self.period) <= 366 * 24 * HOUR_MS:
            raise ValueError("period: must be between an hour and 366 days; give another")
        if self.period is not None and self.renews is not None:
            raise ValueError("renews: the budget is one for each period already; leave it out")
        if self.period_of is not None or self.starts is not None:
            self._require_period()
        if unknown := self.fields.keys() - self.attributes.keys():
            raise ValueError(f"fields: {len(unknown)} of them are no attributes; declare them in attributes")
        if self.total is not None and self.total < self.contribution:
            raise ValueError("total: must not be below contribution; raise it, or lower contribution")
        return self

    def _require_period(self) -> None:
        if self.period is None or self.period_of is None or self.starts is None:
            raise ValueError(
                "period_of, starts: go together, and with a period; leave them out, for periods begin by themselves"
            )
        if self.source != named_at(self.period_of, moment_ms(self.starts)):
            raise ValueError("source: is not the name of this period; leave period_of and starts out")

    @property
    def has_periods(self) -> bool:
        """Whether each period of it is an account of its own."""
        return self.period is not None and self.period_of is None

    @property
    def period_ms(self) -> int:
        """The length of a period; 0 without periods."""
        return 0 if self.period is None else span_ms(self.period)

    def of_period(self, start: int) -> EventsSource:
        """The account of the period that begins at a moment."""
        changed = {
            "source": named_at(self.source, start),
            "period_of": self.source,
            "starts": written_moment(start),
        }
        return self.model_copy(update=changed)

    def sharing(self, other: EventsSource) -> EventsSource:
        """The same, with the other's attributes where they are equal: thousands of periods keep one copy of them."""
        if self is other or self.attributes != other.attributes:
            return self
        return self.model_copy(update={"attributes": other.attributes})

    def path_of(self, attribute: str) -> str:
        """Where an attribute stands in an event."""
        return self.fields.get(attribute, attribute)


HOUR_MS = 3_600_000

MAX_PARENT_NAME = 96
"""Longest name of a source or a stream with periods: those of its periods have their moments behind it."""


def named_at(name: str, start: int) -> str:
    """What a source or a stream is called in the period that begins at a moment."""
    return f"{name}@{written_moment(start)}"


_NAMED_AT: Final = re.compile(r"(.+)@(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?Z)")


def named_from(name: str) -> tuple[str, str] | None:
    """Whose name a source or a stream of a period goes by, and when that starts; None for any other name.

    Nobody registers or opens what is called like that: it begins by itself.
    """
    found = _NAMED_AT.fullmatch(name) if name.endswith("Z") else None
    return None if found is None else (found[1], found[2])


def registered_as(name: str) -> str:
    """What a source was registered, or a stream was opened as: that of a period as what it is one of."""
    named = named_from(name)
    return name if named is None else named[0]


Source = Annotated[
    ValuesSource | RecordsSource | TableSource | EventsSource, Field(discriminator="kind"), ByKind()
]
"""What has a budget: a feed of trusted values, a feed of people's own records, a table, or a live topic of people's events."""
