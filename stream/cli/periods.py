"""Periods as commands list them: a line for each source or stream that was registered or opened, with the figures of its latest period."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Generic, NamedTuple, TypeVar

import typer

from schemas import named_from, registered_as

_Item = TypeVar("_Item")

AllPeriods = Annotated[
    bool, typer.Option("--all", help="List each period of a live topic by itself; --json always has them all.")
]


class Line(NamedTuple, Generic[_Item]):
    """What stands in a line: ``item`` has its figures, ``period`` which period they are of and how many there are, or nothing."""

    name: str
    item: _Item
    period: str = ""


def folded(items: Iterable[_Item], name_of: Callable[[_Item], str], *, every: bool = False) -> list[Line[_Item]]:
    """The lines of a list, in its order; with ``every`` one for each period as well."""
    lines: dict[str, list[_Item]] = {}
    for item in items:
        lines.setdefault(name_of(item) if every else registered_as(name_of(item)), []).append(item)
    return [_line(name, found, name_of) for name, found in lines.items()]


def _line(name: str, found: list[_Item], name_of: Callable[[_Item], str]) -> Line[_Item]:
    periods = [(name_of(item).removeprefix(f"{name}@"), item) for item in found if name_of(item) != name]
    if not periods:
        return Line(name, found[0])
    start, latest = max(periods, key=lambda one: one[0])
    return Line(name, latest, f"{moment(start)}, of {len(periods):,}")


def moment(start: str) -> str:
    """When a period begins, with no digit that all its likes share."""
    return start.removesuffix("Z").removesuffix(":00").removesuffix("T00:00")


def in_periods(source: str, wanted: str) -> bool:
    """Whether a source is this one, or the account of one of its periods."""
    named = named_from(source)
    return wanted == source or (named is not None and named[0] == wanted)
