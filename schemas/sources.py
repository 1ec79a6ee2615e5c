"""Sources and populations: data with a privacy budget, and people in several sources with a common budget."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from schemas.base import (
    Amount,
    ByKind,
    Count,
    Delta,
    Epsilon,
    Event,
    Identifier,
    Milliseconds,
    Number,
    Reason,
    Renewal,
    Surplus,
    require_delta,
    text_matching,
)
from schemas.domains import AttributeName, Domain
from schemas.table_places import Address, TablePath, View, require_public_path
from schemas.windows import Moment, Span, format_moment, moment_ms, period_name, span_ms

MAX_ROWS = 1 << 30

MAX_CONTRIBUTION = 1_000_000

MAX_TEXT_BYTES = 256

MAX_TEXTS = 1 << 20
"""Maximum number of different texts of one attribute in a table."""


class Text(Event):
    """An attribute whose values are private texts of at most ``max_length`` bytes of UTF-8.

    Texts are compared byte by byte: nothing is stripped, folded or normalized. A row whose text is missing, empty
    or longer belongs to no group; it counts in all other questions.
    """

    kind: Literal["text"]
    max_length: Annotated[int, Field(ge=1, le=MAX_TEXT_BYTES)] = 64


def _is_text(given: Any) -> bool:
    return isinstance(given, Text) or (isinstance(given, dict) and given.get("kind") == "text")


def _require_attributes(field: str, unknown: AbstractSet[str]) -> None:
    """Refuse names that are not attributes; the message quotes at most three."""
    if unknown:
        more = f" and {len(unknown) - 3:,} more" if len(unknown) > 3 else ""
        named = ", ".join(f"'{name}'" for name in sorted(unknown)[:3])
        raise ValueError(f"{field}: not attributes: {named}{more}; declare them in attributes")


class _Source(Event, wire_omits={"population", "renews"}):
    """The fields of every source; ``population`` names the people in it, ``renews`` is the budget's period."""

    source: Identifier
    neighbors: Literal["add-remove", "replace"]
    epsilon: Epsilon
    delta: Delta = 0.0
    accountant: Literal["pure", "zcdp"] = "pure"
    population: Identifier | None = None
    renews: Renewal | None = None

    _accountant_has_delta = model_validator(mode="after")(require_delta)


