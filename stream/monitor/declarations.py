"""What a source declares, for people: before it is registered, and after."""

from __future__ import annotations

import math

from schemas import Bins, Categories, Domain, Integers, RecordsSource, Source, TableSource, ValuesSource
from schemas.mechanisms import MAX_UNIVERSE
from stream.accounting.costs import to_amount, total_budget
from stream.monitor.workbench import AttributeView, Declaration
from stream.processors.budget.openings import require_reach


def declaration(source: Source) -> Declaration:
    """What a source declares; RefusedError if the ledger would refuse it for that alone."""
    require_reach(source)
    attributes = source.attributes if isinstance(source, TableSource) else {}
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


def _neighbors(source: Source) -> str:
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
        case ValuesSource(neighbors="add-remove"):
            return f"with or without one person, every value moves by at most {source.sensitivity:g}"
        case _:
            return f"with another person in one's place, every value moves by at most {source.sensitivity:g}"


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
