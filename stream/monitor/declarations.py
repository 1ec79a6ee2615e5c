"""What a source declares, for people: before it is registered, and after."""

from __future__ import annotations

import math
from collections.abc import Iterator

from schemas import (
    Bins,
    Categories,
    Domain,
    EventsSource,
    Integers,
    RecordsSource,
    Source,
    TableSource,
    ValuesSource,
)
from schemas.mechanisms import MAX_UNIVERSE
from stream.accounting.costs import to_amount, total_budget
from stream.monitor.workbench import AttributeView, Declaration
from stream.processors.budget.openings import require_reach
from stream.processors.budget.standing import require_declared


def declaration(source: Source) -> Declaration:
    """What a source declares; RefusedError if the ledger would refuse it for that alone."""
    require_reach(source)
    require_declared(source)
    attributes = source.attributes if isinstance(source, TableSource | EventsSource) else {}
    return Declaration(
        source=source,
        attributes=[
            AttributeView(name=name, kind=domain.kind, size=domain.size, outside=_outside(domain))
            for name, domain in attributes.items()
        ],
        cells=math.prod(domain.size for domain in attributes.values()) if attributes else None,
        total=to_amount(total_budget(source), source),
        neighbors=_neighbors(source),
        remarks=_remarks(source),
    )


def _outside(domain: Domain) -> str:
    match domain:
        case Categories(other=None):
            return "rows with any other value are left out"
        case Categories(other=other):
            return f"any other value counts as '{other}'"
        case Integers(outside="clamp"):
            return f"values outside {domain.minimum} to {domain.maximum} are moved to the nearer end"
        case Bins(outside="clamp"):
            return f"values outside {domain.edges[0]:g} to {domain.edges[-1]:g} count in the nearer end bin"
        case _:
            return "rows with a value outside are left out"


def _neighbors(source: Source) -> str:  # noqa: PLR0911 - one for each kind of source
    match source:
        case TableSource(person=str(person), contribution=most):
            differ = "one person more" if source.neighbors == "add-remove" else "another person in one's place"
            rows = "one row counts" if most == 1 else f"at most {most:,} rows count"
            return (
                f"two tables are neighbours if one has {differ}, with all rows of that '{person}', of which {rows}"
            )
        case TableSource(neighbors="add-remove"):
            return "two tables are neighbours if one has one row more: one person is one row, and the number of rows is private"
        case TableSource():
            return "two tables are neighbours if one row is another person's: one person is one row, and the number of rows is public"
        case RecordsSource(contributions=contributions):
            events = "one event" if contributions == 1 else f"up to {contributions:,} events"
            return f"one person sends {events} to a stream; neighbours differ in what that person sends"
        case EventsSource(contribution=most):
            differ = "one person more" if source.neighbors == "add-remove" else "another person in one's place"
            events = "one event counts" if most == 1 else f"at most {most:,} events count"
            when = "" if source.period is None else f" in one period of {source.period}"
            return (
                f"two topics are neighbours if one has {differ}, with all events of that '{source.person}'{when}, of which {events} in each "
                "window of a stream"
            )
        case ValuesSource(neighbors="add-remove"):
            return f"with or without one person, every value moves by at most {source.sensitivity:g}"
        case ValuesSource():
            return f"with another person in one's place, every value moves by at most {source.sensitivity:g}"


def _of_a_topic(source: EventsSource) -> Iterator[str]:
    yield f"its streams are standing: they ask of the windows of topic '{source.topic}', which must be keyed by '{source.person}'"
    if source.clock == "broker":
        yield (
            f"windows close by the broker's stamps: topic '{source.topic}' needs message.timestamp.type=LogAppendTime; a silent partition "
            f"follows the clock {source.idle} behind"
        )
    else:
        yield "windows close by the marks in the topic alone: whoever replays events writes them to every partition"
    yield f"an event whose '{source.time}' is more than {source.ahead} ahead of the clock is refused"


def _remarks(source: Source) -> list[str]:
    remarks = []
    if isinstance(source, TableSource):
        cells = math.prod(domain.size for domain in source.attributes.values())
        if cells > MAX_UNIVERSE:
            remarks.append(
                f"all cells together are more than {MAX_UNIVERSE:,}: a histogram takes some of the attributes; pmw takes all"
            )
        remarks.append("the budget service reads the table when it registers the source; the monitor cannot")
    if isinstance(source, ValuesSource):
        low = "no least" if source.minimum is None else f"{source.minimum:g} as the least"
        high = "no largest" if source.maximum is None else f"{source.maximum:g} as the largest"
        remarks.append(f"values are rounded to multiples of {source.grid:g}, with {low} and {high}")
    if isinstance(source, EventsSource):
        remarks += _of_a_topic(source)
    if source.population is not None:
        remarks.append(
            f"what is granted counts against the budget of population '{source.population}' as well, which must be registered"
        )
    if source.renews is not None:
        remarks.append(
            f"the budget renews every {source.renews}: it bounds what each such period may grant, not all of them"
        )
    if source.accountant == "zcdp":
        remarks.append("zCDP: streams with Gaussian noise count by ρ, which goes further than ε and δ added up")
    return remarks