class _DeclaringSource(_Source):
    """A source that declares attributes and ``texts``; a definition may list texts among its ``attributes``."""

    @model_validator(mode="before")
    @classmethod
    def _move_texts(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        attributes, texts = (given.get(name) or {} for name in ("attributes", "texts"))
        if not isinstance(attributes, dict) or not isinstance(texts, dict):
            return given
        if attributes.keys() & texts.keys():
            raise ValueError("texts: an attribute is declared in texts and in attributes; declare it once")
        found = {name: one for name, one in attributes.items() if _is_text(one)}
        declared = {name: one for name, one in attributes.items() if name not in found}
        return {**given, "attributes": declared, "texts": {**texts, **found}} if found else given


class ValuesSource(_Source, wire_omits={"minimum", "maximum"}):
    """A source of trusted values: each query event carries its private value.

    ``sensitivity`` is the most by which one person moves any value. Before noise is added, values are clamped to the
    range from ``minimum`` to ``maximum`` and rounded to multiples of ``grid``. A missing limit is ∓10¹⁵ or, if that
    is nearer to 0, ∓2⁵⁰ steps of the grid. A range of more than 2⁵⁰ steps is refused. Without a range, a grid whose
    2⁵⁰ steps do not reach 10⁹ is refused too.
    """

    kind: Literal["values"]
    sensitivity: Annotated[float, Field(ge=1e-12, le=1e12)]
    grid: Annotated[float, Field(ge=1e-12, le=1e12)] = 1.0
    minimum: Number | None = None
    maximum: Number | None = None

    @model_validator(mode="after")
    def _require_order(self) -> ValuesSource:
        if self.minimum is not None and self.maximum is not None and self.minimum >= self.maximum:
            raise ValueError("maximum must be above minimum; swap them, or leave both out")
        return self


class RecordsSource(_Source):
    """A source of people's records: each query event carries one person's category.

    One person sends at most ``contributions`` events to any one stream. Each record is randomized by itself (local
    privacy), and neighbors differ in the records that one person sends.
    """

    kind: Literal["records"]
    neighbors: Literal["replace"] = "replace"
    contributions: Annotated[int, Field(ge=1, le=MAX_CONTRIBUTION)] = 1


class TableSource(
    _DeclaringSource, wire_omits={"path", "view", "person", "contribution", "columns", "texts", "engine"}
):
    """A table with declared attribute domains; queries count the rows or people of a predicate.

    Each row is one person, unless ``person`` names the column with the person's id. Then at most ``contribution``
    rows of each person count, chosen by a keyed hash of the person's rows; rows without an id are left out. The unit
    of privacy is a person with all rows, and neighbors differ in one person.

    ``columns`` has the column of each attribute whose column has another name; several attributes may have the same
    column. ``path`` is a file, a folder with ``/`` at its end, a pattern, or an address (of a store, as s3://, or of
    a server, as postgresql://). Instead of a path, a ``view`` makes the rows from several tables.

    ``texts`` are attributes with private values, by which only ``unknown_groups`` groups. A definition may list them
    in ``attributes``, as ``{"kind": "text"}``.

    ``engine`` says where the rows are counted: in the worker's ``memory``, or in a ``duckdb`` database on the
    worker's disk. Both give the same numbers.
    """

    kind: Literal["table"]
    path: TablePath | None = None
    view: View | None = None
    attributes: Annotated[dict[AttributeName, Domain], Field(min_length=1, max_length=1024)]
    columns: Annotated[dict[AttributeName, AttributeName], Field(max_length=1024)] = Field(default_factory=dict)
    person: AttributeName | None = None
    contribution: Annotated[int, Field(ge=1, le=MAX_CONTRIBUTION)] = 1
    texts: Annotated[dict[AttributeName, Text], Field(max_length=16)] = Field(default_factory=dict)
    engine: Literal["memory", "duckdb"] = "memory"

    @model_validator(mode="before")
    @classmethod
    def _require_values(cls, given: Any) -> Any:
        attributes = given.get("attributes") if isinstance(given, dict) else None
        if isinstance(attributes, dict) and attributes and all(map(_is_text, attributes.values())):
            raise ValueError(
                "attributes: all of them are texts; declare another one, with its values or its range"
            )
        return given

    @field_validator("path")
    @classmethod
    def _require_public_path(cls, path: str | None) -> str | None:
        return None if path is None else require_public_path(path)

    @model_validator(mode="after")
    def _require_place(self) -> TableSource:
        if (self.path is None) is (self.view is None):
            raise ValueError("path, view: a table has either a path or a view of several tables; give one of them")
        if self.view is not None:
            self.view.require_person(self.person)
        return self

    @model_validator(mode="after")
    def _check_columns(self) -> TableSource:
        if self.person is None and self.contribution != 1:
            raise ValueError("contribution: needs a person column; name it in person, or leave contribution out")
        _require_attributes("columns", self.columns.keys() - self.attributes.keys() - self.texts.keys())
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of all tables that are read."""
        found = () if self.view is None else (table.path for table in self.view.tables.values())
        return tuple(dict.fromkeys(found)) if self.path is None else (self.path,)

    @property
    def private_paths(self) -> tuple[str, ...]:
        """The paths of all tables that have rows of people."""
        if self.view is None:
            return self.paths
        return tuple(dict.fromkeys(table.path for table in self.view.tables.values() if not table.key))

    @property
    def addresses(self) -> list[Address]:
        """The paths that are addresses."""
        return [address for path in self.paths if (address := Address.parse_table(path)) is not None]

    def column_of(self, attribute: str) -> str:
        """Return the column of an attribute in the table."""
        return self.columns.get(attribute, attribute)


TopicName = Annotated[
    str,
    text_matching(
        r"^[A-Za-z0-9._\-]+$",
        "a topic's name has only letters from A to Z and a to z, digits and . _ -; give one, as ops.departures",
        min_length=1,
        max_length=249,
    ),
]
FieldPath = Annotated[
    str,
    text_matching(
        r"^[^.\x00-\x1f]+(\.[^.\x00-\x1f]+){0,7}$",
        "give the field's name or, for a nested one, up to 8 names with dots between them, as user.id",
        min_length=1,
        max_length=256,
    ),
]
"""Path of a field in a JSON event: its name, or nested names as in ``user.id``."""


class EventsSource(
    _DeclaringSource,
    wire_omits={"fields", "total", "unit", "period", "period_of", "starts", "clock", "ahead", "idle", "texts"},
):
    """A live topic: a Kafka topic of people's JSON events, counted in windows.

    * ``person`` is the path of the person's id, which is also the key of the record. ``time`` is the path of the
      event's time: ISO 8601 with a zone, or milliseconds since 1970.
    * Predicates, groups and sums may use ``attributes``. ``texts`` have private values, by which only
      ``unknown_groups`` groups. ``fields`` has the path of each of these whose path differs from its name.
    * At most ``contribution`` events of each person count in one window of one stream, the earliest first.
      ``total`` bounds a person's events in all windows of a ``running_count`` stream, or of one period of it.
    * The ``unit`` of privacy is all events of a ``person``, or a person's events in one ``period``. Each period has a
      separate budget: Sotto opens an account for it, which names its source (``period_of``) and its start (``starts``).
    * The ``clock`` closes windows. It is the broker's timestamps or, for replayed events, marks in the topic. An
      event's time never moves the clock. Events more than ``ahead`` of the clock are refused. A silent partition
      follows the feed's clock with a delay of ``idle``.
    """

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
    texts: Annotated[dict[AttributeName, Text], Field(max_length=16)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_fields(self) -> EventsSource:
        if (self.unit == "person-period") is not (self.period is not None):
            raise ValueError(
                "unit, period: unit 'person-period' needs a period, and no other unit has one; give both, or neither"
            )
        if self.period is not None and not HOUR_MS <= span_ms(self.period) <= 366 * 24 * HOUR_MS:
            raise ValueError("period: must be between an hour and 366 days; give another")
        if self.period is not None and self.renews is not None:
            raise ValueError("renews: each period already has a separate budget; leave renews out")
        if self.period_of is not None or self.starts is not None:
            self._require_period()
        _require_attributes("fields", self.fields.keys() - self.attributes.keys() - self.texts.keys())
        if self.total is not None and self.total < self.contribution:
            raise ValueError("total: must not be below contribution; raise it, or lower contribution")
        return self

    def _require_period(self) -> None:
        if self.period is None or self.period_of is None or self.starts is None:
            raise ValueError("period_of, starts: are set by Sotto when it begins a period; leave them out")
        if self.source != period_name(self.period_of, moment_ms(self.starts)):
            raise ValueError("source: is not the name of this period; leave period_of and starts out")

    @property
    def has_periods(self) -> bool:
        """True if each period is a separate account."""
        return self.period is not None and self.period_of is None

    @property
    def opening_lead_ms(self) -> int:
        """Milliseconds from a stream's opening to the first window that feeds count completely.

        With clock ``broker``, feeds count from ``idle`` after the broker's timestamp of the control event. A second
        ``idle`` allows for the time from the opening to this timestamp, in which the event is committed.
        """
        return 2 * span_ms(self.idle) if self.clock == "broker" else 0

    @property
    def period_ms(self) -> int:
        """Length of a period in milliseconds; 0 without periods."""
        return 0 if self.period is None else span_ms(self.period)

    def account_of_period(self, start: int) -> EventsSource:
        """Return the account of the period that starts at a timestamp."""
        changed = {
            "source": period_name(self.source, start),
            "period_of": self.source,
            "starts": format_moment(start),
        }
        return self.model_copy(update=changed)

    def with_shared_attributes(self, other: EventsSource) -> EventsSource:
        """Return the source with the other source's attributes, if they are equal, to save memory."""
        if self is other or self.attributes != other.attributes:
            return self
        return self.model_copy(update={"attributes": other.attributes})

    def path_of(self, attribute: str) -> str:
        """Return the path of an attribute in an event."""
        return self.fields.get(attribute, attribute)


HOUR_MS = 3_600_000

Source = Annotated[
    ValuesSource | RecordsSource | TableSource | EventsSource, Field(discriminator="kind"), ByKind()
]
"""A source: values in queries, people's records, a table, or a live topic."""


class Population(Event, wire_omits={"renews"}):
    """The same people in several sources, whose grants count against this budget as well.

    ``renews`` is the length of the budget's period. Without it, the budget never renews.
    """

    population: Identifier
    epsilon: Epsilon
    delta: Delta = 0.0
    accountant: Literal["pure", "zcdp"] = "pure"
    renews: Renewal | None = None

    _accountant_has_delta = model_validator(mode="after")(require_delta)


class Period(Event):
    """The current period of a renewing budget, by the ledger's clock; the first period has the number 1.

    It begins at ``starts`` and ends before ``ends``, in Unix milliseconds.
    ``counted`` is the amount that counts against the budget in this period: the grants of this period, and the unspent
    rest of streams that were open when it began. ``meaning`` explains the budget's promise.
    """

    number: Count
    starts: Milliseconds
    ends: Milliseconds
    counted: Amount
    meaning: Reason


class EdgeTotals(Event):
    """A stream's totals when a period began; ``settled`` is true if the stream had ended."""

    answered: Count
    tops: Count
    surplus: Surplus = 0
    extensions: Count = 0
    settled: bool = False


class GrantPeriod(Event):
    """The ``period`` of a renewing budget in which a grant last changed.

    ``totals`` are the stream's totals at the beginning of that period. They are null if the grant was opened in that
    period, or joined the budget in it with its source.
    """

    period: Count
    totals: EdgeTotals | None = None
